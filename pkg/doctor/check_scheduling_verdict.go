package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// notAdvertised: none of the nodes gives pods any of the resource.
func (s *scheduler) notAdvertised(pod *corev1.Pod, name corev1.ResourceName, among []*Node) verdict {
	want := gpuDemand(pod)
	had := keep(among, func(n *Node) bool { return n.capacity(name) > 0 })
	other := keep(among, func(n *Node) bool { return len(advertised(n)) > 0 })
	blank := keep(among, func(n *Node) bool { return len(advertised(n)) == 0 })
	v := verdict{id: "sched.none-advertised", severity: Error, confidence: Certain}
	switch {
	case len(had) > 0:
		v.nodes, v.evidence = s.names(had), quoteAllocatable(had)
		v.title = "the nodes that had the GPUs which the pod asks for advertise none of them now"
	case name == "nvidia.com/gpu" && len(blank) > 0:
		v.nodes, v.evidence = s.names(blank), quoteAllocatable(blank)
		v.title = "no GPU node that the pod may run on advertises nvidia.com/gpu"
	case len(other) > 0:
		return s.wrongName(pod, name, other)
	case !IsGPUResource(name):
		return verdict{} // somebody else's devices
	case len(among) == 0:
		v.title = "the pod asks for NVIDIA GPUs, and no node of the cluster is known to have one"
		v.evidence = []Evidence{quoteDemand(pod, want)}
		if e, scales := s.scales(pod); scales {
			v.severity, v.confidence, v.evidence = Warning, Possible, append(v.evidence, e)
			v.title = "the pod asks for NVIDIA GPUs, and waits for a node that an autoscaler may add; there is none yet"
		}
		v.fix = Fix{
			Text: "Add a GPU node; where there is one, its driver and device plugin (or node feature discovery) have not told Kubernetes yet.",
			Commands: []string{
				"kubectl get nodes -L nvidia.com/gpu.present,feature.node.kubernetes.io/pci-10de.present",
			},
		}
		return v
	default:
		v.nodes, v.evidence = s.names(among), quoteAllocatable(among)
		v.title = "no GPU node that the pod may run on advertises " + string(name)
	}
	v.fix = Fix{
		Text: "Make the device plugin advertise the GPUs: look at its pods on these nodes.",
		Commands: []string{
			command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", v.nodes[0]),
			command("kubectl get node %s -o jsonpath='{.status.allocatable}'", v.nodes[0]),
		},
	}
	return v
}

func (s *scheduler) wrongName(pod *corev1.Pod, name corev1.ResourceName, other []*Node) verdict {
	offered := map[corev1.ResourceName]bool{}
	for _, n := range other {
		for _, r := range advertised(n) {
			offered[r] = true
		}
	}
	var list []string
	for _, r := range slices.Sorted(maps.Keys(offered)) {
		list = append(list, string(r))
	}
	v := verdict{
		id: "sched.wrong-resource-name", severity: Error, confidence: Certain, nodes: s.names(other),
		title:    fmt.Sprintf("the pod asks for %s, and the nodes offer their GPUs by another name", name),
		evidence: append([]Evidence{quoteDemand(pod, gpuDemand(pod))}, quoteAllocatable(other)...),
		fix: Fix{Text: fmt.Sprintf("Ask for what the nodes advertise: %s instead of %s",
			strings.Join(list[:min(len(list), 6)], ", "), name)},
	}
	switch {
	case strings.HasPrefix(string(name), "nvidia.com/mig-"):
		v.fix.Text += "; or partition the GPUs so (MIG manager: label nvidia.com/mig.config), and let the device plugin use the strategy mixed"
	case name == "nvidia.com/gpu.shared":
		v.fix.Text += "; nvidia.com/gpu.shared exists only with time-slicing and renameByDefault: true below sharing.timeSlicing"
	}
	v.fix.Text += "."
	v.fix.Commands = editCommands(pod)
	if len(list) == 1 {
		if commands := renamed(pod, name, corev1.ResourceName(list[0])); len(commands) > 0 {
			v.fix.Commands = commands
		}
	}
	return v
}

// renamed returns the command that makes a pod without an owner anew, with another name of a resource.
func renamed(pod *corev1.Pod, from, to corev1.ResourceName) []string {
	if metav1.GetControllerOf(pod) != nil {
		return nil
	}
	return []string{command(`kubectl -n %s get pod %s -o json | jq --arg from %s --arg to %s 'walk(if type == "object" and has($from) then .[$to] = .[$from] | del(.[$from]) else . end)' | kubectl replace --force -f -`,
		pod.Namespace, pod.Name, string(from), string(to))}
}

// editCommands change a pod where that is done: in its owner's template. A pod without one, or of a Job, is made anew.
func editCommands(pod *corev1.Pod) []string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return []string{command(
			"kubectl -n %s edit pod %s # what a pod does not allow is kept in a file, which is named: kubectl replace --force -f FILE makes the pod anew",
			pod.Namespace, pod.Name,
		)}
	}
	kind, name := strings.ToLower(owner.Kind), owner.Name
	switch kind {
	case "node":
		return []string{onHost(pod.Spec.NodeName,
			"ls /etc/kubernetes/manifests # change the manifest of the static pod, which is usually there")}
	case "replicaset":
		return []string{command("kubectl -n %s edit deployment %s", pod.Namespace, deploymentName(pod, name))}
	case "job":
		return []string{command(
			"# the template of a Job cannot be changed: correct its manifest, delete Job %s in namespace %s and create it again",
			name, pod.Namespace,
		)}
	}
	return []string{command("kubectl -n %s edit %s %s", pod.Namespace, kind, name)}
}

// deploymentName takes the hash off a ReplicaSet's name.
func deploymentName(pod *corev1.Pod, replicaSet string) string {
	return strings.TrimSuffix(replicaSet, "-"+pod.Labels["pod-template-hash"])
}

// nodeSelector: the selector or affinity of the pod lets it onto no GPU node.
func (s *scheduler) nodeSelector(pod *corev1.Pod, want map[corev1.ResourceName]int64) verdict {
	able := keep(s.nodes, func(n *Node) bool {
		return covers(want, func(r corev1.ResourceName) int64 { return min(n.allocatable(r), 1) * want[r] })
	})
	v := verdict{
		id: "sched.node-selector", severity: Error, confidence: Certain, nodes: s.names(able),
		title: "no GPU node has the labels that the pod's node selector or affinity demands",
		evidence: []Evidence{{
			Source: PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
			Text:   selectorText(pod),
		}},
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		for _, n := range able[:min(few, len(able))] {
			if value, ok := n.Labels[key]; value != pod.Spec.NodeSelector[key] || !ok {
				text := key + "=" + value
				if !ok {
					text = "has no label " + key
				}
				v.evidence = append(v.evidence,
					Evidence{Source: n.Object().String() + " .metadata.labels", Text: cut(text)})
			}
		}
	}
	v.evidence = v.evidence[:min(len(v.evidence), few+1)]
	v.fix = Fix{
		Text:     "Change the selector to labels that the GPU nodes have, or label the nodes that are meant.",
		Commands: editCommands(pod),
	}
	if plain := keep(s.f.Nodes, func(n *Node) bool { return selects(pod, n) }); len(plain) > 0 {
		v.title = "the pod's node selector or affinity lets it only onto nodes that have no GPUs"
		v.evidence = append(v.evidence,
			Evidence{Source: plain[0].Object().String() + " .status.allocatable", Text: "no GPU resource"})
	}
	if keys := keysOf(pod); len(able) > 0 && len(keys) > 0 {
		v.fix.Commands = append(v.fix.Commands, command("kubectl get nodes -L %s", strings.Join(keys, ",")))
	}
	return v
}

// keysOf returns the labels that the pod's selector and affinity name, sorted.
func keysOf(pod *corev1.Pod) []string {
	keys := slices.Collect(maps.Keys(pod.Spec.NodeSelector))
	if required := requiredAffinity(pod); required != nil {
		for _, t := range required.NodeSelectorTerms {
			for _, e := range t.MatchExpressions {
				keys = append(keys, e.Key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// tooBig: the nodes advertise the resource, and none as many as the pod asks for.
func (s *scheduler) tooBig(pod *corev1.Pod, want map[corev1.ResourceName]int64, among []*Node) verdict {
	v := verdict{
		severity: Error, confidence: Certain, nodes: s.names(among),
		evidence: append([]Evidence{quoteDemand(pod, want)}, quoteAllocatable(biggest(among, want))...),
	}
	if lost := keep(among, func(n *Node) bool { return covers(want, n.capacity) }); len(lost) > 0 {
		v.id, v.nodes = "sched.insufficient-gpu", s.names(lost)
		v.title = "a node has as many GPUs as the pod asks for, and fewer of them are healthy"
		n := lost[0]
		for _, name := range slices.Sorted(maps.Keys(want)) {
			v.evidence = append(v.evidence, Evidence{
				Source: n.Object().String() + " .status.capacity", Text: fmt.Sprintf("%s: %d", name, n.capacity(name)),
			})
		}
		v.fix = Fix{
			Text:     "Repair the GPUs that the device plugin took out, then restart its pod on the node; until then ask for fewer.",
			Commands: []string{command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name)},
		}
		return v
	}
	v.id, v.title = "sched.bigger-than-any-node", "the pod asks for more GPUs than any node that it may run on has"
	most := int64(0)
	first := slices.Sorted(maps.Keys(want))[0]
	for _, n := range among {
		most = max(most, n.allocatable(first))
	}
	v.fix = Fix{
		Text: fmt.Sprintf("Ask for at most %d of %s in a pod, or spread the work over several pods (MPIJob, PyTorchJob, JobSet, LeaderWorkerSet), or add bigger nodes.",
			most, first),
		Commands: editCommands(pod),
	}
	return v
}

// biggest returns the nodes, those with the most of what is wanted first.
func biggest(nodes []*Node, want map[corev1.ResourceName]int64) []*Node {
	sorted := slices.Clone(nodes)
	size := func(n *Node) (sum int64) {
		for name := range want {
			sum += n.allocatable(name)
		}
		return sum
	}
	slices.SortStableFunc(sorted, func(a, b *Node) int { return int(size(b) - size(a)) })
	return sorted
}

// closed: the nodes have GPUs, and taints or their state keep the pod away.
func (s *scheduler) closed(pod *corev1.Pod, big []*Node) verdict {
	// A node that only its state closes would be right for the pod once it is well.
	tainted := keep(big, func(n *Node) bool { return foreignTaint(pod, n) != nil })
	sick := keep(big, func(n *Node) bool { return foreignTaint(pod, n) == nil })
	v := verdict{severity: Error, confidence: Certain}
	if len(sick) > 0 {
		v.id, v.nodes = "sched.nodes-unavailable", s.names(sick)
		v.title = "all nodes with the GPUs that the pod asks for are cordoned, not ready or under pressure"
		for _, n := range sick[:min(few, len(sick))] {
			v.evidence = append(v.evidence, quoteState(pod, n))
		}
		v.fix = Fix{
			Text:     "Make the nodes ready, and uncordon those that nobody works on.",
			Commands: []string{command("kubectl describe node %s", sick[0].Name)},
		}
		return v
	}
	v.id, v.nodes = "sched.taint", s.names(tainted)
	v.title = "the pod does not tolerate the taint of the GPU nodes"
	var t *corev1.Taint
	for _, n := range tainted[:min(few, len(tainted))] {
		t = foreignTaint(pod, n)
		v.evidence = append(v.evidence, Evidence{Source: n.Object().String() + " .spec.taints", Text: taintText(t)})
	}
	t = foreignTaint(pod, tainted[0])
	v.fix = Fix{
		Text:     "Add the toleration to the pod's template, or remove the taint from the nodes when nothing needs it.",
		Commands: tolerate(pod, t),
	}
	for _, n := range tainted[:min(few, len(tainted))] {
		v.fix.Commands = append(v.fix.Commands, command("kubectl taint node %s %s- # only when the taint is not wanted",
			n.Name, taintText(foreignTaint(pod, n))))
	}
	return v
}

// tolerate returns the command that adds a toleration: to the template of the owner that makes such pods, else to the
// pod itself, to which the API lets tolerations be added.
func tolerate(pod *corev1.Pod, t *corev1.Taint) []string {
	more := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect}
	if t.Value != "" {
		more.Operator, more.Value = corev1.TolerationOpEqual, t.Value
	}
	// Lists are replaced as a whole: those that the pod has stay, but for what every pod is given.
	all := append(slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}), more)
	owner := metav1.GetControllerOf(pod)
	if owner != nil {
		kind, name := strings.ToLower(owner.Kind), owner.Name
		if kind == "replicaset" {
			kind, name = "deployment", deploymentName(pod, name)
		}
		if slices.Contains([]string{"deployment", "statefulset", "daemonset"}, kind) {
			patch, err := json.Marshal(map[string]any{
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"tolerations": all}}},
			})
			if err != nil {
				return nil
			}
			return []string{
				command("kubectl -n %s patch %s %s --type merge -p %s", pod.Namespace, kind, name, string(patch)),
			}
		}
	}
	operation := map[string]any{"op": "add", "path": "/spec/tolerations/-", "value": more}
	if len(pod.Spec.Tolerations) == 0 {
		operation["path"], operation["value"] = "/spec/tolerations", []corev1.Toleration{more}
	}
	patch, err := json.Marshal([]any{operation})
	if err != nil {
		return nil
	}
	return []string{command("kubectl -n %s patch pod %s --type json -p %s", pod.Namespace, pod.Name, string(patch))}
}

// foreignTaint returns the first taint of a node that the pod does not tolerate, and that is not about the node's
// state.
func foreignTaint(pod *corev1.Pod, n *Node) *corev1.Taint {
	if len(n.Spec.Taints) == 0 {
		return nil
	}
	without := *n.Node
	without.Spec.Unschedulable = false
	without.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints),
		func(t corev1.Taint) bool { return ofNodeState(&t) })
	return untolerated(pod, &Node{Node: &without})
}

// quoteState quotes what keeps pods off a node.
func quoteState(pod *corev1.Pod, n *Node) Evidence {
	if ready := n.Ready(); ready.Status != corev1.ConditionTrue && ready.Status != "" {
		return Evidence{
			Source: n.Object().String() + " .status.conditions[Ready].message", Time: ready.LastTransitionTime.Time,
			Text: cut(ready.Message),
		}
	}
	if n.Spec.Unschedulable {
		return Evidence{Source: n.Object().String() + " .spec.unschedulable", Text: "true"}
	}
	if t := untolerated(pod, n); t != nil {
		return Evidence{Source: n.Object().String() + " .spec.taints", Text: taintText(t)}
	}
	return Evidence{Source: n.Object().String(), Text: "not available"}
}

// full: the nodes have the GPUs, and other pods have them.
//
// Its nodes are also those whose GPUs nobody advertises, or not all of them: were they well, the pod might run there.
// Those that are kept out on purpose, for virtual machines, are not among them: others have the GPUs.
func (s *scheduler) full(pod *corev1.Pod, want map[corev1.ResourceName]int64, open, big, selected []*Node) verdict {
	v := verdict{id: "sched.all-in-use", severity: Warning, confidence: Certain}
	v.nodes = s.names(keep(selected, func(n *Node) bool {
		return len(advertised(n)) == 0 && !forMachines(n) || covers(want, n.capacity)
	}))
	v.title = "all GPUs that the pod could have are in use"
	short := slices.Sorted(maps.Keys(want))
	var free int64
	for _, n := range open {
		free += s.free(n, short[0])
	}
	v.fix = Fix{
		Text: "Wait, end what is not needed, or add nodes: `kubectl gpu-fault doctor` lists who holds the GPUs, and since when.",
	}
	if want[short[0]] > 1 && free >= want[short[0]] {
		v.id = "sched.fragmented"
		v.title = "enough GPUs are free in the cluster, and no single node has enough free ones"
		for _, n := range open {
			if left := s.free(n, short[0]); left > 0 && len(v.evidence) < few {
				v.evidence = append(v.evidence, Evidence{
					Source: n.Object().String() + " .status.allocatable less the requests of its pods",
					Text:   fmt.Sprintf("%s: %d of %d free", short[0], left, n.allocatable(short[0])),
				})
			}
		}
		v.fix.Text = "Let small pods share nodes (scheduler score MostAllocated for " + string(short[0]) +
			"), move the holders below to one node, or split the work over several pods."
	}
	holders := s.holders(open[:min(len(open), manyNodes)], want)
	for _, h := range holders[:min(len(holders), few)] {
		v.evidence = append(v.evidence, Evidence{
			Source: fmt.Sprintf("Pod %s/%s on Node %s", h.Namespace, h.Pod, h.node),
			Text:   fmt.Sprintf("%s: %d, owner %s, age %s", h.Resource, h.GPUs, h.owner(), h.Age),
		})
		v.fix.Commands = append(v.fix.Commands, command("kubectl -n %s get pod %s -o wide", h.Namespace, h.Pod))
	}
	spare := 0
	for _, n := range big {
		if len(v.fix.Commands) < most && n.Spec.Unschedulable {
			v.fix.Commands = append(v.fix.Commands,
				command("kubectl uncordon %s # it has GPUs, and is cordoned", n.Name))
		}
		t := foreignTaint(pod, n)
		if t == nil || strings.HasPrefix(t.Key, "node-role.kubernetes.io/") || !available(n) ||
			!covers(want, func(name corev1.ResourceName) int64 { return s.free(n, name) }) {
			continue
		}
		if spare++; spare <= few {
			v.evidence = append(v.evidence,
				Evidence{Source: n.Object().String() + " .spec.taints, and its GPUs are free", Text: taintText(t)})
			v.fix.Commands = append(v.fix.Commands, command(
				"kubectl taint node %s %s- # its GPUs are free; only when the taint is not wanted", n.Name,
				taintText(t),
			))
		}
	}
	if spare > 0 {
		v.title += ", and those that are free are on nodes whose taint it does not tolerate"
		v.fix.Text += " Or take the taint off the nodes that are free, when nothing needs it any more; or let the pod tolerate it."
	}
	return v
}

// placement is a rule of a pod by which the scheduler keeps it off nodes; said is the scheduler's word for it.
type placement struct {
	said, rule, field string
	of                func(*corev1.Pod) any
}

// keptOffBy returns the first such rule that the scheduler's message names; the zero placement when it names none.
func keptOffBy(message string) placement {
	affinity := func(pod *corev1.Pod) any { return pod.Spec.Affinity }
	for _, p := range []placement{
		{"didn't match pod affinity rules", "the rules of its pod affinity", ".spec.affinity", affinity},
		{"didn't match pod anti-affinity rules", "the rules of its pod anti-affinity", ".spec.affinity", affinity},
		{
			"didn't match pod topology spread constraints", "its topology spread constraints",
			".spec.topologySpreadConstraints", func(pod *corev1.Pod) any { return pod.Spec.TopologySpreadConstraints },
		},
		{
			"didn't satisfy existing pods anti-affinity rules", "the anti-affinity rules of other pods",
			".metadata.labels, which these select", func(pod *corev1.Pod) any { return pod.Labels },
		},
	} {
		if strings.Contains(message, p.said) {
			return p
		}
	}
	return placement{}
}

// quote returns the rule as the pod has it.
func (p placement) quote(pod *corev1.Pod) string {
	text, err := json.Marshal(p.of(pod))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// otherwise: the GPUs are free; something else stands in the way.
func (s *scheduler) otherwise(pod *corev1.Pod, message string, roomy []*Node) verdict {
	need := demand(pod)
	need[corev1.ResourcePods] = 1
	var lacking []Evidence
	blocked := keep(roomy, func(n *Node) bool {
		for _, name := range slices.Sorted(maps.Keys(need)) {
			if looksLikeGPU(name) || need[name] == 0 {
				continue
			}
			used := s.use(n)[name]
			if name == corev1.ResourcePods {
				used = int64(len(keepPods(n.Pods)))
			}
			if _, told := n.Status.Allocatable[name]; !told && isCore(name) {
				continue // a node that says nothing of it
			}
			if n.allocatable(name)-used < need[name] {
				lacking = append(lacking, Evidence{
					Source: n.Object().String() + " .status.allocatable less the requests of its pods",
					Text: fmt.Sprintf("%s: %s free, the pod asks for %s", name,
						inWords(name, max(0, n.allocatable(name)-used)), inWords(name, need[name])),
				})
				return true
			}
		}
		return false
	})
	v := verdict{severity: Error, confidence: Certain, nodes: s.names(roomy)}
	insufficient := insufficientInMessage(message)
	switch {
	case len(blocked) == len(roomy), len(insufficient) > 0 && !slices.ContainsFunc(insufficient, isOurs):
		v.id, v.title = "sched.insufficient-other",
			"GPUs are free, and their nodes lack CPU, memory or another resource that the pod asks for"
		v.evidence = lacking[:min(few, len(lacking))]
		v.fix = Fix{
			Text:     "Lower the pod's other requests, or move pods that need no GPU off the GPU nodes (a taint keeps them away).",
			Commands: editCommands(pod),
		}
	case strings.Contains(strings.ToLower(message), "volume"):
		return s.volume(pod, message)
	case keptOffBy(message).rule != "":
		by := keptOffBy(message)
		v.id, v.confidence = "sched.unschedulable", Likely
		v.title = fmt.Sprintf("GPUs are free, and %s keep the pod off their nodes", by.rule)
		v.evidence = append([]Evidence{fieldEvidence(PodObject(pod), by.field, "%s", by.quote(pod))},
			quoteAllocatable(roomy)...)
		v.fix = Fix{
			Text: "Change " + by.rule +
				" where they are not needed: each must hold on one node, together with room for the GPUs.",
			Commands: editCommands(pod),
		}
	case slices.ContainsFunc(insufficient, isOurs):
		v.id, v.confidence = "sched.insufficient-gpu", Possible
		v.title = "the scheduler finds too few free GPUs, though the pods that the snapshot holds leave enough"
		v.evidence = quoteAllocatable(roomy)
		v.fix = Fix{Text: "Look again: the pod may be placed now; else find pods that the snapshot does not hold.",
			Commands: []string{
				command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", roomy[0].Name),
			}}
	case message == "" && neverLookedAt(pod) && s.f.age(pod) >= noScheduler:
		v.id, v.confidence = "sched.no-scheduler", Likely
		name := pod.Spec.SchedulerName
		if name == "" {
			name = "default-scheduler"
		}
		v.title = fmt.Sprintf("no scheduler has looked at the pod: it waits for one named %q", name)
		v.evidence = []Evidence{{Source: PodObject(pod).String() + " .spec.schedulerName", Text: name}}
		v.fix = Fix{
			Text:     "Start that scheduler, or take schedulerName out of the pod.",
			Commands: []string{"kubectl get pods -A | grep -i scheduler"},
		}
	case message == "":
		v.id, v.severity, v.confidence = "sched.waiting", Info, Possible
		v.title = "a node has room for the pod, and the scheduler has said nothing against it yet"
		v.evidence = quoteAllocatable(roomy)
		v.fix = Fix{Text: "Look again in a moment."}
	default:
		v.id, v.confidence = "sched.unschedulable", Likely
		v.title = "GPUs are free, and the scheduler keeps the pod off their nodes for another reason"
		v.fix = Fix{
			Text:     "See the scheduler's message: pod affinity, anti-affinity, topology spread and host ports are in the pod's own spec.",
			Commands: editCommands(pod),
		}
	}
	return v
}

func keepPods(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), Ended)
}

func isOurs(name string) bool { return looksLikeGPU(corev1.ResourceName(name)) }

func isCore(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods,
	}, name)
}

// inWords prints an amount with its unit.
func inWords(name corev1.ResourceName, n int64) string {
	switch name {
	case corev1.ResourceCPU:
		return fmt.Sprintf("%dm", n)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return fmt.Sprintf("%dMi", n>>20)
	}
	return fmt.Sprint(n)
}

// neverLookedAt reports whether no scheduler has written the pod's condition.
func neverLookedAt(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

// insufficientInMessage returns the resources that the scheduler calls insufficient: "2 Insufficient cpu, 1
// Insufficient nvidia.com/gpu".
func insufficientInMessage(message string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`Insufficient ([A-Za-z0-9./_-]+)`).FindAllStringSubmatch(message, -1) {
		if name := strings.TrimRight(m[1], "."); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func (s *scheduler) volume(pod *corev1.Pod, message string) verdict {
	v := verdict{
		id: "sched.volume", severity: Error, confidence: Certain,
		title: "a volume of the pod keeps it from being scheduled",
	}
	if message == "" {
		v.confidence = Possible
	}
	for _, volume := range pod.Spec.Volumes {
		if claim := volume.PersistentVolumeClaim; claim != nil {
			v.evidence = append(v.evidence, Evidence{
				Source: PodObject(pod).String() + " .spec.volumes[].persistentVolumeClaim", Text: claim.ClaimName,
			})
			v.fix.Commands = append(v.fix.Commands,
				command("kubectl -n %s describe pvc %s", pod.Namespace, claim.ClaimName))
		}
	}
	v.fix.Text =
		"Bind the claim: its storage class must exist and have a provisioner, and a volume that exists must be reachable from a GPU node's zone."
	return v
}

// ageText prints an age as kubectl does, in at most two units.
func ageText(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}
