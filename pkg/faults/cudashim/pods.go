package cudashim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Pods returns the pods that mount a run's ConfigMap, sorted by name. It finds them by the run's label or, if no pod
// has the label, by their volume.
func (c *Cluster) Pods(ctx context.Context, namespace, run string) ([]corev1.Pod, error) {
	pods, err := c.carriers(ctx, namespace, metav1.ListOptions{LabelSelector: ledger.LabelRun + "=" + run}, run)
	if err == nil && len(pods) == 0 {
		pods, err = c.carriers(ctx, namespace, metav1.ListOptions{}, run)
	}
	return pods, err
}

// carriers returns those of the listed pods that mount a run's ConfigMap.
func (c *Cluster) carriers(
	ctx context.Context, namespace string, options metav1.ListOptions, run string,
) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list pods in namespace %s: %w", namespace, err)
	}
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !carries(&pod, Name(run)) })
	sorting.Func(pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods, nil
}

// carries reports whether a pod mounts a run's ConfigMap.
func carries(pod *corev1.Pod, configMap string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == volumeLib && v.ConfigMap != nil && v.ConfigMap.Name == configMap
	})
}

// Carriers returns the containers of a pod that load the shim.
func Carriers(pod *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if slices.ContainsFunc(
			c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumeLib && m.MountPath == LibraryDir },
		) {
			names = append(names, c.Name)
		}
	}
	return names
}

// ExecPath returns the path of the shim, which is also a program, in a pod on a node with the given architecture
// (amd64, arm64). If the architecture is unknown or the pod has no shim for it, ExecPath returns the pod's first shim,
// or an empty string.
func ExecPath(pod *corev1.Pod, arch string) string {
	first := ""
	for _, v := range pod.Spec.Volumes {
		if v.Name != volumeLib || v.ConfigMap == nil {
			continue
		}
		for _, item := range v.ConfigMap.Items {
			if item.Key == libraryKey(arch) {
				return LibraryDir + "/" + item.Path
			}
			if item.Key != StateKey && first == "" {
				first = LibraryDir + "/" + item.Path
			}
		}
	}
	return first
}

// refreshManager is the field manager for the annotation on pods. It differs from FieldManager, because an annotated
// pod is not a leftover.
const refreshManager = FieldManager + "-refresh"

// Refresh makes the kubelets refresh the volumes of pods immediately, because a kubelet synchronizes a pod when an
// annotation changes (measured: 0.1 s instead of 51 s). Each call needs a different stamp. Pods that no longer exist
// are not an error.
func Refresh(ctx context.Context, client kubernetes.Interface, pods []corev1.Pod, stamp string) error {
	_, err := refresh(ctx, client, pods, stamp)
	return err
}

// refreshAtOnce limits the number of pods that are annotated at the same time.
const refreshAtOnce = 10

// refresh returns the pods that were annotated or no longer exist.
func refresh(ctx context.Context, client kubernetes.Interface, pods []corev1.Pod, stamp string) ([]corev1.Pod, error) {
	body, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": map[string]string{refreshedAt: stamp}}},
	)
	if err != nil {
		return nil, fmt.Errorf("encode the annotation: %w", err)
	}
	errs := make([]error, len(pods))
	var wait sync.WaitGroup
	places := make(chan struct{}, refreshAtOnce)
	for i, pod := range pods {
		places <- struct{}{}
		wait.Go(func() {
			defer func() { <-places }()
			_, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body,
				metav1.PatchOptions{FieldManager: refreshManager})
			if err != nil && !apierrors.IsNotFound(err) {
				errs[i] =
					fmt.Errorf("annotate pod %q, so that the kubelet refreshes the pod's volumes immediately: %w",
						pod.Name, err)
			}
		})
	}
	wait.Wait()
	var told []corev1.Pod
	var first error
	for i, pod := range pods {
		if errs[i] == nil {
			told = append(told, pod)
		} else if first == nil {
			first = errs[i]
		}
	}
	if failed := len(pods) - len(told); failed > 1 {
		return told, fmt.Errorf("%s: %w", count.Of(failed, "pod"), first)
	}
	return told, first
}

// PodState returns a pod's state as shown by kubectl, with the reason if the pod is not running: Running,
// CrashLoopBackOff, "Pending: Unschedulable: ...".
func PodState(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch s := status.State; {
		case s.Waiting != nil && s.Waiting.Reason != "" && s.Waiting.Reason != "PodInitializing" &&
			s.Waiting.Reason != "ContainerCreating":
			return s.Waiting.Reason
		case s.Terminated != nil && s.Terminated.ExitCode != 0 && pod.Status.Phase != corev1.PodRunning:
			return cmp.Or(s.Terminated.Reason, "Error")
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("Pending: %s: %s", condition.Reason, condition.Message)
		}
	}
	if pod.Status.Reason != "" { // Evicted, OutOfpods, UnexpectedAdmissionError
		return strings.TrimSuffix(fmt.Sprintf("%s: %s", pod.Status.Reason, pod.Status.Message), ": ")
	}
	return string(pod.Status.Phase)
}

// hasCrashed reports whether a container of a pod has ever exited with an error.
func hasCrashed(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		ended := s.State.Terminated
		if ended == nil {
			ended = s.LastTerminationState.Terminated
		}
		return ended != nil && ended.ExitCode != 0
	})
}

// isUp reports whether a pod's containers have started, and have therefore loaded their libraries, even if they have
// crashed since then.
func isUp(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return len(pod.Status.ContainerStatuses) > 0
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil && s.State.Terminated == nil && s.LastTerminationState.Terminated == nil
	})
}
