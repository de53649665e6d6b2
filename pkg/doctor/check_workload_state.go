package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How long things may take, and count.
const (
	startTime    = 2 * time.Minute  // a pod that just starts
	slowStart    = 15 * time.Minute // big images take long
	recentCrash  = 10 * time.Minute // a container that runs again since then may crash again
	failedCounts = 24 * time.Hour   // older failures are history
	evictedSince = 6 * time.Hour    // an eviction is over sooner: the pod's owner has made another
)

// workloads returns the pods that ask for GPUs, are none of the components that make them usable, and are not being
// deleted; also those that have failed.
func (f *Facts) workloads() []*corev1.Pod { return f.gpuWorkloads() }

func (f *Facts) findWorkloads() []*corev1.Pod {
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && f.wantsGPU(pod) &&
			ComponentOf(pod.Labels, pod.Spec) == "" {
			all = append(all, pod)
		}
	}
	return all
}

// trouble is what is wrong with a pod, in the kubelet's words.
type trouble struct {
	container string
	// text is for people: "waiting: CrashLoopBackOff", "exit code 1".
	text     string
	message  string // the kubelet's or the container's own
	reason   string // waiting or terminated reason: CrashLoopBackOff, OOMKilled
	exitCode int32  // 0 when it did not exit
	time     time.Time
	ran      bool // the container has run, so there should be a log
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

// statuses returns those of all containers, the init containers first, as they run.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// troubles returns the containers of a pod that fail now or have just failed; none when the pod is well, or is ready
// again.
func (f *Facts) troubles(pod *corev1.Pod) []trouble {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase == corev1.PodFailed && f.history(pod) {
		return nil
	}
	var all []trouble
	for _, c := range statuses(pod) {
		last := c.LastTerminationState.Terminated
		switch {
		case c.State.Waiting != nil && slices.Contains(badReasons(), c.State.Waiting.Reason):
			t := trouble{
				container: c.Name, text: "waiting: " + c.State.Waiting.Reason, message: c.State.Waiting.Message,
				reason: c.State.Waiting.Reason, ran: last != nil,
			}
			if last != nil {
				t.exitCode, t.time = last.ExitCode, last.FinishedAt.Time
				t.text += fmt.Sprintf("; last exit code %d (%s)", last.ExitCode, last.Reason)
				t.message = strings.TrimSpace(t.message + "\n" + last.Message)
			}
			all = append(all, t)
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			all = append(all, exited(c.Name, c.State.Terminated))
		case c.State.Running != nil && last != nil && last.ExitCode != 0 &&
			f.Now.Sub(last.FinishedAt.Time) < recentCrash && !isReady(pod):
			t := exited(c.Name, last)
			t.again, t.restarts = true, c.RestartCount
			all = append(all, t)
		}
	}
	return all
}

func exited(container string, t *corev1.ContainerStateTerminated) trouble {
	return trouble{
		container: container, text: fmt.Sprintf("exit code %d (%s)", t.ExitCode, t.Reason), message: t.Message,
		reason:   t.Reason,
		exitCode: t.ExitCode, time: t.FinishedAt.Time, ran: true,
	}
}

// history reports whether a failed pod is only that: it failed long ago, or its owner has a newer pod that is well.
func (f *Facts) history(pod *corev1.Pod) bool {
	ended := lastChange(pod)
	return !ended.IsZero() && f.Now.Sub(ended) > failedCounts || f.replaced(pod)
}

// lastChange returns when a pod's status changed last, as far as it says; for one that has ended that is its end.
func lastChange(pod *corev1.Pod) time.Time {
	last := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	for _, c := range statuses(pod) {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}

// replaced reports whether the owner of a pod has a newer pod that runs and is ready, or has succeeded.
func (f *Facts) replaced(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	return slices.ContainsFunc(f.siblings()[string(owner.UID)+owner.Kind+pod.Namespace+owner.Name],
		func(other *corev1.Pod) bool {
			return other != pod && !other.CreationTimestamp.Before(&pod.CreationTimestamp) &&
				(other.Status.Phase == corev1.PodSucceeded || isReady(other))
		})
}

func isReady(pod *corev1.Pod) bool {
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

// quoteTrouble makes evidence of it: the state, and what was said about it.
func quoteTrouble(pod *corev1.Pod, t trouble) Evidence {
	text := t.text
	if first, _, _ := strings.Cut(strings.TrimSpace(t.message), "\n"); first != "" {
		text += ": " + first
	}
	return Evidence{
		Source: PodObject(pod).String() + ", container " + t.container + " .status", Time: t.time, Text: cut(text),
	}
}

// said looks for the first of the texts in what is known of a failing pod: messages of its containers, its logs, its
// events. It knows when it could not look: a container has run and left no log.
func (f *Facts) said(pod *corev1.Pod, troubles []trouble, texts ...string) (Evidence, bool) {
	for _, t := range troubles {
		for line := range strings.Lines(t.message) {
			if containsAny(line, texts) {
				return Evidence{
					Source: PodObject(pod).String() + ", container " + t.container + " .status", Time: t.time,
					Text: cut(strings.TrimSpace(line)),
				}, true
			}
		}
	}
	if e, found := f.GrepLogs(pod, texts...); found {
		e.Text = cut(e.Text)
		return e, true
	}
	for _, e := range f.EventsOfPod(pod) {
		if containsAny(e.Message, texts) {
			q := Quote(e)
			q.Text = cut(q.Text)
			return q, true
		}
	}
	return Evidence{}, false
}

func containsAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// unread returns why the log of a pod whose containers ran is not there; empty when it is, or when there is none to be
// had.
func (f *Facts) unread(pod *corev1.Pod, troubles []trouble) string {
	if len(f.LogsOf(pod)) > 0 || !slices.ContainsFunc(troubles, func(t trouble) bool { return t.ran }) {
		return ""
	}
	if why := f.Missing("logs/" + pod.Namespace + "/" + pod.Name); why != "" {
		return "its log: " + why
	}
	return "its log is not in the snapshot"
}
