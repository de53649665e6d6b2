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

// await waits until the processes have noticed the change, and prints their status.
func (s *switching) await(ctx context.Context, p *inPlace, next cudafault.State) error {
	s.note(s.verb + "ed; waiting for processes to notice the change")
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
		return fmt.Errorf("run %s is %sed, but waiting for the processes was interrupted: %w", s.id, s.verb,
			context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("run %s is %sed, but querying its pods failed: %w", s.id, s.verb, err)
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
		return fmt.Errorf("run %s is armed, but not in all pods: %s", s.id, strings.Join(over, "; "))
	}
	if len(late) > 0 {
		return fmt.Errorf(
			"run %s is %sed, but after %s the kubelet has not updated the state file in pods %v; this may take up to two minutes",
			s.id, s.verb, s.timeout, late,
		)
	}
	if pending > 0 {
		printer.Talk(s.streams.ErrOut,
			"no driver call since then from %s; running processes notice the change at their next call",
			count.Of(pending, "process"))
	}
	printer.Talk(s.streams.ErrOut, "run %s is %sed, %s", s.id, s.verb, end(p.run))
	if waiting := backingOff(reports); s.verb == "disarm" && len(waiting) > 0 {
		printer.Talk(s.streams.ErrOut,
			"Some containers are still down: the kubelet waits up to 5 minutes before it restarts crashed containers (CrashLoopBackOff). To restart them now, run: kubectl delete pod -n %s %s",
			p.data.Namespace, strings.Join(waiting, " "))
	}
	return nil
}

// backingOff returns the pods with containers in CrashLoopBackOff. Disarming does not shorten the back-off.
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

// sameArming reports whether two state files have the same generation and are both armed or both disarmed.
func sameArming(file, want cudafault.State) bool {
	return file.Generation == want.Generation && file.ArmedAt.IsZero() == want.ArmedAt.IsZero()
}

// unaware returns the number of processes that may be running and have not noticed the change.
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

// noticed reports whether all processes of the pod have noticed the change, or the pod cannot be queried.
func (r *report) noticed(next cudafault.State) bool {
	if !r.asked {
		return true
	}
	return r.file != nil && sameArming(*r.file, next) && r.unaware(next) == 0
}
