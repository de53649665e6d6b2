package debugpod

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// verdict is the state of a pod that is expected to run.
type verdict struct {
	running bool
	// failure describes why the pod will never run.
	failure *StartError
	// waiting describes what a pod that is neither running nor failed is waiting for.
	waiting string
}

// judge returns the verdict for a pod. It uses only the state of the pod.
func judge(pod *corev1.Pod) verdict { return judgeContainer(pod, containerName) }

// WhyWaiting returns what a pod is waiting for before its container can run. It is for this tool's pods other than
// debug pods. A non-nil error means that the pod will never run, and describes what the user can do.
func WhyWaiting(pod *corev1.Pod, container string) (string, error) {
	verdict := judgeContainer(pod, container)
	if verdict.failure != nil {
		return verdict.failure.Error(), verdict.failure
	}
	return verdict.waiting, nil
}

func judgeContainer(pod *corev1.Pod, container string) verdict {
	if pod.DeletionTimestamp != nil {
		return verdict{failure: &StartError{Reason: ReasonDeleted, Message: messageDeleted}}
	}
	status := containerStatus(pod, container)
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return verdict{failure: ended(pod, status)}
	}
	switch {
	case status == nil && pod.Status.StartTime == nil:
		return verdict{waiting: "the kubelet has not processed the pod yet"}
	case status == nil:
		return verdict{waiting: cmp.Or(pod.Status.Reason, "the kubelet is preparing the pod")}
	case status.State.Running != nil:
		return verdict{running: true}
	case status.State.Terminated != nil:
		return verdict{failure: ended(pod, status)}
	case status.State.Waiting == nil:
		return verdict{waiting: "the kubelet is preparing the pod"}
	}
	waiting := status.State.Waiting
	if hint, fatal := fatalReasons()[waiting.Reason]; fatal && !runtimeAway(waiting.Message) {
		return verdict{failure: &StartError{
			Reason:  waiting.Reason,
			Message: cmp.Or(waiting.Message, "image "+pod.Spec.Containers[0].Image),
			Hint:    hint,
		}}
	}
	text := waiting.Reason
	if waiting.Message != "" {
		text += ": " + waiting.Message
	}
	return verdict{waiting: text}
}

// runtimeAway reports whether a waiting reason is caused only by a container runtime that is restarting, as happens
// after a change. It matches gRPC's messages for an unavailable socket, but not the runtime's messages about an image.
func runtimeAway(message string) bool {
	if !strings.Contains(message, "code = Unavailable") {
		return false
	}
	for _, words := range []string{"connection error", "error reading from server", "transport is closing"} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

// fatalReasons returns those of the kubelet's waiting reasons that only the user can resolve, with a hint for each (see
// pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime/kuberuntime_container.go and
// pkg/kubelet/container/sync_result.go in Kubernetes).
func fatalReasons() map[string]string {
	const pull = "use --image to specify an image that the node can pull, and --image-pull-secret to specify its secret"
	const broken = "see the runtime's message in kubectl describe pod, and the logs of the kubelet and the runtime on the node"
	return map[string]string{
		"ErrImagePull":              pull,
		"ImagePullBackOff":          pull,
		"RegistryUnavailable":       pull,
		"SignatureValidationFailed": pull,
		"ImageInspectError":         pull,
		"InvalidImageName":          "the image name is invalid: correct --image",
		"ErrImageNeverPull": "the image is not on the node, and the pull policy is Never: load the image onto the " +
			"node, or specify another --image or --image-pull-policy",
		"CreateContainerConfigError": "an object that the container requires does not exist",
		"CreateContainerError":       broken,
		"RunContainerError":          broken,
		"PreStartHookError":          broken,
		"StartError":                 broken,
		"CrashLoopBackOff":           broken,
	}
}

// ended returns the reason why a pod has terminated.
func ended(pod *corev1.Pod, status *corev1.ContainerStatus) *StartError {
	var state *corev1.ContainerStateTerminated
	if status != nil {
		state = status.State.Terminated
	}
	if pod.Status.Reason == "DeadlineExceeded" {
		return &StartError{
			Reason:  pod.Status.Reason,
			Message: cmp.Or(pod.Status.Message, "the debug pod exceeded its deadline"),
			Hint:    "increase --timeout",
		}
	}
	if pod.Status.Reason != "" || state == nil { // the kubelet rejected or evicted the pod
		return &StartError{
			Reason:  cmp.Or(pod.Status.Reason, string(pod.Status.Phase)),
			Message: cmp.Or(pod.Status.Message, "the debug pod terminated before its container started"),
			Hint:    admissionHint(pod),
		}
	}
	message := strings.TrimSpace(state.Message)
	e := &StartError{
		Reason: cmp.Or(state.Reason, ReasonExited),
		Message: strings.TrimSpace(fmt.Sprintf("the debug pod's container exited with code %d: %s", state.ExitCode,
			cmp.Or(message, "no output"))),
	}
	switch {
	case strings.Contains(message, "exec format error"):
		e.Hint = fmt.Sprintf("image %s is not for the node's architecture: specify another image with --image",
			pod.Spec.Containers[0].Image)
	case strings.Contains(message, `"sh"`):
		e.Hint =
			fmt.Sprintf("image %s has no shell: specify another image with --image. If you built it with `kubectl gpu-fault image`, rebuild it with this version of the plugin",
				pod.Spec.Containers[0].Image)
	}
	return e
}

func admissionHint(pod *corev1.Pod) string {
	switch reason := pod.Status.Reason; {
	case strings.HasPrefix(reason, "OutOf"):
		return fmt.Sprintf("node %s is full: free some resources on it", pod.Spec.NodeName)
	case reason == "Evicted", reason == "Preempting":
		return fmt.Sprintf("node %s is under pressure: see kubectl describe node %s", pod.Spec.NodeName,
			pod.Spec.NodeName)
	case reason == "PodOSNotSupported":
		return "only Linux nodes are supported"
	case reason == "NodeShutdown", reason == "Terminated", reason == "NodeLost":
		return fmt.Sprintf("node %s is shutting down", pod.Spec.NodeName)
	}
	return ""
}

func containerStatus(pod *corev1.Pod, container string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == container {
			return s
		}
	}
	return nil
}
