package doctor

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestRuntimeChecks verifies that each check finds its failure, with a fix for this node, and reports nothing for
// similar cases.
func TestRuntimeChecks(t *testing.T) {
	t.Parallel()
	const root, id = "version = 2\n", `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.`
	toolkitSet := func(s *snapshot.Snapshot, env ...corev1.EnvVar) {
		set := appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "nvidia-container-toolkit-daemonset"},
		}
		set.Spec.Template.Spec.Containers = []corev1.Container{
			{Name: "ctr", Image: "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", Env: env},
		}
		s.DaemonSets = append(s.DaemonSets, set)
	}
	for name, test := range map[string]struct {
		id   string
		make func(t *testing.T) *snapshot.Snapshot
		want finding.Severity // empty: nothing is found
		says string           // somewhere in the finding
	}{
		"all handlers differ from the kubelet, and sandboxes change": {
			"rt.cgroup-driver", func(t *testing.T) *snapshot.Snapshot { return changing(t, "1.7.11", 9) },
			finding.Error, "SystemdCgroup = true",
		},
		"all handlers differ from the kubelet, and pods run": {
			"rt.cgroup-driver", func(t *testing.T) *snapshot.Snapshot { return changing(t, "1.7.11", 1) }, "", "",
		},
		"the kubelet asks containerd": {
			"rt.cgroup-driver", func(t *testing.T) *snapshot.Snapshot { return changing(t, "2.1.4", 9) }, "", "",
		},
		"the toolkit finds no socket": {"rt.wrong-instance", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.34.1+k3s1"
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", false)
			return withLog(s, "nvidia-container-toolkit-daemonset",
				"Error signaling containerd, attempt 5/6: unable to dial: dial unix "+
					"/runtime/sock-dir/containerd.sock: connect: no such file or directory\n")
		}, finding.Error, "/run/k3s/containerd/containerd.sock"},
		"the toolkit found it in the end": {"rt.wrong-instance", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", true)
			return withLog(s, "nvidia-container-toolkit-daemonset",
				"Error signaling containerd, attempt 1/6: unable to dial: dial unix "+
					"/runtime/sock-dir/containerd.sock: connect: no such file or directory\n")
		}, "", ""},
		"the toolkit edits another file": {"rt.wrong-instance", func(t *testing.T) *snapshot.Snapshot {
			s := readNode(t, "2.1.4", "/opt/containerd/config.toml", "version = 3\n")
			toolkitSet(s)
			return failsToStart(s, `no runtime for "nvidia" is configured`)
		}, finding.Error, "/opt/containerd/conf.d/99-nvidia.toml"},
		"a decoy's handler that nobody asks for": {"rt.wrong-instance", func(t *testing.T) *snapshot.Snapshot {
			s := wrongInstance(t)
			s.Events = nil
			for i := range s.Pods {
				s.Pods[i].Spec.RuntimeClassName = nil
			}
			return s
		}, finding.Info, ""},
		"the API says that the handler is not there": {"rt.handler-missing", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: ""}, {Name: "runc"}}
			return s
		}, finding.Error, ".status.runtimeHandlers"},
		"the toolkit has taken the handler away": {"rt.handler-missing", func(t *testing.T) *snapshot.Snapshot {
			s := readNode(t, "2.1.4", rootConfig, "version = 3\n")
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", true)
			return s
		}, finding.Error, "kubectl delete pod nvidia-container-toolkit-daemonset -n gpu"},
		"CRI-O without the handler": {"rt.handler-missing", func(t *testing.T) *snapshot.Snapshot {
			s := failsToStart(gpuCluster(api.Runtime{}),
				"failed to find runtime handler nvidia from runtime list map[crun:0xc0 runc:0xc1]")
			s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.33.0"
			return s
		}, finding.Error, "CRIO_CONFIG_MODE=config"},
		"a class that is not there, of a DaemonSet": {"rc.handler-mismatch", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.RuntimeClasses = nil
			s.DaemonSets = []appsv1.DaemonSet{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "nvidia-device-plugin"},
				Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: 1},
			}}
			s.DaemonSets[0].Spec.Template.Spec.RuntimeClassName = new("nvidia")
			return s
		}, finding.Error, `RuntimeClass "nvidia", which does not exist`},
		"a class that is not there, as the API server says": {"rc.handler-mismatch",
			func(t *testing.T) *snapshot.Snapshot {
				s := gpuCluster(api.Runtime{})
				s.RuntimeClasses = nil
				s.Events = []corev1.Event{{
					InvolvedObject: corev1.ObjectReference{Kind: "DaemonSet", Namespace: "gpu", Name: "x"},
					Reason:         "FailedCreate",
					Message:        `Error creating: pods "x-" is forbidden: pod rejected: RuntimeClass "nvidia" not found`,
				}}
				return s
			}, finding.Error, "pod rejected"},
		"the same words, before the class was made": {"rc.handler-mismatch", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Events = []corev1.Event{{
				InvolvedObject: corev1.ObjectReference{Kind: "DaemonSet"}, Reason: "FailedCreate",
				Message: `pod rejected: RuntimeClass "nvidia" not found`,
			}}
			return s
		}, "", ""},
		"the nodes call the handler otherwise": {"rc.handler-mismatch", func(t *testing.T) *snapshot.Snapshot {
			return readNode(t, "2.1.4", rootConfig, nodeConfig(t, "v2-aks-mixed.toml"))
		}, finding.Error, "handler: nvidia-container-runtime"},
		"the ID of version 3 on 1.7": {"rt.version-skew-ids", func(t *testing.T) *snapshot.Snapshot {
			return readNode(t, "1.7.28", rootConfig, root+id+"runc]\nruntime_type = 'io.containerd.runc.v2'\n"+
				`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]`+
				"\nruntime_type = 'io.containerd.runc.v2'\n")
		}, finding.Error, "config migrate"},
		"the ID of version 3 on 2.1": {"rt.version-skew-ids", func(t *testing.T) *snapshot.Snapshot {
			return readNode(t, "2.1.4", rootConfig, nodeConfig(t, "v2-aks-mixed.toml"))
		}, "", ""},
		"a GPU pod without a class": {"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Pods[1].Spec.RuntimeClassName = nil
			return s
		}, finding.Warning, "runtimeClassName: nvidia"},
		"a GPU pod without a class, and it says so": {"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Pods[1].Spec.RuntimeClassName = nil
			return withLog(s, "train-0", "bash: nvidia-smi: not found\n")
		}, finding.Error, "not found"},
		"a GPU pod without a class, and CDI": {"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Pods[1].Spec.RuntimeClassName = nil
			pluginEnv(s, corev1.EnvVar{Name: "DEVICE_LIST_STRATEGY", Value: "cdi-cri"})
			return s
		}, "", ""},
		"a GPU pod without a class and driver, on a node that was not read": {
			"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot {
				s := kubeadmNode(t)
				s.Pods[1].Spec.RuntimeClassName = nil
				delete(s.Hosts, "gpu-1")
				return withLog(s, "train-0", "ImportError: libcuda.so.1: cannot open shared object file\n")
			}, finding.Error, "runtimeClassName: nvidia",
		},
		"a GPU pod without a class, on a node that was not read": {
			"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot {
				s := kubeadmNode(t)
				s.Pods[1].Spec.RuntimeClassName = nil
				delete(s.Hosts, "gpu-1")
				return s
			}, "", "",
		},
		"a GPU pod without a class, on a node of Talos whose plugin has one": {
			"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot { return talosNode(t, "envvar") },
			finding.Warning, "nvidia-smi",
		},
		"a GPU pod without a class, on a node of Talos with CDI": {
			"wl.runtimeclass-unset", func(t *testing.T) *snapshot.Snapshot { return talosNode(t, "cdi-cri") }, "", "",
		},
		"the toolkit refuses the variable": {"rt.strategy-refused", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.ToolkitConfig = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
			return s
		}, finding.Warning, "deviceListStrategy"},
		"the toolkit refuses the variable, and the container is privileged": {
			"rt.strategy-refused", func(t *testing.T) *snapshot.Snapshot {
				s := kubeadmNode(t)
				s.Hosts["gpu-1"].Probe.ToolkitConfig = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
				s.Pods[1].Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
				return s
			}, "", "",
		},
		"the default handler does not exist": {"rt.default-missing", func(t *testing.T) *snapshot.Snapshot {
			return readNode(t, "1.7.28", rootConfig,
				root+"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"nvidia\"\n")
		}, finding.Error, "nvidia"},
		"CRI is disabled": {"rt.cri-disabled", func(t *testing.T) *snapshot.Snapshot {
			return withoutRuntime(readNode(t, "1.7.28", rootConfig, `disabled_plugins = ["cri"]`+"\n"))
		}, finding.Error, "disabled_plugins"},
		"files younger than the process": {"rt.config-not-loaded", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.Units = []api.Unit{
				{Name: "containerd.service", PID: 50, Started: runtimeTime.Add(-2 * time.Hour)},
			}
			return s
		}, finding.Info, rootConfig},
		"files older than the process": {"rt.config-not-loaded", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.Units = []api.Unit{
				{Name: "containerd.service", PID: 50, Started: runtimeTime.Add(-time.Minute)},
			}
			return s
		}, "", ""},
		"the toolkit reads a template": {"rt.generated-file", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", false)
			return withLog(s, "nvidia-container-toolkit-daemonset",
				"unable to load config: (6, 21): parsing error: keys cannot contain { "+
					"character\n")
		}, finding.Error, "doctor --node gpu-1"},
		"the toolkit edits what k3s writes": {"rt.generated-file", func(t *testing.T) *snapshot.Snapshot {
			const file = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
			s := readNode(t, "2.1.4", file,
				"# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.\nversion = 3\n")
			s.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.34.1+k3s1"
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", true)
			toolkitSet(s, corev1.EnvVar{Name: "CONTAINERD_CONFIG", Value: file})
			return s
		}, finding.Warning, "configure only the socket"},
		"toolkit 1.18.0 on GKE": {"rt.gke-config-source", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.33.4-gke.1000"
			s.ClusterPolicies = policyWith(nil)
			withPart(s, "nvidia-container-toolkit-daemonset",
				"nvcr.io/nvidia/k8s/container-toolkit:v1.18.0-ubuntu20.04", false)
			return s
		}, finding.Error, "RUNTIME_CONFIG_SOURCE"},
		"toolkit 1.18.0 on GKE, told": {"rt.gke-config-source", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.33.4-gke.1000"
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.18.0", false,
				corev1.EnvVar{Name: "RUNTIME_CONFIG_SOURCE", Value: "file"})
			return s
		}, "", ""},
		"a handler that nobody uses, without its binary": {"rt.binary-missing", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Runtime.Instance.Executables["/usr/local/nvidia/toolkit/nvidia-container-runtime"] =
				"missing"
			for i := range s.Pods {
				s.Pods[i].Spec.RuntimeClassName = nil
			}
			return s
		}, finding.Info, ""},
		"a program of the user's that is not there": {"rt.binary-missing", func(t *testing.T) *snapshot.Snapshot {
			return cannotStart(gpuCluster(api.Runtime{}), "RunContainerError",
				`failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "train": executable file not found in $PATH: unknown`)
		}, "", ""},
		"Docker": {"docker.no-gpu-driver", func(t *testing.T) *snapshot.Snapshot {
			s := cannotStart(gpuCluster(api.Runtime{}), "RunContainerError",
				`Error response from daemon: could not select device driver "" with capabilities: [[gpu]]`)
			s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "docker://24.0.7"
			return s
		}, finding.Error, "nvidia-ctk runtime configure --runtime=docker"},
		"the network of a sandbox": {"rt.sandbox-failed", func(t *testing.T) *snapshot.Snapshot {
			return failsToStart(gpuCluster(api.Runtime{}),
				`plugin type="calico" failed (add): error getting ClusterInformation`)
		}, finding.Error, "calico"},
		"the sandbox of a pod without GPUs": {"rt.sandbox-failed", func(t *testing.T) *snapshot.Snapshot {
			s := failsToStart(gpuCluster(api.Runtime{}), "whatever")
			s.Pods[1].Spec.RuntimeClassName, s.Pods[1].Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{}
			return s
		}, "", ""},
		"devices that CDI does not know": {"cdi.unresolvable", func(t *testing.T) *snapshot.Snapshot {
			s := failsToStart(gpuCluster(api.Runtime{}), "unresolvable CDI devices k8s.gpu.nvidia.com/device=gpu-1")
			withPart(s, "nvidia-dra-driver-gpu-kubelet-plugin", "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0", true)
			return s
		}, finding.Error, "kubectl delete pod nvidia-dra-driver-gpu-kubelet-plugin"},
		"a specification of another driver": {"cdi.unresolvable", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.Driver.Kernel = "580.1"
			s.Hosts["gpu-1"].Probe.CDI = []api.CDISpec{
				{Path: "/var/run/cdi/nvidia.yaml", Kind: "nvidia.com/gpu", DriverVersion: "570.1"},
			}
			pluginEnv(s, corev1.EnvVar{Name: "DEVICE_LIST_STRATEGY", Value: "cdi-cri"})
			return s
		}, finding.Warning, "nvidia-ctk cdi generate"},
		"CDI is off": {"rt.cdi-off", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			pluginEnv(s, corev1.EnvVar{Name: "DEVICE_LIST_STRATEGY", Value: "cdi-cri"})
			return s
		}, finding.Error, "enable_cdi = true"},
		"CDI is off, and nobody needs it": {
			"rt.cdi-off", func(t *testing.T) *snapshot.Snapshot { return kubeadmNode(t) }, "", "",
		},
		"containerd 1.6 and CDI": {"cdi.runtime-too-old", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.39"
			s.ClusterPolicies = policyWith(map[string]any{"cdi": map[string]any{"enabled": true}})
			s.HelmReleases = []snapshot.HelmRelease{
				{Namespace: "gpu", Name: "gpu-operator", Chart: "gpu-operator", ChartVersion: "v25.10.0"},
			}
			return s
		}, finding.Error, "cdi.enabled=false"},
		"containerd 1.6 and an older operator": {"cdi.runtime-too-old", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.39"
			s.ClusterPolicies = policyWith(map[string]any{"cdi": map[string]any{"enabled": true}})
			s.HelmReleases = []snapshot.HelmRelease{
				{Namespace: "gpu", Name: "gpu-operator", Chart: "gpu-operator", ChartVersion: "v24.9.0"},
			}
			return s
		}, "", ""},
		"a container that lost its GPUs": {"rt.nvml-unknown-error", func(t *testing.T) *snapshot.Snapshot {
			s := withLog(kubeadmNode(t), "train-0", "Failed to initialize NVML: Unknown Error\n")
			s.Hosts["gpu-1"].Probe.DevChar = map[string]bool{"/dev/char/195:0": false, "/dev/char/195:255": true}
			return s
		}, finding.Error, "/dev/char/195:0"},
		"links that are not there, and no complaint": {"rt.nvml-unknown-error", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.DevChar = map[string]bool{"/dev/char/195:0": false}
			return s
		}, "", ""},
		"the static CPU manager": {"rt.cpumanager", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.KubeletConfig = map[string]string{"cpuManagerPolicy": "static"}
			return s
		}, finding.Warning, "PASS_DEVICE_SPECS=true"},
		"the static CPU manager, and device specs": {"rt.cpumanager", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.KubeletConfig = map[string]string{"cpuManagerPolicy": "static"}
			pluginEnv(s, corev1.EnvVar{Name: "PASS_DEVICE_SPECS", Value: "true"})
			return s
		}, "", ""},
		"a pod that helps itself": {"sec.all-gpus-visible", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			withPart(s, "notebook", "jupyter", true,
				corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}).Spec.RuntimeClassName = new("nvidia")
			return s
		}, finding.Warning, "NVIDIA_VISIBLE_DEVICES=all"},
		"a pod that helps itself, where that is forbidden": {"sec.all-gpus-visible",
			func(t *testing.T) *snapshot.Snapshot {
				s := kubeadmNode(t)
				s.Hosts["gpu-1"].Probe.ToolkitConfig =
					"accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
				withPart(s, "notebook", "jupyter", true,
					corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}).Spec.RuntimeClassName = new("nvidia")
				return s
			}, "", ""},
		"SELinux": {"sec.selinux", func(t *testing.T) *snapshot.Snapshot {
			s := cannotStart(kubeadmNode(t), "CreateContainerError",
				"nvidia-container-cli: initialization error: nvml error: insufficient "+
					"permissions: unknown")
			s.Hosts["gpu-1"].Probe.SELinux = "enforcing"
			return s
		}, finding.Error, "container_use_devices"},
		"no-cgroups": {"sec.selinux", func(t *testing.T) *snapshot.Snapshot {
			s := cannotStart(kubeadmNode(t), "CreateContainerError", "nvml error: insufficient permissions")
			s.Hosts["gpu-1"].Probe.ToolkitConfig, s.Hosts["gpu-1"].Probe.ToolkitConfigPath =
				"[nvidia-container-cli]\n#no-cgroups = "+
					"false\nno-cgroups = true\n", "/etc/nvidia-container-runtime/config.toml"
			return s
		}, finding.Error, "set no-cgroups = false in /etc/nvidia-container-runtime/config.toml"},
		"SELinux alone": {"sec.selinux", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.SELinux = "enforcing"
			return s
		}, "", ""},
		"a toolkit on Talos": {"rt.wrong-instance", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.OSImage = "Talos (v1.9.0)"
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.17.8", false)
			return withLog(s, "nvidia-container-toolkit-daemonset",
				"unable to dial: dial unix /runtime/sock-dir/containerd.sock: connect: no such file\n")
		}, finding.Error, "set toolkit.enabled=false"},
		"another vendor's CDI device": {"cdi.unresolvable", func(t *testing.T) *snapshot.Snapshot {
			return cannotStart(kubeadmNode(t), "CreateContainerError",
				"CDI device injection failed: unresolvable CDI devices amd.com/gpu=0")
		}, finding.Error, "find the specification that names the device (amd.com/gpu=0)"},
		"the shim of another runtime": {"rt.runtime-type", func(t *testing.T) *snapshot.Snapshot {
			return cannotStart(kubeadmNode(t), "CreateContainerError",
				`failed to start shim: runtime "io.containerd.kata.v2" binary not installed`)
		}, finding.Error, "without the runtime's isolation"},
		"a toolkit program without a toolkit": {"rt.binary-missing", func(t *testing.T) *snapshot.Snapshot {
			return cannotStart(kubeadmNode(t), "CreateContainerError", "unable to retrieve OCI runtime error: "+
				"fork/exec /usr/local/nvidia/toolkit/nvidia-container-runtime: no such file or directory")
		}, finding.Error, "let the operator run one there"},
		"a plugin with a configuration file": {"rt.cpumanager", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.KubeletConfig = map[string]string{"cpuManagerPolicy": "static"}
			pluginEnv(s, corev1.EnvVar{Name: "DEVICE_LIST_STRATEGY", Value: "envvar"},
				corev1.EnvVar{Name: "CONFIG_FILE", Value: "/config/config.yaml"})
			return s
		}, "", ""},
		"restarts again and again": {"rt.restart-loop", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			text := ""
			for _, at := range []string{"11:53:00", "11:55:00", "11:57:00"} {
				text += "2026-01-01T" + at +
					"+0000 gpu-1 systemd[1]: containerd.service: Scheduled restart job, restart counter is at 7.\n"
			}
			s.Hosts["gpu-1"].Journals = map[string]string{"containerd.service": text}
			return s
		}, finding.Warning, "3 restarts in ten minutes"},
		"the toolkit and the runtime restart each other": {"rt.restart-loop", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Journals = map[string]string{
				"containerd.service": "2026-01-01T08:00:00+0000 gpu-1 containerd[50]: x\n",
			}
			withPart(s, "nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0",
				false).Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "ctr", RestartCount: 26,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"},
				},
			}}
			return s
		}, finding.Error, "RUNTIME_RESTART_MODE=none"},
		"containerd that does not answer, and CDI": {"cdi.runtime-too-old", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://Unknown"
			pluginEnv(s, corev1.EnvVar{Name: "DEVICE_LIST_STRATEGY", Value: "cdi-cri"})
			return s
		}, "", ""},
		"a drop-in that takes the default away": {"rt.dropin-shadow", func(t *testing.T) *snapshot.Snapshot {
			table := `[plugins."io.containerd.grpc.v1.cri".containerd`
			handler := table + ".runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
			return withoutRuntime(readNode(t, "1.7.27", rootConfig, root+table+"]\ndefault_runtime_name = "+
				"'nvidia'\n"+handler, "/etc/containerd/conf.d/99-nvidia.toml", root+handler))
		}, finding.Error, "99-nvidia.toml"},
		"restarts of long ago": {"rt.restart-loop", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			line :=
				"2026-01-01T08:00:00+0000 gpu-1 systemd[1]: containerd.service: Scheduled restart job, restart counter is at 7.\n"
			s.Hosts["gpu-1"].Journals = map[string]string{"containerd.service": strings.Repeat(line, 9)}
			return s
		}, "", ""},
		"no inotify instance for the runtime": {"rt.no-inotify", func(t *testing.T) *snapshot.Snapshot {
			return withoutWatcher(t, "11:55:00", instanceOf(kubeadmConfig(t), nil))
		}, finding.Error, "systemctl restart containerd"},
		"no inotify instance, and a runtime started since": {"rt.no-inotify", func(t *testing.T) *snapshot.Snapshot {
			return withoutWatcher(t, "11:54:59", instanceOf(kubeadmConfig(t), nil))
		}, "", ""},
		"no inotify instance, and a runtime that serves": {"rt.no-inotify", func(t *testing.T) *snapshot.Snapshot {
			return withoutWatcher(t, "11:55:00", instanceOf(kubeadmConfig(t), daemonWith(kubeadmConfig(t))))
		}, "", ""},
		"no inotify watches": {"node.inotify", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			s.Pods[0].Status.Conditions[0].Status = corev1.ConditionFalse
			return withLog(s, "nvidia-device-plugin-x", "failed to create FS watcher: too many open files\n")
		}, finding.Error, "fs.inotify.max_user_instances=8192"},
		"an old toolkit": {"sec.ctk-cve", func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{})
			withPart(s, "nvidia-container-toolkit-daemonset",
				"nvcr.io/nvidia/k8s/container-toolkit:v1.17.5-ubuntu20.04", true)
			return s
		}, finding.Info, "1.17.5: CVE-2025-23266"},
		"a new toolkit, as its program says": {"sec.ctk-cve", func(t *testing.T) *snapshot.Snapshot {
			s := kubeadmNode(t)
			s.Hosts["gpu-1"].Probe.ToolkitVersion = "NVIDIA Container Runtime version 1.17.10\ncommit: 1.2"
			return s
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Examine(test.make(t), Options{Checks: []string{test.id}})
			if test.want == "" {
				if len(report.Items) > 0 {
					t.Errorf("it finds\n%s", reportLines(report))
				}
				return
			}
			if len(report.Items) != 1 || report.Items[0].Severity != test.want {
				t.Fatalf("it finds\n%s\nwant one %s with severity %s; unknown: %+v", reportLines(report), test.id,
					test.want, report.Unknown)
			}
			f := report.Items[0]
			all := f.Title + "\n" + f.Fix.Text + "\n" + strings.Join(f.Fix.Commands, "\n") + "\n" + f.Fix.Values
			for _, e := range f.Evidence {
				all += "\n" + e.Source + ": " + e.Text
			}
			if len(f.Evidence) == 0 || f.Fix.Text == "" ||
				!strings.Contains(strings.ToLower(all), strings.ToLower(test.says)) {
				t.Errorf("the finding does not say %q:\n%s", test.says, all)
			}
			if len(f.Evidence) > 6 {
				t.Errorf("%d quotations", len(f.Evidence))
			}
		})
	}
}
