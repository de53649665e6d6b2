package facts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// ImageOf returns the image that a pod's container asks for.
func ImageOf(pod *corev1.Pod, container string) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}

// Concerns returns how bad it is when a pod does not run: GPU pods and the components that make GPUs usable are what
// doctor is about.
func (f *Facts) Concerns(pod *corev1.Pod) finding.Severity {
	if f.AsksForGPU(pod) || ComponentOf(pod.Labels, pod.Spec) != "" {
		return finding.Error
	}
	return finding.Info
}

// unusedMemory is how much of a GPU's memory, in MiB, the driver itself may use.
const unusedMemory = 1024

// Idle reports whether nothing computes on the GPUs of a pod; nil when it cannot be told. Which process belongs to
// which pod is not known, so that only a node none of whose GPUs does anything tells: its pods are all idle.
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
		return nil // some of its pods compute
	}
	return &quiet
}

// endedCounts is how long a pod that has failed is news: whoever waits for it has seen it by then, and its owner has
// made another if it does.
const endedCounts = time.Hour

// restartsCount is how many restarts of a pod that is not ready yet are more than an accident.
const restartsCount = 3

// Past reports whether a pod has failed, and that is over: users' jobs fail every day, and nothing is wrong with the
// cluster for that.
func (f *Facts) Past(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || ComponentOf(pod.Labels, pod.Spec) != "" {
		return false
	}
	ended := LastChange(pod)
	return f.Replaced(pod) || !ended.IsZero() && f.Now.Sub(ended) > endedCounts
}

// WorstOf returns how bad troubles can be: containers that run again may go on to run.
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
	RecentCrash  = 10 * time.Minute // a container that runs again since then may crash again
	failedCounts = 24 * time.Hour   // older failures are history
)

// Workloads returns the pods that ask for GPUs, are none of the components that make them usable, and are not being
// deleted; also those that have failed.
func (f *Facts) Workloads() []*corev1.Pod { return f.gpuWorkloads() }

func (f *Facts) findWorkloads() []*corev1.Pod {
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && f.AsksForGPU(pod) &&
			ComponentOf(pod.Labels, pod.Spec) == "" {
			all = append(all, pod)
		}
	}
	return all
}

// Trouble is what is wrong with a pod, in the kubelet's words.
type Trouble struct {
	Container string
	// Text is for people: "waiting: CrashLoopBackOff", "exit code 1".
	Text     string
	Message  string // the kubelet's or the container's own
	Reason   string // waiting or terminated reason: CrashLoopBackOff, OOMKilled
	ExitCode int32  // 0 when it did not exit
	Time     time.Time
	Ran      bool // the container has run, so there should be a log
	restarts int32
	again    bool // the container runs again since
}

// badReasons are waiting reasons that do not go away by waiting.
func badReasons() []string {
	return []string{
		"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
		"RegistryUnavailable",
		"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError",
		"PreStartHookError", "StartError",
		"ContainerCannotRun", "ErrImageInspect", "SignatureValidationFailed",
	}
}

// Statuses returns those of all containers, the init containers first, as they run.
func Statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// Troubles returns the containers of a pod that fail now or have just failed; none when the pod is well, or is ready
// again.
func (f *Facts) Troubles(pod *corev1.Pod) []Trouble {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase == corev1.PodFailed && f.History(pod) {
		return nil
	}
	var all []Trouble
	for _, c := range Statuses(pod) {
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

// Exited makes a trouble of a container that has ended.
func Exited(container string, t *corev1.ContainerStateTerminated) Trouble {
	return Trouble{
		Container: container, Text: fmt.Sprintf("exit code %d (%s)", t.ExitCode, t.Reason), Message: t.Message,
		Reason:   t.Reason,
		ExitCode: t.ExitCode, Time: t.FinishedAt.Time, Ran: true,
	}
}

// History reports whether a failed pod is only that: it failed long ago, or its owner has a newer pod that is well.
func (f *Facts) History(pod *corev1.Pod) bool {
	ended := LastChange(pod)
	return !ended.IsZero() && f.Now.Sub(ended) > failedCounts || f.Replaced(pod)
}

// LastChange returns when a pod's status changed last, as far as it says; for one that has ended that is its end.
func LastChange(pod *corev1.Pod) time.Time {
	last := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	for _, c := range Statuses(pod) {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}

// Replaced reports whether the owner of a pod has a newer pod that runs and is ready, or has succeeded.
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

// RunsReady reports whether a pod runs and is ready.
func RunsReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// findSiblings groups pods by their owner.
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

// Said looks for the first of the texts in what is known of a failing pod: messages of its containers, its logs, its
// events. It knows when it could not look: a container has run and left no log.
func (f *Facts) Said(pod *corev1.Pod, troubles []Trouble, texts ...string) (finding.Evidence, bool) {
	for _, t := range troubles {
		for line := range strings.Lines(t.Message) {
			if words.ContainsAny(line, texts) {
				return finding.Evidence{
					Source: PodObject(pod).String() + ", container " + t.Container + " .status", Time: t.Time,
					Text: words.Cut(strings.TrimSpace(line)),
				}, true
			}
		}
	}
	if e, found := f.GrepLogs(pod, texts...); found {
		e.Text = words.Cut(e.Text)
		return e, true
	}
	for _, e := range f.EventsOfPod(pod) {
		if words.ContainsAny(e.Message, texts) {
			q := Quote(e)
			q.Text = words.Cut(q.Text)
			return q, true
		}
	}
	return finding.Evidence{}, false
}

// Unread returns why the log of a pod whose containers ran is not there; empty when it is, or when there is none to be
// had.
func (f *Facts) Unread(pod *corev1.Pod, troubles []Trouble) string {
	if len(f.LogsOf(pod)) > 0 || !slices.ContainsFunc(troubles, func(t Trouble) bool { return t.Ran }) {
		return ""
	}
	if why := f.Missing("logs/" + pod.Namespace + "/" + pod.Name); why != "" {
		return "its log: " + why
	}
	return "its log is not in the snapshot"
}
