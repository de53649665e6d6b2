package facts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// fewPods is the maximum number of pods per finding whose messages are read.
const fewPods = 8

// Concerned returns the pods that a finding is about, and its node if it is about a node. A finding about a node or a
// DaemonSet also concerns the pods that its evidence quotes.
func (f *Facts) Concerned(found finding.Finding) ([]*corev1.Pod, *Node) {
	var pods []*corev1.Pod
	add := func(pod *corev1.Pod) {
		if pod != nil && len(pods) < fewPods && !slices.Contains(pods, pod) {
			pods = append(pods, pod)
		}
	}
	var node *Node
	switch found.Object.Kind {
	case "Pod":
		add(f.Pod(found.Object.Namespace, found.Object.Name))
	case "Node":
		node = f.Node(found.Object.Name)
	case "ClusterPolicy", "NVIDIADriver":
		for _, pod := range f.Component(Operator) {
			add(pod) // a running operator's log explains why it does not apply the object
		}
	}
	for _, e := range found.Evidence {
		if at := strings.Index(e.Source, "Pod "); at >= 0 {
			name, _, _ := strings.Cut(e.Source[at+len("Pod "):], " ")
			if namespace, name, ok := strings.Cut(strings.TrimSuffix(name, ","), "/"); ok {
				add(f.Pod(namespace, name))
			}
		}
	}
	for _, name := range found.Pods {
		if namespace, name, ok := strings.Cut(name, "/"); ok && found.Object.Kind != "Pod" {
			add(f.Pod(namespace, name))
		}
	}
	if node == nil && len(found.Nodes) == 1 && found.Object.Kind != "Pod" {
		node = f.Node(found.Nodes[0])
	}
	return pods, node
}

// Lines returns the messages from pods and their node about a failure: container statuses, warning events, logs
// (starting with the previous instance, which failed), and for a node its events, kernel log and unit journals. Facts
// about the pods and the node (signatures.Spec) come last.
func (f *Facts) Lines(pods []*corev1.Pod, node *Node) []signatures.Line {
	var all []signatures.Line
	for _, pod := range pods {
		all = append(all, f.linesOnce(pod, func() []signatures.Line { return f.linesOfPod(pod) })...)
	}
	if node != nil {
		all = append(all, f.linesOnce(node, func() []signatures.Line { return f.linesOfNode(node) })...)
	}
	if node == nil && len(pods) > 0 {
		if node = f.Node(pods[0].Spec.NodeName); node == nil {
			node = f.Typical()
		}
	}
	if node != nil {
		all = append(all, node.specOf()...)
	}
	return append(all, Once(f, programsOf)...)
}

// linesOnce returns the lines about a pod or node. It caches them, because several checks need them.
func (f *Facts) linesOnce(of any, read func() []signatures.Line) []signatures.Line {
	lines, ok := f.lines[of]
	if !ok {
		lines = read()
		f.lines[of] = lines
	}
	return lines
}

// failed matches the types of conditions that controllers set to true on a pod that has a problem.
var failed = regexp.MustCompile(`Invalid|Fail|Error|NotResponding|Unhealthy|Degraded|Rejected`)

func (f *Facts) linesOfPod(pod *corev1.Pod) []signatures.Line {
	var all []signatures.Line
	add := func(place signatures.Place, container string, e finding.Evidence) {
		if e.Text = strings.TrimSpace(e.Text); e.Text != "" {
			all = append(all, signatures.Line{Place: place, Container: container, Evidence: e})
		}
	}
	if pod.Status.Message != "" || pod.Status.Reason != "" {
		add(signatures.Status, "", finding.FieldEvidence(PodObject(pod), ".status", "%s",
			strings.TrimPrefix(pod.Status.Reason+": "+pod.Status.Message, ": ")))
	}
	for _, c := range pod.Status.Conditions {
		name := c.Reason
		if c.Status == corev1.ConditionTrue {
			if name = string(c.Type); !failed.MatchString(name) {
				continue
			}
		}
		if c.Message != "" {
			add(
				signatures.Status,
				"",
				finding.FieldEvidence(PodObject(pod), ".status.conditions["+string(c.Type)+"]", "%s: %s",
					name, c.Message),
			)
		}
	}
	for s := range Statuses(pod) {
		source := PodObject(pod).String() + ", container " + s.Name + " .status"
		if w := s.State.Waiting; w != nil {
			add(
				signatures.Status,
				s.Name,
				finding.Evidence{Source: source, Text: strings.TrimSuffix(w.Reason+": "+w.Message, ": ")},
			)
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 {
				add(signatures.Status, s.Name, finding.Evidence{
					Source: source, Time: t.FinishedAt.Time, Text: strings.TrimSuffix(t.Reason+": "+t.Message, ": "),
				})
			}
		}
	}
	for _, e := range f.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeWarning || e.Reason == "NotTriggerScaleUp" {
			add(signatures.Event, "", Quote(e))
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil || pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, e := range f.EventsOf("PersistentVolumeClaim", pod.Namespace, v.PersistentVolumeClaim.ClaimName) {
			add(signatures.Event, "", Quote(e))
		}
	}
	logs := slices.Clone(f.LogsOf(pod))
	sorting.StableFunc(logs, func(a, b *snapshot.Log) int {
		return order(a.Previous) - order(b.Previous)
	})
	for _, l := range logs {
		for line := range strings.Lines(l.Text) {
			add(
				signatures.Log,
				l.Container,
				finding.Evidence{Source: LogSource(l), Text: words.Clip(strings.TrimRight(line, "\r\n"))},
			)
		}
	}
	return append(all, f.specOf(pod)...)
}

// Heads returns the first lines of pods' logs, in which programs log the devices that they use.
func (f *Facts) Heads(pods []*corev1.Pod) []signatures.Line {
	var all []signatures.Line
	for _, pod := range pods {
		for _, l := range f.HeadsOf(pod) {
			for line := range strings.Lines(l.Text) {
				all = append(
					all,
					signatures.Line{Place: signatures.Log, Container: l.Container, Evidence: finding.Evidence{
						Source: LogSource(l), Text: words.Clip(strings.TrimSpace(line)),
					}},
				)
			}
		}
	}
	return all
}

// Typical returns a GPU node if all GPU nodes run the same distribution, and nil otherwise. For an unscheduled pod,
// this node's platform determines the fix.
func (f *Facts) Typical() *Node {
	for _, n := range f.GPUNodes {
		if n.Distribution != f.GPUNodes[0].Distribution {
			return nil
		}
	}
	if len(f.GPUNodes) == 0 {
		return nil
	}
	return f.GPUNodes[0]
}

// PlacementLogs returns the log lines about these pods from programs that schedule pods or add nodes.
func (f *Facts) PlacementLogs(pods []*corev1.Pod) []signatures.Line {
	var all []signatures.Line
	for _, pod := range pods {
		for _, e := range f.EventsOfPod(pod) {
			all = append(all, excludedType(e)...)
		}
	}
	for i := range f.Snapshot.Logs {
		l := &f.Snapshot.Logs[i]
		if !Schedules(l.Pod) {
			continue
		}
		before := len(all)
		for line := range strings.Lines(l.Text) {
			if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
				return strings.Contains(line, pod.Name) || skips(line, pod) || f.limits(line, pod)
			}) {
				all = append(
					all,
					signatures.Line{Place: signatures.Log, Container: l.Container, Evidence: finding.Evidence{
						Source: LogSource(l), Text: words.Clip(strings.TrimSpace(line)),
					}},
				)
			}
		}
		if placer := f.Pod(l.Namespace, l.Pod); placer != nil && len(all) > before {
			all = append(all, placedBy(placer)...)
		}
	}
	return all
}

// placedBy returns a fact about a program that schedules pods or adds nodes:
//
//	placer: IMAGE, provider NAME
func placedBy(placer *corev1.Pod) (all []signatures.Line) {
	for c := range Containers(placer) {
		all = append(all, signatures.Line{Place: signatures.Spec, Container: c.Name, Evidence: finding.Evidence{
			Source: PodObject(placer).String() + ", container " + c.Name + " .image, .command and .args",
			Text:   "placer: " + c.Image + ", provider " + argument(wordsOf(c), "--cloud-provider"),
		}})
	}
	return all
}

func order(previous bool) int {
	if previous {
		return 0
	}
	return 1
}

func (f *Facts) linesOfNode(n *Node) []signatures.Line {
	var all []signatures.Line
	for _, e := range f.EventsOf("Node", "", n.Name) {
		if e.Type == corev1.EventTypeWarning {
			all = append(all, signatures.Line{Place: signatures.Event, Evidence: Quote(e)})
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			all = append(all, signatures.Line{Place: signatures.Status, Evidence: QuoteCondition(n, c)})
		}
	}
	if n.Host == nil {
		return all
	}
	for _, record := range n.Host.KernelLog {
		if record.Priority >= 8 {
			continue // written by a program, not the kernel
		}
		all = append(all, signatures.Line{Place: signatures.Kernel, Evidence: finding.Evidence{
			Source: fmt.Sprintf(
				"nodes/%s/kernel.log sequence %d",
				n.Name,
				record.Sequence,
			), Time: record.Time, Text: words.Clip(record.Text),
		}})
	}
	for _, unit := range words.SortedKeys(n.Host.Journals) {
		for line := range strings.Lines(n.Host.Journals[unit]) {
			all = append(all, signatures.Line{Place: signatures.Unit, Evidence: finding.Evidence{
				Source: "nodes/" + n.Name + "/journal/" + unit, Text: words.Clip(strings.TrimRight(line, "\r\n")),
			}})
		}
	}
	return all
}
