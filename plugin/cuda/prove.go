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

// The times of a proof.
const (
	// pause is between two rounds of questions.
	pause = 300 * time.Millisecond
	// grace is how long processes may take to call the driver after the shim is seen in their containers. A program
	// that imports PyTorch needs some seconds before its first call.
	grace = 10 * time.Second
	// patience is how long pods may take until they can be asked, after their rollout.
	patience = time.Minute
)

// verdict is what a report says about a run.
type verdict int

const (
	waiting   verdict = iota // it cannot be told yet
	failed                   // the shim does not work there
	delivered                // shim and state are there, and no process has taken notice yet
	loaded                   // a process has it
)

// judge returns what a report proves of a run in one of its generations, and in words why. Without an answer, a line in
// the log counts.
func (r *report) judge(run string, generation uint64) (verdict, string) {
	switch {
	case len(r.said) > 0 && !r.asked:
		return loaded, "in the log of its container: " + r.said[len(r.said)-1]
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
		return failed, fmt.Sprintf("the state in it is of run %q", r.file.Run)
	case r.file.Generation != generation:
		return waiting, "the kubelet has not refreshed its state file yet"
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
			fmt.Sprintf("process %d (%s) has the shim loaded; it takes notice at its next driver call", p.PID, p.Name)
	}
	return delivered, "shim and state are in the container; no process has called the driver yet"
}

// over returns why a process of the pod holds the time of a generation to be up; empty when none does. Its clock is
// that of its node.
func (r *report) over(generation uint64) string {
	for _, p := range r.living() {
		if p.Generation != generation || p.Status != cudafault.StatusExpired {
			continue
		}
		if r.file != nil && !r.file.Expires.IsZero() && !time.Now().Before(r.file.Expires) {
			return fmt.Sprintf("process %d (%s) passes all calls through, since the time is up: %v", p.PID, p.Name,
				errTooSlow)
		}
		return fmt.Sprintf(
			"process %d (%s) passes all calls through: its node's clock is ahead of yours by more than the TTL", p.PID,
			p.Name,
		)
	}
	return ""
}

// describeProcess returns how a process has the shim loaded: the heartbeat.
func describeProcess(p cudafault.Process) string {
	text := fmt.Sprintf("process %d (%s): %s, %s by %s", p.PID, p.Name, statusWord(p.Status), count.Of(p.Hooks, "hook"),
		p.Paths)
	if p.Driver > 0 {
		text += ", CUDA driver " + driverVersion(p.Driver)
	}
	return text
}

// driverVersion returns what cuDriverGetVersion gives, as people write it: 12080 is 12.8.
func driverVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// watching is what watch waits for.
type watching struct {
	run  string
	pods func(context.Context) ([]corev1.Pod, error)
	// current reports whether a state file is the one that pods shall have.
	current func(cudafault.State) bool
	// done reports whether what was heard is enough.
	done func([]report) bool
	// settled reports whether a pod that answered is not to be asked again.
	settled func(*report) bool
}

// refreshEvery is how often a kubelet is made to look again. It looks at a pod when that changes, but reads ConfigMaps
// from a cache, which may hear of a change after the pod's; then it would not look for another minute.
const refreshEvery = 2 * time.Second

// watch asks the pods of a run until that is done, or ctx ends. It returns what it heard last; the error is why it
// heard nothing.
func (w *observer) watch(ctx context.Context, what watching) ([]report, error) {
	var (
		last      []report
		none      = errors.New("there was no time to ask its pods")
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
				_ = cudashim.Refresh(ctx, w.client, stale, stamp()) // best effort: within two minutes they look anyway
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

// stamp is another one each time.
func stamp() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// proof shows that the shim of a run is in its pods.
type proof struct {
	observer   *observer
	pods       func(context.Context) ([]corev1.Pod, error)
	run        string
	generation uint64
	// known says that it was waited before for processes to show up.
	known    bool
	grace    time.Duration
	patience time.Duration
}

// gather returns the evidence, a proof for each pod, and what there is to say about pods that cannot be asked yet. It
// fails where the shim does not work, and where nobody can be asked.
func (p *proof) gather(ctx context.Context) (evidence []ledger.Evidence, notes []string, err error) {
	limited, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	var settled time.Time // since when only processes are missing
	done := func(reports []report) bool {
		worst := loaded
		for i := range reports {
			v, _ := reports[i].judge(p.run, p.generation)
			if v == delivered && p.known && len(reports[i].living()) == 0 {
				v = loaded // there is nobody to take notice
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
	p.observer.listenWhere(ctx, reports, p.run, func(r *report) bool { // a linker that refused it says so there
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
		return nil, nil, errors.New("no pod has shown that it has the shim: " + strings.Join(notes, "; "))
	}
	return evidence, notes, errors.Join(wrong...)
}

// source names the pod of a report, for evidence.
func (r *report) source() string {
	text := "pod " + r.pod.Name
	if r.pod.Spec.NodeName != "" {
		text += " on " + r.pod.Spec.NodeName
	}
	return text
}

// seen returns when a process of the report showed last that it lives, or now.
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

// ofTemplate returns the evidence where no pod runs that could be asked: the controller makes them later.
func ofTemplate(data *cudashim.Data) ledger.Evidence {
	return ledger.Evidence{
		Source: data.Ref(), Time: time.Now().UTC().Truncate(time.Millisecond),
		Text: "the pod template has the shim; no pod made from it runs yet",
	}
}

// statusWord returns what a process does about the fault, as users call it.
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
