// Package kernellog implements the fault that writes records to the kernel logs of nodes, and verifies each record by
// reading it back.
//
// The records are computed from the node's data (its GPUs and pods) after it has been read, before anything is written.
// Records cannot be removed from a log. Undoer describes how to clear them from each reader of the log.
package kernellog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Pod is a debug pod running on a node. debugpod.Session implements it.
type Pod interface {
	// Inspect reads information about the node.
	Inspect(ctx context.Context, what api.Inspect) (*api.Info, error)
	// WriteKmsg writes records and returns those that were read back from the log. If it returns an error, the returned
	// records are the first of the records in what. As records are verified, it passes them to the function each.
	WriteKmsg(ctx context.Context, what api.WriteKmsg, each func([]api.WrittenKmsg)) ([]api.WrittenKmsg, error)
	// BuildModule builds the kernel module. WriteModule is like WriteKmsg, but writes through the module. RemoveModule
	// unloads the module if its run has left it loaded.
	BuildModule(ctx context.Context, what api.BuildModule) (*api.BuiltModule, error)
	WriteModule(ctx context.Context, what api.WriteModule, each func([]api.WrittenKmsg)) ([]api.WrittenKmsg, error)
	RemoveModule(ctx context.Context) (*api.RemovedModule, error)
	// Close deletes the pod, even if ctx is canceled.
	Close(ctx context.Context) error
}

// Start creates a debug pod for a run on a node and waits until it is running.
type Start func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (Pod, error)

// Record is a record to write.
type Record struct {
	api.KmsgRecord
	// XID and GPU describe the record for the user, such as "79" and "0000:17:00".
	XID string
	GPU string
}

// Compose computes the records to write to a node's log. If it returns an error, the run stops for this node before
// anything is written.
type Compose func(nodeName string, info api.Info) ([]Record, error)

// Injection writes records to the kernel logs of nodes.
type Injection struct {
	Start   Start
	Compose Compose
	// PodUIDs are the pods whose GPUs and processes Compose needs.
	PodUIDs []string
	// Module, if not nil, writes the records from the kernel itself. Otherwise, they are written from user space.
	Module *Module

	mu      sync.Mutex
	results map[string]*Result
}

// Result is the result for one node's log.
type Result struct {
	Node    string
	Info    api.Info
	Records []Record
	Written []api.WrittenKmsg // verified, in the order of Records
}

// Complete reports whether every record was read back.
func (r *Result) Complete() bool { return len(r.Records) > 0 && len(r.Written) == len(r.Records) }

// Result returns the result for a node, or nil if the run did not get as far as this node.
func (in *Injection) Result(nodeName string) *Result {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.results[nodeName]
}

// Change returns the change to one node, for use in a fault.Plan.
func (in *Injection) Change(target ledger.Target, action string) fault.Change {
	return fault.Change{
		Target: target,
		Action: action,
		Undo:   unwritten(),
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			return in.apply(ctx, target.Name, r)
		},
	}
}

// Detail is the ledger's data about a step: the records to write, in full if there are only a few.
type Detail struct {
	GPUs    []string `json:"gpus,omitempty"`
	XIDs    []string `json:"xids,omitempty"`
	Count   int      `json:"count"`
	Records []string `json:"records"` // at most keptRecords
}

// Limits for a burst's data in the ledger, per node, because a ConfigMap can contain at most 1 MiB, and a run may write
// thousands of records on many nodes.
const (
	keptRecords    = 20
	evidenceBudget = 4 << 10 // bytes
)

func (in *Injection) apply(
	ctx context.Context, nodeName string, r fault.Recorder,
) (evidence []ledger.Evidence, err error) {
	r.Progress("starting the debug pod")
	pod, err := in.Start(ctx, r.Run(), nodeName, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()

	r.Progress("reading the node's GPUs")
	info, err := pod.Inspect(ctx, api.Inspect{PodUIDs: in.PodUIDs})
	if err != nil {
		return nil, fmt.Errorf("read the node's GPUs: %w", err)
	}
	records, err := in.Compose(nodeName, *info)
	if err != nil {
		return nil, err
	}
	result := &Result{Node: nodeName, Info: *info, Records: records}
	in.keep(result)
	if in.Module != nil {
		err = in.throughModule(ctx, pod, r, result)
		return result.evidence(), err
	}
	if err := r.Save(ctx, func(s *ledger.Step) { s.Detail = detail(records) }); err != nil {
		return nil, err
	}

	r.Progress(fmt.Sprintf("writing %s", count.Of(len(records), "record")))
	err = in.write(ctx, r, result, func(each func([]api.WrittenKmsg)) ([]api.WrittenKmsg, error) {
		return pod.WriteKmsg(ctx, api.WriteKmsg{Records: result.request()}, each)
	})
	if nothingWritten(err) {
		// Best effort: if this fails, the record still shows that the log may contain the lines, which is safe.
		_ = r.Save(ctx, func(s *ledger.Step) { s.Detail = nil })
	}
	return result.evidence(), err
}

// request returns the records to send to the helper.
func (r *Result) request() []api.KmsgRecord {
	records := make([]api.KmsgRecord, len(r.Records))
	for i, record := range r.Records {
		records[i] = record.KmsgRecord
	}
	return records
}

// unwritten returns the undo for records in a log. It is marked as permanent.
func unwritten() ledger.Undo { return ledger.Undo{Kind: UndoKind, Permanent: true} }

func (in *Injection) write(
	ctx context.Context, r fault.Recorder, result *Result,
	write func(each func([]api.WrittenKmsg)) ([]api.WrittenKmsg, error),
) error {
	proven, told := 0, time.Now()
	written, err := write(func(some []api.WrittenKmsg) {
		proven += len(some)
		if len(result.Records) > 1 && (time.Since(told) > time.Second || proven == len(result.Records)) {
			told = time.Now()
			r.Progress(fmt.Sprintf("%d of %s proven", proven, count.Of(len(result.Records), "record")))
		}
	})
	result.Written = written
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("stopped after verifying %d of %s", len(written),
			count.Of(len(result.Records), "record"))
	case err != nil && len(written) > 0:
		return fmt.Errorf("%d of %s written and read back: %w", len(written), count.Of(len(result.Records), "record"),
			err)
	case err != nil:
		return err
	case !result.Complete():
		return fmt.Errorf("only %d of %s could be read back from the kernel log", len(written),
			count.Of(len(result.Records), "record"))
	}
	return nil
}

// nothingWritten reports whether the helper failed before its first write.
func nothingWritten(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && (refused.Code == api.CodeDevkmsgOff || refused.Code == api.CodeBadRequest)
}

func (in *Injection) keep(result *Result) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.results == nil {
		in.results = map[string]*Result{}
	}
	in.results[result.Node] = result
}

// evidence returns every record with its sequence number, or the first and last of many.
func (r *Result) evidence() []ledger.Evidence {
	all := make([]ledger.Evidence, len(r.Written))
	for i, w := range r.Written {
		all[i] = ledger.Evidence{
			Source: fmt.Sprintf("/dev/kmsg sequence %d", w.Sequence), Time: w.Time.UTC().Truncate(time.Microsecond),
			Text: w.Text,
		}
	}
	return ledger.Condense(all, evidenceBudget)
}

func detail(records []Record) json.RawMessage {
	d := Detail{Count: len(records)}
	gpus, xids := map[string]bool{}, map[string]bool{}
	for i, record := range records {
		if record.GPU != "" && !gpus[record.GPU] {
			gpus[record.GPU] = true
			d.GPUs = append(d.GPUs, record.GPU)
		}
		if record.XID != "" && !xids[record.XID] {
			xids[record.XID] = true
			d.XIDs = append(d.XIDs, record.XID)
		}
		if i < keptRecords {
			d.Records = append(d.Records, record.Data)
		}
	}
	raw, err := json.Marshal(d)
	if err != nil { // cannot happen for strings and numbers
		return nil
	}
	return raw
}
