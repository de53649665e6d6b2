package dra

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func staleSliceCheck() engine.Check {
	return engine.Check{
		ID: "dra.slice-stale", Layer: finding.LayerDRA,
		Title: "ResourceSlices are incomplete or stale, or contain tainted devices",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "ResourceSlices of NVIDIA's drivers: their nodes, pool generations and counts, device taints, and the DRA driver's pods on those nodes",
		Why: "The scheduler ignores a pool with missing slices, still uses a pool whose node or driver no longer exists, and avoids devices that the driver tainted. Pools with slices younger than 2 minutes " +
			"may still be incomplete.",
		Explains: []string{"dra.unallocatable", "dra.prepare"},
		Doc:      "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/",
		Sources:  []string{"resource.k8s.io/v1 ResourceSlice"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/resourceslices") || r.Lacks(f, "api/nodes") || r.Lacks(f, "api/pods") {
				return
			}
			checkPools(f, r)
			for i := range f.ResourceSlices {
				if s := &f.ResourceSlices[i]; strings.HasSuffix(s.Spec.Driver, "nvidia.com") {
					checkSlice(f, r, s)
				}
			}
		},
	}
}

// checkPools reports pools whose newest generation is incomplete.
func checkPools(f *facts.Facts, r *engine.Result) {
	type pool struct{ driver, name string }
	var pools []pool
	newest, count, settled := map[pool]*resourcev1.ResourceSlice{}, map[pool]int64{}, map[pool]bool{}
	for i := range f.ResourceSlices {
		s := &f.ResourceSlices[i]
		p := pool{s.Spec.Driver, s.Spec.Pool.Name}
		if !strings.HasSuffix(p.driver, "nvidia.com") {
			continue
		}
		if old := newest[p]; old == nil || s.Spec.Pool.Generation > old.Spec.Pool.Generation {
			if old == nil {
				pools = append(pools, p)
			}
			newest[p], count[p], settled[p] = s, 0, true
		}
		if s.Spec.Pool.Generation == newest[p].Spec.Pool.Generation {
			count[p]++
			settled[p] = settled[p] && f.Now.Sub(s.CreationTimestamp.Time) >= facts.OperandGrace
		}
	}
	for _, p := range pools {
		s := newest[p]
		object := finding.Object{Kind: "ResourceSlice", Name: s.Name}
		if !settled[p] || count[p] >= s.Spec.Pool.ResourceSliceCount {
			r.Pass(object)
			continue
		}
		found := finding.Finding{
			Severity: finding.Warning, Object: object,
			Title: "the scheduler ignores the device pool, because some of its slices are missing",
			Evidence: []finding.Evidence{finding.FieldEvidence(object, ".spec.pool",
				"name %s, generation %d, resourceSliceCount %d; %d found", p.name, s.Spec.Pool.Generation,
				s.Spec.Pool.ResourceSliceCount, count[p])},
			Fix: finding.Fix{
				Text:     "Restart the DRA driver's plugin on the node, so that it publishes its pool again.",
				Commands: restartDRA(f, s),
			},
		}
		if s.Spec.NodeName != nil {
			found.Nodes = []string{*s.Spec.NodeName}
		}
		r.Add(found)
	}
}

func checkSlice(f *facts.Facts, r *engine.Result, s *resourcev1.ResourceSlice) {
	object := finding.Object{Kind: "ResourceSlice", Name: s.Name}
	if s.Spec.NodeName == nil {
		return
	}
	place := finding.FieldEvidence(object, ".spec", "driver %s, nodeName %s, %s", s.Spec.Driver, *s.Spec.NodeName,
		count.Of(len(s.Spec.Devices), "device"))
	n := f.Node(*s.Spec.NodeName)
	if n == nil {
		r.Add(finding.Finding{
			Severity: finding.Warning, Object: object, Title: "the slice offers devices on a node that does not exist",
			Evidence: []finding.Evidence{place},
			Fix: finding.Fix{
				Text:     "If the node was removed permanently, delete the slice.",
				Commands: []string{shell.Command("kubectl delete resourceslice %s", s.Name)},
			},
		})
		return
	}
	if len(s.Spec.Devices) > 0 && facts.Alive(n) && len(n.Component(facts.DRADriver)) == 0 &&
		f.Now.Sub(s.CreationTimestamp.Time) >= facts.OperandGrace {
		r.Add(finding.Finding{
			Severity: finding.Warning, Confidence: finding.Likely, Object: object, Nodes: []string{n.Name},
			Title:    "the slice offers devices on a node where no DRA driver runs",
			Evidence: []finding.Evidence{place, finding.FieldEvidence(n.Object(), "pods", "no DRA driver pod")},
			Fix: finding.Fix{
				Text: "Run the driver's plugin on the node, or delete the slice if the plugin was removed permanently.",
				Commands: []string{
					"kubectl get daemonsets -A | grep dra-driver",
					shell.Command("kubectl delete resourceslice %s", s.Name),
				},
			},
		})
		return
	}
	for _, d := range s.Spec.Devices {
		for _, taint := range d.Taints {
			if taint.Effect != resourcev1.DeviceTaintEffectNoSchedule &&
				taint.Effect != resourcev1.DeviceTaintEffectNoExecute {
				continue
			}
			r.Add(finding.Finding{
				Severity: finding.Warning, Object: object, Nodes: []string{n.Name},
				Title: "the DRA driver tainted a device, so the device is not allocated",
				Evidence: []finding.Evidence{finding.FieldEvidence(object, ".spec.devices["+d.Name+"].taints",
					"%s=%s:%s", taint.Key,
					taint.Value, taint.Effect)},
				Fix: finding.Fix{
					Text:     "Repair or reset the device. The driver then removes the taint, at the latest when its plugin restarts.",
					Commands: restartDRA(f, s),
				},
			})
			return
		}
	}
	r.Pass(object)
}

// restartDRA returns the commands that restart the DRA driver's pods on a slice's node.
func restartDRA(f *facts.Facts, s *resourcev1.ResourceSlice) []string {
	var all []string
	if s.Spec.NodeName == nil {
		return nil
	}
	if n := f.Node(*s.Spec.NodeName); n != nil {
		for _, pod := range facts.Current(n, facts.DRADriver) {
			all = append(all, facts.RestartPod(pod.Namespace, pod.Name))
		}
	}
	return all
}

func doubleCheck() engine.Check {
	return engine.Check{
		ID: "dra.double-advertise", Layer: finding.LayerDRA,
		Title:    "a device plugin and a DRA driver allocate the same GPUs",
		Needs:    []engine.Need{engine.NeedAPI},
		Reads:    "allocatable nvidia.com/gpu and gpu.nvidia.com ResourceSlices of each node",
		Why:      "Neither knows what the other allocated, so two pods can get the same GPU. A DRA driver that is used only for compute domains does not conflict with a device plugin.",
		Explains: []string{"wl.cuda-oom"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html",
		Sources:  []string{"gpu-operator GPUCluster and ClusterPolicy"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/resourceslices") || r.Lacks(f, "api/nodes") {
				return
			}
			for _, n := range f.GPUNodes {
				offered := 0
				if facts.GPUsOf(n.Status.Allocatable) > 0 {
					offered = facts.DRADevicesOn(f, n.Name)
				}
				if offered == 0 {
					r.Pass(n.Object())
					continue
				}
				fix := finding.Fix{
					Text: "Use only one of them for GPUs: disable the one that no pod uses, the device plugin or " +
						"GPUs in the DRA driver (devicePlugin.enabled or resources.gpus.enabled in their charts).",
					Commands: []string{"kubectl get resourceclaims -A"},
				}
				r.Add(finding.Finding{
					Severity: finding.Warning, Object: n.Object(),
					Title: "a device plugin and a DRA driver both allocate the node's GPUs",
					Evidence: []finding.Evidence{
						finding.FieldEvidence(
							n.Object(), ".status.allocatable", "%s", facts.GPUText(n.Status.Allocatable),
						),
						finding.FieldEvidence(
							n.Object(), "ResourceSlices", "%s of %s", count.Of(offered, "device"), facts.DRAForGPUs,
						),
					}, Fix: fix,
				})
			}
		},
	}
}

func imexCheck() engine.Check {
	return engine.Check{
		ID: "imex.domain", Symptom: engine.Precise, Layer: finding.LayerDRA,
		Title: "a compute domain does not become ready",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
		Reads: "the status of ComputeDomains, pods that are waiting for their channels, the host's nvidia-imex.service, and the kernel log",
		Why: "For each domain, the DRA driver starts an IMEX daemon on each of the domain's nodes; the daemon fails " +
			"if the host runs its own. A domain without pods is not ready by design, so a domain is reported only if " +
			"a pod has been waiting for it for more than 2 minutes.",
		Explains: []string{"dra.prepare", "wl.pod-failing", "op.operand-failing"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-cds.html",
		Sources: []string{
			"dra-driver-nvidia-gpu#524", "dra-driver-nvidia-gpu#627", "dra-driver-nvidia-gpu#892",
			"cloud-native-docs#453", "aicr#2520",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			if len(f.CRDs) > 0 && !slices.Contains(f.CRDs, "computedomains.resource.nvidia.com") {
				return
			}
			if r.Lacks(f, "api/computedomains") || r.Lacks(f, "api/pods") {
				return
			}
			told := checkHostIMEX(f, r)
			for _, u := range f.ComputeDomains {
				checkDomain(f, r, u, told)
			}
		},
	}
}

// checkHostIMEX reports nodes on which the host runs an IMEX daemon, and returns their names.
func checkHostIMEX(f *facts.Facts, r *engine.Result) (told map[string]bool) {
	told = map[string]bool{}
	if len(f.ComputeDomains) == 0 {
		return told
	}
	for _, n := range f.GPUNodes {
		if n.Host == nil {
			continue // the node was not inspected; checkDomain reports failing domains
		}
		var evidence []finding.Evidence
		for _, k := range n.Host.KernelLog {
			if strings.Contains(k.Text, "Failed to allocate Imex session") && len(evidence) == 0 {
				evidence = append(evidence, finding.Evidence{
					Source: fmt.Sprintf("nodes/%s/kernel.log sequence %d", n.Name, k.Sequence), Time: k.Time,
					Text: words.Clip(k.Text),
				})
			}
		}
		severity, running := finding.Warning, false
		if len(evidence) > 0 {
			severity = finding.Error
		}
		for _, u := range n.Host.Probe.Units {
			if strings.HasPrefix(u.Name, "nvidia-imex") && u.PID != 0 {
				running = true
				evidence = append(evidence, finding.Evidence{
					Source: "nodes/" + n.Name + " unit " + u.Name, Time: u.Started,
					Text: fmt.Sprintf("running, PID %d", u.PID),
				})
			}
		}
		if !running {
			r.Pass(n.Object())
			continue
		}
		told[n.Name] = true
		r.Add(finding.Finding{
			Severity: severity, Confidence: finding.Likely, Object: n.Object(),
			Title:    "the host runs its own IMEX daemon, which conflicts with the daemons of compute domains",
			Evidence: evidence,
			Fix: finding.Fix{
				Text: "Unless programs outside Kubernetes use it, disable the host's IMEX daemon, and restart the " +
					"DRA driver's pods on the node.",
				Commands: []string{disableIMEX(n)},
			},
		})
	}
	return told
}

// checkDomain checks one compute domain. It reports nothing if any of the domain's nodes is in told, because the host's
// IMEX daemon has then already been reported as the cause.
func checkDomain(f *facts.Facts, r *engine.Result, u unstructured.Unstructured, told map[string]bool) {
	object := finding.Object{Kind: "ComputeDomain", Namespace: u.GetNamespace(), Name: u.GetName()}
	status, _, _ := unstructured.NestedString(u.Object, "status", "status")
	var waiting []*corev1.Pod
	for _, pod := range f.ClaimPods {
		if pod.Namespace == u.GetNamespace() && !podutils.IsPodReady(pod) && pod.Spec.NodeName != "" &&
			f.Now.Sub(pod.CreationTimestamp.Time) >= facts.OperandGrace && usesDomain(u, pod) {
			waiting = append(waiting, pod)
		}
	}
	// A domain becomes ready when the claims of its pods have been prepared. If they have not, dra.prepare reports the
	// reason.
	unregistered := func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
			return e.Reason == "FailedPrepareDynamicResources" && strings.Contains(e.Message, "is not registered")
		})
	}
	if status == "Ready" || len(waiting) == 0 || slices.ContainsFunc(waiting, unregistered) {
		r.Pass(object)
		return
	}
	found := finding.Finding{
		Object: object, Confidence: finding.Likely, Title: "the compute domain is not ready, and a pod is waiting " +
			"for it",
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.status", "%s", words.OrNone(status)),
			finding.FieldEvidence(facts.PodObject(waiting[0]), ".status.phase", "%s", waiting[0].Status.Phase),
		},
		Fix: finding.Fix{
			Text: "Find out which of the domain's daemons is not ready. Possible causes are an IMEX daemon on the host (nvidia-imex.service), a different NVLink clique, and blocked ports between the nodes.",
			Commands: []string{
				shell.Command("kubectl describe computedomain %s -n %s", u.GetName(), u.GetNamespace()),
				shell.Command("kubectl get pods -A -o wide | grep -F %s", u.GetName()),
				"kubectl get nodes -L nvidia.com/gpu.clique",
			},
		},
	}
	for _, pod := range waiting {
		found.Nodes = append(found.Nodes, pod.Spec.NodeName)
	}
	members, _, _ := unstructured.NestedSlice(u.Object, "status", "nodes")
	for _, item := range members {
		m, ok := item.(map[string]any)
		if !ok {
			continue
		}
		if name, _ := m["name"].(string); f.Node(name) != nil {
			found.Nodes = append(found.Nodes, name)
		}
		if m["status"] != "Ready" && len(found.Evidence) < 4 {
			found.Evidence = append(found.Evidence,
				finding.FieldEvidence(object, ".status.nodes", "%v: %v", m["name"], m["status"]))
		}
	}
	slices.Sort(found.Nodes)
	found.Nodes = slices.Compact(found.Nodes)
	if slices.ContainsFunc(found.Nodes, func(name string) bool { return told[name] }) {
		return
	}
	for _, name := range found.Nodes {
		n := f.Node(name)
		if n == nil {
			continue
		}
		e, ok := sessionInUse(f, n)
		if !ok {
			continue
		}
		if found.Title = "the compute domain is not ready, because another process on its nodes owns the IMEX session"; len(
			found.Evidence,
		) < 6 {
			found.Evidence = append(found.Evidence, e)
		}
		if n.Host != nil && len(n.Host.Probe.Processes["nvidia-imex"]) > 0 && len(found.Evidence) < 7 {
			found.Evidence = append(found.Evidence, finding.Evidence{
				Source: "nodes/" + n.Name + " processes",
				Text:   fmt.Sprintf("nvidia-imex %v", n.Host.Probe.Processes["nvidia-imex"]),
			})
		}
		found.Fix.Text =
			"Find the process. If it is the host's IMEX daemon, disable it on the domain's nodes, then delete the " +
				"domain's daemon pods there, so that they are recreated."
		found.Fix.Commands = append([]string{disableIMEX(n)}, found.Fix.Commands...)
	}
	if text := missingMembers(f, u, len(members)); text != "" {
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(object, ".status.nodes, and .spec.numNodes", "%s", text))
	}
	r.Add(found)
}

// missingMembers returns evidence that pods which would add nodes to a domain are not scheduled, if the domain waits
// for more nodes than have joined it:
//
//	10 of 18 nodes; not scheduled: 8 pods, such as NAME(, held by gate NAME)
func missingMembers(f *facts.Facts, u unstructured.Unstructured, joined int) string {
	wants, _, _ := unstructured.NestedInt64(u.Object, "spec", "numNodes")
	held, first := 0, ""
	for _, pod := range f.ClaimPods {
		if pod.Namespace != u.GetNamespace() || !facts.Unscheduled(pod) || !usesDomain(u, pod) {
			continue
		}
		held, first = held+1, pod.Name
		for _, gate := range pod.Spec.SchedulingGates {
			first += ", held by gate " + gate.Name
			break
		}
	}
	if held == 0 || int64(joined) >= wants {
		return ""
	}
	return fmt.Sprintf("%d of %s; not scheduled: %s, such as %s", joined, count.Of(int(wants), "node"),
		count.Of(held, "pod"), first)
}

// sessionInUse finds the log line in which a domain's daemon reports that another process owns the IMEX session.
func sessionInUse(f *facts.Facts, n *facts.Node) (finding.Evidence, bool) {
	for _, pod := range facts.Current(n, facts.DRADriver) {
		if e, ok := facts.LogEvidence(f, pod, "Failed to allocate Imex session", "NV_ERR_IN_USE"); ok {
			return e, true
		}
	}
	return finding.Evidence{}, false
}

// disableIMEX returns the command that permanently disables the host's IMEX daemon.
func disableIMEX(n *facts.Node) string {
	return shell.OnHost(n.Name, "sudo systemctl disable --now nvidia-imex && sudo systemctl mask nvidia-imex")
}

// usesDomain reports whether a pod claims a channel in a compute domain through the domain's ResourceClaimTemplate.
func usesDomain(u unstructured.Unstructured, pod *corev1.Pod) bool {
	template, _, _ := unstructured.NestedString(u.Object, "spec", "channel", "resourceClaimTemplate", "name")
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return template != "" && c.ResourceClaimTemplateName != nil && *c.ResourceClaimTemplateName == template
	})
}

// onlyOne reports whether one of the devices allocated to the pod is the only one of its driver with the same type, MIG
// profile and product.
func onlyOne(f *facts.Facts, pod *corev1.Pod) bool {
	offered := map[string]int{} // the number of devices of each kind
	kinds := map[string]string{}
	for i := range f.ResourceSlices {
		s := &f.ResourceSlices[i].Spec
		for j := range s.Devices {
			kind := s.Driver
			for _, name := range []resourcev1.QualifiedName{"type", "profile", "productName"} {
				if value := s.Devices[j].Attributes[name].StringValue; value != nil {
					kind += "/" + *value
				}
			}
			offered[kind]++
			kinds[s.Driver+"/"+s.Pool.Name+"/"+s.Devices[j].Name] = kind
		}
	}
	for _, wanted := range pod.Spec.ResourceClaims {
		if claim := facts.ClaimOf(f, pod, wanted); claim != nil && claim.Status.Allocation != nil {
			for _, d := range claim.Status.Allocation.Devices.Results {
				if offered[kinds[d.Driver+"/"+d.Pool+"/"+d.Device]] == 1 {
					return true
				}
			}
		}
	}
	return false
}
