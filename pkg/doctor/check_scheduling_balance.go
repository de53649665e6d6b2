package doctor

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkUnbalanced finds full nodes whose twins are idle, and the pods that are tied to them.
func checkUnbalanced(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/nodes") {
		return
	}
	s := newScheduler(f)
	for _, twins := range s.twins() {
		full := keep(twins, func(n *Node) bool { return s.load(n) == 1 })
		idle := keep(twins, func(n *Node) bool { return s.load(n) == 0 })
		if len(full) == 0 || len(idle) == 0 {
			continue
		}
		for _, n := range full {
			tied, waits := s.tied(n, idle[0])
			if len(tied) == 0 {
				continue
			}
			r.Add(s.unbalanced(n, idle[0], tied, waits))
		}
	}
}

func (s *scheduler) unbalanced(full, idle *Node, tied []*corev1.Pod, waits []*corev1.Pod) Finding {
	finding := Finding{
		Title:    "all GPUs of the node are in use while an identical node is idle, because pods are tied to this one",
		Object:   full.Object(),
		Severity: Info, Confidence: Likely,
		Fix: Fix{
			Text:   "Take the host name out of the node selector or affinity, and spread the pods over the nodes instead.",
			Values: "topologySpreadConstraints:\n- maxSkew: 1\n  topologyKey: kubernetes.io/hostname\n  whenUnsatisfiable: ScheduleAnyway\n  labelSelector: {matchLabels: {}} # the labels of your pods\n",
		},
	}
	if len(waits) > 0 {
		finding.Severity = Warning
	}
	for _, n := range []*Node{full, idle} {
		for _, name := range advertised(n) {
			finding.Evidence = append(finding.Evidence, Evidence{
				Source: n.Object().String() + " .status.allocatable and the requests of its pods",
				Text:   fmt.Sprintf("%s: %d of %d in use", name, s.use(n)[name], n.allocatable(name)),
			})
		}
	}
	for _, pod := range slices.Concat(waits, tied) {
		finding.pods = append(finding.pods, pod.Namespace+"/"+pod.Name)
	}
	for _, pod := range slices.Concat(waits, tied)[:min(few, len(waits)+len(tied))] {
		finding.Evidence = append(finding.Evidence, Evidence{
			Source: PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
			Text:   selectorText(pod),
		})
		for _, command := range editCommands(pod) {
			if !slices.Contains(finding.Fix.Commands, command) {
				finding.Fix.Commands = append(finding.Fix.Commands, command)
			}
		}
	}
	return finding
}

// twins are groups of available nodes with the same GPUs in the same number, two at least.
func (s *scheduler) twins() [][]*Node {
	groups := map[string][]*Node{}
	for _, n := range s.f.GPUNodes {
		if !available(n) || len(advertised(n)) == 0 {
			continue
		}
		key := product(n) + n.Status.NodeInfo.Architecture
		for _, name := range advertised(n) {
			key += fmt.Sprintf(" %s=%d", name, n.capacity(name))
		}
		groups[key] = append(groups[key], n)
	}
	var all [][]*Node
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		if len(groups[key]) > 1 {
			all = append(all, groups[key])
		}
	}
	return all
}

// load is 1 when every GPU of a node is in use, 0 when none is, and a half otherwise.
func (s *scheduler) load(n *Node) float64 {
	var used, free int64
	for _, name := range advertised(n) {
		used += s.use(n)[name]
		free += s.free(n, name)
	}
	switch {
	case used == 0:
		return 0
	case free == 0:
		return 1
	}
	return 0.5
}

// tied returns the pods of a node that hold GPUs, and those that wait for some, whose selectors allow the node and not
// its twin.
func (s *scheduler) tied(n, twin *Node) (holding, waiting []*corev1.Pod) {
	only := func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOf(pod)
		daemon := owner != nil && owner.Kind == "DaemonSet" // each of its pods is tied to a node by design
		return !daemon && len(gpuDemand(pod)) > 0 && selects(pod, n) && !selects(pod, twin)
	}
	for _, pod := range n.Pods {
		if !Ended(pod) && only(pod) {
			holding = append(holding, pod)
		}
	}
	for _, p := range s.f.pending() {
		if only(p.pod) {
			waiting = append(waiting, p.pod)
		}
	}
	if len(holding) == 0 && len(waiting) == 0 {
		return nil, nil
	}
	if len(holding) == 0 { // a pod waits for this very node
		return waiting, waiting
	}
	return holding, waiting
}
