package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

func staleSliceCheck() Check {
	return Check{
		ID: "dra.slice-stale", Layer: LayerDRA,
		Title: "ResourceSlices do not say what is there",
		Needs: []Need{NeedAPI},
		Reads: "ResourceSlices of NVIDIA's drivers: their nodes, pool generations and counts, device taints, and the DRA driver's pods on those nodes",
		Why: "The scheduler ignores a pool of which slices are missing, believes one whose node or driver is gone, and keeps away from devices that the driver tainted. Slices that are younger than 2 minutes " +
			"may still be coming.",
		Explains: []string{"dra.unallocatable", "dra.prepare"},
		Doc:      "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/",
		Sources:  []string{"resource.k8s.io/v1 ResourceSlice"},
		Run: func(f *Facts, r *Result) {
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

// checkPools looks for pools of which slices of the newest generation are missing.
func checkPools(f *Facts, r *Result) {
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
			settled[p] = settled[p] && f.Now.Sub(s.CreationTimestamp.Time) >= operandGrace
		}
	}
	for _, p := range pools {
		s := newest[p]
		object := Object{Kind: "ResourceSlice", Name: s.Name}
		if !settled[p] || count[p] >= s.Spec.Pool.ResourceSliceCount {
			r.Pass(object)
			continue
		}
		found := Finding{
			Severity: Warning, Object: object,
			Title: "the scheduler ignores the pool of devices, because slices of it are missing",
			Evidence: []Evidence{fieldEvidence(object, ".spec.pool",
				"name %s, generation %d, resourceSliceCount %d; %d are there", p.name, s.Spec.Pool.Generation,
				s.Spec.Pool.ResourceSliceCount, count[p])},
			Fix: Fix{
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

func checkSlice(f *Facts, r *Result, s *resourcev1.ResourceSlice) {
	object := Object{Kind: "ResourceSlice", Name: s.Name}
	if s.Spec.NodeName == nil {
		return
	}
	place := fieldEvidence(object, ".spec", "driver %s, nodeName %s, %s", s.Spec.Driver, *s.Spec.NodeName,
		count.Of(len(s.Spec.Devices), "device"))
	n := f.Node(*s.Spec.NodeName)
	if n == nil {
		r.Add(Finding{
			Severity: Warning, Object: object, Title: "the slice offers devices of a node that does not exist",
			Evidence: []Evidence{place},
			Fix: Fix{
				Text:     "Delete it: its driver is gone with the node.",
				Commands: []string{command("kubectl delete resourceslice %s", s.Name)},
			},
		})
		return
	}
	if len(s.Spec.Devices) > 0 && alive(n) && len(n.Component(DRADriver)) == 0 &&
		f.Now.Sub(s.CreationTimestamp.Time) >= operandGrace {
		r.Add(Finding{
			Severity: Warning, Confidence: Likely, Object: object, Nodes: []string{n.Name},
			Title:    "the slice offers devices of a node on which no DRA driver runs",
			Evidence: []Evidence{place, fieldEvidence(n.Object(), "pods", "none of the DRA driver")},
			Fix: Fix{
				Text: "Let the driver's plugin run on the node, or delete the slice if it is not to come back.",
				Commands: []string{
					"kubectl get daemonsets -A | grep dra-driver", command("kubectl delete resourceslice %s", s.Name),
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
			r.Add(Finding{
				Severity: Warning, Object: object, Nodes: []string{n.Name},
				Title: "the DRA driver tainted a device, so that nobody gets it",
				Evidence: []Evidence{fieldEvidence(object, ".spec.devices["+d.Name+"].taints", "%s=%s:%s", taint.Key,
					taint.Value, taint.Effect)},
				Fix: Fix{
					Text:     "Repair or reset the device; the driver takes the taint away, or its plugin's restart does.",
					Commands: restartDRA(f, s),
				},
			})
			return
		}
	}
	r.Pass(object)
}

// restartDRA returns the commands that restart the DRA driver's pods on a slice's node.
func restartDRA(f *Facts, s *resourcev1.ResourceSlice) []string {
	var all []string
	if s.Spec.NodeName == nil {
		return nil
	}
	if n := f.Node(*s.Spec.NodeName); n != nil {
		for _, pod := range current(n, DRADriver) {
			all = append(all, restartPod(pod.Namespace, pod.Name))
		}
	}
	return all
}

func doubleCheck() Check {
	return Check{
		ID: "dra.double-advertise", Layer: LayerDRA,
		Title:    "device plugin and DRA driver give away the same GPUs",
		Needs:    []Need{NeedAPI},
		Reads:    "allocatable nvidia.com/gpu and ResourceSlices of gpu.nvidia.com of each node",
		Why:      "Neither knows what the other gave away, so that one GPU goes to two pods. The DRA driver for compute domains alone gives no GPUs, and lives beside a device plugin.",
		Explains: []string{"wl.cuda-oom"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html",
		Sources:  []string{"gpu-operator GPUCluster and ClusterPolicy"},
		Run: func(f *Facts, r *Result) {
			if r.Lacks(f, "api/resourceslices") || r.Lacks(f, "api/nodes") {
				return
			}
			for _, n := range f.GPUNodes {
				offered := 0
				if gpusOf(n.Status.Allocatable) > 0 {
					offered = draDevicesOn(f, n.Name)
				}
				if offered == 0 {
					r.Pass(n.Object())
					continue
				}
				fix := Fix{
					Text:     "Give GPUs one way only: switch off the device plugin, or the DRA driver's GPUs.",
					Commands: changeOperator(f, "devicePlugin.enabled", false),
				}
				if h, ok := releaseOf(f, chartDRA); ok {
					fix.Commands = append(fix.Commands, "# or: "+helmUpgrade(h, "resources.gpus.enabled=false"))
				}
				r.Add(Finding{
					Severity: Warning, Object: n.Object(),
					Title: "a device plugin and a DRA driver both give away the node's GPUs",
					Evidence: []Evidence{
						fieldEvidence(n.Object(), ".status.allocatable", "%s", gpuText(n.Status.Allocatable)),
						fieldEvidence(n.Object(), "ResourceSlices", "%s of %s", count.Of(offered, "device"), draGPU),
					}, Fix: fix,
				})
			}
		},
	}
}

func imexCheck() Check {
	return Check{
		ID: "imex.domain", Layer: LayerDRA,
		Title: "a compute domain does not come up",
		Needs: []Need{NeedAPI, NeedNode},
		Reads: "ComputeDomains' status, pods that wait for their channels, the host's nvidia-imex.service, and the kernel log",
		Why: "The DRA driver starts an IMEX daemon per domain on each of its nodes, which fails where the host runs one of its own. A domain without pods is not ready by design, so that only one is told " +
			"for which a pod has waited for over 2 minutes.",
		Explains: []string{"dra.prepare", "wl.pod-failing", "op.operand-failing"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-cds.html",
		Sources: []string{
			"dra-driver-nvidia-gpu#524", "dra-driver-nvidia-gpu#627", "dra-driver-nvidia-gpu#892",
			"cloud-native-docs#453", "aicr#2520",
		},
		Run: func(f *Facts, r *Result) {
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

// checkHostIMEX looks for an IMEX daemon of the host on nodes that are to have one of the DRA driver, and returns the
// nodes that have.
func checkHostIMEX(f *Facts, r *Result) (told map[string]bool) {
	told = map[string]bool{}
	if len(f.ComputeDomains) == 0 {
		return told
	}
	for _, n := range f.GPUNodes {
		if n.Host == nil {
			continue // only worth knowing where a domain fails, which the API tells
		}
		var evidence []Evidence
		for _, k := range n.Host.KernelLog {
			if strings.Contains(k.Text, "Failed to allocate Imex session") && len(evidence) == 0 {
				evidence = append(evidence, Evidence{
					Source: fmt.Sprintf("nodes/%s/kernel.log sequence %d", n.Name, k.Sequence), Time: k.Time,
					Text: clip(k.Text),
				})
			}
		}
		severity, running := Warning, false
		if len(evidence) > 0 {
			severity = Error
		}
		for _, u := range n.Host.Probe.Units {
			if strings.HasPrefix(u.Name, "nvidia-imex") && u.PID != 0 {
				running = true
				evidence = append(evidence, Evidence{
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
		r.Add(Finding{
			Severity: severity, Confidence: Likely, Object: n.Object(),
			Title:    "the host runs an IMEX daemon of its own, which is in the way of those of compute domains",
			Evidence: evidence,
			Fix: Fix{
				Text:     "Disable it on the node, and restart the DRA driver's pods there.",
				Commands: []string{disableIMEX(n)},
			},
		})
	}
	return told
}

// checkDomain looks at one domain. On the nodes of told the host's own daemon is what stops it.
func checkDomain(f *Facts, r *Result, u unstructured.Unstructured, told map[string]bool) {
	object := Object{Kind: "ComputeDomain", Namespace: u.GetNamespace(), Name: u.GetName()}
	status, _, _ := unstructured.NestedString(u.Object, "status", "status")
	var waiting []*corev1.Pod
	for _, pod := range f.claimPods {
		if pod.Namespace == u.GetNamespace() && !podReady(pod) && pod.Spec.NodeName != "" &&
			f.Now.Sub(pod.CreationTimestamp.Time) >= operandGrace && usesDomain(u, pod) {
			waiting = append(waiting, pod)
		}
	}
	if status == "Ready" || len(waiting) == 0 {
		r.Pass(object)
		return
	}
	found := Finding{
		Object: object, Confidence: Likely, Title: "the compute domain is not ready, and a pod waits for it",
		Evidence: []Evidence{
			fieldEvidence(object, ".status.status", "%s", orNone(status)),
			fieldEvidence(PodObject(waiting[0]), ".status.phase", "%s", waiting[0].Status.Phase),
		},
		Fix: Fix{
			Text: "See which of its daemons is not ready: an IMEX daemon of the host (nvidia-imex.service), another NVLink clique, and blocked ports between the nodes are what stops them.",
			Commands: []string{
				command("kubectl describe computedomain %s -n %s", u.GetName(), u.GetNamespace()),
				command("kubectl get pods -A -o wide | grep -F %s", u.GetName()),
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
				fieldEvidence(object, ".status.nodes", "%v: %v", m["name"], m["status"]))
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
		if found.Title = "the compute domain is not ready, because something else on its nodes owns the IMEX session"; len(
			found.Evidence,
		) < 6 {
			found.Evidence = append(found.Evidence, e)
		}
		if n.Host != nil && len(n.Host.Probe.Processes["nvidia-imex"]) > 0 && len(found.Evidence) < 7 {
			found.Evidence = append(found.Evidence, Evidence{
				Source: "nodes/" + n.Name + " processes",
				Text:   fmt.Sprintf("nvidia-imex %v", n.Host.Probe.Processes["nvidia-imex"]),
			})
		}
		found.Fix.Text =
			"Disable the IMEX daemon of the host on the domain's nodes, then delete the domain's daemon pods there, so that they start again."
		found.Fix.Commands = append([]string{disableIMEX(n)}, found.Fix.Commands...)
	}
	r.Add(found)
}

// sessionInUse finds what a domain's daemon on a node says when another one owns the session.
func sessionInUse(f *Facts, n *Node) (Evidence, bool) {
	for _, pod := range current(n, DRADriver) {
		if e, ok := logEvidence(f, pod, "Failed to allocate Imex session", "NV_ERR_IN_USE"); ok {
			return e, true
		}
	}
	return Evidence{}, false
}

// disableIMEX returns the command that stops the host's IMEX daemon for good.
func disableIMEX(n *Node) string {
	return onHost(n.Name, "sudo systemctl disable --now nvidia-imex && sudo systemctl mask nvidia-imex")
}

// usesDomain reports whether a pod claims a channel of a compute domain, by the template that the domain makes.
func usesDomain(u unstructured.Unstructured, pod *corev1.Pod) bool {
	template, _, _ := unstructured.NestedString(u.Object, "spec", "channel", "resourceClaimTemplate", "name")
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return template != "" && c.ResourceClaimTemplateName != nil && *c.ResourceClaimTemplateName == template
	})
}
