package scheduler

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// The labels or annotations by which pods name their queue. The snapshot has the queues of KAI Scheduler.
var (
	kaiQueues = []string{"kai.scheduler/queue", "runai/queue"}
	queues    = append(slices.Clone(kaiQueues), "scheduling.volcano.sh/queue-name", "yunikorn.apache.org/queue")
)

// tellQueue describes a pod that its scheduler leaves out with a message that has no reason on the side of the nodes.
func (s *Scheduler) tellQueue(pod *corev1.Pod, v *verdict) {
	v.Fix = finding.Fix{
		Text: "The message has no reason. See the log of the scheduler for this pod.",
		Commands: []string{shell.Command("kubectl get pods -A | grep -i %s",
			cmp.Or(pod.Spec.SchedulerName, "scheduler"))},
	}
	for _, key := range queues {
		name := cmp.Or(pod.Labels[key], pod.Annotations[key])
		if name == "" {
			continue
		}
		v.Title = "GPUs are free, but the scheduler leaves the pod out and gives no reason: see its queue " + name
		v.Evidence = append(v.Evidence, finding.FieldEvidence(facts.PodObject(pod), ".metadata", "%s=%s", key, name))
		if slices.Contains(kaiQueues, key) {
			v.Evidence = append(v.Evidence, s.queueProblem(name)...)
		}
		v.Fix.Text = "See whether the queue exists, is open, has no queues below it, and has a quota or limit that allows " +
			"the GPUs. See the log of the scheduler for this pod."
		return
	}
}

// queueProblem compares a queue of KAI Scheduler with the others. What a result means is in the signatures.
//
//	queue NAME: does not exist
//	queue NAME: is the parent of NAME
//	queue NAME: has no parentQueue
func (s *Scheduler) queueProblem(name string) []finding.Evidence {
	if len(s.F.Queues) == 0 { // not read
		return nil
	}
	tell := func(field, text string) []finding.Evidence {
		return []finding.Evidence{{Source: "Queue " + name + field, Text: "queue " + name + ": " + text}}
	}
	exists, own := false, ""
	for i := range s.F.Queues {
		q := &s.F.Queues[i]
		parent, _, _ := unstructured.NestedString(q.Object, "spec", "parentQueue")
		switch {
		case parent == name:
			return tell("", "is the parent of "+q.GetName())
		case q.GetName() == name:
			exists, own = true, parent
		}
	}
	switch {
	case !exists:
		return tell("", "does not exist")
	case own == "":
		return tell(" .spec.parentQueue", "has no parentQueue")
	}
	return nil
}
