package facts

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LeftOver reports a pod of a training job that has finished because its master has succeeded.
func (f *Facts) LeftOver(pod *corev1.Pod, _ *Node) (source, text string) {
	if pod == nil || pod.Labels["training.kubeflow.org/job-name"] == "" || Ended(pod) || pod.DeletionTimestamp != nil {
		return "", ""
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	for i := range f.Snapshot.Pods {
		master := &f.Snapshot.Pods[i]
		its := metav1.GetControllerOfNoCopy(master)
		if owner != nil && its != nil && its.UID == owner.UID && master.Status.Phase == corev1.PodSucceeded &&
			master.Labels["training.kubeflow.org/job-role"] == "master" &&
			f.Now.Sub(f.EndedAt(master)) > 2*time.Minute { // the controller deletes the other pods immediately
			return PodObject(master).String() + " .status.phase, and its owner",
				"left over: " + PodObject(pod).String() + " of " + owner.Kind + " " + owner.Name +
					": its master succeeded"
		}
	}
	return "", ""
}
