package deviceplugin

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func migStrategyCheck() engine.Check {
	return engine.Check{
		ID: "mig.strategy-mismatch", Layer: finding.LayerDevicePlugin,
		Title: "the MIG strategy does not match how the GPUs are partitioned, or what pods request",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "node labels nvidia.com/mig.* and nvidia.com/gpu.product, MIG mode and instances in nvidia-smi -q -x, " +
			"logs of the device plugin and feature discovery, capacity, and requests of Pending pods",
		Why: "The single strategy requires all GPUs on a node to have equal instances and offers them as " +
			"nvidia.com/gpu; mixed offers each profile as nvidia.com/mig-PROFILE, and whole GPUs as nvidia.com/gpu; " +
			"none ignores MIG. No strategy offers a GPU in MIG mode without instances.",
		Explains: facts.GPULost("sched.wrong-resource-name", "sched.bigger-than-any-node", "dp.capacity-zero",
			"dp.not-running", "dp.unhealthy", "op.operand-failing", "op.clusterpolicy", "op.init-chain", "gfd.labels",
			"dp.none", "wl.message", "wl.pod-failing"),
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/index.html",
		Sources: []string{"gpu-operator#442", "gpu-operator#603", "gpu-operator#637", "gpu-operator#646",
			"gpu-operator#322", "gpu-operator#382", "k8s-device-plugin#253", "k8s-device-plugin#257",
			"k8s-device-plugin#225", "k8s-device-plugin#240", "k8s-device-plugin#767", "nvidia-container-toolkit#1740"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/nodes") || r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				checkMIGNode(f, r, n)
			}
			offer := findMIGOffer(f)
			for _, pod := range f.GPUPods {
				if pod.Spec.NodeName == "" && len(offer.divided) > 0 {
					offer.check(f, r, pod)
				}
			}
		},
	}
}

func checkMIGNode(f *facts.Facts, r *engine.Result, n *facts.Node) {
	if checkUndivided(f, r, n) {
		return
	}
	var evidence []finding.Evidence
	if strings.HasSuffix(n.Labels["nvidia.com/gpu.product"], "-MIG-INVALID") {
		evidence = facts.LabelEvidence(n, "nvidia.com/gpu.product", "nvidia.com/mig.strategy", "nvidia.com/mig.config",
			"nvidia.com/mig.config.state")
	}
	if facts.GPUsOf(n.Status.Allocatable) == 0 {
		for _, pod := range slices.Concat(
			facts.Current(n, facts.DevicePlugin), facts.Current(n, facts.FeatureDiscovery),
		) {
			e, ok := facts.LogEvidence(f, pod, "migEnabled=true was not configured cor", "invalid MIG configuration",
				"configured with the same migEnabled value", "more than one MIG device type present on node")
			if ok {
				evidence = append(evidence, e)
				break
			}
		}
	}
	if len(evidence) == 0 {
		r.Pass(n.Object())
		return
	}
	fix := finding.Fix{Text: "Partition all GPUs on the node identically (with the MIG manager: label " +
		"nvidia.com/mig.config) while no pod uses them, or use the mixed strategy, which allows any partitioning."}
	if h, ok := facts.ReleaseOf(f, facts.ChartDevicePlugin); ok {
		fix.Commands = append(fix.Commands, facts.HelmUpgrade(h, "migStrategy=mixed"))
	} else {
		fix.Commands = append(fix.Commands, facts.ChangeOperator(f, "mig.strategy", "mixed")...)
	}
	r.Add(finding.Finding{
		Object: n.Object(), Title: "the MIG partitions of the GPUs do not match the MIG strategy",
		Evidence: evidence, Fix: fix,
	})
}

// undivided returns evidence that GPUs on the node are in MIG mode but have no MIG instances. seen is false if this is
// inferred without nvidia-smi or an explicit message: the node had a MIG resource, and the device plugin found no
// devices but logged no NVML error.
func undivided(f *facts.Facts, n *facts.Node) (evidence []finding.Evidence, seen bool) {
	said, says := invalidMIG(f, n)
	if smi := n.GPUs().SMI; smi != nil {
		lists := strings.Contains(n.Host.SMI, "<mig_devices")
		for _, g := range smi.GPUs {
			if g.MIG.Enabled == nil || !*g.MIG.Enabled || len(g.MIG.Devices) > 0 || !lists {
				if !says {
					return nil, false
				}
				continue
			}
			evidence = append(evidence, facts.SMIEvidence(n, g, "current_mig", "Enabled"),
				facts.SMIEvidence(n, g, "mig_devices", "None"))
		}
		return evidence[:min(len(evidence), 4)], len(evidence) > 0
	}
	for _, pod := range facts.Current(n, facts.Validator) { // the validator logs the output of nvidia-smi
		if e, ok := facts.LogEvidence(f, pod, "No MIG devices found"); ok && !says {
			said, says = e, true
		}
	}
	if says {
		return []finding.Evidence{said}, true
	}
	for _, name := range slices.Sorted(maps.Keys(n.Status.Capacity)) {
		if !strings.HasPrefix(string(name), "nvidia.com/mig-") {
			continue
		}
		for _, pod := range facts.Current(n, facts.DevicePlugin) {
			_, failed := facts.LogEvidence(f, pod, nvmlErrors()...)
			if e, ok := facts.LogEvidence(f, pod, noDevices); ok && !failed {
				return []finding.Evidence{
					finding.FieldEvidence(n.Object(), ".status.allocatable", "%s: 0", name), e,
				}, false
			}
		}
	}
	return nil, false
}

// invalidGPU matches the index of the GPU in the line that invalidMIG returns. The other GPUs may have instances.
var invalidGPU = regexp.MustCompile(`device (\d+) has an invalid MIG configuration`)

// invalidMIG returns the line in which the device plugin or feature discovery reports a GPU in MIG mode without
// instances, which they call an invalid configuration.
func invalidMIG(f *facts.Facts, n *facts.Node) (finding.Evidence, bool) {
	for _, pod := range slices.Concat(
		facts.Current(n, facts.DevicePlugin), facts.Current(n, facts.FeatureDiscovery),
	) {
		e, ok := facts.LogEvidence(f, pod, "No MIG devices associated with", "has an invalid MIG configuration")
		if ok {
			return e, true
		}
	}
	return finding.Evidence{}, false
}

// checkUndivided reports a node whose GPUs are in MIG mode but have no MIG instances. (A reboot or reset removes the
// instances, but does not end MIG mode.)
func checkUndivided(f *facts.Facts, r *engine.Result, n *facts.Node) bool {
	state := n.Labels["nvidia.com/mig.config.state"]
	if facts.GPUsOf(n.Status.Allocatable) > 0 || n.Labels["nvidia.com/mig.config"] == modeOnly && slicer(f) ||
		state == "pending" || state == "rebooting" || state == "failed" { // mig.manager-failed reports it
		return false
	}
	evidence, seen := undivided(f, n)
	// Without a device plugin, the operator may be waiting for its validation, which needs a GPU.
	_, operator := facts.ClusterPolicy(f)
	if len(evidence) == 0 || len(facts.Current(n, facts.DevicePlugin)) == 0 && !operator {
		return false
	}
	title, only := "the GPUs are in MIG mode but have no MIG instances, so the node offers no GPUs", ""
	cause := "MIG mode survives a reboot, but the instances do not: something must create them again at each boot."
	list := shell.OnHost(n.Name, "sudo nvidia-smi mig -lgi")
	profiles := shell.OnHost(n.Name, "sudo nvidia-smi mig -lgip")
	if m := invalidGPU.FindStringSubmatch(evidence[0].Text); m != nil {
		title = "GPU " + m[1] + " is in MIG mode but has no MIG instances, so the device plugin offers no GPU on the " +
			"node"
		cause += " If any GPU has no instances, the plugin offers none of the node's GPUs, and reports only the " +
			"first such GPU: check the GPUs after it as well."
		only = " -i " + m[1]
		list = shell.OnHost(n.Name, "sudo nvidia-smi mig -i %s -lgi", m[1])
		profiles = shell.OnHost(n.Name, "sudo nvidia-smi mig -i %s -lgip", m[1])
	}
	found := finding.Finding{
		Object: n.Object(), Confidence: finding.Likely, Evidence: evidence, Title: title,
		Cause: cause,
		Fix: finding.Fix{
			Text: "Check that the list is empty. Then create the instances that the pods request, with the IDs of " +
				"the profiles that -lgip lists (such as nvidia-smi mig" + only + " -cgi 19,19 -C for two of 1g), and " +
				"restart the device plugin. Have a service such as nvidia-mig-parted or the MIG manager create the " +
				"instances at each boot. If MIG is not wanted on this node, disable it (nvidia-smi" + only + " -mig " +
				"0, while no process uses the GPU). The driver, the plugin and its strategy need no change.",
			Commands: []string{list, profiles},
		},
	}
	if !seen {
		found.Title = "the node's GPUs probably no longer have MIG instances, so the node offers no GPUs"
	}
	want := n.Labels["nvidia.com/mig.config"]
	if manager := facts.Current(n, facts.MIGManager); (want == "" || want == modeOnly) && len(manager) > 0 {
		if want == modeOnly {
			found.Cause = "The all-enabled configuration only enables MIG mode. It is meant for programs that create " +
				"instances themselves."
		}
		found.Fix.Text = "Have the MIG manager, which runs on the node, create instances or disable MIG: set the " +
			"label nvidia.com/mig.config to a configuration that this GPU supports (such as all-1g.5gb on an A100 " +
			"40GB; the manager's ConfigMap lists them), or to all-disabled if MIG is not wanted on this node. The " +
			"MIG manager then restarts the device plugin. The driver, the plugin and its strategy need no change."
		found.Fix.Commands = []string{
			shell.Command("kubectl label node %s nvidia.com/mig.config=all-disabled --overwrite # or, e.g., all-1g.5gb",
				n.Name),
		}
	} else if want != "" && len(manager) > 0 {
		found.Fix.Text = "Check that the list is empty. If it is, have the MIG manager apply the configuration " +
			"again: remove the label nvidia.com/mig.config and set it again to " + want + ". The MIG manager then " +
			"restarts the device plugin."
		found.Fix.Commands = append(found.Fix.Commands[:1],
			shell.Command("kubectl label node %s nvidia.com/mig.config-", n.Name),
			shell.Command("kubectl label node %s nvidia.com/mig.config=%s", n.Name, want))
		found.Evidence = append(found.Evidence,
			facts.LabelEvidence(n, "nvidia.com/mig.config", "nvidia.com/mig.config.state")...)
	}
	r.Add(found)
	return true
}

// modeOnly is the configuration of the MIG manager that enables MIG mode without creating instances.
const modeOnly = "all-enabled"

// slicer reports whether the cluster has a program that creates MIG instances when pods request them.
func slicer(f *facts.Facts) bool {
	return slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			return words.ContainsAny(c.Image, []string{"instaslice", "accelerator-slicer"})
		})
	})
}

// migOffer contains the allocatable GPU resources on the nodes, and one MIG node for each strategy.
type migOffer struct {
	offered map[string]int64
	divided map[string]*facts.Node
}

func findMIGOffer(f *facts.Facts) migOffer {
	o := migOffer{map[string]int64{}, map[string]*facts.Node{}}
	for _, n := range f.GPUNodes {
		for name, q := range n.Status.Allocatable {
			if facts.IsGPUResource(name) {
				o.offered[string(name)] += q.Value()
			}
		}
		strategy := n.Labels["nvidia.com/mig.strategy"]
		if strategy != "" && (n.Labels["nvidia.com/mig.capable"] == "true" || migResources(n)) &&
			(o.divided[strategy] == nil || migResources(n)) {
			o.divided[strategy] = n
		}
	}
	return o
}

// check reports a pod that requests MIG instances or whole GPUs if the strategy offers only the other kind.
func (o migOffer) check(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	for name := range facts.GPURequests(pod) {
		wantsMIG := strings.HasPrefix(string(name), "nvidia.com/mig-")
		if o.offered[string(name)] > 0 {
			continue
		}
		for _, strategy := range words.SortedKeys(o.divided) {
			n := o.divided[strategy]
			mismatch := wantsMIG && strategy != "mixed" && o.offered["nvidia.com/gpu"] > 0 ||
				!wantsMIG && strategy == "mixed" && migResources(n)
			if !mismatch {
				continue
			}
			other := "single"
			if wantsMIG {
				other = "mixed" // each profile has its own resource
			}
			var offers []string
			for _, resource := range words.SortedKeys(o.offered) {
				if o.offered[resource] > 0 {
					offers = append(offers, resource)
				}
			}
			r.Add(finding.Finding{
				Object: facts.PodObject(pod), Confidence: finding.Likely,
				Title: fmt.Sprintf("the pod requests %s, which no node offers with the MIG strategy %s", name,
					strategy),
				Evidence: append(facts.LabelEvidence(n, "nvidia.com/mig.strategy", "nvidia.com/mig.config",
					"nvidia.com/gpu.product"),
					finding.FieldEvidence(n.Object(), ".status.allocatable", "%s", facts.GPUText(n.Status.Allocatable)),
					finding.FieldEvidence(facts.PodObject(pod), ".spec.containers[].resources.limits", "%s", name)),
				Fix: finding.Fix{
					Text: fmt.Sprintf("Request what the nodes offer (%s), or change the strategy of the device plugin "+
						"to %s, which renames the resources that other pods request.", words.Joined(offers), other),
					Commands: facts.ChangeOperator(f, "mig.strategy", other),
				},
			})
			return
		}
	}
}

// migResources reports whether the node advertises MIG profiles as resources.
func migResources(n *facts.Node) bool {
	for name, q := range n.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/mig-") && q.Value() > 0 {
			return true
		}
	}
	return false
}
