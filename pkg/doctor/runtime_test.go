package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

var runtimeTime = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const rootConfig = "/etc/containerd/config.toml"

// nodeConfig returns a real configuration from the tests of pkg/containerd.
func nodeConfig(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "containerd", "testdata", "nodes", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// configOf returns the configuration that a containerd release loads from these files, the root file first.
func configOf(t *testing.T, release string, files ...string) *containerd.Config {
	t.Helper()
	r, err := containerd.ParseRelease(release)
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd.Config{Release: r}
	for i := 0; i < len(files); i += 2 {
		c.Files = append(c.Files, containerd.File{Path: files[i], Data: []byte(files[i+1])})
	}
	return c
}

// daemonWith returns the daemon's response with this configuration, or nil if CRI is not loaded with it.
func daemonWith(c *containerd.Config) *cri.Info {
	merged, err := c.Merged()
	if err != nil {
		return nil
	}
	for _, p := range merged.Problems {
		if p.Kind == containerd.ProblemNoDefault || p.Kind == containerd.ProblemDisabled {
			return nil
		}
	}
	runtimes := map[string]any{}
	for name, h := range merged.Handlers {
		kind := h.Type
		if kind == "" {
			kind = "io.containerd.runc.v2"
		}
		options := map[string]any{
			"BinaryName": h.BinaryName, "SystemdCgroup": h.SystemdCgroup != nil && *h.SystemdCgroup,
		}
		runtimes[name] = map[string]any{"runtimeType": kind, "options": options}
	}
	if runtimes["runc"] == nil {
		runtimes["runc"] = map[string]any{
			"runtimeType": "io.containerd.runc.v2", "options": map[string]any{"BinaryName": "", "SystemdCgroup": false},
		}
	}
	fallback := merged.DefaultRuntime
	if fallback == "" {
		fallback = "runc"
	}
	raw, _ := json.Marshal(map[string]any{
		"enableCDI":  c.Release.AtLeast(2, 0),
		"containerd": map[string]any{"defaultRuntimeName": fallback, "runtimes": runtimes},
	})
	return &cri.Info{Name: "containerd", Version: "v" + c.Release.String(), Ready: true, Config: raw}
}

// instanceOf returns the kubelet's containerd with its files on disk and its configuration in memory.
func instanceOf(disk *containerd.Config, info *cri.Info) *api.Instance {
	i := &api.Instance{
		PID: 50, Exe: "/usr/bin/containerd", Socket: "/run/containerd/containerd.sock", Unit: "containerd.service",
		ConfigPath: disk.Files[0].Path,
		Release:    "v" + disk.Release.String(), CRI: info, Executables: map[string]string{},
	}
	for _, f := range disk.Files {
		i.Files = append(i.Files, api.ConfigFile{
			Path: f.Path, Data: f.Data, Meta: deadman.Meta{Mode: 0o644, ModTime: runtimeTime.Add(-time.Hour)},
		})
	}
	merged, err := disk.Merged()
	if err != nil {
		i.ConfigError = err.Error()
	}
	if info == nil {
		i.CRIError =
			"the CRI plugin is disabled or was not loaded (unknown service runtime.v1.RuntimeService)"
	}
	var all []containerd.Handler
	if merged != nil {
		for _, h := range merged.Handlers {
			all = append(all, h)
		}
	}
	if info != nil {
		if memory, err := containerd.Running(info.Config); err == nil {
			for _, h := range memory.Handlers {
				all = append(all, h)
			}
		}
	}
	for _, h := range all {
		from := api.Handler{Type: h.Type, BinaryName: h.BinaryName}
		for _, program := range []string{from.Binary(), from.Shim()} {
			if i.Executables[program] = ""; strings.Contains(program, "gpu-fault") {
				i.Executables[program] = "missing"
			}
		}
	}
	return i
}

// gpuCluster returns a healthy cluster with one GPU node on which the helper found this runtime, and pods that use it.
func gpuCluster(runtime api.Runtime) *snapshot.Snapshot {
	ready := func(status corev1.ConditionStatus) []corev1.PodCondition {
		return []corev1.PodCondition{
			{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(runtimeTime.Add(-time.Hour))},
		}
	}
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	capacity := corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("8"), "cpu": resource.MustParse("64"),
		"memory": resource.MustParse("512Gi"), "pods": resource.MustParse("110"),
	}
	release := "2.1.4"
	if i := runtime.Instance; i != nil {
		release = strings.TrimPrefix(i.Release, "v")
	}
	pod := func(name, image string, labels map[string]string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "gpu", Name: name, Labels: labels,
				CreationTimestamp: metav1.NewTime(runtimeTime.Add(-2 * time.Hour)),
			},
			Spec: corev1.PodSpec{
				NodeName: "gpu-1", RuntimeClassName: new("nvidia"),
				Containers: []corev1.Container{{Name: "main", Image: image}},
			},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, Conditions: ready(corev1.ConditionTrue),
				StartTime: new(metav1.NewTime(runtimeTime.Add(-2 * time.Hour))),
				ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(runtimeTime.Add(-time.Hour))},
				}}},
			},
		}
	}
	train := pod("train-0", "pytorch/pytorch:2.9", nil)
	train.Spec.Containers[0].Resources.Limits = gpus
	s := &snapshot.Snapshot{
		Meta: snapshot.Meta{Created: runtimeTime},
		Nodes: []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "gpu-1",
				Labels: map[string]string{"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100"},
			},
			Status: corev1.NodeStatus{
				Capacity: capacity, Allocatable: capacity,
				Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
				},
				NodeInfo: corev1.NodeSystemInfo{
					ContainerRuntimeVersion: "containerd://" + release, KubeletVersion: "v1.34.1",
					Architecture: "amd64",
				},
			},
		}},
		RuntimeClasses: []nodev1.RuntimeClass{{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"}},
		Pods: []corev1.Pod{pod("nvidia-device-plugin-x", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
			map[string]string{"app": "nvidia-device-plugin-daemonset"}), train},
	}
	if runtime.Instance != nil || runtime.Problem != "" {
		s.Hosts = map[string]*api.Diagnosis{"gpu-1": {Runtime: runtime}}
	}
	return s
}

// failsToStart makes the training pod fail to start, with the kubelet's event.
func failsToStart(s *snapshot.Snapshot, message string) *snapshot.Snapshot {
	pod := &s.Pods[len(s.Pods)-1]
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
		{
			Name:  "main",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		},
	}}
	s.Events = append(s.Events, corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		Type:           corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: message,
		LastTimestamp: metav1.NewTime(runtimeTime.Add(-10 * time.Second)), Count: 12,
	})
	return s
}

// withoutRuntime makes the node's kubelet have no runtime.
func withoutRuntime(s *snapshot.Snapshot) *snapshot.Snapshot {
	s.Nodes[0].Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
		Message: "container runtime is down", LastTransitionTime: metav1.NewTime(runtimeTime.Add(-5 * time.Minute)),
	}}
	return s
}

// runtimeRoots returns the IDs of root causes with severity Warning or higher.
func runtimeRoots(r Report) string {
	var all []string
	for _, f := range r.Roots() {
		if f.Severity != finding.Info {
			all = append(all, f.ID)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// reportLines formats the whole report as lines, for messages.
func reportLines(r Report) string {
	var all []string
	for _, f := range r.Items {
		all = append(all,
			fmt.Sprintf("%s %s root=%t %s: %s <- %v", f.ID, f.Severity, f.Root, f.Object, f.Title, f.CausedBy))
	}
	return strings.Join(all, "\n")
}

// sandboxError is the beginning of the kubelet's event.
const sandboxError = "Failed to create pod sandbox: rpc error: code = Unknown desc = "

// modeEvents contains the kubelet's event for each mode of `runtime break`, from real daemons (1.7.28). It is empty if
// pods start.
var modeEvents = map[containerd.Mode]string{
	containerd.ModeMissingHandler: sandboxError +
		`failed to get sandbox runtime: no runtime for "nvidia" is configured`,
	containerd.ModeWrongInstance: sandboxError +
		`failed to get sandbox runtime: no runtime for "nvidia" is configured`,
	containerd.ModeBinaryMissing: sandboxError +
		`failed to create containerd task: failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error (open /run/containerd/io.containerd.runtime.v2.task/k8s.io/6f/log.json: no such file or directory): fork/exec /usr/local/nvidia/toolkit/nvidia-container-runtime.gpu-fault-missing: no such file or directory: unknown`,
	containerd.ModeWrongRuntimeType: sandboxError +
		`failed to create containerd task: failed to resolve runtime path: runtime "io.containerd.gpu-fault-nosuch.v2" binary not installed "containerd-shim-gpu-fault-nosuch-v2": file does not exist: unknown`,
}

// TestModesOfRuntimeBreak verifies that each fault of `runtime break` is reported as the only root cause, with the
// node's files and configuration in memory after a restart.
func TestModesOfRuntimeBreak(t *testing.T) {
	t.Parallel()
	for _, base := range []struct{ file, release string }{
		{"v2-kubeadm.toml", "1.7.28"}, {"v2-kubeadm.toml", "2.1.4"}, {"v4-toolkit.toml", "2.3.7"},
	} {
		for _, mode := range containerd.Modes() {
			if mode.Mode == containerd.ModeDropinShadow && base.release != "1.7.28" {
				continue // 2.0 and later merge drop-ins
			}
			t.Run(fmt.Sprintf("%s %s", mode.Mode, base.release), func(t *testing.T) {
				t.Parallel()
				before := configOf(t, base.release, rootConfig, nodeConfig(t, base.file))
				broken, err := before.Break(containerd.Request{
					Mode: mode.Mode, Handler: "nvidia", Decoy: containerd.File{Path: "/etc/containerd-decoy.toml"},
				})
				if err != nil {
					t.Fatal(err)
				}
				after, decoys := withFault(before, broken)
				kubelet := api.Kubelet{
					PID: 100, Endpoint: "unix:///run/containerd/containerd.sock", EndpointFrom: "default",
				}

				s := gpuCluster(
					api.Runtime{Kubelet: kubelet, Instance: instanceOf(after, daemonWith(after)), Decoys: decoys},
				)
				if mode.NodeLoss {
					s = withoutRuntime(s)
				} else if message := modeEvents[mode.Mode]; message != "" {
					s = failsToStart(s, message)
				}
				report := Examine(s, Options{})
				if got := runtimeRoots(report); got != mode.Root {
					t.Errorf("the roots are %q, want %s:\n%s", got, mode.Root, reportLines(report))
				}

				// If the files were edited but containerd was not restarted, that is the root cause, regardless of the
				// effect of the edits.
				s = gpuCluster(
					api.Runtime{Kubelet: kubelet, Instance: instanceOf(after, daemonWith(before)), Decoys: decoys},
				)
				report = Examine(s, Options{})
				if got := runtimeRoots(report); got != "rt.edited-not-restarted" {
					t.Errorf("edited and not restarted, the roots are %q:\n%s", got, reportLines(report))
				}

				// Without the fault, there are no findings.
				report = Examine(
					gpuCluster(api.Runtime{Kubelet: kubelet, Instance: instanceOf(before, daemonWith(before))}),
					Options{},
				)
				if got := runtimeRoots(report); got != "" {
					t.Errorf("the node as it was has the roots %q:\n%s", got, reportLines(report))
				}
			})
		}
	}
}

// withFault returns the configuration that the daemon loads with a fault in its files, and the files that it does not
// load.
func withFault(before *containerd.Config, broken *containerd.Broken) (*containerd.Config, []api.Instance) {
	after := &containerd.Config{Release: before.Release, Files: slices.Clone(before.Files)}
	var decoys []api.Instance
	for _, f := range broken.Files {
		n := slices.IndexFunc(after.Files, func(old containerd.File) bool { return old.Path == f.Path })
		switch {
		case n >= 0:
			after.Files[n].Data = f.After
		case f.Path == "/etc/containerd-decoy.toml":
			decoys = append(decoys, api.Instance{
				ConfigPath: f.Path, Release: before.Release.String(),
				Files: []api.ConfigFile{{Path: f.Path, Data: f.After}},
			})
		default:
			after.Files = append(after.Files, containerd.File{Path: f.Path, Data: f.After})
		}
	}
	return after, decoys
}

const (
	snapConfig = "/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml"
	snapSocket = "/var/lib/k8s-containerd/k8s-containerd/run/containerd/containerd.sock"
)

const nvidiaDropIn = `version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
`

// TestRuntimeIsHealthy verifies that normal configurations are not reported: no handler if GPUs are provided in another
// way, or a handler with another name.
func TestRuntimeIsHealthy(t *testing.T) {
	t.Parallel()
	none := func(t *testing.T, release string) api.Runtime {
		c := configOf(t, release, rootConfig,
			"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = "+
				"'io.containerd.runc.v2'\n")
		return api.Runtime{Instance: instanceOf(c, daemonWith(c))}
	}
	withoutClass := func(s *snapshot.Snapshot) {
		for i := range s.Pods {
			s.Pods[i].Spec.RuntimeClassName = nil
		}
	}
	for name, make := range map[string]func(t *testing.T) *snapshot.Snapshot{
		"GKE's own device plugin": func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(none(t, "1.7.28"))
			s.Nodes[0].Labels["cloud.google.com/gke-nodepool"], s.Nodes[0].Labels["cloud.google.com/gke-accelerator"] =
				"gpu",
				"nvidia-h100"
			s.RuntimeClasses = nil
			withoutClass(s)
			return s
		},
		"CRI-O with its hook": func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(api.Runtime{Problem: "the kubelet on this node uses CRI-O " +
				"1.33.0", Instance: &api.Instance{
				PID: 9, Unit: "crio.service", CRI: &cri.Info{Name: "cri-o", Version: "1.33.0", Ready: true},
			}})
			s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.33.0"
			withoutClass(s)
			return s
		},
		"CDI with runc": func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(none(t, "2.1.4"))
			s.Pods[0].Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DEVICE_LIST_STRATEGY", Value: "cdi-cri"}}
			withoutClass(s)
			return s
		},
		"NRI, and a toolkit that edits nothing": func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(none(t, "2.1.4"))
			s.ClusterPolicies = []unstructured.Unstructured{{Object: map[string]any{
				"metadata": map[string]any{"name": "cluster-policy"}, "status": map[string]any{"state": "ready"},
				"spec": map[string]any{"cdi": map[string]any{"enabled": true, "nriPluginEnabled": true}},
			}}}
			set := appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "nvidia-container-toolkit-daemonset"},
			}
			set.Spec.Template.Spec.Containers = []corev1.Container{{
				Name: "ctr", Image: "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0",
				Env: []corev1.EnvVar{{Name: "CONTAINERD_CONFIG", Value: "/elsewhere/config.toml"}},
			}}
			set.Status = appsv1.DaemonSetStatus{
				DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberReady: 1, NumberAvailable: 1,
				UpdatedNumberScheduled: 1,
			}
			s.DaemonSets = []appsv1.DaemonSet{set}
			withoutClass(s)
			return s
		},
		"Talos": func(t *testing.T) *snapshot.Snapshot {
			s := gpuCluster(none(t, "2.1.4"))
			s.Nodes[0].Status.NodeInfo.OSImage = "Talos (v1.11.0)"
			withoutClass(s)
			return s
		},
		"AKS, where the handler is nvidia-container-runtime": func(t *testing.T) *snapshot.Snapshot {
			c := configOf(t, "2.1.4", rootConfig, nodeConfig(t, "v2-aks-mixed.toml"))
			s := gpuCluster(api.Runtime{Instance: instanceOf(c, daemonWith(c))})
			s.RuntimeClasses[0].Handler = "nvidia-container-runtime"
			s.Nodes[0].Labels["kubernetes.azure.com/cluster"] = "mc"
			return s
		},
		"microk8s, where the handler is nvidia-container-runtime": func(t *testing.T) *snapshot.Snapshot {
			c := configOf(t, "1.7.28", "/var/snap/microk8s/1/args/containerd.toml", strings.ReplaceAll(
				nodeConfig(t, "v2-kubeadm.toml"), "runtimes.nvidia", "runtimes.nvidia-container-runtime",
			))
			s := gpuCluster(api.Runtime{Instance: instanceOf(c, daemonWith(c))})
			s.RuntimeClasses[0].Handler = "nvidia-container-runtime"
			s.Nodes[0].Labels["microk8s.io/cluster"] = "true"
			return s
		},
		"EKS, where nvidia is the only handler": func(t *testing.T) *snapshot.Snapshot {
			c := configOf(t, "2.1.4", rootConfig, nodeConfig(t, "v2-eks-only-nvidia.toml"))
			s := gpuCluster(api.Runtime{Instance: instanceOf(c, daemonWith(c))})
			s.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.34.1-eks-1"
			return s
		},
		"Docker's containerd beside it, with CRI disabled": func(t *testing.T) *snapshot.Snapshot {
			c := configOf(t, "1.7.28", rootConfig, nodeConfig(t, "v2-kubeadm.toml"))
			decoy := configOf(t, "1.7.28", "/etc/docker-containerd.toml", nodeConfig(t, "v1-docker.toml"))
			return gpuCluster(
				api.Runtime{Instance: instanceOf(c, daemonWith(c)), Decoys: []api.Instance{*instanceOf(decoy, nil)}},
			)
		},
		"containerd 1.7, which tells the API no handlers": func(t *testing.T) *snapshot.Snapshot {
			return gpuCluster(api.Runtime{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Examine(make(t), Options{})
			if got := runtimeRoots(report); got != "" {
				t.Errorf("a healthy cluster has the roots %q:\n%s", got, reportLines(report))
			}
		})
	}
}
