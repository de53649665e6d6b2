package facts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// OnNode returns the pod's node, if it has one.
func OnNode(pod *corev1.Pod) []string {
	if pod.Spec.NodeName == "" {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

// This file computes as the scheduler's filters do: NodeUnschedulable, TaintToleration, NodeAffinity and
// NodeResourcesFit.

// Demand returns what a pod asks the scheduler for, of every resource: containers, init containers, sidecars and
// overhead.
func Demand(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	all := requests(pod, func(corev1.ResourceName) bool { return true })
	if r := pod.Spec.Resources; r != nil { // of the pod as a whole: they count instead of the containers'
		for name, n := range asked(*r) {
			all[name] = n
		}
	}
	for name, q := range pod.Spec.Overhead {
		all[name] += amount(name, q)
	}
	return all
}

// Allocatable returns how much of a resource a node gives to pods.
func (n *Node) Allocatable(name corev1.ResourceName) int64 {
	q := n.Status.Allocatable[name]
	return amount(name, q)
}

// Capacity returns how much of a resource the node has.
func (n *Node) Capacity(name corev1.ResourceName) int64 {
	q := n.Status.Capacity[name]
	return amount(name, q)
}

// TaintText prints a taint as kubectl taint takes it.
func TaintText(t *corev1.Taint) string {
	if t.Value == "" {
		return fmt.Sprintf("%s:%s", t.Key, t.Effect)
	}
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

const (
	skew = 10 * time.Second // between the clocks of the client and of the API server
)

// Age returns how old a pod was when the snapshot was made. One without a time counts as old, and so does one from the
// future: then the clock of the client is wrong, and its word must not excuse the pod.
func (f *Facts) Age(pod *corev1.Pod) time.Duration {
	age := f.Now.Sub(pod.CreationTimestamp.Time)
	if pod.CreationTimestamp.IsZero() || age < -skew {
		return 24 * time.Hour
	}
	return age
}

// GPUDemand returns what a pod asks for that is a GPU, or that its author took for one: amd.com/gpu, nvidia.com/gpus.
func GPUDemand(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	all := Demand(pod)
	maps.DeleteFunc(all, func(name corev1.ResourceName, n int64) bool { return n == 0 || !LooksLikeGPU(name) })
	return all
}

// LooksLikeGPU reports whether a resource is, by its name, one of GPUs, whoever made them.
func LooksLikeGPU(name corev1.ResourceName) bool {
	lower := strings.ToLower(string(name))
	domain, rest, qualified := strings.Cut(lower, "/")
	switch rest {
	case "gpumem", "gpucores", "gpumem-percentage", "priority", "gpu-mem", "gpu-core":
		// Of schedulers that share GPUs: they count these themselves
		return false
	}
	return IsGPUResource(name) ||
		qualified && (strings.Contains(rest, "gpu") || domain == "nvidia.com" && strings.HasPrefix(rest, "mig"))
}

// Available reports whether the kubelet of a node says that it is well; a node without the condition is taken for well.
func Available(n *Node) bool {
	status := n.Ready().Status
	return (status == corev1.ConditionTrue || status == "") && !n.Spec.Unschedulable
}

func demandText(want map[corev1.ResourceName]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, want[name]))
	}
	return strings.Join(parts, ", ")
}

// QuoteDemand makes evidence of what a pod asks for.
func QuoteDemand(pod *corev1.Pod, want map[corev1.ResourceName]int64) finding.Evidence {
	return finding.Evidence{Source: PodObject(pod).String() + " .spec.containers[].resources", Text: demandText(want)}
}

// EditCommands change a pod where that is done: in its owner's template. A pod without one, or of a Job, is made anew.
func EditCommands(pod *corev1.Pod) []string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return []string{shell.Command(
			"kubectl -n %s edit pod %s # what a pod does not allow is kept in a file, which is named: kubectl replace --force -f FILE makes the pod anew",
			pod.Namespace, pod.Name,
		)}
	}
	kind, name := strings.ToLower(owner.Kind), owner.Name
	switch kind {
	case "node":
		return []string{shell.OnHost(pod.Spec.NodeName,
			"ls /etc/kubernetes/manifests # change the manifest of the static pod, which is usually there")}
	case "replicaset":
		return []string{shell.Command("kubectl -n %s edit deployment %s", pod.Namespace, DeploymentName(pod, name))}
	case "job":
		return []string{shell.Command(
			"# the template of a Job cannot be changed: correct its manifest, delete Job %s in namespace %s and create it again",
			name, pod.Namespace,
		)}
	}
	return []string{shell.Command("kubectl -n %s edit %s %s", pod.Namespace, kind, name)}
}

// DeploymentName takes the hash off a ReplicaSet's name.
func DeploymentName(pod *corev1.Pod, replicaSet string) string {
	return strings.TrimSuffix(replicaSet, "-"+pod.Labels["pod-template-hash"])
}
