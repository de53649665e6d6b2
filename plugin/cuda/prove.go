package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// Intervals and timeouts of the verification.
const (
	// pause is the interval between two queries.
	pause = 300 * time.Millisecond
	// grace is the time to wait for processes to call the driver after the shim has been loaded into their containers.
	// A program that imports PyTorch needs several seconds until its first call.
	grace = 10 * time.Second
	// patience is the time to wait for pods to become available for queries after the rollout.
	patience = time.Minute
)

// verdict is the state of a run in a pod, according to its report.
type verdict int

const (
	waiting   verdict = iota // not known yet
	failed                   // the shim does not work in the pod
	delivered                // shim and state are in the container, but no process has noticed yet
	loaded                   // a process has loaded the state
)

// judge returns the verdict for a generation of a run, and the reason for it. If the pod cannot be queried, a line in
// its log is sufficient.
func (r *report) judge(run string, generation uint64) (verdict, string) {
	switch {
	case len(r.said) > 0 && !r.asked:
		return loaded, "from the container's log: " + r.said[len(r.said)-1]
	case len(r.refused) > 0:
		return failed, "the dynamic linker did not load the shim: " + r.refused[len(r.refused)-1]
	case r.missing:
		return failed, r.trouble
	case !r.asked && r.state != "" && r.trouble == "":
		return waiting, r.state
	case !r.asked:
		return waiting, strings.TrimSuffix(r.trouble+"; "+r.state, "; ")
	case r.file == nil:
		return failed, r.trouble
	case r.file.Run != run:
		return failed, fmt.Sprintf("the state file in the container belongs to run %q", r.file.Run)
	case r.file.Generation != generation:
		return waiting, "the kubelet has not updated the shim's state file in the container yet"
	}
	if text := r.over(generation); text != "" {
		return failed, text
	}
	living := r.living()
	for _, p := range slices.Backward(living) {
		if p.Generation == generation {
			return loaded, describeProcess(p)
		}
	}
	if len(living) > 0 {
		p := living[len(living)-1]
		return delivered,
			fmt.Sprintf("process %d (%s) has loaded the shim; it notices the change at its next driver call", p.PID,
				p.Name)
	}
	return delivered, "the shim and its state are in the container; no process has called the driver yet"
}

// over returns the reason why a process in the pod considers a generation expired, or "" if none does. Processes use
// their node's clock.
func (r *report) over(generation uint64) string {
	for _, p := range r.living() {
		if p.Generation != generation || p.Status != cudafault.StatusExpired {
			continue
		}
		if r.file != nil && !r.file.Expires.IsZero() && !time.Now().Before(r.file.Expires) {
			return fmt.Sprintf("process %d (%s) passes all calls through because the TTL has expired: %v", p.PID,
				p.Name,
				errTooSlow)
		}
		return fmt.Sprintf(
			"process %d (%s) passes all calls through because its node's clock is ahead of yours by more than the TTL", p.PID,
			p.Name,
		)
	}
	return ""
}

// describeProcess describes the shim in a process.
func describeProcess(p cudafault.Process) string {
	text := fmt.Sprintf("process %d (%s): %s, %s by %s", p.PID, p.Name, statusWord(p.Status), count.Of(p.Hooks, "hook"),
		p.Paths)
	if p.Driver > 0 {
		text += ", CUDA driver " + driverVersion(p.Driver)
	}
	return text
}

// driverVersion formats a version from cuDriverGetVersion: 12080 is 12.8.
func driverVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// watching defines the condition that watch waits for.
type watching struct {
	run  string
	pods func(context.Context) ([]corev1.Pod, error)
	// current reports whether a state file is the expected one.
	current func(cudafault.State) bool
	// done reports whether watch can stop waiting.
	done func([]report) bool
	// settled reports whether a pod that responded needs no further query.
	settled func(*report) bool
}

// refreshEvery is the interval at which kubelets are told again to refresh the state file. A change to a pod triggers a
// refresh, but the kubelet reads ConfigMaps from a cache that may still be stale. Without another trigger, the kubelet
// would then not refresh the file for another minute.
const refreshEvery = 2 * time.Second

// watch queries the pods of a run until what.done returns true or ctx is done. It returns the last reports, or an error
// if there are none.
func (w *observer) watch(ctx context.Context, what watching) ([]report, error) {
	var (
		last      []report
		none      = errors.New("timed out before the pods were queried")
		refreshed = time.Now()
		settled   = map[podKey]report{}
	)
	for {
		list, err := what.pods(ctx)
		if err == nil {
			reports := w.askUnless(ctx, list, settled)
			w.listenWhere(ctx, reports, what.run, func(r *report) bool { return !r.asked && !r.missing })
			var stale []corev1.Pod
			for i := range reports {
				r := &reports[i]
				switch {
				case r.asked && what.settled(r):
					settled[keyOf(r.pod)] = *r
				case r.file != nil && r.file.Run == what.run && !what.current(*r.file):
					stale = append(stale, *r.pod)
				}
			}
			if ctx.Err() == nil || last == nil {
				last, none = reports, nil
			}
			if what.done(reports) {
				return last, nil
			}
			if len(stale) > 0 && time.Since(refreshed) >= refreshEvery {
				refreshed = time.Now()
				_ = cudashim.Refresh(ctx, w.client, stale, stamp()) // best effort: or within two minutes
			}
		} else if last == nil {
			none = err
		}
		select {
		case <-ctx.Done():
			return last, none
		case <-time.After(w.every):
		}
	}
}

// stamp returns a value that differs on each call.
func stamp() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// proof verifies that the shim of a run is in its pods.
type proof struct {
	observer   *observer
	pods       func(context.Context) ([]corev1.Pod, error)
	run        string
	generation uint64
	// known reports whether an earlier call of gather has already waited for processes to appear.
	known    bool
	grace    time.Duration
	patience time.Duration
}

// gather returns the evidence for each pod, and notes about pods that cannot be queried yet. It fails if the shim does
// not work in a pod, or if no pod can be queried.
func (p *proof) gather(ctx context.Context) (evidence []ledger.Evidence, notes []string, err error) {
	limited, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	var settled time.Time // time since which the shim is in all pods and only processes are missing
	done := func(reports []report) bool {
		worst := loaded
		for i := range reports {
			v, _ := reports[i].judge(p.run, p.generation)
			if v == delivered && p.known && len(reports[i].living()) == 0 {
				v = loaded // there is no process that could notice
			}
			worst = min(worst, v)
		}
		switch {
		case worst == loaded:
			return true
		case worst == waiting:
			settled = time.Time{}
		case settled.IsZero():
			settled = time.Now()
		}
		return !settled.IsZero() && time.Since(settled) >= p.grace
	}
	reports, err := p.observer.watch(limited, watching{
		run: p.run, pods: p.pods, done: done,
		current: func(file cudafault.State) bool { return file.Generation == p.generation },
		settled: func(r *report) bool {
			v, _ := r.judge(p.run, p.generation)
			return v == loaded
		},
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	p.observer.listenWhere(ctx, reports, p.run, func(r *report) bool { // to find messages of the dynamic linker
		v, _ := r.judge(p.run, p.generation)
		return v == delivered && len(r.living()) == 0
	})
	var wrong []error
	for i := range reports {
		r := &reports[i]
		switch v, text := r.judge(p.run, p.generation); v {
		case loaded, delivered:
			evidence = append(evidence, ledger.Evidence{Source: r.source(), Time: r.seen(), Text: text})
		case failed:
			wrong = append(wrong, fmt.Errorf("pod %s: %s", r.pod.Name, text))
		case waiting:
			notes = append(notes, fmt.Sprintf("pod %s: %s", r.pod.Name, text))
		}
	}
	if len(wrong) == 0 && len(evidence) == 0 && len(notes) > 0 {
		return nil, nil, errors.New("could not verify the shim in any pod: " + strings.Join(notes, "; "))
	}
	return evidence, notes, errors.Join(wrong...)
}

// source returns the pod of a report as the source of evidence.
func (r *report) source() string {
	text := "pod " + r.pod.Name
	if r.pod.Spec.NodeName != "" {
		text += " on " + r.pod.Spec.NodeName
	}
	return text
}

// seen returns the time of the last sign of life of a process in the report, or the current time.
func (r *report) seen() time.Time {
	var at time.Time
	for _, p := range r.living() {
		if p.Looked.After(at) {
			at = p.Looked
		}
	}
	if at.IsZero() {
		at = time.Now()
	}
	return at.UTC().Truncate(time.Millisecond)
}

// ofTemplate returns the evidence to use if no pod is running yet. The controller creates the pods later.
func ofTemplate(data *cudashim.Data) ledger.Evidence {
	return ledger.Evidence{
		Source: data.Ref(), Time: time.Now().UTC().Truncate(time.Millisecond),
		Text: "the pod template contains the shim; no pod created from the template is running yet",
	}
}

// statusWord returns the word for a status in output.
func statusWord(s cudafault.Status) string {
	switch s {
	case cudafault.StatusPassing:
		return "disarmed"
	case cudafault.StatusOtherNode:
		return "excluded (node)"
	case cudafault.StatusOtherProcess:
		return "excluded (process)"
	case cudafault.StatusNoState:
		return "without a state"
	default:
		return s.String()
	}
}
