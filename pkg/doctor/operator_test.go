package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/deviceplugin"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/dra"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/observability"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/operator"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// operandNow returns the time of the snapshots in these tests.
func operandNow() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

func operandAgo(d time.Duration) metav1.Time { return metav1.NewTime(operandNow().Add(-d)) }

type nodeEdit func(*corev1.Node)

// plainNode returns a node that has been Ready for a month.
func plainNode(name string, edits ...nodeEdit) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, CreationTimestamp: operandAgo(720 * time.Hour), Labels: map[string]string{},
	}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.NodeInfo.ContainerRuntimeVersion, n.Status.NodeInfo.KubeletVersion = "containerd://2.1.4", "v1.34.2"
	n.Status.Capacity, n.Status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for _, edit := range edits {
		edit(&n)
	}
	return n
}

// gpuNode returns a node that has and advertises eight GPUs, with labels from NFD and GFD.
func gpuNode(edits ...nodeEdit) corev1.Node {
	return plainNode("gpu-1", append([]nodeEdit{
		nodeLabel("feature.node.kubernetes.io/pci-10de.present=true", "nvidia.com/gpu.present=true",
			"nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count=8"),
		offers("nvidia.com/gpu", 8, 8),
	}, edits...)...)
}

func nodeLabel(labels ...string) nodeEdit {
	return func(n *corev1.Node) {
		for _, label := range labels {
			key, value, set := strings.Cut(label, "=")
			if n.Labels[key] = value; !set {
				delete(n.Labels, key)
			}
		}
	}
}

func offers(name corev1.ResourceName, capacity, allocatable int64) nodeEdit {
	return func(n *corev1.Node) {
		n.Status.Capacity[name], n.Status.Allocatable[name] = *resource.NewQuantity(capacity, resource.DecimalSI),
			*resource.NewQuantity(allocatable, resource.DecimalSI)
	}
}

// withoutGPUs makes a GPU node advertise no GPUs.
func withoutGPUs(n *corev1.Node) {
	n.Status.Capacity, n.Status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
}

func notReadyNode(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }

type podEdit func(*corev1.Pod)

// operandPod returns a pod of an operator DaemonSet on gpu-1 that has been ready for a day. inits are its init
// containers, which have completed.
func operandPod(app, container string, inits []string, edits ...podEdit) corev1.Pod {
	yes := true
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "gpu-operator", Name: app + "-x", Labels: map[string]string{"app": app},
		CreationTimestamp: operandAgo(24 * time.Hour),
		OwnerReferences:   []metav1.OwnerReference{{Kind: "DaemonSet", Name: app, Controller: &yes}},
	}}
	pod.Spec.NodeName = "gpu-1"
	pod.Spec.Containers = []corev1.Container{{Name: container, Image: "nvcr.io/nvidia/" + app + ":v1.0.0"}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: operandAgo(23 * time.Hour)},
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: operandAgo(23 * time.Hour)}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, Ready: true, State: running}}
	for _, name := range inits {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers,
			corev1.Container{Name: name, Image: "nvcr.io/nvidia/gpu-operator:v25.10.0"})
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: name, Ready: true,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
		})
	}
	for _, edit := range edits {
		edit(&pod)
	}
	return pod
}

// The operator's pods.
func driverPod(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-driver-daemonset", "nvidia-driver-ctr", []string{"k8s-driver-manager"}, edits...)
}

func toolkitPod(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr",
		[]string{"driver-validation"}, edits...)
}

func pluginPod(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-device-plugin-daemonset", "nvidia-device-plugin", []string{"toolkit-validation"},
		edits...)
}

func validatorPod(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-operator-validator", "nvidia-operator-validator",
		[]string{"driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"}, edits...)
}

func discoveryPod(edits ...podEdit) corev1.Pod {
	return operandPod("gpu-feature-discovery", "gpu-feature-discovery", []string{"toolkit-validation"},
		append([]podEdit{func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1-ubi9" // it is in the same image
		}}, edits...)...)
}

func exporterPod(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-dcgm-exporter", "nvidia-dcgm-exporter", []string{"toolkit-validation"},
		append([]podEdit{func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DCGM_EXPORTER_KUBERNETES", Value: "true"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "p", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/pod-resources"},
			}}}
		}}, edits...)...)
}

// standalonePlugin returns a pod of the device plugin's own chart, without init containers.
func standalonePlugin(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-device-plugin", "nvidia-device-plugin-ctr", nil, edits...)
}

func unready(pod *corev1.Pod) {
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].Ready = false
		pod.Status.ContainerStatuses[i].Started = nil
	}
}

// waitsIn makes a pod wait in one of its init containers for the given time.
func waitsIn(init string, since time.Duration) podEdit {
	return func(pod *corev1.Pod) {
		unready(pod)
		pod.Status.Phase = corev1.PodPending
		pod.CreationTimestamp = operandAgo(since)
		initializing := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		pod.Status.ContainerStatuses[0].State = initializing
		seen := false
		for i := range pod.Status.InitContainerStatuses {
			s := &pod.Status.InitContainerStatuses[i]
			switch {
			case s.Name == init:
				seen = true
				s.Ready, s.State = false,
					corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: operandAgo(since)}}
			case seen:
				s.Ready, s.State = false, initializing
			}
		}
	}
}

// crashes makes a pod's container crash repeatedly.
func crashes(message string) podEdit {
	return func(pod *corev1.Pod) {
		unready(pod)
		s := &pod.Status.ContainerStatuses[0]
		s.RestartCount = 12
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff", Message: "back-off 5m0s restarting failed container",
		}}
		s.LastTerminationState = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: message},
		}
	}
}

// creating makes a pod wait for its sandbox.
func creating(since time.Duration) podEdit {
	return func(pod *corev1.Pod) {
		unready(pod)
		pod.Status.Phase, pod.CreationTimestamp = corev1.PodPending, operandAgo(since)
		wait := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
		if len(pod.Spec.InitContainers) > 0 {
			wait.Waiting.Reason = "PodInitializing"
		}
		pod.Status.ContainerStatuses[0].State = wait
		for i := range pod.Status.InitContainerStatuses {
			pod.Status.InitContainerStatuses[i].Ready, pod.Status.InitContainerStatuses[i].State = false, wait
		}
	}
}

// startsFor makes a pod run for the given time without becoming ready.
func startsFor(d time.Duration) podEdit {
	return func(pod *corev1.Pod) {
		unready(pod)
		pod.CreationTimestamp = operandAgo(d)
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: operandAgo(d)},
		}
	}
}

func beingDeleted(pod *corev1.Pod) { at := operandAgo(time.Second); pod.DeletionTimestamp = &at }

func podNamed(namespace, name string) podEdit {
	return func(pod *corev1.Pod) { pod.Namespace, pod.Name = namespace, name }
}

func podOn(node string) podEdit { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }

// gpuPod returns an unscheduled workload that requests a GPU resource.
func gpuPod(name corev1.ResourceName) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", CreationTimestamp: operandAgo(time.Hour)},
	}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "train:1", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{name: *resource.NewQuantity(1, resource.DecimalSI)},
	}}}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/1 nodes are available: 1 Insufficient " + string(name) + ".",
	}}
	return pod
}

func logOf(pod corev1.Pod, text string) snapshot.Log {
	return snapshot.Log{Namespace: pod.Namespace, Pod: pod.Name, Container: pod.Spec.Containers[0].Name, Text: text}
}

// operatorTold runs only the checks of these layers, and returns their results: "root ID SEVERITY OBJECT" or "ID OBJECT
// <- CAUSES", and "unknown ID OBJECT".
func operatorTold(t *testing.T, s snapshot.Snapshot) ([]string, []finding.Finding) {
	t.Helper()
	s.Meta.Created = operandNow()
	f := facts.New(&s)
	checks := slices.Concat(operator.Checks(), deviceplugin.Checks(), dra.Checks(), observability.Checks())
	var results []*engine.Result
	var lines []string
	for _, c := range checks {
		r := &engine.Result{Check: c}
		c.Run(f, r)
		r.Name(f)
		results = append(results, r)
		for _, u := range r.Unknowns {
			lines = append(lines, fmt.Sprintf("unknown %s %s", u.Check, u.Object))
		}
	}
	found, _ := engine.Gather(results, nil, checks)
	items, _ := engine.Fold(found)
	for _, f := range items {
		if f.Root {
			lines = append(lines, fmt.Sprintf("root %s %s %s", f.ID, f.Severity, f.Object))
		} else {
			lines = append(lines, fmt.Sprintf("%s %s", f.ID, f.Object))
		}
		if len(f.Evidence) == 0 || f.Fix.Text == "" || f.Title == "" {
			t.Errorf("%s about %s has no evidence, no fix or no title: %+v", f.ID, f.Object, f)
		}
		if !strings.HasSuffix(f.Fix.Text, ".") || strings.ToLower(f.Fix.Text[:1]) == f.Fix.Text[:1] {
			t.Errorf("%s about %s: the fix is no sentence: %q", f.ID, f.Object, f.Fix.Text)
		}
		for _, e := range f.Evidence {
			if e.Text == "" || e.Source == "" {
				t.Errorf("%s about %s has empty evidence: %+v", f.ID, f.Object, f.Evidence)
			}
		}
	}
	slices.Sort(lines)
	return lines, items
}

// operandCase is a cluster and its expected findings.
type operandCase struct {
	s    snapshot.Snapshot
	want []string
	// fix and evidence are texts that must be in the fixes and quotations of the findings.
	fix, evidence []string
}

func runOperandCases(t *testing.T, cases map[string]operandCase) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, items := operatorTold(t, test.s)
			slices.Sort(test.want)
			if !slices.Equal(got, test.want) {
				t.Errorf("found\n  %s\nand it should be\n  %s", strings.Join(got, "\n  "),
					strings.Join(test.want, "\n  "))
			}
			var fixes, evidence strings.Builder
			for _, f := range items {
				fmt.Fprintln(&fixes, f.Fix.Text, f.Fix.Commands, f.Fix.Values)
				for _, e := range f.Evidence {
					fmt.Fprintln(&evidence, e.Source, e.Text)
				}
			}
			for _, text := range test.fix {
				if !strings.Contains(fixes.String(), text) {
					t.Errorf("no fix says %q; they say\n%s", text, fixes.String())
				}
			}
			for _, text := range test.evidence {
				if !strings.Contains(evidence.String(), text) {
					t.Errorf("nothing quotes %q; quoted is\n%s", text, evidence.String())
				}
			}
		})
	}
}

// TestOperatorDamaged verifies that no check panics on a pod or custom resource from a damaged or hostile bundle.
func TestOperatorDamaged(t *testing.T) {
	t.Parallel()
	var pods []corev1.Pod
	for _, pod := range []corev1.Pod{
		driverPod(unready), toolkitPod(crashes("x")), pluginPod(unready), validatorPod(unready), discoveryPod(),
		exporterPod(crashes("x")),
	} {
		pod.Spec.Containers, pod.Status.InitContainerStatuses = nil, nil
		pods = append(pods, pod)
	}
	odd := custom("ClusterPolicy", "", "odd", nil, nil)
	odd.Object["spec"], odd.Object["status"] = "text", []any{"text"}
	long := pluginPod(crashes(strings.Repeat("x", 1<<20)))
	s := snapshot.Snapshot{
		Nodes: []corev1.Node{
			gpuNode(withoutGPUs, nodeLabel("nvidia.com/gpu.product", "nvidia.com/mig.config.state=failed")), {},
		}, Pods: append(pods, long, corev1.Pod{}),
		Logs: []snapshot.Log{logOf(long, strings.Repeat("\xff", 1<<20)+"\n")},
	}
	s.ClusterPolicies = append(s.ClusterPolicies, odd)
	s.ServiceMonitors, s.Prometheuses, s.ComputeDomains, s.NVIDIADrivers = s.ClusterPolicies, s.ClusterPolicies,
		s.ClusterPolicies, s.ClusterPolicies
	_, items := operatorTold(t, s)
	for _, f := range items {
		for _, e := range f.Evidence {
			if len(e.Text) > 3<<10 {
				t.Errorf("%s quotes %d bytes", f.ID, len(e.Text))
			}
		}
	}
}
