package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// operandGrace is how long a pod may take to start before that says anything.
	operandGrace = 2 * time.Minute
	// driverGrace is the same for a driver, which may have to be compiled: the operator's own startup probe gives it 20
	// minutes.
	driverGrace = 20 * time.Minute
	// evidenceLimit is how many bytes of a quotation are kept.
	evidenceLimit = 2 << 10
)

// podTrouble is why a pod does not work, as its own status, events and logs say it.
type podTrouble struct {
	Pod       *corev1.Pod
	Container string // empty when it is the pod as a whole
	Init      bool   // the container is an init container
	// Reason is one word: CrashLoopBackOff, Init, NotReady, Unschedulable, FailedCreatePodSandBox.
	Reason string
	// Waits says that nothing failed: it takes longer than it should.
	Waits    bool
	Evidence []Evidence
}

// operandTrouble reports whether a pod does not work, and why. A pod that is about to start, that has ended, or that is
// being deleted does.
func operandTrouble(f *Facts, pod *corev1.Pod) (podTrouble, bool) {
	if Ended(pod) || pod.DeletionTimestamp != nil || podReady(pod) {
		return podTrouble{}, false
	}
	age := f.Now.Sub(pod.CreationTimestamp.Time)
	t := podTrouble{Pod: pod}
	if pod.Spec.NodeName == "" {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && age >= operandGrace {
				t.Reason, t.Waits = cmp.Or(c.Reason, "Unschedulable"), true
				t.Evidence = []Evidence{{
					Source: PodObject(pod).String() + " .status.conditions[PodScheduled]",
					Time:   c.LastTransitionTime.Time, Text: clip(c.Message),
				}}
				return t, true
			}
		}
		return t, false
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		t.Init = slices.ContainsFunc(pod.Status.InitContainerStatuses,
			func(i corev1.ContainerStatus) bool { return i.Name == s.Name })
		if containerDone(s, t.Init) {
			continue
		}
		if reason, waits := containerTrouble(f, pod, s, age); reason != "" {
			t.Container, t.Reason, t.Waits = s.Name, reason, waits
			t.Evidence = podEvidence(f, pod, s)
			return t, true
		}
		if t.Init {
			return t, false // the others wait for it
		}
	}
	if e := startFailure(f, pod); e != nil && len(pod.Status.ContainerStatuses) == 0 {
		t.Reason, t.Evidence = e.Reason, []Evidence{clipped(Quote(e))}
		return t, true
	}
	return t, false
}

// containerDone reports whether a container is as it should be: an init container that has ended well, another that is
// ready.
func containerDone(s corev1.ContainerStatus, init bool) bool {
	if init && s.State.Terminated != nil {
		return s.State.Terminated.ExitCode == 0
	}
	return s.Ready
}

// containerTrouble returns what is wrong with a container; empty when it may still start by itself.
func containerTrouble(
	f *Facts, pod *corev1.Pod, s corev1.ContainerStatus, age time.Duration,
) (reason string, waits bool) {
	switch state := s.State; {
	case state.Waiting != nil &&
		!slices.Contains([]string{"", "PodInitializing", "ContainerCreating"}, state.Waiting.Reason):
		return state.Waiting.Reason, false
	case state.Waiting != nil:
		if e := startFailure(f, pod); e != nil {
			return e.Reason, false
		}
		if age >= operandGrace && state.Waiting.Reason != "PodInitializing" {
			return cmp.Or(state.Waiting.Reason, "Waiting"), true
		}
	case state.Terminated != nil && (state.Terminated.ExitCode != 0 || state.Terminated.Reason == "OOMKilled"):
		return cmp.Or(state.Terminated.Reason, "Error"), false
	case state.Running != nil:
		if last := s.LastTerminationState.Terminated; s.RestartCount > 0 && last != nil && last.ExitCode != 0 &&
			age >= operandGrace {
			return "Restarting", false
		}
		if f.Now.Sub(state.Running.StartedAt.Time) >= startGrace(pod) {
			return "NotReady", true
		}
	}
	return "", false
}

// startGrace returns how long a pod's containers may run without being ready.
func startGrace(pod *corev1.Pod) time.Duration {
	if ComponentOf(pod.Labels, pod.Spec) == Driver {
		return driverGrace
	}
	return operandGrace
}

// startFailure returns the newest event that says why no container of the pod was started; nil when there is none.
func startFailure(f *Facts, pod *corev1.Pod) *corev1.Event {
	for _, e := range f.EventsOfPod(pod) {
		if slices.Contains(
			[]string{"FailedCreatePodSandBox", "FailedMount", "FailedPrepareDynamicResources"}, e.Reason,
		) {
			return e
		}
	}
	return nil
}

// podEvidence quotes what a container says of itself: why it waits, how it ended, its last lines, and the newest
// warning about its pod.
func podEvidence(f *Facts, pod *corev1.Pod, s corev1.ContainerStatus) []Evidence {
	place := PodObject(pod).String() + " .status.containerStatuses[" + s.Name + "]"
	var all []Evidence
	add := func(where string, at time.Time, text string) {
		all = append(all, Evidence{Source: place + where, Time: at, Text: clip(text)})
	}
	if w := s.State.Waiting; w != nil {
		add(".state.waiting", time.Time{}, strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
	}
	if r := s.State.Running; r != nil && !s.Ready {
		add(".state.running", r.StartedAt.Time, fmt.Sprintf("running since %s, ready: %t, restarts: %d",
			r.StartedAt.UTC().Format(time.RFC3339), s.Ready, s.RestartCount))
	}
	for _, ended := range []struct {
		where string
		state *corev1.ContainerStateTerminated
	}{{".state.terminated", s.State.Terminated}, {".lastState.terminated", s.LastTerminationState.Terminated}} {
		if t := ended.state; t != nil && t.ExitCode != 0 {
			add(ended.where, t.FinishedAt.Time,
				strings.TrimSuffix(fmt.Sprintf("%s, exit code %d: %s", t.Reason, t.ExitCode, t.Message), ": "))
		}
	}
	all = append(all, lastLines(f, pod, s.Name, 2)...)
	for _, e := range f.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeWarning && e.Reason != "BackOff" {
			return append(all, clipped(Quote(e)))
		}
	}
	return all
}

// lastLines quotes the end of a container's log, of its run before when that one crashed.
func lastLines(f *Facts, pod *corev1.Pod, container string, most int) []Evidence {
	var text, where string
	for _, l := range f.LogsOf(pod) {
		if l.Container != container || strings.TrimSpace(l.Text) == "" || text != "" && !l.Previous {
			continue
		}
		text, where = l.Text, "log of Pod "+l.Namespace+"/"+l.Pod+", container "+l.Container
		if l.Previous {
			where += ", its run before"
		}
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if text == "" {
		return nil
	}
	var all []Evidence
	for _, line := range lines[max(0, len(lines)-most):] {
		all = append(all, Evidence{Source: where, Text: clip(strings.TrimRight(line, "\r"))})
	}
	return all
}

// podReady reports whether all containers of a pod work.
func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// upFor is for how long a pod has been ready; zero when it is not.
func upFor(f *Facts, pod *corev1.Pod) time.Duration {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return f.Now.Sub(c.LastTransitionTime.Time)
		}
	}
	return 0
}

// current returns the pods of a component on a node that are not being deleted.
func current(n *Node, c Component) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(n.Component(c)),
		func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// alive reports whether what the API says of a node and its pods is of now: the kubelet reports.
func alive(n *Node) bool { return n.Ready().Status == corev1.ConditionTrue }

// clip keeps evidence short.
func clip(text string) string {
	if len(text) <= evidenceLimit {
		return text
	}
	return strings.ToValidUTF8(text[:evidenceLimit], "") + "…"
}

func clipped(e Evidence) Evidence {
	e.Text = clip(e.Text)
	return e
}

// logEvidence finds one of the texts in the logs of a pod.
func logEvidence(f *Facts, pod *corev1.Pod, texts ...string) (Evidence, bool) {
	e, ok := f.GrepLogs(pod, texts...)
	return clipped(e), ok
}

// lacksLog records that a pod's log would tell, and is not there.
func lacksLog(f *Facts, r *Result, pod *corev1.Pod) {
	if len(f.LogsOf(pod)) == 0 {
		r.Unknown(PodObject(pod), "its log is not there: %s",
			cmp.Or(f.Missing("logs/"+pod.Namespace+"/"+pod.Name), f.Missing("logs"), "not collected"))
	}
}

// mainContainer returns the name of a pod's first container; empty when it has none, which only a damaged snapshot
// says.
func mainContainer(pod *corev1.Pod) string {
	if len(pod.Spec.Containers) == 0 {
		return ""
	}
	return pod.Spec.Containers[0].Name
}

// ownerOf returns the name of what made a pod, as kubectl takes it: daemonset/nvidia-device-plugin-daemonset.
func ownerOf(pod *corev1.Pod) string {
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return strings.ToLower(o.Kind) + "/" + o.Name
		}
	}
	return "pod/" + pod.Name
}

// fieldEvidence quotes a field of an object.
func fieldEvidence(o Object, field, format string, args ...any) Evidence {
	return Evidence{Source: o.String() + " " + field, Text: clip(fmt.Sprintf(format, args...))}
}

// labelEvidence quotes a node's labels: those that it has.
func labelEvidence(n *Node, labels ...string) []Evidence {
	var all []Evidence
	for _, label := range labels {
		if value, ok := n.Labels[label]; ok {
			all = append(all, fieldEvidence(n.Object(), ".metadata.labels", "%s=%s", label, value))
		}
	}
	return all
}
