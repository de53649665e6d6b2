package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// notAdvertised returns the verdict if no node advertises the resource.
func (s *Scheduler) notAdvertised(pod *corev1.Pod, name corev1.ResourceName, among []*facts.Node) verdict {
	want := facts.GPUDemand(pod)
	had := Keep(among, func(n *facts.Node) bool { return n.Capacity(name) > 0 })
	other := Keep(among, func(n *facts.Node) bool { return len(Advertised(n)) > 0 })
	blank := Keep(among, func(n *facts.Node) bool { return len(Advertised(n)) == 0 })
	v := verdict{Id: "sched.none-advertised", Severity: finding.Error, Confidence: finding.Certain}
	switch {
	case len(had) > 0:
		v.Nodes, v.Evidence = s.names(had), QuoteAllocatable(had)
		v.Title = "the nodes that advertised the requested GPUs no longer do"
	case name == "nvidia.com/gpu" && len(blank) > 0:
		v.Nodes, v.Evidence = s.names(blank), QuoteAllocatable(blank)
		v.Title = "no GPU node that the pod may run on advertises nvidia.com/gpu"
	case len(other) > 0 && s.served(name):
		return verdict{} // a plugin for it is there, and does not run, or finds nothing
	case len(other) > 0:
		return s.wrongName(pod, name, other)
	case !facts.IsGPUResource(name):
		return verdict{} // a device of another vendor
	case len(among) == 0:
		v.Title = "the pod requests NVIDIA GPUs, but no node of the cluster is known to have one"
		v.Evidence = []finding.Evidence{facts.QuoteDemand(pod, want)}
		if e, scales := s.scales(pod); scales {
			v.Severity, v.Confidence, v.Evidence = finding.Warning, finding.Possible, append(v.Evidence, e)
			v.Title = "the pod requests NVIDIA GPUs and waits for a node that an autoscaler may add"
		}
		v.Fix = finding.Fix{
			Text: "If the cluster has GPU nodes, repair what should report their GPUs: the driver and the device " +
				"plugin, or node feature discovery. Otherwise, add a GPU node.",
			Commands: []string{
				"kubectl get nodes -L nvidia.com/gpu.present,feature.node.kubernetes.io/pci-10de.present",
			},
		}
		return v
	default:
		v.Nodes, v.Evidence = s.names(among), QuoteAllocatable(among)
		v.Title = "no GPU node that the pod may run on advertises " + string(name)
	}
	v.Fix = finding.Fix{
		Text: "Make the device plugin advertise the GPUs: check its pods on these nodes.",
		Commands: []string{
			shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", v.Nodes[0]),
			shell.Command("kubectl get node %s -o jsonpath='{.status.allocatable}'", v.Nodes[0]),
		},
	}
	return v
}

// served reports whether the cluster has software of another vendor that advertises the resource.
func (s *Scheduler) served(name corev1.ResourceName) bool {
	if facts.IsGPUResource(name) {
		return false
	}
	serves := func(software string) bool {
		return words.ContainsAny(string(name), facts.Advertisers(software))
	}
	return slices.ContainsFunc(s.F.DaemonSets, func(d appsv1.DaemonSet) bool { return serves(d.Name) }) ||
		slices.ContainsFunc(
			s.F.Snapshot.Pods,
			func(pod corev1.Pod) bool { return facts.Serves(&pod) && serves(pod.Name) },
		)
}

func (s *Scheduler) wrongName(pod *corev1.Pod, name corev1.ResourceName, other []*facts.Node) verdict {
	offered := map[corev1.ResourceName]bool{}
	for _, n := range other {
		for _, r := range Advertised(n) {
			offered[r] = true
		}
	}
	var list []string
	for _, r := range slices.Sorted(maps.Keys(offered)) {
		list = append(list, string(r))
	}
	v := verdict{
		Id: "sched.wrong-resource-name", Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(other),
		Title: fmt.Sprintf("the pod requests %s, but the nodes advertise their GPUs under another name", name),
		Evidence: append(
			[]finding.Evidence{facts.QuoteDemand(pod, facts.GPUDemand(pod))},
			QuoteAllocatable(other)...),
		Fix: finding.Fix{Text: fmt.Sprintf("Request what the nodes advertise: %s instead of %s",
			strings.Join(list[:min(len(list), 6)], ", "), name)},
	}
	switch {
	case strings.HasPrefix(string(name), "nvidia.com/mig-"):
		v.Fix.Text += "; or partition the GPUs accordingly (MIG manager: label nvidia.com/mig.config), and let the " +
			"device plugin use the strategy mixed"
	case name == "nvidia.com/gpu.shared":
		v.Fix.Text += "; nvidia.com/gpu.shared exists only with time-slicing and renameByDefault: true under " +
			"sharing.timeSlicing"
	}
	v.Fix.Text += "."
	v.Fix.Commands = facts.EditCommands(pod)
	if len(list) == 1 {
		if commands := renamed(pod, name, corev1.ResourceName(list[0])); len(commands) > 0 {
			v.Fix.Commands = commands
		}
	}
	return v
}

// renamed returns the commands that recreate a pod without an owner with a different resource name.
func renamed(pod *corev1.Pod, from, to corev1.ResourceName) []string {
	if metav1.GetControllerOf(pod) != nil {
		return nil
	}
	return []string{
		shell.Command(
			`kubectl -n %s get pod %s -o json | jq --arg from %s --arg to %s 'walk(if type == "object" and has($from) then .[$to] = .[$from] | del(.[$from]) else . end)' | kubectl replace --force -f -`,
			pod.Namespace,
			pod.Name,
			string(from),
			string(to),
		),
	}
}

// nodeSelector returns the verdict if the pod's node selector or affinity matches no GPU node.
func (s *Scheduler) nodeSelector(pod *corev1.Pod, want map[corev1.ResourceName]int64) verdict {
	able := Keep(s.nodes, func(n *facts.Node) bool {
		return covers(want, func(r corev1.ResourceName) int64 { return min(n.Allocatable(r), 1) * want[r] })
	})
	v := verdict{
		Id: "sched.node-selector", Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(able),
		Title: "no GPU node has the labels that the pod's node selector or affinity requires",
		Evidence: []finding.Evidence{{
			Source: facts.PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
			Text:   SelectorText(pod),
		}},
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		for _, n := range able[:min(words.Few, len(able))] {
			if value, ok := n.Labels[key]; value != pod.Spec.NodeSelector[key] || !ok {
				text := key + "=" + value
				if !ok {
					text = "has no label " + key
				}
				v.Evidence = append(v.Evidence,
					finding.Evidence{Source: n.Object().String() + " .metadata.labels", Text: words.Cut(text)})
			}
		}
	}
	v.Evidence = v.Evidence[:min(len(v.Evidence), words.Few+1)]
	v.Fix = finding.Fix{
		Text:     "Change the selector to labels that the GPU nodes have" + orLabel(pod),
		Commands: facts.EditCommands(pod),
	}
	for _, n := range able {
		for key, value := range pod.Spec.NodeSelector {
			if have := n.Labels[key]; have != value && value != "" &&
				strings.Contains(strings.ToLower(have), strings.ToLower(value)) {
				v.Fix.Text = fmt.Sprintf(
					"Change the selector: the value of %s on %s is %s, not %s.",
					key,
					n.Name,
					have,
					value,
				)
			}
		}
	}
	if plain := Keep(s.F.Nodes, func(n *facts.Node) bool { return Selects(pod, n) }); len(plain) > 0 {
		v.Title = "the pod's node selector or affinity matches only nodes that have no GPUs"
		v.Evidence = append(v.Evidence,
			finding.Evidence{Source: plain[0].Object().String() + " .status.allocatable", Text: "no GPU resource"})
	}
	if keys := keysOf(pod); len(able) > 0 && len(keys) > 0 {
		v.Fix.Commands = append(v.Fix.Commands, shell.Command("kubectl get nodes -L %s", strings.Join(keys, ",")))
	}
	return v
}

// setByOthers are the prefixes of labels that clouds, autoscalers and feature discovery set: a person who sets one
// claims what is not true, and nodes that are added later do not have it.
var setByOthers = []string{
	"cloud.google.com/", "eks.amazonaws.com/", "karpenter.", "kubernetes.azure.com/", "agentpool",
	"topology.kubernetes.io/",
	"node.kubernetes.io/instance-type", "beta.kubernetes.io/", "kubernetes.io/", "nvidia.com/gpu.", "nvidia.com/cuda.",
	"nvidia.com/mig.", "feature.node.kubernetes.io/", "oci.oraclecloud.com/",
}

// orLabel returns the end of the advice on a selector: to label nodes, unless others set the labels.
func orLabel(pod *corev1.Pod) string {
	for _, key := range keysOf(pod) {
		for _, prefix := range setByOthers {
			if strings.HasPrefix(key, prefix) {
				return ", or add nodes that have them: the platform or feature discovery sets " + key + ", not a person."
			}
		}
	}
	return ", or label the intended nodes."
}

// keysOf returns the label keys in the pod's node selector and affinity, sorted.
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

// tooBig returns the verdict if no node advertises as many GPUs as the pod requests.
func (s *Scheduler) tooBig(pod *corev1.Pod, want map[corev1.ResourceName]int64, among []*facts.Node) verdict {
	v := verdict{
		Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(among),
		Evidence: append([]finding.Evidence{facts.QuoteDemand(pod, want)}, QuoteAllocatable(biggest(among, want))...),
	}
	if lost := Keep(among, func(n *facts.Node) bool { return covers(want, n.Capacity) }); len(lost) > 0 {
		v.Id, v.Nodes = "sched.insufficient-gpu", s.names(lost)
		v.Title = "a node has as many GPUs as the pod requests, but fewer of them are healthy"
		n := lost[0]
		for _, name := range slices.Sorted(maps.Keys(want)) {
			v.Evidence = append(v.Evidence, finding.Evidence{
				Source: n.Object().
					String() +
					" .status.capacity", Text: fmt.Sprintf("%s: %d", name, n.Capacity(name)),
			})
		}
		v.Fix = finding.Fix{
			Text: "Repair the GPUs that the device plugin marked unhealthy, then restart its pod on the node; " +
				"until then, request fewer.",
			Commands: []string{
				shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
			},
		}
		return v
	}
	v.Id, v.Title = "sched.bigger-than-any-node", "the pod requests more GPUs than any node that it may run on has"
	most := int64(0)
	first := slices.Sorted(maps.Keys(want))[0]
	for _, n := range among {
		most = max(most, n.Allocatable(first))
	}
	v.Fix = finding.Fix{
		Text: fmt.Sprintf("Request at most %d of %s per pod, spread the work over several pods (MPIJob, PyTorchJob, "+
			"JobSet, LeaderWorkerSet), or add bigger nodes.",
			most, first),
		Commands: facts.EditCommands(pod),
	}
	return v
}

// tooMuchElse returns the verdict if each node that has the GPUs is too small for another request of the pod, even if
// the node were empty.
func (s *Scheduler) tooMuchElse(pod *corev1.Pod, big []*facts.Node) (verdict, bool) {
	need := facts.Demand(pod)
	for _, name := range slices.Sorted(maps.Keys(need)) {
		if facts.LooksLikeGPU(name) || !isCore(name) || slices.ContainsFunc(big, func(n *facts.Node) bool {
			_, told := n.Status.Allocatable[name]
			return !told || n.Allocatable(name) >= need[name]
		}) {
			continue
		}
		v := verdict{
			Id: "sched.insufficient-other", Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(big),
			Title: fmt.Sprintf("the pod requests more %s than any node with the GPUs has", name),
			Fix: finding.Fix{
				Text: fmt.Sprintf(
					"Request less %s, or add nodes that have more of it: waiting or freeing GPUs does not help.",
					name,
				),
				Commands: facts.EditCommands(pod),
			},
		}
		v.Evidence = append(v.Evidence, finding.Evidence{
			Source: facts.PodObject(pod).String() + " .spec.containers[].resources",
			Text:   fmt.Sprintf("%s: %s", name, words.InWords(name, need[name])),
		})
		for _, n := range big[:min(len(big), words.Few)] {
			v.Evidence = append(v.Evidence, finding.Evidence{
				Source: n.Object().String() + " .status.allocatable",
				Text: fmt.Sprintf("%s: at most %s free, the pod requests %s", name,
					words.InWords(name, n.Allocatable(name)), words.InWords(name, need[name])),
			})
		}
		return v, true
	}
	return verdict{}, false
}

// biggest returns the nodes, sorted by the number of requested GPUs, largest first.
func biggest(nodes []*facts.Node, want map[corev1.ResourceName]int64) []*facts.Node {
	sorted := slices.Clone(nodes)
	size := func(n *facts.Node) (sum int64) {
		for name := range want {
			sum += n.Allocatable(name)
		}
		return sum
	}
	slices.SortStableFunc(sorted, func(a, b *facts.Node) int { return int(size(b) - size(a)) })
	return sorted
}

// closed returns the verdict if taints or the state of the nodes with enough GPUs exclude the pod.
func (s *Scheduler) closed(pod *corev1.Pod, big []*facts.Node) verdict {
	// A node that is only excluded by its state could run the pod after it recovers.
	tainted := Keep(big, func(n *facts.Node) bool { return ForeignTaint(pod, n) != nil })
	sick := Keep(big, func(n *facts.Node) bool { return ForeignTaint(pod, n) == nil })
	v := verdict{Severity: finding.Error, Confidence: finding.Certain}
	if len(sick) > 0 {
		v.Id, v.Nodes = "sched.nodes-unavailable", s.names(sick)
		v.Title = "all nodes with the GPUs that the pod requests are cordoned, not ready or under pressure"
		for _, n := range sick[:min(words.Few, len(sick))] {
			v.Evidence = append(v.Evidence, quoteState(pod, n))
		}
		v.Fix = finding.Fix{
			Text:     "Make the nodes ready, and uncordon those that are not under maintenance.",
			Commands: []string{shell.Command("kubectl describe node %s", sick[0].Name)},
		}
		return v
	}
	v.Id, v.Nodes = "sched.taint", s.names(tainted)
	v.Title = "the pod does not tolerate the taint of the GPU nodes"
	var t *corev1.Taint
	for _, n := range tainted[:min(words.Few, len(tainted))] {
		t = ForeignTaint(pod, n)
		v.Evidence = append(
			v.Evidence, finding.Evidence{Source: n.Object().String() + " .spec.taints", Text: facts.TaintText(t)},
		)
	}
	t = ForeignTaint(pod, tainted[0])
	v.Fix = finding.Fix{
		Text:     "Add the toleration to the pod's template. The taint keeps pods without GPUs off the nodes.",
		Commands: tolerate(pod, t),
	}
	return v
}

// tolerate returns the command that adds a toleration to the template of the pod's owner, or to the pod itself if it
// has no such owner. The API allows adding tolerations to an existing pod.
func tolerate(pod *corev1.Pod, t *corev1.Taint) []string {
	more := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect}
	if t.Value != "" {
		more.Operator, more.Value = corev1.TolerationOpEqual, t.Value
	}
	// The patch replaces the whole list, so keep the pod's own tolerations, without the default ones.
	all := append(slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}), more)
	owner := metav1.GetControllerOf(pod)
	if owner != nil {
		kind, name := strings.ToLower(owner.Kind), owner.Name
		if kind == "replicaset" {
			kind, name = "deployment", facts.DeploymentName(pod, name)
		}
		if slices.Contains([]string{"deployment", "statefulset", "daemonset"}, kind) {
			patch, err := json.Marshal(map[string]any{
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"tolerations": all}}},
			})
			if err != nil {
				return nil
			}
			return []string{
				shell.Command(
					"kubectl -n %s patch %s %s --type merge -p %s",
					pod.Namespace,
					kind,
					name,
					string(patch),
				),
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
	return []string{
		shell.Command("kubectl -n %s patch pod %s --type json -p %s", pod.Namespace, pod.Name, string(patch)),
	}
}

// ForeignTaint returns the first taint of a node that the pod does not tolerate and that does not represent the node's
// state.
func ForeignTaint(pod *corev1.Pod, n *facts.Node) *corev1.Taint {
	if len(n.Spec.Taints) == 0 {
		return nil
	}
	without := *n.Node
	without.Spec.Unschedulable = false
	without.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints),
		func(t corev1.Taint) bool { return ofNodeState(&t) })
	return untolerated(pod, &facts.Node{Node: &without})
}

// quoteState returns the state that keeps pods off a node as evidence.
func quoteState(pod *corev1.Pod, n *facts.Node) finding.Evidence {
	if ready := n.Ready(); ready.Status != corev1.ConditionTrue && ready.Status != "" {
		return finding.Evidence{
			Source: n.Object().String() + " .status.conditions[Ready].message", Time: ready.LastTransitionTime.Time,
			Text: words.Cut(ready.Message),
		}
	}
	if n.Spec.Unschedulable {
		return finding.Evidence{Source: n.Object().String() + " .spec.unschedulable", Text: "true"}
	}
	if t := untolerated(pod, n); t != nil {
		return finding.Evidence{Source: n.Object().String() + " .spec.taints", Text: facts.TaintText(t)}
	}
	return finding.Evidence{Source: n.Object().String(), Text: "not available"}
}

// full returns the verdict if other pods use the GPUs.
//
// Its nodes include nodes that do not advertise all their GPUs, because the pod might run there if they were healthy.
// They exclude nodes that are reserved for virtual machines.
func (s *Scheduler) full(
	pod *corev1.Pod, want map[corev1.ResourceName]int64, open, big, selected []*facts.Node,
) verdict {
	v := verdict{Id: "sched.all-in-use", Severity: finding.Warning, Confidence: finding.Certain}
	v.Nodes = s.names(Keep(selected, func(n *facts.Node) bool {
		return len(Advertised(n)) == 0 && !facts.ForMachines(n) || covers(want, n.Capacity)
	}))
	v.Title = "all GPUs that the pod could use are in use"
	short := slices.Sorted(maps.Keys(want))
	var free int64
	for _, n := range open {
		free += s.Free(n, short[0])
	}
	v.Fix = finding.Fix{
		Text: "Wait, delete pods that are not needed, or add nodes: `kubectl gpu-fault doctor` lists which pods hold " +
			"the GPUs, and since when.",
	}
	if s.nobodyScales(pod) {
		v.Title += ", and nothing adds nodes: no cluster-autoscaler or Karpenter is seen"
		v.Fix.Text = "Raise the desired size of the node group, or install cluster-autoscaler (with the group's tags) or " +
			"Karpenter: a maximum size alone adds no node. Otherwise, wait, or delete pods that are not needed."
	}
	if want[short[0]] > 1 && free >= want[short[0]] {
		v.Id = "sched.fragmented"
		v.Title = "enough GPUs are free in the cluster, but no single node has enough free ones"
		for _, n := range open {
			if left := s.Free(n, short[0]); left > 0 && len(v.Evidence) < words.Few {
				v.Evidence = append(v.Evidence, finding.Evidence{
					Source: n.Object().String() + " .status.allocatable less the requests of its pods",
					Text:   fmt.Sprintf("%s: %d of %d free", short[0], left, n.Allocatable(short[0])),
				})
			}
		}
		v.Fix.Text = "Pack small pods onto fewer nodes (scoring strategy MostAllocated for " + string(short[0]) +
			"), move the pods below to one node, or split the work over several pods."
	}
	holders := s.Holders(open[:min(len(open), manyNodes)], want)
	for _, h := range holders[:min(len(holders), words.Few)] {
		v.Evidence = append(v.Evidence, finding.Evidence{
			Source: fmt.Sprintf("Pod %s/%s on Node %s", h.Namespace, h.Pod, h.node),
			Text:   fmt.Sprintf("%s: %d, owner %s, age %s", h.Resource, h.GPUs, h.owner(), h.Age),
		})
		v.Fix.Commands = append(v.Fix.Commands, shell.Command("kubectl -n %s get pod %s -o wide", h.Namespace, h.Pod))
	}
	spare := 0
	for _, n := range big {
		if len(v.Fix.Commands) < finding.Most && n.Spec.Unschedulable {
			v.Fix.Commands = append(v.Fix.Commands,
				shell.Command("kubectl uncordon %s # the node has GPUs and is cordoned", n.Name))
		}
		t := ForeignTaint(pod, n)
		if t == nil || strings.HasPrefix(t.Key, "node-role.kubernetes.io/") || !facts.Available(n) ||
			!covers(want, func(name corev1.ResourceName) int64 { return s.Free(n, name) }) {
			continue
		}
		if spare++; spare <= words.Few {
			v.Evidence = append(v.Evidence,
				finding.Evidence{Source: n.Object().String() +
					" .spec.taints (its GPUs are free)", Text: facts.TaintText(t)})
			if spare == 1 {
				v.Fix.Commands = append(v.Fix.Commands, tolerate(pod, t)...)
			}
		}
	}
	if spare > 0 {
		v.Title += ", and other nodes with free GPUs have a taint that the pod does not tolerate"
		v.Fix.Text += " Or let the pod tolerate the taint of the nodes with free GPUs, if it may run there."
	}
	return v
}

// ofExtender reports whether no node advertises an extended resource: a scheduler of its own or an extender, such as
// HAMi, accounts for it.
func (s *Scheduler) ofExtender(name corev1.ResourceName) bool {
	return !isCore(name) && strings.HasPrefix(string(name), "nvidia.com/") &&
		!slices.ContainsFunc(s.F.Nodes, func(n *facts.Node) bool { return n.Capacity(name) > 0 })
}

// unreachable matches messages of the scheduler about an extender that does not answer.
var unreachable = regexp.MustCompile(`^Post "?https?://\S+": |extender .*(?:refused|timeout|timed out)`)

// schedulerDown returns the verdict if the scheduler that should place the pod does not run itself.
func (s *Scheduler) schedulerDown(pod *corev1.Pod, message string) (verdict, bool) {
	name := pod.Spec.SchedulerName
	custom := name != "" && name != corev1.DefaultSchedulerName
	if !custom && !unreachable.MatchString(message) || custom && message != "" && !unreachable.MatchString(message) {
		return verdict{}, false
	}
	if !custom || unreachable.MatchString(message) {
		name = "scheduler" // an extender
	}
	for i := range s.F.Snapshot.Pods {
		by := &s.F.Snapshot.Pods[i]
		troubles := s.F.Troubles(by)
		if !strings.Contains(by.Name, name) || by.Namespace == pod.Namespace || len(troubles) == 0 {
			continue
		}
		return verdict{
			Id: "sched.no-scheduler", Severity: finding.Error, Confidence: finding.Likely,
			Title: fmt.Sprintf(
				"the scheduler that places the pod does not run: Pod %s/%s fails",
				by.Namespace,
				by.Name,
			),
			Evidence: []finding.Evidence{{
				Source: facts.PodObject(by).String() + ", container " + troubles[0].Container + " .status",
				Text:   words.Cut(strings.TrimSuffix(troubles[0].Text+": "+troubles[0].Message, ": ")),
			}},
			Fix: finding.Fix{
				Text: "Repair the scheduler's pod: its message is above, its log has more. The GPUs and their device plugin are not " +
					"at fault.",
				Commands: []string{
					shell.Command("kubectl -n %s describe pod %s", by.Namespace, by.Name),
					shell.Command("kubectl -n %s logs %s --all-containers --tail=50", by.Namespace, by.Name),
				},
			},
		}, true
	}
	return verdict{}, false
}

// nobodyScales reports whether a cluster on AWS has no autoscaler: other clouds run theirs where pods do not show.
func (s *Scheduler) nobodyScales(pod *corev1.Pod) bool {
	if len(s.nodes) == 0 || s.nodes[0].Distribution != facts.EKS {
		return false
	}
	for _, e := range s.F.EventsOfPod(pod) {
		if isScaleUp(e) || e.Reason == "NotTriggerScaleUp" ||
			strings.Contains(e.Source.Component+e.ReportingController, "karpenter") {
			return false
		}
	}
	for _, n := range s.F.Nodes {
		if n.Labels["karpenter.sh/nodepool"] != "" || n.Labels["eks.amazonaws.com/compute-type"] == "auto" {
			return false
		}
	}
	return !slices.ContainsFunc(s.F.Snapshot.Pods, func(pod corev1.Pod) bool {
		return words.ContainsAny(pod.Name, []string{"autoscaler", "karpenter"})
	})
}

// placement is a scheduling constraint of a pod. said is the scheduler's wording for it.
type placement struct {
	said, rule, field string
	of                func(*corev1.Pod) any
}

// keptOffBy returns the first constraint named in the scheduler's message, or the zero placement if there is none.
func keptOffBy(message string) placement {
	affinity := func(pod *corev1.Pod) any { return pod.Spec.Affinity }
	for _, p := range []placement{
		{"didn't match pod affinity rules", "the pod's affinity rules", ".spec.affinity", affinity},
		{"didn't match pod anti-affinity rules", "the pod's anti-affinity rules", ".spec.affinity", affinity},
		{
			"didn't match pod topology spread constraints", "the pod's topology spread constraints",
			".spec.topologySpreadConstraints", func(pod *corev1.Pod) any { return pod.Spec.TopologySpreadConstraints },
		},
		{
			"didn't satisfy existing pods anti-affinity rules", "the anti-affinity rules of other pods",
			".metadata.labels, which these rules select", func(pod *corev1.Pod) any { return pod.Labels },
		},
	} {
		if strings.Contains(message, p.said) {
			return p
		}
	}
	return placement{}
}

// quote returns the constraint as JSON from the pod's spec.
func (p placement) quote(pod *corev1.Pod) string {
	text, err := json.Marshal(p.of(pod))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// otherwise returns the verdict if GPUs are free but another constraint excludes the pod.
func (s *Scheduler) otherwise(pod *corev1.Pod, message string, roomy []*facts.Node) verdict {
	need := facts.Demand(pod)
	need[corev1.ResourcePods] = 1
	var lacking []finding.Evidence
	var scarce []string
	blocked := Keep(roomy, func(n *facts.Node) bool {
		for _, name := range slices.Sorted(maps.Keys(need)) {
			if facts.LooksLikeGPU(name) || need[name] == 0 || s.ofExtender(name) {
				continue
			}
			used := s.Use(n)[name]
			if name == corev1.ResourcePods {
				used = int64(len(keepPods(n.Pods)))
			}
			if _, told := n.Status.Allocatable[name]; !told && isCore(name) {
				continue // the node does not report this resource
			}
			if n.Allocatable(name)-used < need[name] {
				if !slices.Contains(scarce, string(name)) {
					scarce = append(scarce, string(name))
				}
				lacking = append(lacking, finding.Evidence{
					Source: n.Object().String() + " .status.allocatable less the requests of its pods",
					Text: fmt.Sprintf("%s: %s free, the pod requests %s", name,
						words.InWords(name, max(0, n.Allocatable(name)-used)), words.InWords(name, need[name])),
				})
				return true
			}
		}
		return false
	})
	v := verdict{Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(roomy)}
	insufficient := insufficientInMessage(message)
	switch {
	case len(blocked) == len(roomy), len(insufficient) > 0 && !slices.ContainsFunc(insufficient, isOurs):
		if len(scarce) == 0 {
			scarce = insufficient
		}
		v.Id, v.Title = "sched.insufficient-other", fmt.Sprintf(
			"GPUs are free, but their nodes do not have as much free %s as the pod requests", words.Joined(scarce))
		v.Evidence = lacking[:min(words.Few, len(lacking))]
		if len(lacking) > 0 && !slices.ContainsFunc(lacking, func(e finding.Evidence) bool {
			return !strings.HasPrefix(e.Text, "pods: ")
		}) {
			v.Title = "GPUs are free, but their nodes already run as many pods as the kubelet allows"
			v.Fix = finding.Fix{
				Text: "Move pods that need no GPU off the GPU nodes (a taint keeps them away), or raise maxPods in the " +
					"kubelet's configuration, if the nodes' pod CIDRs have room for more addresses.",
			}
			break
		}
		v.Fix = finding.Fix{
			Text: fmt.Sprintf("Lower the pod's request for %s, or move pods that need no GPU off the GPU nodes "+
				"(a taint keeps them away).", words.Joined(scarce)),
			Commands: facts.EditCommands(pod),
		}
		if i := slices.IndexFunc(scarce, func(name string) bool { return !isCore(corev1.ResourceName(name)) }); i >= 0 {
			v.Fix = finding.Fix{
				Text: fmt.Sprintf(
					"See who holds %[1]s on these nodes. If they offer fewer than they have, repair the "+
						"device plugin that advertises %[1]s: its log names the reason.",
					scarce[i],
				),
				Commands: []string{
					shell.Command(
						"kubectl get node %s -o jsonpath='{.status.capacity}{\"\\n\"}{.status.allocatable}{\"\\n\"}'",
						roomy[0].Name,
					),
					shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", roomy[0].Name),
				},
			}
		}
	case strings.Contains(strings.ToLower(message), "volume"):
		return s.volume(pod, message)
	case keptOffBy(message).rule != "":
		by := keptOffBy(message)
		v.Id, v.Confidence = "sched.unschedulable", finding.Likely
		v.Title = fmt.Sprintf("GPUs are free, but %s keep the pod off their nodes", by.rule)
		v.Evidence = append([]finding.Evidence{
			finding.FieldEvidence(facts.PodObject(pod), by.field, "%s", by.quote(pod)),
		},
			QuoteAllocatable(roomy)...)
		v.Fix = finding.Fix{
			Text: "Change " + by.rule +
				" if they are not needed: one node must satisfy all of them and have room for the GPUs.",
			Commands: facts.EditCommands(pod),
		}
	case slices.ContainsFunc(insufficient, isOurs):
		v.Id, v.Confidence = "sched.insufficient-gpu", finding.Possible
		v.Title = "the scheduler finds too few free GPUs, although the pods in the snapshot leave enough"
		v.Evidence = QuoteAllocatable(roomy)
		v.Fix =
			finding.Fix{
				Text: "Check again: the pod may be scheduled now. Otherwise, find pods that are missing from " +
					"the snapshot.",
				Commands: []string{
					shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", roomy[0].Name),
				},
			}
	case message == "" && neverLookedAt(pod) && s.F.Age(pod) >= noScheduler:
		v.Id, v.Confidence = "sched.no-scheduler", finding.Likely
		name := pod.Spec.SchedulerName
		if name == "" {
			name = "default-scheduler"
		}
		v.Title = fmt.Sprintf("no scheduler has processed the pod: it waits for the scheduler %q", name)
		v.Evidence = []finding.Evidence{{Source: facts.PodObject(pod).String() + " .spec.schedulerName", Text: name}}
		v.Fix = finding.Fix{
			Text:     "Start that scheduler, or remove schedulerName from the pod.",
			Commands: []string{"kubectl get pods -A | grep -i scheduler"},
		}
	case message == "":
		v.Id, v.Severity, v.Confidence = "sched.waiting", finding.Info, finding.Possible
		v.Title = "a node has room for the pod, and the scheduler has not reported a problem yet"
		v.Evidence = QuoteAllocatable(roomy)
		v.Fix = finding.Fix{Text: "Check again in a moment."}
	default:
		v.Id, v.Confidence = "sched.unschedulable", finding.Likely
		v.Title = "GPUs are free, but the scheduler keeps the pod off their nodes for another reason"
		v.Fix = finding.Fix{
			Text:     "See the scheduler's message: pod affinity, anti-affinity, topology spread and host ports are in the pod's own spec.",
			Commands: facts.EditCommands(pod),
		}
	}
	return v
}

func keepPods(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), facts.Ended)
}

func isOurs(name string) bool { return facts.LooksLikeGPU(corev1.ResourceName(name)) }

func isCore(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods,
	}, name)
}

// neverLookedAt reports whether no scheduler has set the pod's PodScheduled condition.
func neverLookedAt(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

// insufficientInMessage returns the resources that the scheduler's message reports as insufficient: "2 Insufficient
// cpu, 1 Insufficient nvidia.com/gpu".
func insufficientInMessage(message string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`Insufficient ([A-Za-z0-9./_-]+)`).FindAllStringSubmatch(message, -1) {
		if name := strings.TrimRight(m[1], "."); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func (s *Scheduler) volume(pod *corev1.Pod, message string) verdict {
	v := verdict{
		Id: "sched.volume", Severity: finding.Error, Confidence: finding.Certain,
		Title: "a volume of the pod prevents it from being scheduled",
	}
	if message == "" {
		v.Confidence = finding.Possible
	}
	for _, volume := range pod.Spec.Volumes {
		if claim := volume.PersistentVolumeClaim; claim != nil {
			v.Evidence = append(v.Evidence, finding.Evidence{
				Source: facts.PodObject(pod).
					String() +
					" .spec.volumes[].persistentVolumeClaim", Text: claim.ClaimName,
			})
			v.Fix.Commands = append(v.Fix.Commands,
				shell.Command("kubectl -n %s describe pvc %s", pod.Namespace, claim.ClaimName))
		}
	}
	v.Fix.Text =
		"Bind the claim: its storage class must exist and have a provisioner, and an existing volume must be " +
			"accessible from a GPU node's zone."
	return v
}
