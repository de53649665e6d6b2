package scheduler

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// queue is how a pod names its queue in a scheduler, and the command that shows the queue.
type queue struct{ scheduler, key, show string }

// queues are the queues that schedulers know. The key is of a label or an annotation.
var queues = []queue{
	{"KAI Scheduler", "kai.scheduler/queue", "kubectl get queues.scheduling.run.ai %s -o yaml"},
	{"Run:ai", "runai/queue", "kubectl get queues.scheduling.run.ai %s -o yaml"},
	{"Volcano", "scheduling.volcano.sh/queue-name", "kubectl get queues.scheduling.volcano.sh %s -o yaml"},
	{"YuniKorn", "yunikorn.apache.org/queue", "# see the queue %s: kubectl get configmap -A | grep yunikorn-configs"},
}

// tellQueue describes a pod that its scheduler leaves out with a message that has no reason on the side of the nodes.
func tellQueue(pod *corev1.Pod, v *verdict) {
	v.Fix = finding.Fix{
		Text: "The message has no reason. See the log of the scheduler for this pod.",
		Commands: []string{shell.Command("kubectl get pods -A | grep -i %s",
			cmp.Or(pod.Spec.SchedulerName, "scheduler"))},
	}
	for _, q := range queues {
		field, name := ".metadata.labels", pod.Labels[q.key]
		if name == "" {
			field, name = ".metadata.annotations", pod.Annotations[q.key]
		}
		if name == "" {
			continue
		}
		v.Title = "GPUs are free, but the scheduler leaves the pod out and gives no reason: see its queue " + name
		v.Evidence = append(v.Evidence, finding.FieldEvidence(facts.PodObject(pod), field, "%s=%s", q.key, name))
		v.Fix.Text = "See whether the queue exists, is open, has no queues below it, and has a quota or limit that allows " +
			"the GPUs. See the log of the scheduler for this pod."
		v.Fix.Commands = append([]string{shell.Command(q.show, name)}, v.Fix.Commands...)
		return
	}
}
