package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// notAdvertised returns the verdict if no node advertises the resource.
func (s *Scheduler) notAdvertised(pod *corev1.Pod, name corev1.ResourceName, among []*facts.Node) verdict {
	want := facts.GPUDemand(pod)
	had := Keep(among, func(n *facts.Node) bool { return n.Capacity(name) > 0 })
	other := Keep(among, func(n *facts.Node) bool { return len(alike(n, name)) > 0 })
	blank := Keep(among, func(n *facts.Node) bool { return len(alike(n, name)) == 0 })
	v := verdict{Id: "sched.none-advertised", Severity: finding.Error, Confidence: finding.Certain}
	switch {
	case len(had) > 0:
		v.Nodes, v.Evidence = s.names(had), QuoteAllocatable(had)
		v.Title = "the nodes that advertised the requested GPUs no longer do"
	case name == "nvidia.com/gpu" && len(blank) > 0:
		v.Nodes, v.Evidence = s.names(blank), QuoteAllocatable(blank)
		v.Title = "no GPU node that the pod may run on advertises nvidia.com/gpu"
	case len(other) > 0 && s.served(name):
		return verdict{} // its plugin is not running or finds no device; other checks report this
	case len(other) > 0:
		return s.wrongName(pod, name, other)
	case facts.OfMachines(name) && !facts.Autoscaled(s.F) &&
		!slices.ContainsFunc(s.F.Snapshot.Pods, func(p corev1.Pod) bool { // its failure is reported
			return facts.ComponentOf(p.Labels, &p.Spec) != "" && len(s.F.Troubles(s.F.Pod(p.Namespace, p.Name))) > 0
		}):
		v.Evidence = append([]finding.Evidence{facts.QuoteDemand(pod, want)}, QuoteAllocatable(among)...)
		v.Title = "no node advertises " + string(name) + ", the name of a GPU for virtual machines"
		v.Fix = finding.Fix{
			Text: "Check that the node's GPU is bound to vfio-pci, that the device plugin for virtual machines runs " +
				"on the node, and that the name is the one in KubeVirt's permittedHostDevices. With the GPU operator, " +
				"set sandboxWorkloads.enabled=true, and label a node that no container uses GPUs of " +
				"nvidia.com/gpu.workload.config=vm-passthrough.",
			Commands: []string{"kubectl get nodes -L nvidia.com/gpu.workload.config", "kubectl get daemonsets -A"},
		}
		return v
	case !facts.IsGPUResource(name):
		return verdict{} // another vendor's device
	case len(among) == 0 && s.shutOut(pod, &v):
		v.Evidence = append([]finding.Evidence{facts.QuoteDemand(pod, want)}, v.Evidence...)
		return v
	case len(among) == 0:
		v.Title = "the pod requests NVIDIA GPUs, but no node in the cluster is known to have one"
		v.Evidence = []finding.Evidence{facts.QuoteDemand(pod, want)}
		if e, scales := s.scales(pod); scales {
			v.Severity, v.Confidence, v.Evidence = finding.Warning, finding.Possible, append(v.Evidence, e)
			v.Title = "the pod requests NVIDIA GPUs and is waiting for a node that an autoscaler may add"
			if failed := s.failedScaleUp(pod); failed != nil {
				v.Severity, v.Confidence = finding.Error, finding.Likely
				v.Evidence = []finding.Evidence{facts.Quote(failed)}
				v.Title = "the autoscaler could not add a node for the pod"
			}
		} else if e := s.noScaleUp(pod); e != nil {
			v.Title += ", and the autoscaler is not adding one"
			v.Evidence = append(v.Evidence, facts.Quote(e))
			for _, name := range insufficientInMessage(e.Message) {
				if core := corev1.ResourceName(name); isCore(core) && facts.Demand(pod)[core] > 0 {
					v.Evidence = append(v.Evidence, finding.FieldEvidence(facts.PodObject(pod),
						".spec.containers[].resources and .spec.nodeSelector", "no new node fits: %s %s, with %s", name,
						words.InWords(core, facts.Demand(pod)[core]), SelectorText(pod)))
				}
			}
			v.Fix = finding.Fix{
				Text: "The autoscaler's message counts the node groups by the reason why a new node would not help. " +
					"Compare the node group that has these GPUs with the pod's selectors, tolerations and requests. " +
					"If GPU nodes already exist, repair the component that should report the GPUs: the driver, the " +
					"device plugin, or node feature discovery.",
				Commands: []string{
					shell.Command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name),
					"kubectl get nodes -L nvidia.com/gpu.present,node.kubernetes.io/instance-type",
				},
			}
			return v
		} else if !facts.Autoscaled(s.F) && !facts.HasPlugin(s.F) && s.F.Missing("api/daemonsets") == "" {
			v.Confidence = finding.Likely
			v.Title = "no device plugin is installed in the cluster, so no node advertises NVIDIA GPUs"
			v.Evidence = append(v.Evidence, finding.Evidence{
				Source: "DaemonSets and pods of all namespaces", Text: "(no device plugin, GPU operator or DRA driver)",
			})
			v.Fix = finding.Fix{
				Text: "Run nvidia-smi on the nodes that should have GPUs. If the driver works, install NVIDIA's " +
					"device plugin (with the nvidia RuntimeClass if NVIDIA's runtime is not the default, as on k3s); " +
					"otherwise, install the driver as the platform requires, or the GPU operator if it supports the " +
					"nodes' operating system. If no node has a GPU, add a GPU node.",
				Commands: []string{
					"kubectl get nodes -L nvidia.com/gpu.present,node.kubernetes.io/instance-type", "kubectl get runtimeclass",
				},
			}
			return v
		}
		v.Fix = finding.Fix{
			Text: "If the cluster has GPU nodes, repair the component that should report their GPUs: the driver, the " +
				"device plugin, or node feature discovery. Otherwise, add a GPU node.",
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
		Text: "Check the device plugin's pods on these nodes. With a DRA driver, use a ResourceClaim instead.",
		Commands: []string{
			shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", v.Nodes[0]),
			shell.Command("kubectl get node %s -o jsonpath='{.status.allocatable}'", v.Nodes[0]),
		},
	}
	return v
}

// shutOut reports whether the pod may run on nodes with a taint that the device plugin does not tolerate, and completes
// the verdict. No plugin reports GPUs on such nodes, but the pod's toleration for the taint shows that the pod is meant
// to run there.
func (s *Scheduler) shutOut(pod *corev1.Pod, v *verdict) bool {
	for i := range s.F.DaemonSets {
		d := &s.F.DaemonSets[i]
		if facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) != facts.DevicePlugin {
			continue
		}
		for _, n := range s.F.Nodes {
			taints := facts.Untolerated(n, d)
			if len(taints) == 0 || !facts.Available(n) || untolerated(pod, n) != nil || !Selects(pod, n) ||
				len(MissingLabels(d.Spec.Template.Spec, n)) > 0 || !meantFor(pod, &taints[0]) {
				continue
			}
			// The cause and the fix come from a signature.
			v.Confidence, v.Nodes = finding.Likely, []string{n.Name}
			v.Title = "the device plugin is not running on the node that the pod selects"
			v.Evidence = []finding.Evidence{{
				Source: "taints of " + n.Object().String() + " (" + n.Labels[corev1.LabelInstanceTypeStable] +
					"), and the device plugin's tolerations",
				Text: "conflict: taint " + facts.TaintsText(taints) + " of " + n.Name +
					", not tolerated by DaemonSet " + d.Namespace + "/" + d.Name,
			}}
			return true
		}
	}
	return false
}

// meantFor reports whether a pod is meant for nodes with a taint: a toleration in the pod contains the taint's key, and
// either the pod selects nodes or the taint concerns GPUs. A pod that tolerates all taints is not meant for any
// particular nodes.
func meantFor(pod *corev1.Pod, taint *corev1.Taint) bool {
	selects := len(pod.Spec.NodeSelector) > 0 || pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil
	return !strings.HasPrefix(taint.Key, "node-role.kubernetes.io/") &&
		(selects || words.ContainsAny(facts.TaintText(taint), []string{"gpu", "GPU", "nvidia"})) &&
		slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == taint.Key })
}

// alike returns those of a node's allocatable GPU resources that are of the same kind as the given one: for virtual
// machines or for containers.
func alike(n *facts.Node, name corev1.ResourceName) []corev1.ResourceName {
	return slices.DeleteFunc(Advertised(n), func(r corev1.ResourceName) bool {
		return facts.OfMachines(r) != facts.OfMachines(name)
	})
}

func (s *Scheduler) wrongName(pod *corev1.Pod, name corev1.ResourceName, other []*facts.Node) verdict {
	offered := map[corev1.ResourceName]bool{}
	for _, n := range other {
		for _, r := range alike(n, name) {
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
		v.Fix.Text += ", or partition the GPUs accordingly (MIG manager: label nvidia.com/mig.config) and use the " +
			"device plugin's strategy mixed"
	case name == "nvidia.com/gpu.shared":
		v.Fix.Text += "; nvidia.com/gpu.shared exists only with time-slicing and renameByDefault: true under " +
			"sharing.timeSlicing"
	}
	v.Fix.Text += "."
	v.Fix.Commands = facts.EditCommands(pod)
	if vendor, _, _ := strings.Cut(string(name), "/"); !slices.ContainsFunc(list, func(r string) bool {
		return strings.HasPrefix(r, vendor+"/")
	}) {
		v.Title = fmt.Sprintf("no node advertises %s: all advertised GPUs are from another vendor", name)
		v.Fix = finding.Fix{
			Text: fmt.Sprintf("If nodes have GPUs from %s, find out why they are not advertised: check feature "+
				"discovery, the driver and the device plugin. If the image also contains the other vendor's "+
				"libraries, you can request %s instead of "+
				"%s.", vendor, strings.Join(list[:min(len(list), 6)], ", "), name),
			Commands: []string{"kubectl get nodes --show-labels", "kubectl get daemonsets -A"},
		}
		return v
	}
	if len(list) == 1 {
		if commands := renamed(pod, name, corev1.ResourceName(list[0])); len(commands) > 0 {
			v.Fix.Commands = commands
		}
	}
	return v
}

// renamed returns the commands that recreate an unowned pod with a different resource name.
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

// tooBig returns the verdict if no node advertises as many GPUs as the pod requests.
func (s *Scheduler) tooBig(pod *corev1.Pod, want map[corev1.ResourceName]int64, among []*facts.Node) verdict {
	v := verdict{
		Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(among),
		Evidence: append([]finding.Evidence{facts.QuoteDemand(pod, want)}, QuoteAllocatable(biggest(among, want))...),
	}
	if lost := Keep(among, func(n *facts.Node) bool { return covers(want, n.Capacity) }); len(lost) > 0 {
		v.Id, v.Nodes = "sched.insufficient-gpu", s.names(lost)
		v.Title = "a node has as many GPUs as the pod requests, but not all of them are allocatable"
		n := lost[0]
		for _, name := range slices.Sorted(maps.Keys(want)) {
			v.Evidence = append(v.Evidence, finding.Evidence{
				Source: n.Object().
					String() +
					" .status.capacity", Text: fmt.Sprintf("%s: %d", name, n.Capacity(name)),
			})
		}
		v.Fix = finding.Fix{
			Text: "If the device plugin is running on the node, repair the GPUs that its log marks as unhealthy, " +
				"then restart its pod; until then, request fewer GPUs.",
			Commands: []string{
				shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
			},
		}
		return v
	}
	v.Id = "sched.bigger-than-any-node"
	v.Title = "the pod requests more GPUs than exist on any node that it may run on"
	most := int64(0)
	first := slices.Sorted(maps.Keys(want))[0]
	for _, n := range among {
		most = max(most, n.Allocatable(first))
	}
	v.Fix = finding.Fix{
		Text: fmt.Sprintf("Request at most %d of %s per pod, spread the work across several pods (MPIJob, "+
			"PyTorchJob, JobSet, LeaderWorkerSet), or add bigger nodes.",
			most, first),
		Commands: facts.EditCommands(pod),
	}
	return v
}

// tooMuchElse returns the verdict if every node with the GPUs is too small, even when empty, for another of the pod's
// requests.
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
			Title: fmt.Sprintf("the pod requests more %s than any node with the requested GPUs has", name),
			Fix: finding.Fix{
				Text: fmt.Sprintf(
					"Request less %s, or add nodes with more of it: waiting or freeing GPUs does not help.",
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

// biggest returns the nodes, sorted by their number of GPUs of the requested kind, largest first.
func biggest(nodes []*facts.Node, want map[corev1.ResourceName]int64) []*facts.Node {
	sorted := slices.Clone(nodes)
	size := func(n *facts.Node) (sum int64) {
		for name := range want {
			sum += n.Allocatable(name)
		}
		return sum
	}
	sorting.StableFunc(sorted, func(a, b *facts.Node) int { return int(size(b) - size(a)) })
	return sorted
}

const inUseTitle = "all GPUs that the pod could use are in use"

// full returns the verdict if other pods are using the GPUs.
//
// The verdict includes nodes that do not advertise all their GPUs, because the pod might run there if these GPUs were
// healthy. It excludes nodes that are reserved for virtual machines.
func (s *Scheduler) full(
	pod *corev1.Pod, want map[corev1.ResourceName]int64, open, big, selected []*facts.Node,
) verdict {
	v := verdict{Id: "sched.all-in-use", Severity: finding.Warning, Confidence: finding.Certain}
	v.Nodes = s.names(Keep(selected, func(n *facts.Node) bool {
		return len(Advertised(n)) == 0 && !facts.ForMachines(n) || covers(want, n.Capacity) ||
			n.Host != nil && int64(len(facts.GPUAddresses(n))) >= want["nvidia.com/gpu"] && want["nvidia.com/gpu"] > 0
	}))
	v.Title = inUseTitle
	short := slices.Sorted(maps.Keys(want))
	var free, most int64
	for _, n := range open {
		free += s.Free(n, short[0])
	}
	for _, n := range selected {
		if untolerated(pod, n) == nil && facts.Available(n) {
			most = max(most, s.Free(n, short[0]))
		}
	}
	v.Fix = finding.Fix{
		Text: "Find out which pods hold the GPUs, and since when. If the pods will finish, wait; delete a pod only " +
			"if it is not needed. Otherwise, add nodes.",
	}
	if len(s.nodes) > 0 && s.nodes[0].Distribution == facts.EKS && !facts.Autoscaled(s.F) {
		// Other clouds run their autoscalers outside the cluster.
		v.Title += ", and neither cluster-autoscaler nor Karpenter, which could add nodes, was found"
		v.Fix.Text = "Raise the desired size of the node group, or install cluster-autoscaler (with the group's " +
			"tags) or Karpenter: a maximum size alone does not add nodes. Otherwise, wait, or delete pods that are " +
			"not needed."
	}
	if want[short[0]] > 1 && free >= want[short[0]] {
		v.Id = "sched.fragmented"
		v.Title = "enough GPUs are free in the cluster, but no single node has enough free ones"
		for _, n := range open {
			if left := s.Free(n, short[0]); left > 0 && len(v.Evidence) < words.Few {
				v.Evidence = append(v.Evidence, finding.Evidence{
					Source: n.Object().String() + " .status.allocatable minus the requests of its pods",
					Text:   fmt.Sprintf("%s: %d of %d free", short[0], left, n.Allocatable(short[0])),
				})
			}
		}
		v.Fix.Text = "Pack small pods onto fewer nodes (use the MostAllocated scoring strategy " +
			"for " + string(short[0]) +
			"), recreate the pods below that may be interrupted, or split the work over several pods."
	}
	if n := s.unlabeled(pod, want, selected[0]); n != nil {
		v.Id, v.Severity, v.Nodes = "sched.node-selector", finding.Error, []string{n.Name}
		v.Title = "a node has free GPUs, but lacks the GPU feature discovery labels that the pod selects"
		v.Evidence = []finding.Evidence{
			{
				Source: facts.PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
				Text:   SelectorText(pod),
			},
			finding.FieldEvidence(n.Object(), ".metadata.labels", "no nvidia.com/gpu.product"),
		}
		v.Fix.Text = "Make GPU feature discovery label the node: check its pod on the node, and the pod's log."
		v.Fix.Commands = []string{
			shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
		}
		return v
	}
	holders := s.Holders(open[:min(len(open), manyNodes)], want)
	if v.Title == inUseTitle {
		s.services(&v, open, holders, short[0], want)
	}
	if v.Title == inUseTitle && most > 0 {
		v.Title = fmt.Sprintf("the pod requests %d of %s, but no node that it could use has more than %d free",
			want[short[0]], short[0], most)
	}
	for _, h := range holders[:min(len(holders), words.Few)] {
		v.Evidence = append(v.Evidence, finding.Evidence{
			Source: fmt.Sprintf("Pod %s/%s on Node %s", h.Namespace, h.Pod, h.node),
			Text:   fmt.Sprintf("%s: %d, owner %s, age %s", h.Resource, h.GPUs, h.owner(), h.Age),
		})
		v.Fix.Commands = append(v.Fix.Commands, shell.Command("kubectl -n %s get pod %s -o wide", h.Namespace, h.Pod))
		if source, text := s.F.LeftOver(s.F.Pod(h.Namespace, h.Pod), nil); text != "" {
			v.Severity = finding.Error
			v.Evidence = append(v.Evidence, finding.Evidence{Source: source, Text: text})
		}
	}
	spare := 0
	for _, n := range big {
		if len(v.Fix.Commands) < finding.Most && n.Spec.Unschedulable {
			v.Fix.Commands = append(v.Fix.Commands,
				shell.Command("kubectl describe node %s # cordoned: find out why before you uncordon it", n.Name))
		}
		taints := foreignTaints(pod, n)
		if len(taints) == 0 || strings.HasPrefix(taints[0].Key, "node-role.kubernetes.io/") || !facts.Available(n) ||
			!covers(want, func(name corev1.ResourceName) int64 { return s.Free(n, name) }) {
			continue
		}
		if spare++; spare <= words.Few {
			v.Evidence = append(v.Evidence,
				finding.Evidence{Source: n.Object().String() +
					" .spec.taints (its GPUs are free)", Text: facts.TaintsText(taints)})
			if spare == 1 {
				v.Fix.Commands = append(v.Fix.Commands, tolerate(pod, taints...)...)
			}
		}
	}
	s.pinned(pod, want, &v)
	if spare > 0 {
		v.Title += ", and other nodes with free GPUs have a taint that the pod does not tolerate"
		v.Fix.Text += " Alternatively, add a toleration for the taint on the nodes with free GPUs, if the pod may " +
			"run there."
	}
	return v
}

// services completes the verdict if all pods that hold the GPUs are services: waiting does not help, because services
// do not terminate.
func (s *Scheduler) services(
	v *verdict, open []*facts.Node, holders []Holder, name corev1.ResourceName, want map[corev1.ResourceName]int64,
) {
	held, all := int64(0), int64(0)
	for _, h := range holders {
		pod := s.F.Pod(h.Namespace, h.Pod)
		if pod == nil || h.Resource != string(name) {
			return
		}
		owner := metav1.GetControllerOf(pod)
		if owner == nil || !slices.Contains([]string{"ReplicaSet", "StatefulSet", "DaemonSet"}, owner.Kind) {
			return
		}
		held += h.GPUs
	}
	for _, n := range open {
		all += n.Allocatable(name)
	}
	if held == 0 || facts.Autoscaled(s.F) {
		return
	}
	v.Title = fmt.Sprintf("services hold %d of the %d %s that the pod could use, and it requests %d more",
		held, all, name, want[name])
	v.Fix.Text = "Find out which pods hold the GPUs. They are services, which do not terminate, so waiting does not " +
		"help, and deleted pods are recreated. Scale down or delete the Deployments that are no longer needed, " +
		"request fewer GPUs, share the GPUs if they have enough memory (time-slicing, MPS, MIG), or add GPUs."
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
