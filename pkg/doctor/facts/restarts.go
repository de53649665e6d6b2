package facts

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

const (
	// againAndAgain is the number of restarts after which a container that runs is expected to fail again.
	againAndAgain = 3
	// seldom is the time between restarts from which on they are not a problem of the pod, such as reboots of its node.
	seldom = 12 * time.Hour
	// stable is how many times longer than before a container must have run to be stable.
	stable = 3
	// settles is how long a new pod may fail, because what it depends on is starting as well.
	settles = time.Hour
)

// Restarting returns a container of a ready pod that failed several times and is expected to fail again: it has not run
// much longer than between its failures. killed is true if the kernel killed it for its memory.
func (f *Facts) Restarting(pod *corev1.Pod) (last *corev1.ContainerStatus, killed bool) {
	if pod.DeletionTimestamp != nil || !RunsReady(pod) {
		return nil, false
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		ended := s.LastTerminationState.Terminated
		if s.RestartCount < againAndAgain || ended == nil || s.State.Running == nil || ended.FinishedAt.IsZero() {
			continue
		}
		oom := ended.Reason == "OOMKilled"
		if !oom && (slices.Contains(stopped(), ended.ExitCode) || f.Age(pod) < settles) {
			continue
		}
		between := ended.FinishedAt.Sub(pod.CreationTimestamp.Time) / time.Duration(s.RestartCount)
		if between <= 0 || between > seldom {
			continue
		}
		if ran := ended.FinishedAt.Sub(ended.StartedAt.Time); !ended.StartedAt.IsZero() && ran > between {
			between = min(ran, seldom)
		}
		if f.Now.Sub(ended.FinishedAt.Time) <= stable*between {
			return s, oom
		}
	}
	return nil, false
}

// stopped returns the exit codes of containers that did not fail by themselves: they completed, or got SIGHUP, SIGINT,
// SIGKILL or SIGTERM, as after a failed probe; 255 is that of a container that was lost when its node rebooted.
func stopped() []int32 { return []int32{0, 129, 130, 137, 143, 255} }

// RestartEvidence quotes how a container of a pod ended, and how often.
func RestartEvidence(pod *corev1.Pod, s *corev1.ContainerStatus) []finding.Evidence {
	ended := s.LastTerminationState.Terminated
	all := []finding.Evidence{{
		Source: PodObject(pod).String() + ", container " + s.Name + " .status.lastState", Time: ended.FinishedAt.Time,
		Text: fmt.Sprintf("%s, exit code %d, %s since %s", ended.Reason, ended.ExitCode,
			count.Of(s.RestartCount, "restart"), UntilClock(pod.CreationTimestamp.Time)),
	}}
	if ended.Reason != "OOMKilled" {
		return all
	}
	limit := "none"
	for c := range Containers(pod) {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == s.Name {
			limit = q.String()
		}
	}
	return append(all, finding.Evidence{
		Source: PodObject(pod).String() + ", container " + s.Name + " .resources.limits.memory", Text: words.Cut(limit),
	})
}
