package scheduler

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// queues contains the labels and annotations with which pods specify their queue, and the API group of the queue if
// doctor reads queues of this kind.
var queues = []struct{ key, group string }{
	{"kai.scheduler/queue", "scheduling.run.ai"}, {"runai/queue", "scheduling.run.ai"},
	{"scheduling.volcano.sh/queue-name", "scheduling.volcano.sh"}, {"yunikorn.apache.org/queue", ""},
}

// describeQueue describes a pod that is not being scheduled, if the scheduler's message does not name a problem with
// the nodes.
func (s *Scheduler) describeQueue(pod *corev1.Pod, message string, roomy []*facts.Node, v *verdict) {
	v.Fix = finding.Fix{
		Text: "The message contains no reason. Check the scheduler's log for this pod.",
		Commands: []string{shell.Command("kubectl get pods -A | grep -i %s",
			cmp.Or(pod.Spec.SchedulerName, "scheduler"))},
	}
	reason := reasonIn(message)
	told := reason != ""
	if told {
		v.Title = words.Clip("GPUs are free, but the scheduler rejects their nodes: " + reason)
		v.Evidence = append(v.Evidence, QuoteAllocatable(roomy)...)
		v.Fix.Text = "Correct what the reason names, in the pod or on the nodes. If it is not true, look for it in the " +
			"scheduler's log and in the fixes of its newer releases."
	}
	for _, q := range queues {
		name := cmp.Or(pod.Labels[q.key], pod.Annotations[q.key])
		if name == "" {
			continue
		}
		problem := append(s.F.QueueProblem(q.group, name, nil), s.F.OtherNodePool(pod, name)...)
		if len(problem) == 0 && told {
			return
		}
		v.Title = "GPUs are free, but the scheduler skips the pod without giving a reason: check its queue " + name
		v.Evidence = append(v.Evidence, finding.FieldEvidence(facts.PodObject(pod), ".metadata", "%s=%s", q.key, name))
		v.Evidence = append(v.Evidence, problem...)
		v.Fix.Text = "Check whether the queue exists, is open, has no child queues, and has a quota or limit that " +
			"allows the GPUs. Check the scheduler's log for this pod."
		return
	}
}

// reasonEnd matches what separates the reasons in a message of KAI or Volcano.
var reasonEnd = regexp.MustCompile(`\n|, \d`)

// reasonIn returns the first reason for which the scheduler's message says that KAI or Volcano rejects nodes other than
// those of the control plane, or "".
func reasonIn(message string) string {
	_, reasons, ok := strings.Cut(message, "were found: ")
	if !ok {
		_, reasons, _ = strings.Cut(message, "nodes are unavailable: ")
	}
	for _, reason := range reasonEnd.Split(reasons, -1) {
		if reason = strings.Trim(reason, "0123456789. \n"); !strings.Contains(reason, "{node-role.kubernetes.io/") {
			return reason
		}
	}
	return ""
}

// pinned describes a pod that Kueue's topology-aware scheduling has assigned to a full node although another node has
// room.
func (s *Scheduler) pinned(pod *corev1.Pod, want map[corev1.ResourceName]int64, v *verdict) {
	node := pod.Spec.NodeSelector[corev1.LabelHostname]
	if node == "" || !facts.OfKueue(pod) {
		return
	}
	for _, n := range s.nodes {
		if n.Labels[corev1.LabelHostname] == node || !facts.Available(n) || Foreign(pod, n) ||
			!covers(want, func(name corev1.ResourceName) int64 { return s.Free(n, name) }) {
			continue
		}
		v.Severity, v.Confidence = finding.Error, finding.Likely
		v.Title = "Kueue has assigned the pod to node " + node + ", whose GPUs are in use, while node " + n.Name +
			" has room"
		v.Evidence = append([]finding.Evidence{
			finding.FieldEvidence(facts.PodObject(pod), ".spec.nodeSelector", "%s=%s", corev1.LabelHostname, node),
		}, v.Evidence...)
		v.Fix = finding.Fix{
			Text: "Kueue's topology-aware scheduling chose the node before other pods took its GPUs, and does not " +
				"choose another node by itself. Set spec.active of the pod's Workload to false and then to true, so " +
				"that Kueue reassigns the nodes: this evicts all pods in the workload. If this happens again, update " +
				"Kueue (kueue#14570).",
			Commands: []string{shell.Command("kubectl -n %s get workloads.kueue.x-k8s.io -o wide", pod.Namespace)},
		}
		return
	}
}

// leftGated describes a pod that still has Kueue's scheduling gate although Kueue admitted the pod's Workload.
func (s *Scheduler) leftGated(pod *corev1.Pod, v *verdict) {
	admitted := s.F.AdmittedButGated(pod)
	at := slices.IndexFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool {
		return strings.HasPrefix(g.Name, "kueue.x-k8s.io/")
	})
	if len(admitted) == 0 || at < 0 {
		return
	}
	v.Id, v.Severity, v.Confidence = "sched.unschedulable", finding.Error, finding.Likely
	v.Title = "Kueue has admitted the pod's Workload, but has not removed the pod's scheduling gate"
	v.Evidence = append(v.Evidence, admitted...)
	v.Fix = finding.Fix{
		Text: "The quota is reserved for the pod, so more quota, more nodes and recreating the pod do not help. Check " +
			"the log of Kueue's controller for the pod. Without an error there, this is a bug of Kueue, which several " +
			"releases have for elastic jobs (workload slices) whose pod was replaced or added (kueue#10258, kueue#13121, " +
			"kueue#14129): update Kueue. Until then, restart the job, or remove the gate from this pod.",
		Commands: []string{
			shell.Command("kubectl -n %s get workloads.kueue.x-k8s.io -o wide", pod.Namespace),
			// The test keeps a gate of another controller, if the order has changed.
			shell.Command("kubectl -n %s patch pod %s --type json -p %s", pod.Namespace, pod.Name, fmt.Sprintf(
				`[{"op":"test","path":"/spec/schedulingGates/%[1]d/name","value":%[2]q},`+
					`{"op":"remove","path":"/spec/schedulingGates/%[1]d"}]`, at, pod.Spec.SchedulingGates[at].Name)),
		},
	}
}
