package facts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// OnNode returns the name of the pod's node as a list, or nil if the pod is not scheduled.
func OnNode(pod *corev1.Pod) []string {
	if pod.Spec.NodeName == "" {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

// The functions in this file compute the same results as the scheduler's filters NodeUnschedulable, TaintToleration,
// NodeAffinity and NodeResourcesFit.

// Demand returns a pod's total request for each resource, including the requests of init containers and sidecars, and
// the pod overhead.
func Demand(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	every := func(corev1.ResourceName) bool { return true }
	all := requests(pod, every)
	if r := pod.Spec.Resources; r != nil { // pod-level resources override those of its containers
		for name, n := range asked(r, every) {
			all.set(name, n)
		}
	}
	for name, q := range pod.Spec.Overhead {
		all.set(name, all[name]+amount(name, q))
	}
	return all
}

// Allocatable returns a node's allocatable amount of a resource.
func (n *Node) Allocatable(name corev1.ResourceName) int64 {
	q := n.Status.Allocatable[name]
	return amount(name, q)
}

// Capacity returns a node's capacity of a resource.
func (n *Node) Capacity(name corev1.ResourceName) int64 {
	q := n.Status.Capacity[name]
	return amount(name, q)
}

// TaintText formats a taint in the notation of kubectl taint.
func TaintText(t *corev1.Taint) string {
	if t.Value == "" {
		return fmt.Sprintf("%s:%s", t.Key, t.Effect)
	}
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

// TaintsText formats taints as a list in a sentence.
func TaintsText(taints []corev1.Taint) string {
	var all []string
	for i := range taints {
		all = append(all, TaintText(&taints[i]))
	}
	return strings.Join(all, " and ")
}

const (
	skew = 10 * time.Second // clock skew between the client and the API server
)

// Age returns a pod's age at the time of the snapshot. A pod without a creation time counts as old, as does a pod whose
// creation time is in the future, which means that the client's clock is wrong.
func (f *Facts) Age(pod *corev1.Pod) time.Duration {
	age := f.Now.Sub(pod.CreationTimestamp.Time)
	if pod.CreationTimestamp.IsZero() || age < -skew {
		return 24 * time.Hour
	}
	return age
}

// GPUDemand returns a pod's requests for resources that are GPUs or look like GPUs: amd.com/gpu, nvidia.com/gpus.
func GPUDemand(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	all := Demand(pod)
	maps.DeleteFunc(all, func(name corev1.ResourceName, n int64) bool { return n == 0 || !LooksLikeGPU(name) })
	return all
}

// LooksLikeGPU reports whether a resource's name suggests a GPU from any vendor.
func LooksLikeGPU(name corev1.ResourceName) bool {
	lower := strings.ToLower(string(name))
	domain, rest, qualified := strings.Cut(lower, "/")
	switch rest {
	case "gpumem", "gpucores", "gpumem-percentage", "priority", "gpu-mem", "gpu-core":
		// GPU-sharing schedulers do their own accounting for these resources.
		return false
	}
	return IsGPUResource(name) || qualified && (strings.Contains(rest, "gpu") ||
		domain == "nvidia.com" && (strings.HasPrefix(rest, "mig") || model.MatchString(rest)))
}

// model matches GPU models that some clusters use as resource names, such as nvidia.com/a100, and the names that
// plugins for virtual machines give GPUs and vGPUs: nvidia.com/GA102GL_A10, nvidia.com/GRID_T4-1Q.
var model = regexp.MustCompile(`^(?:(?:[abhltv]|g[abhkmpv]|ad|tu|rtx|gtx)\d|(?:grid|nvidia|tesla|quadro)[_-])`)

// OfMachines reports whether a resource is an NVIDIA GPU that is passed to a virtual machine: nvidia.com/pgpu,
// nvidia.com/GA102GL_A10. Plugins for containers do not use these names.
func OfMachines(name corev1.ResourceName) bool {
	rest, ours := strings.CutPrefix(string(name), "nvidia.com/")
	return ours && LooksLikeGPU(name) && (rest == "pgpu" || strings.Contains(rest, "_"))
}

// Available reports whether a node is ready and schedulable. A node without a Ready condition counts as ready.
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

// QuoteDemand returns a pod's requests as evidence.
func QuoteDemand(pod *corev1.Pod, want map[corev1.ResourceName]int64) finding.Evidence {
	return finding.Evidence{Source: PodObject(pod).String() + " .spec.containers[].resources", Text: demandText(want)}
}

// EditCommands returns the commands that change a pod. If the pod has an owner, they edit the owner's template. A pod
// that is standalone or belongs to a Job must be recreated.
func EditCommands(pod *corev1.Pod) []string {
	if name := pod.Labels["workflows.argoproj.io/workflow"]; name != "" {
		return []string{shell.Command(
			"# correct the template of Argo Workflow %s in namespace %s, and resubmit the "+
				"Workflow", name, pod.Namespace,
		)}
	}
	owner := metav1.GetControllerOf(pod)
	if name := pod.Labels["jobset.sigs.k8s.io/jobset-name"]; name != "" {
		return []string{shell.Command(
			"# the templates of a JobSet are immutable: correct the manifest of JobSet %s in namespace %s, or the TrainJob or "+
				"command (such as xpk) that creates it; then delete and recreate the JobSet",
			name, pod.Namespace,
		)}
	}
	if kind, name := GeneratedBy(pod); kind != "" {
		return []string{shell.Command("kubectl -n %s edit %s %s", pod.Namespace, strings.ToLower(kind), name)}
	}
	if owner == nil {
		return []string{shell.Command(
			"kubectl -n %s edit pod %s # if the change is rejected, kubectl saves it to a file: kubectl replace --force -f FILE recreates the pod",
			pod.Namespace, pod.Name,
		)}
	}
	kind, name := strings.ToLower(owner.Kind), owner.Name
	switch kind {
	case "node":
		return []string{shell.OnHost(pod.Spec.NodeName,
			"ls /etc/kubernetes/manifests # edit the manifest of the static pod, which is usually in this directory")}
	case "replicaset":
		if hash := pod.Labels["rollouts-pod-template-hash"]; hash != "" {
			name, _ = strings.CutSuffix(name, "-"+hash)
			return []string{shell.Command("kubectl -n %s edit rollout %s", pod.Namespace, name)}
		}
		return []string{shell.Command("kubectl -n %s edit deployment %s", pod.Namespace, DeploymentName(pod, name))}
	case "job":
		return []string{shell.Command(
			"# the template of a Job is immutable: correct the manifest, then delete and recreate Job %s in "+
				"namespace %s",
			name, pod.Namespace,
		)}
	}
	return []string{shell.Command("kubectl -n %s edit %s %s", pod.Namespace, kind, name)}
}

// GeneratedBy returns the kind and name of the resource from which an operator generates the pod's Deployment,
// StatefulSet or Job, or "" if there is none. The operator reverts changes to the generated object.
func GeneratedBy(pod *corev1.Pod) (kind, name string) {
	for _, by := range [][2]string{
		{"nvidia.com/dynamo-graph-deployment-name", "DynamoGraphDeployment"},
		{"leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"},
		{"serving.kserve.io/inferenceservice", "InferenceService"}, {"notebook-name", "Notebook"}, // Kubeflow's
	} {
		if name := pod.Labels[by[0]]; name != "" {
			return by[1], name
		}
	}
	owner, name := metav1.GetControllerOf(pod), pod.Labels["app.kubernetes.io/name"]
	switch {
	case owner == nil || name == "":
	case pod.Labels["app.kubernetes.io/part-of"] == "llminferenceservice",
		strings.HasPrefix(pod.Labels["app.kubernetes.io/component"], "llminferenceservice-"):
		return "LLMInferenceService", name
	case pod.Labels["app.kubernetes.io/managed-by"] == "k8s-nim-operator" && owner.Kind == "Job":
		return "NIMCache", name
	case pod.Labels["app.kubernetes.io/managed-by"] == "k8s-nim-operator":
		return "NIMService", name
	}
	return "", ""
}

// DeploymentName returns a ReplicaSet's name without the pod template hash.
func DeploymentName(pod *corev1.Pod, replicaSet string) string {
	if hash := pod.Labels["pod-template-hash"]; hash != "" {
		return strings.TrimSuffix(replicaSet, "-"+hash)
	}
	return templateHash.ReplaceAllString(replicaSet, "")
}

// templateHash matches the hash at the end of a ReplicaSet's name, which uses the characters of rand.SafeEncodeString.
var templateHash = regexp.MustCompile(`-[bcdf-hj-np-tv-xz2456789]{5,10}$`)
