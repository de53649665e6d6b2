package deviceplugin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// nvmlMissing returns the messages that the device plugin and GPU feature discovery log if their containers have no
// driver library.
func nvmlMissing() []string { return append(nvmlErrors(), noDevices) }

// noDevices is also logged by the device plugin if NVML works but lists no device that the plugin can advertise.
const noDevices = "No devices found. Waiting indefinitely"

func nvmlErrors() []string {
	return []string{
		"could not load NVML library", "libnvidia-ml.so.1: cannot open shared object file",
		"Incompatible platform detected", "Incompatible strategy detected",
		"If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
		"ERROR_LIBRARY_NOT_FOUND", "Failed to initialize NVML",
	}
}

func nvmlCheck() engine.Check {
	return engine.Check{
		ID: "dp.nvml-missing", Symptom: engine.Precise, Layer: finding.LayerDevicePlugin,
		Title: "the device plugin cannot find the driver's library in its container",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "logs and runtimeClassName of device plugin and feature discovery pods on GPU nodes that advertise no GPU; RuntimeClasses",
		Why: "The plugin needs libnvidia-ml.so.1. NVIDIA's runtime, set by the pod's RuntimeClass or as the node's default, injects the library into the container. Log lines are ignored " +
			"if the node advertises GPUs.",
		Explains: facts.GPULost("dp.not-running", "dp.capacity-zero", "dp.unhealthy", "op.operand-failing",
			"op.clusterpolicy", "gfd.labels"),
		Doc: "https://github.com/NVIDIA/k8s-device-plugin#configure-containerd",
		Sources: []string{"k8s-device-plugin#478", "k8s-device-plugin#1011", "k8s-device-plugin#1371",
			"k8s-device-plugin#444", "k8s-device-plugin#352", "k8s-device-plugin#23",
			"k8s-device-plugin#826", "k8s-device-plugin#655", "amazon-eks-ami#1744", "gpu-feature-discovery#36"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				if facts.GPUsOf(n.Status.Allocatable) > 0 {
					r.Pass(n.Object())
					continue
				}
				checkNVML(f, r, n, nil)
			}
			if nodes, waiting := unrecognized(f); len(nodes) > 0 {
				checkNVML(f, r, nodes[0], waiting)
			}
		},
	}
}

// unrecognized handles clusters without any recognized GPU node: it returns the nodes on which device plugins fail to
// load NVML, and the pods that are waiting for GPUs. These nodes may have GPUs but no driver. Plugins also run on nodes
// without GPUs, so unrecognized returns nothing if an autoscaler may add GPU nodes.
func unrecognized(f *facts.Facts) (nodes []*facts.Node, waiting []string) {
	if len(f.GPUNodes) > 0 || facts.Autoscaled(f) {
		return nil, nil
	}
	for _, p := range scheduler.Pending(f) {
		if p.Id == "sched.none-advertised" {
			waiting = append(waiting, p.Pod.Namespace+"/"+p.Pod.Name)
		}
	}
	if len(waiting) == 0 {
		return nil, nil
	}
	for _, n := range f.Nodes {
		if facts.Alive(n) && slices.ContainsFunc(facts.Current(n, facts.DevicePlugin), func(pod *corev1.Pod) bool {
			_, failed := facts.LogEvidence(f, pod, nvmlErrors()...)
			return failed
		}) {
			nodes = append(nodes, n)
		}
	}
	return nodes, waiting
}

// checkNVML reports a node whose device plugin finds no driver library. waiting lists the pods that are waiting for
// GPUs, if the node is not known to have GPUs.
func checkNVML(f *facts.Facts, r *engine.Result, n *facts.Node, waiting []string) {
	for _, c := range []facts.Component{facts.DevicePlugin, facts.FeatureDiscovery} {
		for _, pod := range facts.Current(n, c) {
			e, ok := facts.LogEvidence(f, pod, nvmlMissing()...)
			if none, _ := undivided(f, n); len(none) > 0 {
				if _, failed := facts.LogEvidence(f, pod, nvmlErrors()...); !failed {
					continue // NVML works, and mig.strategy-mismatch reports why it lists no devices
				}
			}
			if ok && strings.Contains(e.Text, "NVML: Unknown Error") {
				continue // the library is there; rt.nvml-unknown-error reports the reason
			}
			if !ok {
				if c == facts.DevicePlugin && !starting(f, []*corev1.Pod{pod}) && started(pod) {
					engine.LacksLog(f, r, pod)
				}
				continue
			}
			class := ""
			if pod.Spec.RuntimeClassName != nil {
				class = *pod.Spec.RuntimeClassName
			}
			found := finding.Finding{
				Object: n.Object(), Confidence: finding.Likely,
				Title: fmt.Sprintf("the %s cannot find the NVML library in its container", c),
				Evidence: []finding.Evidence{
					e, finding.FieldEvidence(facts.PodObject(pod), ".spec.runtimeClassName", "%s", words.OrNone(class)),
					finding.FieldEvidence(n.Object(), ".status.allocatable", "%s", facts.GPUText(n.Status.Allocatable)),
				},
				Fix: nvmlFix(f, n, pod, class),
			}
			if words.ContainsAny(e.Text, []string{noDevices, "NVML: Driver", "NVML: Insuff"}) {
				found.Title = fmt.Sprintf("the %s finds no GPU through NVML", c)
			} else if _, failed := facts.LogEvidence(f, pod, nvmlErrors()...); !failed && n.GPUs().SMI != nil {
				found.Title = fmt.Sprintf("the %s finds no GPU in its container", c)
			}
			if class == "" && onDocker(n) {
				found.Title = fmt.Sprintf(
					"Docker starts the %s without the NVIDIA runtime, so it finds no NVML library", c)
			}
			if n.ToolkitSetting(facts.AcceptsEnv) == "false" && !facts.PrivilegedForToolkit(pod) {
				found.Title = fmt.Sprintf("the toolkit gives the %s no GPU, because its container is not privileged", c)
				found.Evidence = append(found.Evidence, finding.Evidence{
					Source: "nodes/" + n.Name + " " + n.Host.Probe.ToolkitConfigPath,
					Text:   facts.AcceptsEnv + " = false",
				})
			}
			if c != facts.DevicePlugin {
				found.Severity = finding.Warning
			}
			if fix, nested := nestedFix(n); nested {
				found.Title = "the node is itself a container or a virtual machine, and the device plugin finds no GPU in it"
				found.Fix = fix
			} else if len(waiting) > 0 {
				found.Confidence = finding.Possible
				found.Fix.Text = "Check with nvidia-smi whether the node has an NVIDIA GPU and a driver; if it has " +
					"no GPU, add a node that has one. " + found.Fix.Text
			}
			r.Add(found.ForPods(waiting...))
			return
		}
	}
}

// started reports whether any container in the pod has ever run and therefore has a log.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
	})
}

// oldSection matches versions of containerd 1 that ignore the pod runtime in the linux plugin's section. A node may
// have been upgraded from a version that used this section.
var oldSection = regexp.MustCompile(`^containerd://1\.[3-6]\.`)

// nodeadm explains in which cases EKS's accelerated AMIs do not make NVIDIA's runtime the default.
func nodeadm(n *facts.Node) string {
	if n.Distribution != facts.EKS {
		return ""
	}
	return " On EKS, only accelerated AMIs contain the driver and NVIDIA's runtime: if the node has neither, replace " +
		"it with a node that uses such an AMI (eksctl chooses one for instance types that its release knows). On " +
		"these AMIs, nodeadm makes NVIDIA's runtime the default only for instance types that it knows: if the node's " +
		"type is newer than the AMI, use a newer AMI."
}

// ignoredSection explains a configuration section that containerd has ignored since 1.3.
func ignoredSection(n *facts.Node) string {
	if !oldSection.MatchString(n.Status.NodeInfo.ContainerRuntimeVersion) {
		return ""
	}
	file := "/etc/containerd/config.toml"
	if n.Distribution == facts.MicroK8s {
		file = "/var/snap/microk8s/current/args/containerd-template.toml"
	}
	return " In " + file + `, default_runtime_name of the CRI plugin ([plugins."io.containerd.grpc.v1.cri".containerd]) ` +
		"must name a runtime whose binary is nvidia-container-runtime. Since 1.3, containerd ignores a runtime for " +
		"pods that is set only in [plugins.linux]. After the change, restart containerd, then the plugin."
}

// onDocker reports whether the node's pods run on Docker, which does not support RuntimeClasses.
func onDocker(n *facts.Node) bool {
	return strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "docker://")
}

// nestedFix returns a fix that gives GPUs to a node that is itself a container or a virtual machine in a development
// cluster.
func nestedFix(n *facts.Node) (fix finding.Fix, nested bool) {
	switch {
	case n.Labels["minikube.k8s.io/version"] != "" || n.Labels["minikube.k8s.io/name"] != "":
		return finding.Fix{
			Text: "minikube passes GPUs to its node only when the cluster is created. With the docker driver, " +
				"configure the NVIDIA Container Toolkit for Docker on the host, then create the cluster with --gpus " +
				"all (minikube start --driver docker --container-runtime docker --gpus all), which enables the " +
				"nvidia-device-plugin add-on. First delete any existing cluster, including everything in it.",
			Commands: []string{"minikube profile list"},
		}, true
	case strings.HasPrefix(n.Spec.ProviderID, "kind://"):
		return finding.Fix{
			Text: "kind does not pass GPUs to its nodes by itself. Create the cluster with NVIDIA's nvkind, which mounts the GPUs " +
				"and installs the NVIDIA Container Toolkit in the nodes. On the host, Docker needs nvidia as its default runtime.",
			Commands: []string{"kind get clusters"},
		}, true
	case strings.HasPrefix(n.Name, "k3d-"):
		return finding.Fix{
			Text: "k3d passes GPUs only if the cluster is created with --gpus all and with a k3s image that contains " +
				"the NVIDIA Container Toolkit (the k3d documentation describes how to build it).",
			Commands: []string{"k3d cluster list"},
		}, true
	}
	return fix, false
}

func nvmlFix(f *facts.Facts, n *facts.Node, pod *corev1.Pod, class string) finding.Fix {
	if n.ToolkitSetting(facts.AcceptsEnv) == "false" && !facts.PrivilegedForToolkit(pod) {
		return finding.Fix{
			Text: facts.AcceptsEnv + " is false in the toolkit's configuration, so only privileged containers get " +
				"GPUs through the NVIDIA_VISIBLE_DEVICES variable, and the plugin's container is not privileged. " +
				"Give the container the SYS_ADMIN capability (charts since v0.16.2 do this), or set " +
				"deviceListStrategy to volume-mounts or cdi-annotations.",
			Commands: []string{shell.Command("kubectl get %s -n %s -o yaml", facts.OwnerOf(pod), pod.Namespace)},
		}
	}
	if class != "" {
		return finding.Fix{
			Text: "The pod has a RuntimeClass, but its runtime cannot find the driver: check the driver on the node (nvidia-smi). If the driver's root is neither / nor " +
				"/run/nvidia/driver, set the plugin's nvidiaDriverRoot.",
			Commands: []string{
				shell.Command("kubectl get runtimeclass %s -o yaml", class),
				shell.Command("kubectl gpu-fault runtime show %s", n.Name),
			},
		}
	}
	rc := f.NVIDIAClass()
	if onDocker(n) {
		first := "First run nvidia-smi on the node: without a driver, nothing else helps. If it works, make"
		if n.GPUs().SMI != nil {
			first = "The driver works. Make"
		}
		return finding.Fix{
			Text: first + " nvidia Docker's default runtime (" + `"default-runtime": "nvidia" in ` +
				"/etc/docker/daemon.json): run the second command, or edit the file if nvidia-ctk is not installed " +
				"(nvidia-docker2). Then restart Docker, which also restarts the node's containers. It is not enough that " +
				"docker run --runtime=nvidia works, and RuntimeClasses have no effect with Docker.",
			Commands: []string{
				shell.OnHost(n.Name, "docker info --format '{{.DefaultRuntime}}'"),
				shell.OnHost(n.Name, "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default"),
				shell.OnHost(n.Name, "sudo systemctl restart docker"),
			},
		}
	}
	if rc == nil {
		return finding.Fix{
			Text: "First run nvidia-smi on the node: without a driver, nothing else helps. If it works, the cause is " +
				"the runtime: the pod uses the node's default runtime (the command shows it). If it is not NVIDIA's, " +
				"configure NVIDIA's runtime on the node, then make it the default, or create a RuntimeClass and set " +
				"it on the plugin. If it is, generate the node's CDI specification again." + ignoredSection(n) + nodeadm(n),
			Commands: []string{shell.Command("kubectl gpu-fault runtime show %s", n.Name)},
		}
	}
	name := rc.Name
	fix := finding.Fix{
		Text: fmt.Sprintf(
			"The pod uses the node's default runtime, which is not NVIDIA's: set the pod's RuntimeClass to %s, or make NVIDIA's runtime the node's default.",
			name,
		),
		Commands: []string{shell.Command("kubectl patch %s -n %s --type merge -p %s", facts.OwnerOf(pod), pod.Namespace,
			fmt.Sprintf(`{"spec":{"template":{"spec":{"runtimeClassName":%q}}}}`, name))},
	}
	if h, ok := facts.ReleaseOf(f, facts.ChartDevicePlugin); ok && h.Namespace == pod.Namespace {
		fix.Commands, fix.Values = []string{
			facts.HelmUpgrade(h, "runtimeClassName="+name),
		}, "runtimeClassName: "+name+"\n"
	}
	return fix
}
