package facts

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cleanedUp is the time within which a controller deletes the remaining pods of a finished job.
const cleanedUp = 5 * time.Minute

// LeftOver reports a pod of a training job whose leading pod (master, chief or launcher) has succeeded, so that the job
// has finished and the pod is not needed.
func (f *Facts) LeftOver(pod *corev1.Pod, _ *Node) (source, text string) {
	const training = "training.kubeflow.org/"
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || pod.Labels[training+"job-name"] == "" || Ended(pod) || pod.DeletionTimestamp != nil {
		return "", ""
	}
	for i := range f.Snapshot.Pods {
		first := &f.Snapshot.Pods[i]
		role := first.Labels[training+"replica-type"]
		if !metav1.IsControlledBy(first, &metav1.ObjectMeta{UID: owner.UID}) || first.Namespace != pod.Namespace ||
			first.Status.Phase != corev1.PodSucceeded ||
			first.Labels[training+"job-role"] != "master" &&
				!slices.Contains([]string{"master", "chief", "launcher"}, role) {
			continue
		}
		var at time.Time
		for s := range Statuses(first) {
			if s.State.Terminated != nil && s.State.Terminated.FinishedAt.After(at) {
				at = s.State.Terminated.FinishedAt.Time
			}
		}
		if f.Now.Sub(at) > cleanedUp {
			return PodObject(first).String() + " .status.phase, and its owner",
				fmt.Sprintf("left over: Pod %s/%s of %s %s, whose %s succeeded at %s", pod.Namespace, pod.Name, owner.Kind,
					owner.Name, role, at.UTC().Format(time.RFC3339))
		}
	}
	return "", ""
}
