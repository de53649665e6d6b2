package scheduler

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// queues are the labels or annotations by which pods name their queue, and the API group of the queue, if doctor reads
// it.
var queues = []struct{ key, group string }{
	{"kai.scheduler/queue", "scheduling.run.ai"}, {"runai/queue", "scheduling.run.ai"},
	{"scheduling.volcano.sh/queue-name", "scheduling.volcano.sh"}, {"yunikorn.apache.org/queue", ""},
}

// tellQueue describes a pod that its scheduler leaves out with a message that has no reason on the side of the nodes.
func (s *Scheduler) tellQueue(pod *corev1.Pod, v *verdict) {
	v.Fix = finding.Fix{
		Text: "The message has no reason. See the log of the scheduler for this pod.",
		Commands: []string{shell.Command("kubectl get pods -A | grep -i %s",
			cmp.Or(pod.Spec.SchedulerName, "scheduler"))},
	}
	for _, q := range queues {
		name := cmp.Or(pod.Labels[q.key], pod.Annotations[q.key])
		if name == "" {
			continue
		}
		v.Title = "GPUs are free, but the scheduler leaves the pod out and gives no reason: see its queue " + name
		v.Evidence = append(v.Evidence, finding.FieldEvidence(facts.PodObject(pod), ".metadata", "%s=%s", q.key, name))
		v.Evidence = append(v.Evidence, s.F.QueueProblem(q.group, name, nil)...)
		v.Fix.Text = "See whether the queue exists, is open, has no queues below it, and has a quota or limit that allows " +
			"the GPUs. See the log of the scheduler for this pod."
		return
	}
}
