package cuda

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// await waits until the processes have noticed, and shows them.
func (s *switching) await(ctx context.Context, p *inPlace, next cudafault.State) error {
	s.note(s.verb + "ed; waiting until its processes take notice")
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	reports, err := s.observer.watch(limited, watching{
		run: s.id, pods: p.pods(s.cluster), current: func(file cudafault.State) bool { return sameArming(file, next) },
		done: func(reports []report) bool {
			return !slices.ContainsFunc(reports, func(r report) bool { return !r.noticed(next) })
		},
		settled: func(r *report) bool { return r.noticed(next) },
	})
	if ctx.Err() != nil {
		return fmt.Errorf("run %s is %sed, but nobody waits for its processes any more: %w", s.id, s.verb,
			context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("run %s is %sed, but its pods cannot be asked: %w", s.id, s.verb, err)
	}
	p.state = next
	view := statusList{Items: []runStatus{statusOf(p, reports, time.Now())}}
	if err := view.print(s.streams, s.format); err != nil {
		return err
	}
	var late, over []string
	pending := 0
	for i := range reports {
		r := &reports[i]
		if r.asked && r.file != nil && r.file.Run == s.id && !sameArming(*r.file, next) {
			late = append(late, r.pod.Name)
		}
		pending += r.unaware(next)
		if text := r.over(next.Generation); text != "" && s.verb == "arm" {
			over = append(over, fmt.Sprintf("pod %s: %s", r.pod.Name, text))
		}
	}
	if len(over) > 0 {
		return fmt.Errorf("run %s is armed, but not everywhere: %s", s.id, strings.Join(over, "; "))
	}
	if len(late) > 0 {
		return fmt.Errorf(
			"run %s is %sed, but after %s the state file is not new in pods %v: their kubelets do so within a minute or two",
			s.id, s.verb, s.timeout, late,
		)
	}
	if pending > 0 {
		printer.Talk(s.streams.ErrOut,
			"%s did not call the driver since, and will notice when they do, if they still live",
			count.Of(pending, "process"))
	}
	printer.Talk(s.streams.ErrOut, "run %s is %sed, %s", s.id, s.verb, end(p.run))
	if waiting := backingOff(reports); s.verb == "disarm" && len(waiting) > 0 {
		printer.Talk(s.streams.ErrOut,
			"Still down: the kubelet waits up to 5 minutes before it starts crashed containers again (CrashLoopBackOff); to go on at once: kubectl delete pod -n %s %s",
			p.data.Namespace, strings.Join(waiting, " "))
	}
	return nil
}

// backingOff returns the pods whose containers crashed so often that the kubelet lets them wait: disarming does not
// shorten that.
func backingOff(reports []report) []string {
	var names []string
	for i := range reports {
		waits := func(c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		}
		if slices.ContainsFunc(reports[i].pod.Status.ContainerStatuses, waits) {
			names = append(names, reports[i].pod.Name)
		}
	}
	return names
}

func isExcluded(s cudafault.Status) bool {
	return s == cudafault.StatusOtherNode || s == cudafault.StatusOtherProcess
}

// sameArming reports whether a state file is of an arming, or disarmed as that is.
func sameArming(file, want cudafault.State) bool {
	return file.Generation == want.Generation && file.ArmedAt.IsZero() == want.ArmedAt.IsZero()
}

// unaware returns how many processes that may be alive have not noticed.
func (r *report) unaware(next cudafault.State) int {
	n := 0
	for _, p := range r.living() {
		acts := p.Status == cudafault.StatusArmed || p.Status == cudafault.StatusTripped ||
			p.Status == cudafault.StatusPoisoned
		if p.Generation != next.Generation ||
			next.ArmedAt.IsZero() == acts && !isExcluded(p.Status) && p.Status != cudafault.StatusExpired {
			n++
		}
	}
	return n
}

// noticed reports whether nothing is to be waited for in a pod: all its processes have noticed, or it does not run.
func (r *report) noticed(next cudafault.State) bool {
	if !r.asked {
		return true
	}
	return r.file != nil && sameArming(*r.file, next) && r.unaware(next) == 0
}
