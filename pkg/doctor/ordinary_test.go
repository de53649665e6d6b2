package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// alarms returns a report's root causes with severity warning or higher as "id severity Kind namespace/name", sorted.
func alarms(r Report) []string {
	lines := []string{}
	for _, f := range r.Roots() {
		if f.Severity != finding.Info {
			lines = append(lines, fmt.Sprintf("%s %s %s", f.ID, f.Severity, f.Object))
		}
	}
	slices.Sort(lines)
	return lines
}

// wantAlarms fails the test unless the alarms are exactly these.
func wantAlarms(t *testing.T, r Report, want ...string) {
	t.Helper()
	if got := alarms(r); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("doctor alarms of\n  %s\nwant\n  %s\n%s", strings.Join(got, "\n  "), strings.Join(want, "\n  "),
			describe(r))
	}
}

const importError = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nModuleNotFoundError: No module named 'foo'\n"

// TestOrdinaryLife verifies that ordinary events cause no alarm: jobs fail, pods restart, and agents monitor GPUs.
func TestOrdinaryLife(t *testing.T) {
	t.Parallel()
	ended := func(ago time.Duration, edits ...podChange) podChange {
		return func(p *corev1.Pod) {
			inState(corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: benchAgo(ago)},
			}, corev1.ContainerState{})(p)
			p.CreationTimestamp = benchAgo(ago + time.Hour)
			p.Status.Phase = corev1.PodFailed
			for _, edit := range edits {
				edit(p)
			}
		}
	}
	restarted := func(ready corev1.ConditionStatus, restarts int32) podChange {
		return func(p *corev1.Pod) {
			at := benchAgo(5 * time.Minute)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", RestartCount: restarts,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
				LastTerminationState: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error", FinishedAt: at},
				},
			}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		}
	}
	class := "nvidia"
	watching := func(kind string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.RuntimeClassName = &class
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
			owned(kind, "agent")(p)
		}
	}
	withClass := func(b *bench) *bench {
		b.RuntimeClasses = append(b.RuntimeClasses, runtimeClassOf("nvidia"))
		return b
	}
	for name, c := range map[string]struct {
		bench *bench
		want  []string
	}{
		"a job's pod failed five hours ago": {
			newBench().node("a", 8).pod("exp-1", "a", 1, ended(5*time.Hour, owned("Job", "exp"))), nil,
		},
		"a job ran out of GPU memory five hours ago": {newBench().node("a",
			8).pod("exp-1", "a", 1, ended(5*time.Hour, owned("Job", "exp"))).log("exp-1", "CUDA out of memory\n"), nil},
		"a job's pod failed a moment ago": {
			newBench().node("a", 8).pod("exp-1", "a", 1, ended(time.Minute, owned("Job", "exp"))),
			[]string{"wl.pod-failing error Pod team/exp-1"},
		},
		"a job was retried, and the new pod runs": {newBench().node("a",
			8).pod("exp-1", "a", 1, ended(time.Minute, owned("Job", "exp"))).
			pod("exp-2", "a", 1, created(30*time.Second), owned("Job", "exp")), nil},
		"a pod was restarted and is ready": {
			newBench().node("a", 8).pod("serve", "a", 1, restarted(corev1.ConditionTrue, 1)), nil,
		},
		"a pod was restarted once, and loads": {
			newBench().node("a", 8).pod("serve", "a", 1, restarted(corev1.ConditionFalse, 1)), nil,
		},
		"a pod was restarted often, and is not ready": {
			newBench().node("a", 8).pod("serve", "a", 1, restarted(corev1.ConditionFalse, 7)),
			[]string{"wl.pod-failing warning Pod team/serve"},
		},
		"an admission failed five hours ago": {
			newBench().node("a", 8).pod("old", "a", 1, created(5*time.Hour), endedBadly("UnexpectedAdmissionError")),
			nil,
		},
		"a monitoring DaemonSet sees all GPUs": {
			withClass(newBench().node("a", 8).pod("agent", "a", 0, watching("DaemonSet")).pod("train", "a", 1)), nil,
		},
		"a user's pod sees all GPUs": {withClass(
			newBench().node("a", 8).pod("agent", "a", 0, watching("Job")).pod("train", "a", 1),
		),
			[]string{"sec.all-gpus-visible warning Pod team/agent"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantAlarms(t, Examine(&c.bench.Snapshot, Options{Checks: []string{"wl.*", "sec.*", "alloc.*", "sched.*"}}),
				c.want...)
		})
	}
}

// TestRestartIsTold verifies that a restarted pod is still reported, as information.
func TestRestartIsTold(t *testing.T) {
	t.Parallel()
	b := newBench().node("a", 8).pod("serve", "a", 1,
		func(p *corev1.Pod) { p.Status.ContainerStatuses[0].LastTerminationState = exitedWith(1, "Error") })
	r := Examine(&b.Snapshot, Options{Checks: []string{"wl.pod-failing"}})
	if len(r.Items) != 1 || r.Items[0].Severity != finding.Info ||
		!strings.Contains(r.Items[0].Evidence[0].Text, "exit code 1") {
		t.Errorf("the restart of a ready pod is not told: %+v", r.Items)
	}
}

// TestNodesThatComeAndGo verifies that nodes that an autoscaler or the cloud removes cause no alarm, and that new nodes
// get time to join. Other nodes that are not Ready are an error.
func TestNodesThatComeAndGo(t *testing.T) {
	t.Parallel()
	gone := readiness(corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
	joining := readiness(corev1.ConditionFalse, "KubeletNotReady",
		"container runtime network not ready: NetworkReady=false")
	aged := func(d time.Duration) nodeChange {
		return func(n *corev1.Node) { n.CreationTimestamp = benchAgo(d) }
	}
	for name, c := range map[string]struct {
		edits   []nodeChange
		waiting bool
		want    string
	}{
		"lost":                 {edits: []nodeChange{gone}, want: "error"},
		"Karpenter removes it": {edits: []nodeChange{gone, tainted("karpenter.sh/disrupted", "")}},
		"the cluster autoscaler removes it": {
			edits: []nodeChange{gone, tainted("ToBeDeletedByClusterAutoscaler", "1")},
		},
		"the cloud has shut it down": {
			edits: []nodeChange{gone, tainted("node.cloudprovider.kubernetes.io/shutdown", "")},
		},
		"a spot node is being reclaimed": {
			edits: []nodeChange{gone, tainted("cloud.google.com/impending-node-termination", "")},
		},
		"somebody put it out of service": {
			edits: []nodeChange{gone, tainted("node.kubernetes.io/out-of-service", "nodeshutdown")},
		},
		"it shuts down": {
			edits: []nodeChange{readiness(corev1.ConditionFalse, "KubeletNotReady", "node is shutting down")},
		},
		"it joined 2 minutes ago": {edits: []nodeChange{joining, aged(2 * time.Minute)}},
		"it joined 6 minutes ago": {edits: []nodeChange{joining, aged(6 * time.Minute)}, want: "warning"},
		"a pod waits for it since 6 minutes": {
			edits: []nodeChange{joining, aged(6 * time.Minute)}, waiting: true, want: "error",
		},
		"it joined 20 minutes ago": {edits: []nodeChange{joining, aged(20 * time.Minute)}, want: "error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench().node("a", 8, c.edits...)
			if c.waiting {
				b.pod("train", "", 1)
			}
			r := Examine(&b.Snapshot, Options{Checks: []string{"node.not-ready"}})
			if c.want == "" {
				wantAlarms(t, r)
				return
			}
			wantAlarms(t, r, "node.not-ready "+c.want+" Node a")
		})
	}
}

// TestWindowsNodes verifies that Windows nodes with GPUs, which lack NVIDIA's software for Linux, are not reported.
func TestWindowsNodes(t *testing.T) {
	t.Parallel()
	b := newBench().node("win", 0, func(n *corev1.Node) {
		n.Labels = map[string]string{"kubernetes.io/os": "windows", "kubernetes.azure.com/accelerator": "nvidia"}
		n.Status.NodeInfo.OperatingSystem = "windows"
		delete(n.Status.Capacity, "nvidia.com/gpu")
	}).node("lin", 8)
	b.Pods = append(b.Pods, standalonePlugin(podOn("lin")))
	r := Examine(&b.Snapshot, Options{})
	wantAlarms(t, r)
	if r.Summary.GPUNodes != 1 {
		t.Errorf("%d GPU nodes, though one of the two is a Windows node", r.Summary.GPUNodes)
	}
}

// TestComponentsOfOthers verifies that software from other vendors with the same names is not treated as NVIDIA's, and
// that NVIDIA's software is recognized even if it is from a mirror.
func TestComponentsOfOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		app, image, container string
		want                  facts.Component
	}{
		{"amd-gpu-operator", "rocm/gpu-operator:v1.2", "manager", ""},
		{"gpu-operator", "docker.io/rocm/gpu-operator:v1.2", "manager", ""},
		{"amd-gpu-device-plugin", "rocm/k8s-device-plugin:1.0", "dp", ""},
		{"", "rocm/k8s-device-plugin:1.0", "amdgpu-dp-cntr", ""},
		{
			"intel-gpu-resource-driver",
			"ghcr.io/intel/intel-resource-drivers-for-kubernetes/intel-gpu-dra-driver:v0.8", "kubelet-plugin", "",
		},
		{"dra-driver-cpu", "registry.k8s.io/dra-driver-cpu:v0", "d", ""},
		{"dra-driver-sriov", "ghcr.io/k8snetworkplumbingwg/dra-driver-sriov:v0", "d", ""},
		{
			"habanalabs-device-plugin", "vault.habana.ai/docker-k8s-device-plugin/docker-k8s-device-plugin:1", "habana",
			"",
		},
		{"sriov-device-plugin", "nvcr.io/nvidia/mellanox/sriov-network-device-plugin:v3", "kube-sriovdp", ""},
		{"gpu-operator", "registry.local/mirror/gpu-operator:v25.3.4", "gpu-operator", facts.Operator},
		{
			"nvidia-device-plugin-daemonset", "registry.local/k8s-device-plugin:v0.17.1", "nvidia-device-plugin",
			facts.DevicePlugin,
		},
		{"", "nvcr.io/nvidia/k8s-device-plugin:v0.17.1", "ctr", facts.DevicePlugin},
		{"", "gke.gcr.io/nvidia-gpu-device-plugin@sha256:1a2b", "nvidia-gpu-device-plugin", facts.DevicePlugin},
		{"nvidia-dra-driver-gpu", "registry.local/k8s-dra-driver-gpu:v25.8.1", "gpus", facts.DRADriver},
	} {
		labels := map[string]string{"app.kubernetes.io/name": c.app}
		spec := corev1.PodSpec{Containers: []corev1.Container{{Name: c.container, Image: c.image}}}
		if got := facts.ComponentOf(labels, &spec); got != c.want {
			t.Errorf("app %q, image %s, container %s is taken for %q, and is %q", c.app, c.image, c.container, got,
				c.want)
		}
	}
}

func runtimeClassOf(name string) (c nodev1.RuntimeClass) {
	c.Name, c.Handler = name, name
	return c
}

// TestClaimsForOtherDevices verifies that pods with claims for network cards, CPUs or other vendors' GPUs are ignored,
// whether or not the cluster has NVIDIA GPUs.
func TestClaimsForOtherDevices(t *testing.T) {
	t.Parallel()
	claiming := func(p *corev1.Pod) {
		name := "c"
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: &name}}
		p.Namespace = "default"
	}
	for name, c := range map[string]struct {
		class   string // of the claim; empty when the snapshot does not have it
		selects string // what the class selects
		crashes bool
		want    []string
	}{
		"unknown, waits for CPU":  {},
		"unknown, crashes":        {crashes: true},
		"SR-IOV, waits for CPU":   {class: "sriov.example.com"},
		"SR-IOV, crashes":         {class: "sriov.example.com", crashes: true},
		"a GPU of Intel, crashes": {class: "gpu.intel.com", crashes: true},
		"a GPU of NVIDIA, crashes": {
			class: "gpu.nvidia.com", crashes: true, want: []string{"wl.pod-failing error Pod default/p"},
		},
		"a class of one's own, crashes": {
			class: "fast", selects: `device.driver == "gpu.nvidia.com"`, crashes: true,
			want: []string{"wl.pod-failing error Pod default/p"},
		},
		"a GPU of NVIDIA, waits for CPU": {
			class: "gpu.nvidia.com", want: []string{"sched.unschedulable error Pod default/p"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench().node("cpu", 0,
				func(n *corev1.Node) { n.Labels = nil; delete(n.Status.Capacity, "nvidia.com/gpu") })
			if c.crashes {
				b.pod("p", "cpu", 0, claiming, crashing(1, "Error"))
			} else {
				b.pod("p", "", 0, claiming, toldByScheduler("0/1 nodes are available: 1 Insufficient cpu."))
			}
			if c.class != "" {
				b.ResourceClaims = []resourcev1.ResourceClaim{claimFor("c", c.class)}
				class := deviceClass(c.class)
				if c.selects != "" {
					class.Spec.Selectors = []resourcev1.DeviceSelector{
						{CEL: &resourcev1.CELDeviceSelector{Expression: c.selects}},
					}
				}
				b.DeviceClasses = []resourcev1.DeviceClass{class}
			}
			wantAlarms(t, Examine(&b.Snapshot, Options{Checks: []string{"sched.*", "wl.*", "dp.*", "op.*"}}), c.want...)
		})
	}
}

// TestWhoWaitsForANode verifies that a pod that is held back on purpose is not considered to be waiting for a node, and
// that a node for virtual machines does not explain why all GPUs are in use.
func TestWhoWaitsForANode(t *testing.T) {
	t.Parallel()
	bare := func(n *corev1.Node) {
		n.Labels = map[string]string{"accelerator": "rtx"}
		delete(n.Status.Capacity, "nvidia.com/gpu")
		delete(n.Status.Allocatable, "nvidia.com/gpu")
	}
	vm := func(n *corev1.Node) {
		bare(n)
		n.Labels = map[string]string{
			"nvidia.com/gpu.present": "true", "nvidia.com/gpu.workload.config": "vm-passthrough",
		}
		gives("nvidia.com/GA102GL_A10", 2, 2)(n)
	}
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
	}
	passed := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/pgpu": resource.MustParse("1")}
	}
	for name, c := range map[string]struct {
		bench *bench
		want  []string
	}{
		"a gated pod, and a node without a plugin": {
			newBench().node("a", 8).node("b", 0, bare).pod("train", "", 1, gated), nil,
		},
		"a pod, and a node without a plugin": {
			newBench().node("b", 0, bare).pod("train", "", 1), []string{"dp.none error Node b"},
		},
		"all GPUs are in use, and a node is for machines": {
			newBench().node("a", 1).node("vm", 0, vm).pod("runs", "a", 1).pod("waits", "", 1),
			[]string{"sched.all-in-use warning Pod team/waits"},
		},
		"the only node is for machines": {
			newBench().node("vm", 0, vm).pod("waits", "", 1), []string{"op.deploy-label-off error Node vm"},
		},
		"a machine, and a node for containers": {
			newBench().node("a", 8).pod("machine", "", 0, passed),
			[]string{"sched.none-advertised error Pod team/machine"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantAlarms(t,
				Examine(&c.bench.Snapshot, Options{Checks: []string{"dp.none", "op.deploy-label-off", "sched.*"}}),
				c.want...)
		})
	}
}

// TestScaleFromZero verifies that a missing node is not a certain error if an autoscaler adds nodes: GPUs may be
// unavailable for hours.
func TestScaleFromZero(t *testing.T) {
	t.Parallel()
	noGPU := func(n *corev1.Node) {
		n.Labels = nil
		delete(n.Status.Capacity, "nvidia.com/gpu")
		delete(n.Status.Allocatable, "nvidia.com/gpu")
	}
	scaled := func(b *bench) *bench {
		return b.event("Pod", "train", "TriggeredScaleUp", "pod triggered scale-up",
			func(e *corev1.Event) { e.LastTimestamp = benchAgo(3 * time.Hour) })
	}
	for name, c := range map[string]struct {
		bench *bench
		want  string
	}{
		"nobody scales":                {newBench().node("cpu", 0, noGPU).pod("train", "", 1), "error"},
		"it was triggered 3 hours ago": {scaled(newBench().node("cpu", 0, noGPU).pod("train", "", 1)), "warning"},
		"the pod names a node pool": {
			newBench().node("cpu", 0, noGPU).pod("train", "", 1, selector("karpenter.sh/nodepool", "gpu")), "warning",
		},
		"the pod names an accelerator": {
			newBench().node("cpu", 0,
				noGPU).pod("train", "", 1, selector("cloud.google.com/gke-accelerator", "nvidia-l4")),
			"warning",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Examine(&c.bench.Snapshot, Options{Checks: []string{"sched.*"}})
			wantAlarms(t, r, "sched.none-advertised "+c.want+" Pod team/train")
			if f := r.Items[0]; c.want == "warning" && f.Confidence != finding.Possible {
				t.Errorf("it is told as %s, and a node may be on its way", f.Confidence)
			}
		})
	}
}

// TestUnseenIsNotGood verifies that data that cannot be listed is unknown: no check passes without evidence, and the
// matrix does not show a layer without evidence as healthy.
func TestUnseenIsNotGood(t *testing.T) {
	t.Parallel()
	b := newBench().node("a", 2)
	for _, what := range []string{
		"api/pods", "api/events", "api/daemonsets", "api/runtimeclasses", "logs", "helm", "api/clusterpolicies",
		"api/nvidiadrivers", "api/resourcequotas", "api/limitranges",
		"api/configmaps", "api/namespaces", "api/resourceslices", "api/resourceclaims", "api/deviceclasses",
		"api/servicemonitors", "api/prometheuses", "api/computedomains",
		"api/crds", "runs",
	} {
		b.missing(what)
	}
	r := Examine(&b.Snapshot, Options{})
	// nodes were seen
	fromNodes := []string{
		"op.deploy-label-off", "dp.unhealthy", "node.condition", "node.not-ready", "node.pressure", "sched.node-state",
	}
	for _, c := range Checks() {
		silent := !slices.ContainsFunc(r.Unknown, func(u engine.Unknown) bool { return u.Check == c.ID }) &&
			!slices.ContainsFunc(r.Items, func(f finding.Finding) bool { return f.ID == c.ID })
		if silent && !slices.Contains(fromNodes, c.ID) {
			t.Errorf("%s passes, and nothing but nodes could be listed", c.ID)
		}
	}
	for _, l := range []finding.Layer{
		finding.LayerOperator, finding.LayerDevicePlugin, finding.LayerDRA, finding.LayerScheduling,
		finding.LayerAccess, finding.LayerWorkload, finding.LayerObservability,
		finding.LayerRuntime,
	} {
		if got := r.Nodes[0].Layers[l]; got != NotSeen {
			t.Errorf("the layer %s of the node is %s, and nobody could see it", l, got)
		}
	}
}
