// Package realxid makes the NVIDIA driver itself report an XID: a pod that requests a GPU runs a program that causes an
// error on it. Such an XID is visible in the kernel log, in NVML's events and in DCGM. Only the program's CUDA context
// is lost.
//
// The fault is verified through the CUDA error in the program, and through the driver's line in the kernel log, which a
// debug pod reads.
package realxid

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Pod is a debug pod running on a node. debugpod.Session implements it.
type Pod interface {
	ReadKernelLog(ctx context.Context, what api.ReadKernelLog) (*api.KernelRecords, error)
	// Close deletes the pod, even if ctx is canceled.
	Close(ctx context.Context) error
}

// Injection makes the driver report an XID on nodes.
type Injection struct {
	Client kubernetes.Interface
	// Start creates a debug pod for a run on a node and waits until it is running.
	Start func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (Pod, error)
	// Waiting returns what the program's pod is waiting for, and an error if the pod will never run.
	Waiting func(*corev1.Pod) (string, error)
	// Undo deletes the objects of a step.
	Undo fault.Undoer
	// Remains updates a step whose objects have been deleted, so that the driver's line is the only change that remains
	// in the step.
	Remains func(*ledger.Step, Result)

	mu      sync.Mutex
	results map[string]Result
}

// Result is the result for one node.
type Result struct {
	Outcome
	// Line is the driver's line. It is nil if the kernel log could not be read.
	Line *api.KernelRecord
	// Unread is the reason why the kernel log could not be read, or empty.
	Unread string
}

// Result returns the result for a node, or false if its fault was not verified.
func (in *Injection) Result(nodeName string) (Result, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	result, ok := in.results[nodeName]
	return result, ok
}

// Change returns the change to one node. create creates the objects in the spec, after recording their undo data.
func (in *Injection) Change(spec Spec, create fault.Change) fault.Change {
	inner := create.Apply
	create.Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		result, err := in.apply(ctx, r, spec, inner)
		if err != nil {
			return nil, err
		}
		if err := in.tidy(ctx, r, create.Target, result); err != nil {
			return nil, err
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.results == nil {
			in.results = map[string]Result{}
		}
		in.results[spec.Node] = result
		return result.evidence(), nil
	}
	return create
}

func (in *Injection) apply(
	ctx context.Context, r fault.Recorder, spec Spec,
	create func(context.Context, fault.Recorder) ([]ledger.Evidence, error),
) (result Result, err error) {
	r.Progress("starting the debug pod")
	pod, err := in.Start(ctx, r.Run(), spec.Node, r.Progress)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	log := follow(ctx, pod)
	if _, err := create(ctx, r); err != nil {
		return result, err
	}
	result.Outcome, err = in.await(ctx, spec, r.Progress)
	if err != nil {
		return result, err
	}
	if log.unread == nil {
		r.Progress("waiting for the driver's line in the kernel log")
		result.Line, err = log.find(ctx, result.Outcome)
	}
	if err == nil && log.unread != nil {
		result.Unread = log.unread.Error()
	}
	return result, err
}

const (
	pollEvery = 300 * time.Millisecond
	// lineTimeout is the time for the driver to write its line after the program has exited. Usually, the line appears
	// before CUDA reports the error.
	lineTimeout = 20 * time.Second
)

// await waits until the program has exited, and returns its outcome.
func (in *Injection) await(ctx context.Context, spec Spec, progress func(string)) (Outcome, error) {
	told := ""
	for {
		pod, err := in.Client.CoreV1().Pods(spec.Namespace).Get(ctx, spec.Name(), metav1.GetOptions{})
		waiting := ""
		switch {
		case apierrors.IsNotFound(err):
			return Outcome{}, fmt.Errorf("pod %s/%s was deleted before its program exited", spec.Namespace, spec.Name())
		case err != nil:
			waiting = err.Error()
		default:
			if ended := terminated(pod); ended != nil {
				return outcome(*ended, spec.XID)
			}
			if waiting, err = in.waiting(pod); err != nil {
				return Outcome{}, fmt.Errorf("pod %s/%s: %w", spec.Namespace, spec.Name(), err)
			}
		}
		if waiting != told {
			told = waiting
			progress(cmp.Or(waiting, "the program is running"))
		}
		select {
		case <-ctx.Done():
			return Outcome{}, fmt.Errorf("pod %s/%s did not terminate (%s): %w", spec.Namespace, spec.Name(),
				cmp.Or(waiting, "the program is running"), context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// terminated returns the state of the program's container after it has terminated, or nil.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == Container {
			return status.State.Terminated
		}
	}
	return nil
}

// waiting returns what the pod is waiting for, or an error if it will never run.
func (in *Injection) waiting(pod *corev1.Pod) (string, error) {
	// A pod can fail without a container, for example if the device plugin rejects the allocation.
	if pod.Status.Phase == corev1.PodFailed {
		return "", errors.New(clean(strings.TrimSpace(pod.Status.Reason + ": " + pod.Status.Message)))
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "not scheduled: " + clean(c.Message), nil
		}
	}
	return in.Waiting(pod)
}

// noDriver is part of the program's message if libcuda is missing from its container.
const noDriver = "load libcuda.so.1"

func outcome(ended corev1.ContainerStateTerminated, code int) (Outcome, error) {
	o, err := ParseOutcome(ended.Message, code)
	var failed *ProgramError
	switch {
	case errors.As(err, &failed) && strings.Contains(failed.Text, noDriver):
		return o, fmt.Errorf("%w; if pods with GPUs require a RuntimeClass in this cluster, specify it with --runtime-class",
			err)
	case err != nil && failed == nil:
		return o, fmt.Errorf("%w (exit code %d, %s); the image must contain glibc: specify another image with --real-image", err,
			ended.ExitCode, clean(ended.Reason))
	}
	return o, err
}

// log is a node's kernel log, starting at a point before the program started.
type log struct {
	pod    Pod
	after  *uint64 // sequence number of the last earlier record
	unread error
}

// follow records where the log ends. Every line from the driver counts as a record about GPUs, so the last of these
// records is sufficient.
func follow(ctx context.Context, pod Pod) log {
	l := log{pod: pod}
	found, err := pod.ReadKernelLog(ctx, api.ReadKernelLog{})
	if err != nil {
		l.unread = err
		return l
	}
	if n := len(found.Records); n > 0 {
		l.after = &found.Records[n-1].Sequence
	}
	return l
}

// find waits for the driver's line about the outcome.
func (l log) find(ctx context.Context, o Outcome) (*api.KernelRecord, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lineTimeout, fmt.Errorf("timed out after %s", lineTimeout))
	defer cancel()
	var unread error
	for {
		var others []string
		found, err := l.pod.ReadKernelLog(ctx, api.ReadKernelLog{After: l.after})
		if err == nil {
			for _, record := range found.Records {
				isIt, other := o.isIn(record.Text)
				if isIt {
					return &record, nil
				}
				if other != "" && !slices.Contains(others, other) {
					others = append(others, other)
				}
			}
		}
		if ctx.Err() == nil {
			unread = err
		}
		select {
		case <-ctx.Done():
			return nil, missing(o, others, unread, context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// missing returns the error for a line that did not appear.
func missing(o Outcome, others []string, read, cause error) error {
	text := fmt.Sprintf("CUDA reported %s on %s, but no line for XID %d with address %s appeared in the kernel log",
		o.CUDA(), o.GPU, o.XID, o.PCI)
	if len(others) > 0 {
		text += "; other XIDs on the GPU since the program started: " + strings.Join(others, ", ")
	}
	return errors.Join(fmt.Errorf("%s: %w", text, cause), read)
}

// forgetTimeout is the timeout for recording that the objects have been deleted, even if the user interrupts the run.
const forgetTimeout = 10 * time.Second

// tidy deletes the step's objects, which are no longer needed.
func (in *Injection) tidy(ctx context.Context, r fault.Recorder, target ledger.Target, result Result) error {
	run := r.Run()
	i := slices.IndexFunc(run.Steps, func(s ledger.Step) bool { return s.Target.Same(target) })
	if i < 0 {
		return fmt.Errorf("run %s has no step for %s", run.ID, target)
	}
	r.Progress("deleting the pod")
	state, said, err := in.Undo.Undo(ctx, run, run.Steps[i])
	switch {
	case err != nil:
		return err
	case state != ledger.StateReverted:
		return errors.New(said)
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	return r.Save(after, func(s *ledger.Step) { in.Remains(s, result) })
}

func (r Result) evidence() []ledger.Evidence {
	all := []ledger.Evidence{{
		Source: "CUDA", Time: time.Now().UTC(), Text: fmt.Sprintf("%s on %s at %s", r.CUDA(), r.GPU, r.PCI),
	}}
	if r.Line == nil {
		return append(all, ledger.Evidence{
			Source: "kernel log", Time: time.Now().UTC(),
			Text: "could not be read, so CUDA's error is the only evidence of the XID: " + r.Unread,
		})
	}
	return append(all, ledger.Evidence{
		Source: fmt.Sprintf("/dev/kmsg sequence %d", r.Line.Sequence),
		Time:   r.Line.Time.UTC().Truncate(time.Microsecond), Text: r.Line.Text,
	})
}
