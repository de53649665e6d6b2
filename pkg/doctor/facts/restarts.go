package facts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

const (
	// againAndAgain is the number of restarts after which a running container is expected to fail again.
	againAndAgain = 3
	// killedAgain is the same for a container that was OOM-killed.
	killedAgain = 2
	// seldom is the average time between restarts above which the restarts are not considered a problem with the pod.
	// They may be caused, for example, by reboots of the pod's node.
	seldom = 12 * time.Hour
	// stable is the factor by which a container must have run longer than before to count as stable.
	stable = 3
	// settles is the time for which failures of a new pod are ignored, because its dependencies may also be starting.
	settles = time.Hour
)

// Restarting returns a container in a ready pod that has failed several times and is expected to fail again, because it
// has not been running for much longer than the time between its failures. killed is true if the container was
// OOM-killed.
func (f *Facts) Restarting(pod *corev1.Pod) (last *corev1.ContainerStatus, killed bool) {
	if pod.DeletionTimestamp != nil || !RunsReady(pod) {
		return nil, false
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		ended := s.LastTerminationState.Terminated
		if s.RestartCount < killedAgain || ended == nil || s.State.Running == nil || ended.FinishedAt.IsZero() {
			continue
		}
		oom := ended.Reason == "OOMKilled"
		if !oom && s.RestartCount < againAndAgain {
			continue
		}
		if !oom && (slices.Contains(stopped(), ended.ExitCode) && !f.probed(pod) || f.Age(pod) < settles) {
			continue
		}
		between := ended.FinishedAt.Sub(pod.CreationTimestamp.Time) / time.Duration(s.RestartCount)
		ran := ended.FinishedAt.Sub(ended.StartedAt.Time)
		if oom && between > seldom {
			between = ran // the killed instance had itself been started after a failure
		}
		if between <= 0 || between > seldom {
			continue
		}
		if !ended.StartedAt.IsZero() && ran > between {
			between = min(ran, seldom)
		}
		if f.Now.Sub(ended.FinishedAt.Time) <= stable*between {
			return s, oom
		}
	}
	return nil, false
}

// stopped returns the exit codes of containers that did not fail themselves: they completed, or were terminated by
// SIGHUP, SIGINT, SIGKILL or SIGTERM, for example after a failed probe. Exit code 255 means that the container was lost
// when its node rebooted.
func stopped() []int32 { return []int32{0, 129, 130, 137, 143, 255} }

// probed reports whether the kubelet killed a container because of its liveness probe.
func (f *Facts) probed(pod *corev1.Pod) bool {
	return slices.ContainsFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
		return strings.Contains(e.Message, "failed liveness probe")
	})
}

// RestartEvidence quotes the last exit of a container in a pod, and the container's number of restarts.
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
		Source: PodObject(pod).String() + ", container " + s.Name + " .resources.limits.memory",
		Text:   words.Clip(limit),
	})
}

// RestartWords contains the titles and fixes of a finding about a running pod that fails repeatedly.
type RestartWords struct {
	Fails string // the title
	// Killed and KilledFix are the title and the fix if the container was OOM-killed.
	Killed, KilledFix string
}

// RestartWhy explains which restarts count.
const RestartWhy = "A container was restarted at least three times (if it was OOMKilled: twice), less than 12 hours " +
	"apart, and has been running for no longer than three times the time between its failures. It was OOMKilled, its " +
	"liveness probe timed out, or a signature matches a message from the failed instance. Restarts with an external " +
	"cause (such as a reboot of the node) and restarts in a pod's first hour do not count."

// RestartFinding returns a finding about a running pod that fails repeatedly. found is false if the pod does not fail
// repeatedly, or if its node is down.
func (f *Facts) RestartFinding(pod *corev1.Pod, say RestartWords) (issue finding.Finding, found bool) {
	s, killed := f.Restarting(pod)
	if n := f.Node(pod.Spec.NodeName); s == nil || n != nil && !Alive(n) {
		return issue, false
	}
	issue = finding.Finding{
		Title: say.Fails, Object: PodObject(pod), Nodes: OnNode(pod), Severity: finding.Warning,
		As: signatures.Restarted, Evidence: RestartEvidence(pod, s),
		Fix: finding.Fix{
			Text: "Check the log of the previous instance for the reason.",
			Commands: []string{shell.Command(
				"kubectl logs %s -n %s -c %s --previous --tail=50", pod.Name, pod.Namespace, s.Name,
			)},
		},
	}
	if killed {
		issue.As, issue.Title = signatures.Killed, say.Killed
		issue.Fix = finding.Fix{
			Text: say.KilledFix,
			Commands: append(slices.Clone(EditCommands(pod)), shell.Command(
				"kubectl top pod %s -n %s --containers", pod.Name, pod.Namespace,
			)),
		}
	}
	return issue, true
}
