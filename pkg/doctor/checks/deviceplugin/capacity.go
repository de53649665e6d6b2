package deviceplugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func pluginPodCheck() engine.Check {
	return engine.Check{
		ID: "dp.not-running", Symptom: engine.Explained, Layer: finding.LayerDevicePlugin,
		Title: "a device plugin pod does not become ready",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "state, last state and restarts of containers in device plugin pods; the pods' newest warning event and log tails",
		Why: "A symptom, reported if no other check finds the cause. Pods that have been starting for less than 2 " +
			"minutes, or are being deleted, are ignored.",
		Explains: facts.GPULost(
			"dp.capacity-zero", "dp.unhealthy", "op.operand-failing", "op.clusterpolicy", "gfd.labels",
		),
		Doc:     "https://github.com/NVIDIA/k8s-device-plugin#troubleshooting",
		Sources: []string{"k8s-device-plugin#240", "k8s-device-plugin#1228"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, pod := range f.Component(facts.DevicePlugin) {
				if n := f.Node(pod.Spec.NodeName); n != nil && !facts.Alive(n) {
					r.Unknown(facts.PodObject(pod), "node %s is not Ready: the pod's status is out of date", n.Name)
					continue
				}
				t, bad := facts.OperandTrouble(f, pod)
				if !bad {
					r.Pass(facts.PodObject(pod))
					continue
				}
				found := facts.TroubleFinding(t)
				found.Title = "the device plugin's pod " + facts.TroubleWords(t)
				if n := f.Node(pod.Spec.NodeName); n != nil && !n.IsGPUNode {
					// The finding is limited to the plugin's pod, because nothing else shows that the node has GPUs.
					found = found.ForPods(pod.Namespace + "/" + pod.Name)
					for _, p := range scheduler.Pending(f) {
						if p.Id == "sched.none-advertised" && len(p.Nodes) == 0 {
							found = found.ForPods(p.Pod.Namespace + "/" + p.Pod.Name)
						}
					}
				}
				if n := f.Node(pod.Spec.NodeName); n != nil &&
					(!n.IsGPUNode || facts.GPUsOf(n.Status.Allocatable) > 0) {
					// No GPU is missing: the node has no GPUs, or another plugin advertises them.
					found.Severity = finding.Warning
					onlyWithGPUs(f, n, pod, &found)
				}
				r.Add(found)
			}
		},
	}
}

// onlyWithGPUs explains the failure of a device plugin on a node whose instance type has no NVIDIA GPUs, if other nodes
// have GPUs: the DaemonSet should exclude the node.
func onlyWithGPUs(f *facts.Facts, n *facts.Node, pod *corev1.Pod, found *finding.Finding) {
	kind := n.Labels[corev1.LabelInstanceTypeStable]
	cloud, _, _ := strings.Cut(n.Spec.ProviderID, ":")
	// The GPU types of other clouds are not known, and any N1 node on Google Compute Engine may have GPUs.
	if kind == "" || len(f.GPUNodes) == 0 || n.IsGPUNode || cloud != "aws" && cloud != "azure" {
		return
	}
	if _, failed := facts.LogEvidence(f, pod, nvmlErrors()...); !failed {
		return
	}
	found.Confidence = finding.Likely
	found.Title = "the device plugin runs on a node without NVIDIA GPUs and fails there"
	found.Cause = "The node's instance type (" + kind + ") has no NVIDIA GPUs, and the plugin's DaemonSet does not " +
		"exclude such nodes. The GPU nodes are not affected."
	found.Evidence = append([]finding.Evidence{
		finding.FieldEvidence(n.Object(), ".metadata.labels["+corev1.LabelInstanceTypeStable+"]", "%s", kind),
	}, found.Evidence...)
	found.Fix = finding.Fix{
		Text: "Limit the DaemonSet to GPU nodes: in the plugin's values, set nodeSelector or affinity to a label " +
			"that only GPU nodes have, such as nvidia.com/gpu.present=true. Nothing needs to be installed on this " +
			"node.",
		Commands: []string{
			shell.Command("kubectl get %s -n %s -o yaml", facts.OwnerOf(pod), pod.Namespace),
			"kubectl get nodes -L node.kubernetes.io/instance-type,nvidia.com/gpu.present",
		},
	}
}

func capacityCheck() engine.Check {
	return engine.Check{
		ID: "dp.capacity-zero", Symptom: engine.Explained, Layer: finding.LayerDevicePlugin,
		Title: "a node with GPUs and a device plugin advertises no GPUs",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
		Reads: "status.capacity of GPU nodes, their device plugin pods, and the sockets in the kubelet's device-plugins directory with their times",
		Why: "A running device plugin must have registered at least one GPU with the kubelet. After a restart, the " +
			"kubelet does not know its plugins until they register again, and a kubelet that uses a different " +
			"directory never finds the plugin. Nodes that offer GPUs through DRA or as another resource, and pods " +
			"younger than 2 minutes, are healthy.",
		Explains: facts.GPULost("op.operand-failing", "op.clusterpolicy"),
		Doc:      "https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#device-plugin-implementation",
		Sources:  []string{"k8s-device-plugin#240", "k8s-device-plugin#1228", "kubernetes#60176"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") || r.Lacks(f, "api/nodes") {
				return
			}
			for _, n := range f.GPUNodes {
				checkCapacity(f, r, n)
			}
		},
	}
}

func checkCapacity(f *facts.Facts, r *engine.Result, n *facts.Node) {
	plugins := facts.Current(n, facts.DevicePlugin)
	switch {
	case !facts.Alive(n):
		r.Unknown(n.Object(), "the node is not Ready: its status is out of date")
		return
	case facts.Advertises(f, n):
		r.Pass(n.Object())
		return
	case len(plugins) == 0:
		return // reported by dp.none
	case starting(f, plugins):
		return
	}
	pod := plugins[0]
	found := finding.Finding{
		Object: n.Object(), Confidence: finding.Likely,
		Title: "the node advertises no GPUs, although it has a device plugin",
		Evidence: []finding.Evidence{
			finding.FieldEvidence(n.Object(), ".status.capacity", "%s", facts.GPUText(n.Status.Capacity)),
			finding.FieldEvidence(
				facts.PodObject(pod), ".status.phase", "%s, ready: %t", pod.Status.Phase, podutils.IsPodReady(pod),
			),
		},
		Fix: finding.Fix{Text: "Check the plugin's log. If it found GPUs, restart it, so that it registers " +
			"again.", Commands: []string{
			facts.RestartPod(pod.Namespace, pod.Name),
			shell.Command("kubectl get node %s -o jsonpath='{.status.capacity}'", n.Name)}},
	}
	if e, ok := facts.LogEvidence(
		f, pod, "Registered device plugin for 'nvidia.com/", "ListAndWatch ended unexpectedly",
		"Could not register device plugin", "No devices found",
	); ok {
		found.Evidence = append(found.Evidence, e)
	}
	if n.Host != nil {
		found.Evidence = append(found.Evidence, sockets(n)...)
	}
	describeNoInstaller(f, n, pod, &found)
	describeNoKubeletSocket(n, &found)
	if dir := pluginDirectory(pod); dir != "" && elsewhere(n, dir) {
		found.Title = "the device plugin registers in a directory that the node's kubelet does not use"
		found.Subject = facts.PodObject(pod) // a restart does not fix it
		found.Evidence = append(
			found.Evidence, finding.FieldEvidence(facts.PodObject(pod), ".spec.volumes[].hostPath", "%s", dir),
		)
		found.Fix = finding.Fix{
			Text:     "Make the plugin use the kubelet's directory " + facts.KubeletRoot(n) + "/device-plugins.",
			Commands: []string{shell.Command("kubectl edit %s -n %s", facts.OwnerOf(pod), pod.Namespace)},
		}
		if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
			found.Fix.Text += " Since v26.7.0, the GPU operator has a value for this: upgrade an older operator, or " +
				"make " +
				facts.DefaultKubeletRoot + " a symbolic link to " + facts.KubeletRoot(n) +
				" on the node before the pods start."
			found.Fix.Commands = []string{facts.HelmUpgrade(h, "hostPaths.kubeletRootDir="+facts.KubeletRoot(n))}
		}
	}
	r.Add(found)
}

// starting reports whether all pods are still within the startup grace period.
func starting(f *facts.Facts, pods []*corev1.Pod) bool {
	return !slices.ContainsFunc(pods,
		func(pod *corev1.Pod) bool { return f.Now.Sub(pod.CreationTimestamp.Time) >= facts.OperandGrace })
}

// sockets quotes the names of the sockets in the kubelet's device plugin directory.
func sockets(n *facts.Node) []finding.Evidence {
	if why := n.Host.Probe.Unread["devicePlugins"]; why != "" {
		return nil
	}
	var all []finding.Evidence
	for _, s := range n.Host.Probe.DevicePlugins {
		if strings.Contains(s.Path, "/device-plugins/") && len(all) < 3 {
			text := "created " + s.Modified.UTC().Format(time.RFC3339)
			if s.Listening != nil && !*s.Listening {
				text += ", no process is listening"
			}
			all = append(all, finding.Evidence{Source: "nodes/" + n.Name + " " + s.Path, Text: text})
		}
	}
	if len(all) == 0 {
		all = []finding.Evidence{{Source: "nodes/" + n.Name + " /var/lib/kubelet/device-plugins", Text: "(no socket)"}}
	}
	return all
}

// pluginDirectory returns the host directory in which a plugin creates its socket. It returns an empty string if the
// pod mounts no such directory.
func pluginDirectory(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil && strings.HasSuffix(strings.TrimSuffix(v.HostPath.Path, "/"), "device-plugins") {
			return strings.TrimSuffix(v.HostPath.Path, "/")
		}
	}
	return ""
}

// elsewhere reports whether the kubelet's root directory is not the default and dir is not the kubelet's device plugin
// directory.
func elsewhere(n *facts.Node, dir string) bool {
	return facts.KubeletRoot(n) != facts.DefaultKubeletRoot && dir != facts.KubeletRoot(n)+"/device-plugins"
}

func noPluginCheck() engine.Check {
	return engine.Check{
		ID: "dp.none", Symptom: engine.Explained, Layer: finding.LayerDevicePlugin,
		Title: "a node has GPUs that nothing advertises",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "status.capacity, status.allocatable and pods of GPU nodes, ResourceSlices",
		Why: "A device plugin, NVIDIA's or a cloud provider's, or a DRA driver must advertise GPUs to the kubelet. " +
			"Otherwise, pods cannot use the NVIDIA GPUs that the node's labels or hardware show. This is an error if " +
			"pods are waiting for GPUs, and Info if the cluster has no GPU software at all, because the GPUs may " +
			"serve another purpose. After a plugin is removed, the kubelet keeps the capacity for a while but " +
			"allocates nothing; this is reported as an error. Missing devices of a DRA driver are reported if a " +
			"claim is waiting for them.",
		Explains: facts.GPULost("op.clusterpolicy"),
		Doc:      "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
		Sources: []string{"k8s-device-plugin#33", "k8s-device-plugin#585", "k8s-device-plugin#1934",
			"karpenter-provider-gcp#319", "karpenter-provider-aws#3862", "gpu-operator#470"},
		Run: func(f *facts.Facts, r *engine.Result) {
			// ResourceSlices are needed only if the cluster has a DRA driver.
			if r.Lacks(f, "api/pods") || len(f.Component(facts.DRADriver)) > 0 && r.Lacks(f, "api/resourceslices") {
				return
			}
			awaited, wanted := scheduler.Awaited(f), scheduler.Awaited(f, "sched.all-in-use", "sched.fragmented")
			for _, n := range f.GPUNodes {
				checkNoPlugin(f, r, n, awaited[n.Name], wanted[n.Name])
			}
		},
	}
}

// checkNoPlugin reports a node whose GPUs no device plugin advertises. waiting is true if pods are waiting for these
// GPUs. wanted is true in that case too, and also if pods are waiting for GPUs on other nodes and all of those GPUs are
// in use.
func checkNoPlugin(f *facts.Facts, r *engine.Result, n *facts.Node, waiting, wanted bool) {
	var deleted []*corev1.Pod
	for _, pod := range n.Component(facts.DevicePlugin) {
		if pod.DeletionTimestamp != nil {
			deleted = append(deleted, pod)
		}
	}
	switch {
	case !facts.Alive(n):
		r.Unknown(n.Object(), "the node is not Ready: its pods' status is out of date")
		return
	case pluginGone(n):
		r.Add(goneFinding(f, n))
		return
	case facts.Advertises(f, n), len(
		facts.Current(n, facts.DevicePlugin),
	) > 0, len(deleted) > 0, len(facts.Current(n, facts.DRADriver)) > 0,
		facts.PolicyOff(f, "devicePlugin") && slicer(f):
		r.Pass(n.Object())
		return
	case f.Now.Sub(n.CreationTimestamp.Time) < 5*time.Minute:
		return // its DaemonSet pods are still starting
	}
	found := finding.Finding{
		Object: n.Object(), Confidence: finding.Certain, Severity: finding.Info,
		Title: "the node has GPUs, but neither a device plugin nor a DRA driver advertises them",
		Evidence: append([]finding.Evidence{
			finding.FieldEvidence(n.Object(), ".status.capacity", "%s", facts.GPUText(n.Status.Capacity)),
		},
			facts.LabelEvidence(n, append(facts.GPULabels(), corev1.LabelInstanceTypeStable)...)...),
		Fix: noPluginFix(f, n),
	}
	d := scheduler.DaemonSetOf(f, n, facts.DevicePlugin)
	if d == nil {
		found.Evidence = append(found.Evidence, facts.OperatorDenied(f)...)
	} else if why, e := scheduler.Excludes(d, n); why != "" {
		found.Title = "the device plugin does not run on the node, because " + why
		found.Evidence = append(found.Evidence, e)
	}
	describeDeployLabels(f, n, &found)
	if wantsPlugins(f) || wanted {
		found.Severity = finding.Warning
	}
	if p, _ := platform.Of(string(n.Distribution)); waiting || wanted && p.Plugin != "" {
		found.Severity = finding.Error
	}
	r.Add(found)
}

// describeDeployLabels completes the finding if the node lacks labels by which the GPU operator selects nodes, but
// another node, on which the device plugin runs, has the labels.
func describeDeployLabels(f *facts.Facts, n *facts.Node, found *finding.Finding) {
	const plugin = "nvidia.com/gpu.deploy.device-plugin"
	if n.Labels["nvidia.com/gpu.deploy.operands"] == "false" || facts.ForMachines(n) {
		return // the operator itself removes the labels
	}
	for _, other := range f.GPUNodes {
		if _, set := n.Labels[plugin]; set || other.Labels[plugin] != "true" ||
			len(facts.Current(other, facts.DevicePlugin)) == 0 {
			continue
		}
		var lacks []string
		label, args := "kubectl label node %s", []any{n.Name}
		for _, key := range words.SortedKeys(other.Labels) {
			if _, set := n.Labels[key]; strings.HasPrefix(key, "nvidia.com/gpu.deploy.") && !set &&
				other.Labels[key] == "true" {
				lacks = append(lacks, key+"=true")
				label, args = label+" %s=true", append(args, key)
			}
		}
		found.Title = fmt.Sprintf("the node lacks %d of the labels nvidia.com/gpu.deploy.* that node %s has and by "+
			"which the GPU operator selects nodes, so the device plugin does not run on it", len(lacks), other.Name)
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(other.Object(), ".metadata.labels", "%s", strings.Join(lacks, ", ")))
		found.Fix = finding.Fix{
			Text: "The operator sets these labels on nodes with nvidia.com/gpu.present=true: check whether its log " +
				"shows why it did not, or whether another client removed them. Then set all of them (last command), " +
				"except the labels for operands that the node should not have: with only its own label, the device " +
				"plugin would wait for the toolkit. The driver needs no change.",
			Commands: []string{
				facts.OperatorLog(f),
				shell.Command("kubectl get node %s %s --show-labels", n.Name, other.Name),
				shell.Command(label, args...),
			},
		}
		return
	}
}

// pluginGone reports whether a device plugin used to run on the node but no longer does: the node has GPU capacity, but
// none of it is allocatable. pluginGone cannot detect plugins that do not run as pods (Bottlerocket), or plugins with
// unknown names.
func pluginGone(n *facts.Node) bool {
	if facts.GPUsOf(n.Status.Capacity) == 0 || facts.GPUsOf(n.Status.Allocatable) > 0 {
		return false
	}
	return !slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return !facts.Ended(pod) &&
			(facts.ComponentOf(pod.Labels, &pod.Spec) == facts.DevicePlugin ||
				strings.Contains(pod.Name, "device-plugin"))
	})
}

func goneFinding(f *facts.Facts, n *facts.Node) finding.Finding {
	found := finding.Finding{
		Object: n.Object(), Confidence: finding.Likely,
		Title: "the device plugin no longer runs on the node, so nothing advertises the node's GPUs",
		Evidence: append(lostGPUs(n),
			finding.Evidence{Source: "pods on " + n.Object().String(), Text: "(no device plugin pod)"}),
		Fix: noPluginFix(f, n),
	}
	if p, ok := platform.Of(string(n.Distribution)); ok && p.Plugin != "" {
		found.Title = "the device plugin that is built into the node's operating system is not running, so nothing " +
			"advertises the node's GPUs"
		return found
	}
	_, operator := facts.ClusterPolicy(f)
	if operator || scheduler.DaemonSetOf(f, n, facts.DevicePlugin) != nil {
		return found
	}
	if f.Missing("api/daemonsets") != "" {
		return found
	}
	more, commands := installPlugin(n)
	found.Fix = finding.Fix{
		Text: "The cluster has no DaemonSet of a device plugin. Reinstall the plugin the way it was installed, for " +
			"example with its Helm chart." + more,
		Commands: commands,
	}
	if h, ok := facts.ReleaseOf(f, facts.ChartDevicePlugin); ok {
		found.Fix.Commands[0] = facts.HelmUpgrade(h)
	}
	return found
}

// wantsPlugins reports whether the cluster has the GPU operator or a device plugin.
func wantsPlugins(f *facts.Facts) bool {
	_, operator := facts.ClusterPolicy(f)
	return operator || len(f.Component(facts.DevicePlugin)) > 0 ||
		slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool {
			return facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == facts.DevicePlugin
		})
}

// noPluginFix explains why a device plugin's DaemonSet does not run on the node, or how to install a device plugin.
func noPluginFix(f *facts.Facts, n *facts.Node) finding.Fix {
	if p, ok := platform.Of(string(n.Distribution)); ok && p.Plugin != "" {
		return finding.Fix{Text: p.Plugin}
	}
	if d := scheduler.DaemonSetOf(f, n, facts.DevicePlugin); d != nil {
		return scheduler.LetIn("device plugin", d, n)
	}
	if _, ok := facts.ClusterPolicy(f); ok {
		if facts.PolicyOff(f, "devicePlugin") {
			return finding.Fix{
				Text: "The operator's device plugin is disabled: enable it, or let another plugin or a DRA driver " +
					"advertise the GPUs.",
				Commands: facts.ChangeOperator(f, "devicePlugin.enabled", true),
			}
		}
		return finding.Fix{Text: "The operator has not deployed its device plugin to the node: check the node's nvidia.com/gpu.deploy.* labels and the operator's log.",
			Commands: []string{
				shell.Command("kubectl get node %s --show-labels", n.Name),
				facts.OperatorLog(f),
			}}
	}
	if n.Distribution == facts.EKS || n.Distribution == facts.AKS {
		more, commands := installPlugin(n)
		return finding.Fix{
			Text: "No device plugin is installed. The cloud provider's images for GPU nodes (EKS: accelerated AMIs) " +
				"contain the driver and the toolkit, so NVIDIA's device plugin alone is enough. If nvidia-smi fails " +
				"on the node, use such an image, or install the GPU operator, which installs all three. Karpenter " +
				"regards the node as initialized as soon as it advertises its GPUs." + more,
			Commands: commands,
		}
	}
	if p, _ := platform.Of(string(n.Distribution)); p.Driver.Fix != "" {
		return finding.Fix{
			Text: "Do not install a driver or a second plugin in addition to the platform's own. " + p.Driver.Fix,
		}
	}
	return finding.Fix{
		Text: "Install the GPU operator, or only the device plugin if the node already has the driver and the toolkit.",
		Commands: []string{install("helm install gpu-operator %s --repo %s -n gpu-operator --create-namespace",
			tolerances(n, "daemonsets.tolerations", "node-feature-discovery.worker.tolerations"),
			facts.ChartOperator, facts.ChartRepository(facts.ChartOperator))},
	}
}
