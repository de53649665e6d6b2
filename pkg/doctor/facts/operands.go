package facts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

const (
	// OperandGrace is the time that a pod may take to start before it counts as failing.
	OperandGrace = 2 * time.Minute
	// DriverGrace is like OperandGrace, but for a driver pod, which may have to compile the driver. The operator's
	// startup probe also allows 20 minutes.
	DriverGrace = 20 * time.Minute
)

// PodTrouble is the reason why a pod is not working, from its status, events and logs.
type PodTrouble struct {
	Pod       *corev1.Pod
	Container string // empty if the trouble affects the whole pod
	Init      bool   // the container is an init container
	// Reason is a single word: CrashLoopBackOff, Init, NotReady, Unschedulable, FailedCreatePodSandBox.
	Reason string
	// Waits is true if nothing has failed but the pod is taking longer than expected.
	Waits    bool
	Evidence []finding.Evidence
}

// OperandTrouble reports whether a pod is not working, and why. A pod that is starting, has finished or is being
// deleted has no trouble.
func OperandTrouble(f *Facts, pod *corev1.Pod) (PodTrouble, bool) {
	if Ended(pod) || pod.DeletionTimestamp != nil || podutils.IsPodReady(pod) {
		return PodTrouble{}, false
	}
	age := f.Now.Sub(pod.CreationTimestamp.Time)
	t := PodTrouble{Pod: pod}
	if pod.Spec.NodeName == "" {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && age >= OperandGrace {
				t.Reason, t.Waits = cmp.Or(c.Reason, "Unschedulable"), true
				t.Evidence = []finding.Evidence{{
					Source: PodObject(pod).String() + " .status.conditions[PodScheduled]",
					Time:   c.LastTransitionTime.Time, Text: words.Clip(c.Message),
				}}
				return t, true
			}
		}
		return t, false
	}
	for s := range Statuses(pod) {
		t.Init = slices.ContainsFunc(pod.Status.InitContainerStatuses,
			func(i corev1.ContainerStatus) bool { return i.Name == s.Name })
		if containerDone(*s, t.Init) {
			continue
		}
		if reason, waits := containerTrouble(f, pod, *s, age); reason != "" {
			t.Container, t.Reason, t.Waits = s.Name, reason, waits
			t.Evidence = PodEvidence(f, pod, *s)
			return t, true
		}
		if t.Init {
			return t, false // later containers are waiting for this container
		}
	}
	if e := startFailure(f, pod); e != nil && len(pod.Status.ContainerStatuses) == 0 {
		t.Reason, t.Evidence = e.Reason, []finding.Evidence{finding.Clipped(Quote(e))}
		return t, true
	}
	return t, false
}

// containerDone reports whether a container is in its expected state: an init container has completed, or a main
// container is ready.
func containerDone(s corev1.ContainerStatus, init bool) bool {
	if init && s.State.Terminated != nil {
		return s.State.Terminated.ExitCode == 0
	}
	return s.Ready
}

// containerTrouble describes the problem with a container, or returns "" if the container may still start.
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
		if age >= OperandGrace && state.Waiting.Reason != "PodInitializing" {
			return cmp.Or(state.Waiting.Reason, "Waiting"), true
		}
	case state.Terminated != nil && (state.Terminated.ExitCode != 0 || state.Terminated.Reason == "OOMKilled"):
		return cmp.Or(state.Terminated.Reason, "Error"), false
	case state.Running != nil:
		if last := s.LastTerminationState.Terminated; s.RestartCount > 0 && last != nil && last.ExitCode != 0 &&
			age >= OperandGrace {
			return "Restarting", false
		}
		if f.Now.Sub(state.Running.StartedAt.Time) >= startGrace(pod) {
			return "NotReady", true
		}
	}
	return "", false
}

// startGrace returns the time for which a pod's containers may run without becoming ready.
func startGrace(pod *corev1.Pod) time.Duration {
	if ComponentOf(pod.Labels, &pod.Spec) == Driver {
		return DriverGrace
	}
	return OperandGrace
}

// startFailure returns the newest event that explains why none of the pod's containers started, or nil if there is
// none.
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

// PodEvidence returns evidence about a failing container: its state, its past failures, its last log lines, and the
// newest warning event about its pod.
func PodEvidence(f *Facts, pod *corev1.Pod, s corev1.ContainerStatus) []finding.Evidence {
	place := PodObject(pod).String() + " .status.containerStatuses[" + s.Name + "]"
	var all []finding.Evidence
	add := func(where string, at time.Time, text string) {
		all = append(all, finding.Evidence{Source: place + where, Time: at, Text: words.Clip(text)})
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
	all = append(all, LastLines(f, pod, s.Name, 2)...)
	for _, e := range f.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeWarning && e.Reason != "BackOff" {
			return append(all, finding.Clipped(Quote(e)))
		}
	}
	return all
}

// LastLines returns the last lines of a container's log as evidence. If the previous instance crashed, the lines are
// from its log.
func LastLines(f *Facts, pod *corev1.Pod, container string, most int) []finding.Evidence {
	var text, where string
	for _, l := range f.LogsOf(pod) {
		if l.Container != container || strings.TrimSpace(l.Text) == "" || text != "" && !l.Previous {
			continue
		}
		text, where = l.Text, "log of Pod "+l.Namespace+"/"+l.Pod+", container "+l.Container
		if l.Previous {
			where += ", previous instance"
		}
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if text == "" {
		return nil
	}
	var all []finding.Evidence
	for _, line := range lines[max(0, len(lines)-most):] {
		all = append(all, finding.Evidence{Source: where, Text: words.Clip(strings.TrimRight(line, "\r"))})
	}
	return all
}

// UpFor returns the time for which a pod has been ready, or zero if it is not ready.
func UpFor(f *Facts, pod *corev1.Pod) time.Duration {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return f.Now.Sub(c.LastTransitionTime.Time)
		}
	}
	return 0
}

// Current returns a component's pods on a node, except those that are being deleted.
func Current(n *Node, c Component) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(n.Component(c)),
		func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// AwaitsDriver reports whether the GPU operator's driver is not ready on a node and its toolkit is waiting for the
// driver.
func AwaitsDriver(n *Node) bool {
	return (len(Current(n, Driver)) > 0 || WithoutDriverPod(n)) &&
		!slices.ContainsFunc(Current(n, Driver), podutils.IsPodReady) &&
		slices.ContainsFunc(Current(n, Toolkit), func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
				return s.Name == "driver-validation" && s.State.Terminated == nil
			})
		})
}

// WithoutDriverPod reports whether a label keeps the GPU operator's driver off the node.
func WithoutDriverPod(n *Node) bool { return n.Labels["nvidia.com/gpu.deploy.driver"] == "false" }

// Alive reports whether the node's kubelet is reporting its status, so that the API's information about the node and
// its pods is current.
func Alive(n *Node) bool { return n.Ready().Status == corev1.ConditionTrue }

// AwaitsNetwork reports whether the node is not Ready because its network plugin has not set up the network.
func (n *Node) AwaitsNetwork() bool {
	ready := n.Ready()
	return ready.Status == corev1.ConditionFalse && words.ContainsAny(ready.Message, []string{
		"cni plugin not initialized", "cni config uninitialized", "NetworkReady=false", "NetworkPluginNotReady",
		"network plugin is not ready",
	})
}

// LogEvidence returns the first line in a pod's logs that contains one of the texts, as evidence.
func LogEvidence(f *Facts, pod *corev1.Pod, texts ...string) (finding.Evidence, bool) {
	e, ok := f.GrepLogs(pod, texts...)
	return finding.Clipped(e), ok
}

// MainContainer returns the name of a pod's first container, or "" if there is none, which happens only in a damaged
// snapshot.
func MainContainer(pod *corev1.Pod) string {
	if len(pod.Spec.Containers) == 0 {
		return ""
	}
	return pod.Spec.Containers[0].Name
}

// OwnerOf returns a pod's owner in kubectl's notation: daemonset/nvidia-device-plugin-daemonset.
func OwnerOf(pod *corev1.Pod) string {
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return strings.ToLower(o.Kind) + "/" + o.Name
		}
	}
	return "pod/" + pod.Name
}

// LabelEvidence returns the given node labels as evidence. It omits labels that the node does not have.
func LabelEvidence(n *Node, labels ...string) []finding.Evidence {
	var all []finding.Evidence
	for _, label := range labels {
		if value, ok := n.Labels[label]; ok {
			all = append(all, finding.FieldEvidence(n.Object(), ".metadata.labels", "%s=%s", label, value))
		}
	}
	return all
}

// HasPlugin reports whether the cluster has software that should advertise NVIDIA GPUs, even if it is not running: a
// device plugin, the GPU operator, a DRA driver, or a platform with a built-in plugin.
func HasPlugin(f *Facts) bool {
	parts := []Component{Operator, DevicePlugin, DRADriver}
	if _, operator := ClusterPolicy(f); operator {
		return true
	}
	return slices.ContainsFunc(parts, func(is Component) bool {
		return len(f.Component(is)) > 0
	}) || slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool {
		return slices.Contains(parts, ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec))
	}) || slices.ContainsFunc(f.Nodes, func(n *Node) bool {
		p, ok := platform.Of(string(n.Distribution))
		return ok && p.Plugin != "" || n.Distribution == GKE
	})
}
