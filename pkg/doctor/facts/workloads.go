package facts

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// ImageOf returns the image of the pod's container with the given name.
func ImageOf(pod *corev1.Pod, container string) string {
	for c := range Containers(pod) {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}

// Concerns returns the severity of a finding about a pod that is not running. It is higher for GPU pods and GPU
// software components.
func (f *Facts) Concerns(pod *corev1.Pod) finding.Severity {
	if f.UsesGPU(pod) || ComponentOf(pod.Labels, &pod.Spec) != "" {
		return finding.Error
	}
	return finding.Info
}

// unusedMemory is the GPU memory, in MiB, that the driver itself may use.
const unusedMemory = 1024

// Idle reports whether a pod's GPUs are idle, or returns nil if this is unknown. It is unknown which process belongs to
// which pod, so all pods on a node count as idle if none of the node's GPUs is in use.
func Idle(n *Node, pod *corev1.Pod) *bool {
	log := n.GPUs().SMI
	if pod.Status.Phase != corev1.PodRunning || log == nil || len(log.GPUs) == 0 {
		return nil
	}
	quiet := true
	for _, g := range log.GPUs {
		switch {
		case len(g.Errors) > 0, g.MIG.Enabled != nil && *g.MIG.Enabled, g.MemoryUsed == nil,
			g.Utilization == nil || g.Utilization.GPU == nil:
			return nil
		case len(g.Processes) > 0, *g.MemoryUsed > unusedMemory, *g.Utilization.GPU > 0:
			quiet = false
		}
	}
	if !quiet && len(log.GPUs) > 1 {
		return nil // at least one pod on the node uses its GPUs
	}
	return &quiet
}

// endedCounts is the time for which a failed pod is reported. After that, the user is assumed to know about the
// failure, and the owner, if any, has replaced the pod.
const endedCounts = time.Hour

// restartsCount is the number of restarts after which an unready pod counts as failing.
const restartsCount = 3

// Past reports whether a failed pod was replaced, or failed more than an hour ago and has a controller that creates
// other pods. A pod that will not be replaced, because it has no controller or its Job has given up, is reported for a
// day.
func (f *Facts) Past(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || ComponentOf(pod.Labels, &pod.Spec) != "" {
		return false
	}
	ended, counts := f.EndedAt(pod), endedCounts
	owner := metav1.GetControllerOf(pod)
	if pod.Status.Reason == "" && pod.Spec.RestartPolicy != corev1.RestartPolicyOnFailure &&
		(owner == nil || pod.Spec.RestartPolicy == corev1.RestartPolicyNever) {
		counts = failedCounts
	}
	return f.Replaced(pod) || !ended.IsZero() && f.Now.Sub(ended) > counts
}

// WorstOf returns the worst severity of the troubles. A container that has restarted has a lower severity, because it
// may keep running.
func WorstOf(troubles []Trouble) finding.Severity {
	worst := finding.Error
	for i, t := range troubles {
		severity := finding.Error
		switch {
		case t.again && t.restarts < restartsCount:
			severity = finding.Info
		case t.again:
			severity = finding.Warning
		}
		if i == 0 || finding.Rank(severity) < finding.Rank(worst) {
			worst = severity
		}
	}
	return worst
}

const (
	RecentCrash  = 10 * time.Minute // a container that has restarted since may crash again
	failedCounts = 24 * time.Hour   // older failures are not reported
)

// Workloads returns the GPU pods (see UsesGPU), including failed pods. It omits GPU software components and pods that
// are being deleted.
func (f *Facts) Workloads() []*corev1.Pod { return f.gpuWorkloads() }

func (f *Facts) findWorkloads() []*corev1.Pod {
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && f.UsesGPU(pod) &&
			ComponentOf(pod.Labels, &pod.Spec) == "" {
			all = append(all, pod)
		}
	}
	return all
}

// Trouble is a problem with a pod as reported by the kubelet.
type Trouble struct {
	Container string
	// Text is human-readable: "waiting: CrashLoopBackOff", "exit code 1".
	Text     string
	Message  string // the message from the kubelet or container
	Reason   string // waiting or terminated reason: CrashLoopBackOff, OOMKilled
	ExitCode int32  // 0 if the container did not exit
	Time     time.Time
	Ran      bool // the container has run, so a log is expected
	restarts int32
	again    bool // the container has restarted since
}

// badReasons returns the waiting reasons that do not resolve without intervention.
func badReasons() []string {
	return []string{
		"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
		"RegistryUnavailable",
		"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError",
		"PreStartHookError", "StartError",
		"ContainerCannotRun", "ErrImageInspect", "SignatureValidationFailed",
	}
}

// Statuses yields the statuses of all containers in the order in which they run, init containers first.
func Statuses(pod *corev1.Pod) iter.Seq[*corev1.ContainerStatus] {
	return inOrder(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// Containers yields all containers in the order in which they run, init containers first.
func Containers(pod *corev1.Pod) iter.Seq[*corev1.Container] {
	return inOrder(pod.Spec.InitContainers, pod.Spec.Containers)
}

// inOrder yields all elements without copying them, because checks iterate over the containers of up to 50,000 pods
// many times.
func inOrder[T any](first, then []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range first {
			if !yield(&first[i]) {
				return
			}
		}
		for i := range then {
			if !yield(&then[i]) {
				return
			}
		}
	}
}

// Troubles returns the problems of containers in a pod that are failing now or failed recently. It returns nil if the
// pod is healthy or ready again.
func (f *Facts) Troubles(pod *corev1.Pod) []Trouble {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase == corev1.PodFailed && f.History(pod) {
		return nil
	}
	var all []Trouble
	for c := range Statuses(pod) {
		last := c.LastTerminationState.Terminated
		switch {
		case c.State.Waiting != nil && slices.Contains(badReasons(), c.State.Waiting.Reason):
			t := Trouble{
				Container: c.Name, Text: "waiting: " + c.State.Waiting.Reason, Message: c.State.Waiting.Message,
				Reason: c.State.Waiting.Reason, Ran: last != nil,
			}
			if last != nil {
				t.ExitCode, t.Time = last.ExitCode, last.FinishedAt.Time
				t.Text += fmt.Sprintf("; last exit code %d (%s)", last.ExitCode, last.Reason)
				t.Message = strings.TrimSpace(t.Message + "\n" + last.Message)
			}
			all = append(all, t)
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			all = append(all, Exited(c.Name, c.State.Terminated))
		case c.State.Running != nil && last != nil && last.ExitCode != 0 &&
			f.Now.Sub(last.FinishedAt.Time) < RecentCrash && !RunsReady(pod):
			t := Exited(c.Name, last)
			t.again, t.restarts = true, c.RestartCount
			all = append(all, t)
		}
	}
	return all
}

// Exited returns the trouble of a container that has exited.
func Exited(container string, t *corev1.ContainerStateTerminated) Trouble {
	return Trouble{
		Container: container, Text: fmt.Sprintf("exit code %d (%s)", t.ExitCode, t.Reason), Message: t.Message,
		Reason:   t.Reason,
		ExitCode: t.ExitCode, Time: t.FinishedAt.Time, Ran: true,
	}
}

// History reports whether a failed pod is no longer relevant: it failed long ago, or its owner has a newer, healthy
// pod.
func (f *Facts) History(pod *corev1.Pod) bool {
	ended := f.EndedAt(pod)
	return !ended.IsZero() && f.Now.Sub(ended) > failedCounts || f.Replaced(pod)
}

// LastChange returns when a pod's status last changed, as far as is known. For a finished pod, this is when the pod
// finished.
func LastChange(pod *corev1.Pod) time.Time {
	last := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	for c := range Statuses(pod) {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}

// EndedAt returns when a finished pod finished, as far as is known. If a kubelet evicts or rejects a pod, it clears the
// pod's status, so the time is from the event.
func (f *Facts) EndedAt(pod *corev1.Pod) time.Time {
	last := LastChange(pod)
	if pod.Status.Reason == "" {
		return last
	}
	for _, e := range f.EventsOfPod(pod) {
		if at := EventTime(e); e.Reason == pod.Status.Reason && at.After(last) {
			return at
		}
	}
	return last
}

// Replaced reports whether the pod's owner has a newer pod that is ready or has succeeded.
func (f *Facts) Replaced(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	return slices.ContainsFunc(f.siblings()[string(owner.UID)+owner.Kind+pod.Namespace+owner.Name],
		func(other *corev1.Pod) bool {
			return other != pod && !other.CreationTimestamp.Before(&pod.CreationTimestamp) &&
				(other.Status.Phase == corev1.PodSucceeded || RunsReady(other))
		})
}

// RunsReady reports whether a pod is running and ready.
func RunsReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && podutils.IsPodReady(pod)
}

// findSiblings returns the pods by owner.
func (f *Facts) findSiblings() map[string][]*corev1.Pod {
	all := map[string][]*corev1.Pod{}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if owner := metav1.GetControllerOf(pod); owner != nil {
			key := string(owner.UID) + owner.Kind + pod.Namespace + owner.Name
			all[key] = append(all[key], pod)
		}
	}
	return all
}

// Said returns the first line in a failing pod's container messages, logs or events that contains one of the texts, as
// evidence.
func (f *Facts) Said(pod *corev1.Pod, troubles []Trouble, texts ...string) (finding.Evidence, bool) {
	for _, t := range troubles {
		for line := range strings.Lines(t.Message) {
			if words.ContainsAny(line, texts) {
				return finding.Evidence{
					Source: PodObject(pod).String() + ", container " + t.Container + " .status", Time: t.Time,
					Text: words.Clip(strings.TrimSpace(line)),
				}, true
			}
		}
	}
	if e, found := f.GrepLogs(pod, texts...); found {
		e.Text = words.Clip(e.Text)
		return e, true
	}
	for _, e := range f.EventsOfPod(pod) {
		if words.ContainsAny(e.Message, texts) {
			q := Quote(e)
			q.Text = words.Clip(q.Text)
			return q, true
		}
	}
	return finding.Evidence{}, false
}

// Unread returns the reason why a pod's log is missing although its containers ran, or "" if the log exists or none is
// expected.
func (f *Facts) Unread(pod *corev1.Pod, troubles []Trouble) string {
	if len(f.LogsOf(pod)) > 0 || !slices.ContainsFunc(troubles, func(t Trouble) bool { return t.Ran }) {
		return ""
	}
	if why := f.Missing("logs/" + pod.Namespace + "/" + pod.Name); why != "" {
		return "its log: " + why
	}
	return "its log is not in the snapshot"
}
