package kernellog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// fakePod is a node without GPUs, which proves as many records as it is told to.
type fakePod struct {
	proves int
	fails  error
	module api.RemovedModule // what is found of it
	calls  []string
	closed int
}

func (p *fakePod) Inspect(context.Context, api.Inspect) (*api.Info, error) {
	p.calls = append(p.calls, "inspect")
	return &api.Info{Hostname: "n"}, nil
}

func (p *fakePod) WriteKmsg(
	_ context.Context, _ api.WriteKmsg, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	p.calls = append(p.calls, "write")
	return p.prove(each)
}

func (p *fakePod) BuildModule(context.Context, api.BuildModule) (*api.BuiltModule, error) {
	p.calls = append(p.calls, "build")
	return &api.BuiltModule{Module: []byte("built")}, nil
}

func (p *fakePod) WriteModule(
	_ context.Context, what api.WriteModule, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	p.calls = append(p.calls, "write through "+string(what.Module))
	return p.prove(each)
}

func (p *fakePod) RemoveModule(context.Context) (*api.RemovedModule, error) {
	p.calls = append(p.calls, "remove")
	return &p.module, p.fails
}

func (p *fakePod) prove(each func([]api.WrittenKmsg)) ([]api.WrittenKmsg, error) {
	var written []api.WrittenKmsg
	for i := range p.proves {
		written = append(written,
			api.WrittenKmsg{Record: i, Sequence: uint64(100 + i), Time: time.Unix(int64(i), 0), Text: "text"})
	}
	each(written)
	return written, p.fails
}

func (p *fakePod) Close(context.Context) error { p.closed++; return nil }

type recorder struct {
	pod   *fakePod
	step  ledger.Step
	saves []int // how many calls the pod had seen at each save
	fails error
}

func (r *recorder) Run() ledger.Run { return ledger.Run{ID: "xid-test"} }
func (r *recorder) Progress(string) {}
func (r *recorder) Save(_ context.Context, change func(*ledger.Step)) error {
	r.saves = append(r.saves, len(r.pod.calls))
	if r.fails != nil {
		return r.fails
	}
	change(&r.step)
	return nil
}

func injection(pod *fakePod, records int) *Injection {
	return &Injection{
		Start: func(context.Context, ledger.Run, string, func(string)) (Pod, error) { return pod, nil },
		Compose: func(string, api.Info) ([]Record, error) {
			all := make([]Record, records)
			for i := range all {
				all[i] = Record{
					KmsgRecord: api.KmsgRecord{Data: fmt.Sprintf("<4>line %d\n", i)}, XID: "79", GPU: "0000:17:00",
				}
			}
			return all, nil
		},
	}
}

// A record must be in the ledger before the kernel log is written, and a pod must never stay.
func TestRecordsBeforeItWrites(t *testing.T) {
	t.Parallel()
	pod := &fakePod{proves: 2}
	rec := &recorder{pod: pod}
	in := injection(pod, 2)
	evidence, err := in.Change(ledger.Target{Kind: "Node", Name: "a"}, "write").Apply(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.saves) != 1 || rec.saves[0] != 1 {
		t.Errorf(
			"the ledger was saved after %v calls to the pod; wanted once, after the inspection and before the write",
			rec.saves,
		)
	}
	var d Detail
	if err := json.Unmarshal(rec.step.Detail, &d); err != nil || d.Count != 2 || len(d.Records) != 2 {
		t.Errorf("detail %s, error %v: wanted both records", rec.step.Detail, err)
	}
	if len(evidence) != 2 || !strings.Contains(evidence[1].Source, "101") {
		t.Errorf("evidence %v: wanted the two sequence numbers", evidence)
	}
	if pod.closed != 1 {
		t.Errorf("the pod was closed %d times", pod.closed)
	}
}

func TestNothingIsWrittenWithoutARecord(t *testing.T) {
	t.Parallel()
	pod := &fakePod{proves: 1}
	rec := &recorder{pod: pod, fails: errors.New("etcd is full")}
	if _, err := injection(pod, 1).Change(ledger.Target{Name: "a"}, "write").Apply(t.Context(), rec); err == nil {
		t.Fatal("the ledger failed and Apply did not")
	}
	if slices.Contains(pod.calls, "write") {
		t.Error("the kernel log was written though the ledger had failed")
	}
	if pod.closed != 1 {
		t.Errorf("the pod was closed %d times", pod.closed)
	}
}

// What was written and read back is evidence also when the rest failed.
func TestLostRecordsAreAnError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		fails error
		want  string
	}{
		{"the helper said it was done", nil, "only 2 of 3 records"},
		{"the connection broke", errors.New("broken pipe"), "2 of 3 records written and read back: broken pipe"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{proves: 2, fails: test.fails}
			evidence, err := injection(pod,
				3).Change(ledger.Target{Name: "a"}, "write").Apply(t.Context(), &recorder{pod: pod})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, wanted %q", err, test.want)
			}
			if len(evidence) != 2 {
				t.Errorf("%d pieces of evidence, wanted the 2 that were proven", len(evidence))
			}
		})
	}
}

func TestABurstFitsTheLedger(t *testing.T) {
	t.Parallel()
	pod := &fakePod{proves: 5000}
	rec := &recorder{pod: pod}
	in := injection(pod, 5000)
	evidence, err := in.Change(ledger.Target{Name: "a"}, "write").Apply(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(evidence)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 2*evidenceBudget || len(rec.step.Detail) > 2*evidenceBudget || len(in.Result("a").Written) != 5000 {
		t.Errorf("ledger %d and %d bytes, result %d: wanted few bytes, and all records in the result", len(raw),
			len(rec.step.Detail), len(in.Result("a").Written))
	}
}

func TestUndoTellsTheTruth(t *testing.T) {
	t.Parallel()
	u := Undoer{
		Forget: func(xids []string) []string { return []string{"NVSentinel: reboot after " + strings.Join(xids, ",")} },
	}
	state, message, err := u.Undo(t.Context(), ledger.Run{}, ledger.Step{Detail: json.RawMessage(`{"xids":["79"]}`)})
	if err != nil || state != ledger.StatePermanent || !strings.Contains(message, "cannot be removed") ||
		!strings.Contains(message, "after 79") {
		t.Errorf("%v %q %v", state, message, err)
	}
	state, _, err = u.Undo(t.Context(), ledger.Run{}, ledger.Step{})
	if err != nil || state != ledger.StateReverted {
		t.Errorf("a step that wrote nothing ended %v, %v", state, err)
	}
}
