package scheduling

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// The kinds of objects whose pods an update replaces while the old ones still run.
const (
	deployment = "Deployment"
	rollout    = "Rollout"         // Argo Rollouts
	service    = "Knative Service" // including an InferenceService of KServe in serverless mode
)

// updated returns the kind and name of the object whose updates replace a pod, and the name of the pod's generation:
// its ReplicaSet or revision.
func updated(pod *corev1.Pod) (kind, name, generation string) {
	const knative = "serving.knative.dev/"
	if revision := pod.Labels[knative+"revision"]; revision != "" {
		return service, cmp.Or(pod.Labels[knative+"service"], pod.Labels[knative+"configuration"]), revision
	}
	name, generation = facts.DeploymentOf(pod)
	if hash := pod.Labels["rollouts-pod-template-hash"]; hash != "" {
		return rollout, strings.TrimSuffix(generation, "-"+hash), generation
	}
	return deployment, name, generation
}

// predecessor returns a pod that holds GPUs and belongs to an older generation of the pod's owner, or nil if there is
// none.
func predecessor(f *facts.Facts, pod *corev1.Pod) *corev1.Pod {
	kind, name, generation := updated(pod)
	if name == "" {
		return nil
	}
	for i := range f.Snapshot.Pods {
		old := &f.Snapshot.Pods[i]
		itsKind, itsName, itsGeneration := updated(old)
		if old.Namespace == pod.Namespace && itsKind == kind && itsName == name && itsGeneration != generation &&
			old.Spec.NodeName != "" && old.DeletionTimestamp == nil && !facts.Ended(old) && f.AsksForGPU(old) &&
			old.CreationTimestamp.Before(&pod.CreationTimestamp) {
			return old
		}
	}
	return nil
}

// describeDeadlock describes a rolling update that is waiting for the GPUs of the pods that it replaces.
func describeDeadlock(pod, old *corev1.Pod, issue *finding.Finding) {
	kind, name, _ := updated(pod)
	_, _, generation := updated(old)
	issue.Severity, issue.Confidence = finding.Error, finding.Likely
	issue.Title = "the rolling update is deadlocked: the new pod needs the GPUs that the " + kind + "'s old pod holds"
	from := metav1.GetControllerOf(old).Name
	if kind == service {
		from = "revision " + generation
	}
	issue.Evidence = append(
		[]finding.Evidence{finding.FieldEvidence(facts.PodObject(old), ".metadata.ownerReferences",
			"%s, running on %s", from, old.Spec.NodeName)},
		issue.Evidence...)
	switch kind {
	case service:
		issue.Fix = finding.Fix{
			Text: "Knative keeps the old revision " + generation + " until the pods of the new revision are ready, " +
				"so waiting does not help. Add a GPU for the duration of the update. Otherwise, delete the old " +
				"revision: if it still gets traffic, the service is interrupted until the new revision is ready. " +
				"Restarting or deleting the new pods does not help.",
			Commands: []string{
				shell.Command("kubectl -n %s get revisions.serving.knative.dev,routes.serving.knative.dev -o wide",
					pod.Namespace),
				shell.Command("kubectl -n %s delete revisions.serving.knative.dev %s", pod.Namespace, generation),
			},
		}
	case rollout:
		issue.Fix = finding.Fix{
			Text: "Let the Rollout delete the old pod first: set maxSurge to 0 and maxUnavailable to 1 under " +
				"spec.strategy.canary. With the strategy blueGreen, both versions run at the same time, which " +
				"requires twice the GPUs.",
			Commands: []string{shell.Command("kubectl -n %s edit rollouts.argoproj.io %s", pod.Namespace, name)},
		}
	default:
		issue.Fix = finding.Fix{
			Text: "Let the Deployment delete the old pod first: use the strategy Recreate, or set maxSurge to 0 and " +
				"maxUnavailable to 1. Otherwise, add a GPU for the duration of the update.",
			Commands: []string{
				shell.Command("kubectl -n %s patch deployment %s --type merge -p %s", pod.Namespace, name,
					`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`),
			},
		}
	}
}
