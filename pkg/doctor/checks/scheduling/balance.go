package scheduling

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// checkUnbalanced reports a fully used node if an identical node is idle, and the pods whose selectors restrict them to
// the full node.
func checkUnbalanced(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/nodes") {
		return
	}
	s := scheduler.New(f)
	for _, twins := range twins(s) {
		full := scheduler.Keep(twins, func(n *facts.Node) bool { return load(s, n) == 1 })
		idle := scheduler.Keep(twins, func(n *facts.Node) bool { return load(s, n) == 0 })
		if len(full) == 0 || len(idle) == 0 {
			continue
		}
		for _, n := range full {
			tied, waits := tied(s, n, idle[0])
			if len(tied) == 0 {
				continue
			}
			r.Add(unbalanced(s, n, idle[0], tied, waits))
		}
	}
}

func unbalanced(
	s *scheduler.Scheduler, full, idle *facts.Node, tied []*corev1.Pod, waits []*corev1.Pod,
) finding.Finding {
	issue := finding.Finding{
		Title:    "all GPUs of the node are in use while an identical node is idle, because pods are tied to this node",
		Object:   full.Object(),
		Severity: finding.Info, Confidence: finding.Likely,
		Fix: finding.Fix{
			Text: "If the pods may run on the idle node, remove from their node selector or affinity the " +
				"requirements that only this node meets, and spread the pods across the nodes instead.",
			Values: "topologySpreadConstraints:\n- maxSkew: 1\n  topologyKey: kubernetes.io/hostname\n  " +
				"whenUnsatisfiable: ScheduleAnyway\n  labelSelector: {matchLabels: {}} # your pods' labels\n",
		},
	}
	if len(waits) > 0 {
		issue.Severity = finding.Warning
	}
	for _, n := range []*facts.Node{full, idle} {
		for _, name := range scheduler.Advertised(n) {
			issue.Evidence = append(issue.Evidence, finding.Evidence{
				Source: n.Object().String() + " .status.allocatable and the requests of its pods",
				Text:   fmt.Sprintf("%s: %d of %d in use", name, s.Use(n)[name], n.Allocatable(name)),
			})
		}
	}
	for _, pod := range slices.Concat(waits, tied) {
		issue.PodScope = append(issue.PodScope, pod.Namespace+"/"+pod.Name)
	}
	for _, pod := range slices.Concat(waits, tied)[:min(words.Few, len(waits)+len(tied))] {
		issue.Evidence = append(issue.Evidence, finding.Evidence{
			Source: facts.PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
			Text:   scheduler.SelectorText(pod),
		})
		for _, command := range facts.EditCommands(pod) {
			if !slices.Contains(issue.Fix.Commands, command) {
				issue.Fix.Commands = append(issue.Fix.Commands, command)
			}
		}
	}
	return issue
}

// twins returns groups of two or more available nodes with the same number of GPUs of the same model.
func twins(s *scheduler.Scheduler) [][]*facts.Node {
	groups := map[string][]*facts.Node{}
	for _, n := range s.F.GPUNodes {
		if !facts.Available(n) || len(scheduler.Advertised(n)) == 0 {
			continue
		}
		key := facts.Product(n) + n.Status.NodeInfo.Architecture
		for _, name := range scheduler.Advertised(n) {
			key += fmt.Sprintf(" %s=%d", name, n.Capacity(name))
		}
		groups[key] = append(groups[key], n)
	}
	var all [][]*facts.Node
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		if len(groups[key]) > 1 {
			all = append(all, groups[key])
		}
	}
	return all
}

// load returns 1 if all GPUs on the node are in use, 0 if all are free, and 0.5 otherwise.
func load(s *scheduler.Scheduler, n *facts.Node) float64 {
	var used, free int64
	for _, name := range scheduler.Advertised(n) {
		used += s.Use(n)[name]
		free += s.Free(n, name)
	}
	switch {
	case used == 0:
		return 0
	case free == 0:
		return 1
	}
	return 0.5
}

// tied returns the pods that hold the node's GPUs, and the pending pods. Both are limited to pods whose selectors match
// the node but not its twin.
func tied(s *scheduler.Scheduler, n, twin *facts.Node) (holding, waiting []*corev1.Pod) {
	only := func(pod *corev1.Pod) bool {
		// DaemonSets and Kueue's topology-aware scheduling bind pods to nodes by design.
		return !facts.OfDaemonSet(pod) && !facts.OfKueue(pod) && len(facts.GPUDemand(pod)) > 0 &&
			scheduler.Selects(pod, n) && !scheduler.Selects(pod, twin) && !scheduler.Foreign(pod, twin)
	}
	for _, pod := range n.Pods {
		if !facts.Ended(pod) && only(pod) {
			holding = append(holding, pod)
		}
	}
	for _, p := range scheduler.Pending(s.F) {
		if only(p.Pod) {
			waiting = append(waiting, p.Pod)
		}
	}
	if len(holding) == 0 && len(waiting) == 0 {
		return nil, nil
	}
	if len(holding) == 0 { // a pending pod requires this node
		return waiting, waiting
	}
	return holding, waiting
}
