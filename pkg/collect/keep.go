package collect

import (
	"crypto/sha256"
	"encoding/binary"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// keeper determines which objects to keep, and which of their fields. Most of the 50,000 pods in a large cluster are
// copies of each other, so data from the same template is stored only once.
type keeper struct {
	now  time.Time
	also func(*corev1.Pod) bool

	gpuNodes map[string]bool
	// operands contains the namespaces of GPU software. All objects in them are relevant.
	operands map[string]bool
	// left contains pods that are not kept, and unwell contains kept pods that are unhealthy. Few events about the
	// remaining pods are kept.
	left, unwell map[types.NamespacedName]bool
	// programs maps images to whether doctor knows a defect in some of their releases.
	programs map[string]bool

	texts       map[string]string
	labels      map[string]map[string]string
	containers  pool[corev1.Container]
	volumes     pool[corev1.Volume]
	tolerations pool[corev1.Toleration]
	owners      pool[metav1.OwnerReference]
	buffer      []byte // for share
}

func newKeeper(now time.Time, also func(*corev1.Pod) bool) *keeper {
	return &keeper{
		now: now, also: also, gpuNodes: map[string]bool{}, operands: map[string]bool{},
		left: map[types.NamespacedName]bool{}, unwell: map[types.NamespacedName]bool{},
		programs: map[string]bool{}, texts: map[string]string{}, labels: map[string]map[string]string{},
		containers: pool[corev1.Container]{}, volumes: pool[corev1.Volume]{}, tolerations: pool[corev1.Toleration]{},
		owners: pool[metav1.OwnerReference]{},
	}
}

// node keeps all nodes, without their lists of images.
func (k *keeper) node(n *corev1.Node) bool {
	n.ManagedFields = nil
	n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	shortAnnotations(&n.ObjectMeta, longAnnotation)
	labels := make(map[string]string, len(n.Labels)) // nodes have about a hundred labels, most of them identical
	for name, value := range n.Labels {
		labels[k.text(name)] = k.text(value)
	}
	n.Labels = labels
	return true
}

func (k *keeper) daemonSet(ds *appsv1.DaemonSet) bool {
	ds.ManagedFields = nil
	shortAnnotations(&ds.ObjectMeta, longAnnotation)
	return true
}

// ready determines from nodes and DaemonSets which pods are relevant.
func (k *keeper) ready(nodes []corev1.Node, daemonSets []appsv1.DaemonSet) {
	for _, n := range facts.New(&snapshot.Snapshot{Nodes: nodes}).GPUNodes {
		k.gpuNodes[n.Name] = true
	}
	for i := range daemonSets {
		ds := &daemonSets[i]
		if facts.ComponentOf(ds.Spec.Template.Labels, &ds.Spec.Template.Spec) != "" && !isShared(ds.Namespace) {
			k.operands[ds.Namespace] = true
		}
	}
}

// isShared reports whether a namespace contains several unrelated applications.
func isShared(namespace string) bool { return namespace == "default" || namespace == "kube-system" }

// recently is the time for which failed pods are relevant.
const recently = 24 * time.Hour

// pod reports whether to keep a pod, and reduces it to the relevant fields.
func (k *keeper) pod(pod *corev1.Pod) bool {
	well := isWell(pod)
	matters := k.matters(pod, well)
	onGPU := k.gpuNodes[pod.Spec.NodeName] && !facts.Ended(pod) // the pod uses CPU and memory on a GPU node
	if !matters && !onGPU {
		k.left[types.NamespacedName{Namespace: k.text(pod.Namespace), Name: pod.Name}] = true
		return false
	}
	if matters {
		k.slim(pod, well)
	} else {
		skeleton(pod)
	}
	k.share(pod)
	return true
}

func (k *keeper) matters(pod *corev1.Pod, well bool) bool {
	if k.also != nil && k.also(pod) {
		return true
	}
	if pod.Status.Phase == corev1.PodSucceeded && !k.operands[pod.Namespace] {
		return false
	}
	if pod.Status.Phase == corev1.PodFailed && k.now.Sub(lastChange(pod)) > recently {
		return false
	}
	switch {
	case k.operands[pod.Namespace], pod.Spec.RuntimeClassName != nil, wantsSome(pod), touchesCUDA(pod):
		return true
	case facts.ComponentOf(pod.Labels, &pod.Spec) != "", facts.Serves(pod), k.hasProgram(pod):
		return true
	case well:
		return false
	case facts.LooksForGPU(pod), facts.OtherAccelerator(pod) != "":
		return true
	}
	return k.gpuNodes[pod.Spec.NodeName] || isSystem(pod.Namespace)
}

// hasProgram reports whether doctor needs the release of a program in the pod, such as a scheduler or a webhook.
func (k *keeper) hasProgram(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		image := pod.Spec.Containers[i].Image
		known, ok := k.programs[image]
		if !ok {
			known = facts.IsProgram(image)
			k.programs[strings.Clone(image)] = known
		}
		if known {
			return true
		}
	}
	return false
}

// wantsSome reports whether a pod requests GPUs, even under a wrong name or from another vendor.
func wantsSome(pod *corev1.Pod) bool {
	if facts.WantsGPU(pod) {
		return true
	}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range all {
			for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				for name := range list {
					if strings.HasPrefix(string(name), "nvidia.com/") || strings.Contains(string(name), "gpu") {
						return true
					}
				}
			}
		}
	}
	return false
}

// touchesCUDA reports whether a pod that requests no GPU can still affect CUDA: it preloads a library, selects GPUs
// with an environment variable, or contains this tool's shim.
func touchesCUDA(pod *corev1.Pod) bool {
	for name := range pod.Labels {
		if strings.HasPrefix(name, "gpufault.dev/") {
			return true
		}
	}
	if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return strings.HasPrefix(v.Name, "gpu-fault-") || strings.HasPrefix(v.Name, "cuda-fault-")
	}) {
		return true
	}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range all {
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
				return e.Name == "LD_PRELOAD" || slices.ContainsFunc([]string{"NVIDIA_", "CUDA_", "GPUFAULT_"},
					func(prefix string) bool { return strings.HasPrefix(e.Name, prefix) })
			}) {
				return true
			}
		}
	}
	return false
}

// isSystem reports whether a namespace may contain the cluster's networking, DNS or proxies.
func isSystem(namespace string) bool {
	return slices.ContainsFunc([]string{"kube-", "calico", "tigera", "cilium", "openshift-", "metallb", "istio-system"},
		func(prefix string) bool { return strings.HasPrefix(namespace, prefix) })
}

// isWell reports whether a pod is healthy: it is running, ready, and has not restarted; or it has completed.
func isWell(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
		return false
	}
	for _, all := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range all {
			if c.RestartCount > 0 {
				return false
			}
		}
	}
	return facts.RunsReady(pod)
}

func lastChange(pod *corev1.Pod) time.Time {
	last := pod.CreationTimestamp.Time
	for _, condition := range pod.Status.Conditions {
		if t := condition.LastTransitionTime.Time; t.After(last) {
			last = t
		}
	}
	return last
}

// longAnnotation is the maximum length of an annotation, in bytes.
const longAnnotation = 4 << 10

func shortAnnotations(meta *metav1.ObjectMeta, longest int) {
	for name, value := range meta.Annotations {
		if len(value) > longest || name == corev1.LastAppliedConfigAnnotation {
			delete(meta.Annotations, name)
		}
	}
}

// serviceAccountVolume is the prefix of the name of a volume that every pod has. The rest of the name is random.
const serviceAccountVolume = "kube-api-access-"

// slim removes fields that no check reads. It keeps more fields of unhealthy pods.
func (k *keeper) slim(pod *corev1.Pod, well bool) {
	pod.ManagedFields = nil
	shortAnnotations(&pod.ObjectMeta, longAnnotation)
	spec := &pod.Spec
	spec.Volumes = slices.DeleteFunc(spec.Volumes,
		func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, serviceAccountVolume) })
	for _, all := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range all {
			all[i].VolumeMounts = slices.DeleteFunc(all[i].VolumeMounts,
				func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, serviceAccountVolume) })
		}
	}
	if !k.operands[pod.Namespace] && facts.ComponentOf(pod.Labels, &pod.Spec) == "" {
		hideEnv(spec)
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" && spec.NodeName != "" {
		spec.Affinity = nil // use the affinity of the DaemonSet
	}
	for _, all := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range all {
			all[i].AllocatedResources, all[i].Resources, all[i].VolumeMounts, all[i].User = nil, nil, nil, nil
		}
	}
	if !well {
		return
	}
	pod.Annotations = aboutGPUs(pod.Annotations)
	pod.Status.PodIPs, pod.Status.HostIPs, pod.Status.InitContainerStatuses = nil, nil, nil
	pod.Status.Conditions = clip(slices.DeleteFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type != corev1.PodReady && condition.Type != corev1.PodScheduled
	}))
	for _, all := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range all {
			all[i].LivenessProbe, all[i].ReadinessProbe, all[i].StartupProbe, all[i].Lifecycle = nil, nil, nil, nil
		}
	}
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].ContainerID = ""
	}
}

// serviceURL matches the address of a Service in the cluster, without credentials or a path.
var serviceURL = regexp.MustCompile(`^(?:[a-z]+://)?[a-z0-9-]+\.[a-z0-9-]+\.svc(?:\.cluster\.local)?(?::\d+)?/?$`)

// hideEnv removes the values of a workload's environment variables, because they may be secret. It keeps variables that
// are related to GPUs, and addresses of Services.
func hideEnv(spec *corev1.PodSpec) {
	for _, all := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range all {
			for j := range all[i].Env {
				e := &all[i].Env[j]
				if e.Value != "" && !serviceURL.MatchString(e.Value) && !slices.ContainsFunc(
					readVariables(), func(prefix string) bool { return strings.HasPrefix(e.Name, prefix) },
				) {
					e.Value = snapshot.Redacted
				}
			}
		}
	}
	for i := range spec.EphemeralContainers {
		spec.EphemeralContainers[i].Env = nil
	}
}

// hiddenVariables returns the number of values that hideEnv removed.
func hiddenVariables(pods []corev1.Pod) int {
	n := 0
	for i := range pods {
		for c := range facts.Containers(&pods[i]) {
			for _, e := range c.Env {
				if e.Value == snapshot.Redacted {
					n++
				}
			}
		}
	}
	return n
}

// readVariables returns the prefixes of the environment variables that checks read. Programs use these variables to
// find GPUs and their peers.
func readVariables() []string {
	return []string{
		"NVIDIA_", "CUDA_", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "NCCL_", "GPUFAULT_", "PYTORCH_", "TORCH_",
		"DCGM_", "UCX_", "GLOO_",
	}
}

// aboutGPUs returns the annotations that mention GPUs; most others are from the network plugin.
func aboutGPUs(all map[string]string) map[string]string {
	var kept map[string]string
	for name, value := range all {
		if strings.Contains(name+value, "nvidia") || strings.Contains(name, "gpu") {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = value
		}
	}
	return kept
}

// skeleton keeps only the fields that affect scheduling.
func skeleton(pod *corev1.Pod) {
	containers := func(all []corev1.Container) []corev1.Container {
		left := make([]corev1.Container, len(all))
		for i, c := range all {
			left[i] = corev1.Container{
				Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy,
			}
			if c.SecurityContext != nil && c.SecurityContext.Privileged != nil {
				left[i].SecurityContext = &corev1.SecurityContext{Privileged: c.SecurityContext.Privileged}
			}
		}
		return left
	}
	meta := metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: pod.Labels,
		OwnerReferences: pod.OwnerReferences, CreationTimestamp: pod.CreationTimestamp,
	}
	ready := slices.DeleteFunc(pod.Status.Conditions,
		func(condition corev1.PodCondition) bool { return condition.Type != corev1.PodReady })
	*pod = corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Containers: containers(pod.Spec.Containers),
			InitContainers: containers(pod.Spec.InitContainers),
			Overhead:       pod.Spec.Overhead, PriorityClassName: pod.Spec.PriorityClassName,
			Priority: pod.Spec.Priority,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, Conditions: clip(ready)},
	}
}

// clip copies a slice to free unused capacity.
func clip[T any](all []T) []T { return append([]T(nil), all...) }

// share makes pods from the same template share memory.
func (k *keeper) share(pod *corev1.Pod) {
	pod.Spec.Containers = share(k, k.containers, pod.Spec.Containers)
	pod.Spec.InitContainers = share(k, k.containers, pod.Spec.InitContainers)
	pod.Spec.Volumes = share(k, k.volumes, pod.Spec.Volumes)
	pod.Spec.Tolerations = share(k, k.tolerations, pod.Spec.Tolerations)
	pod.Labels = k.sharedLabels(pod.Labels)
	for _, text := range []*string{
		&pod.Namespace, &pod.Spec.NodeName, &pod.Spec.ServiceAccountName, &pod.Spec.DeprecatedServiceAccount,
		&pod.Spec.SchedulerName, &pod.GenerateName,
	} {
		*text = k.text(*text)
	}
	for _, all := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range all {
			all[i].Name, all[i].Image, all[i].ImageID = k.text(all[i].Name), k.text(all[i].Image),
				k.text(all[i].ImageID)
		}
	}
	pod.OwnerReferences = share(k, k.owners, pod.OwnerReferences)
}

func (k *keeper) text(s string) string {
	if shared, known := k.texts[s]; known {
		return shared
	}
	k.texts[s] = s
	return s
}

// pool contains lists by the hash of their contents.
type pool[T any] map[[sha256.Size]byte][]T

// share returns an equal list from the pool, or adds the list to it.
func share[T any, P interface {
	*T
	Size() int
	MarshalTo(data []byte) (int, error)
}](k *keeper, known pool[T], all []T) []T {
	if len(all) == 0 {
		return nil
	}
	data := k.buffer[:0]
	for i := range all {
		size := P(&all[i]).Size()
		data = binary.BigEndian.AppendUint32(data, uint32(size))
		data = slices.Grow(data, size)[:len(data)+size]
		if _, err := P(&all[i]).MarshalTo(data[len(data)-size:]); err != nil {
			return all
		}
	}
	k.buffer = data
	key := sha256.Sum256(data)
	if shared, ok := known[key]; ok {
		return shared
	}
	known[key] = clip(all)
	return known[key]
}

func (k *keeper) sharedLabels(all map[string]string) map[string]string {
	names := make([]string, 0, len(all))
	for name, value := range all {
		names = append(names, name+"="+value)
	}
	slices.Sort(names)
	key := strings.Join(names, ",")
	if shared, known := k.labels[key]; known {
		return shared
	}
	k.labels[key] = all
	return all
}

// pods determines the pods whose events are relevant.
func (k *keeper) pods(all []corev1.Pod) {
	for i := range all {
		if !isWell(&all[i]) {
			k.unwell[types.NamespacedName{Namespace: all[i].Namespace, Name: all[i].Name}] = true
		}
	}
}

// longestMessage is the maximum length of an event's message, in bytes.
const longestMessage = 4 << 10

// event reports whether to keep an event. It keeps warnings, except those about irrelevant pods, and all events about
// kept objects that are unhealthy.
func (k *keeper) event(e *corev1.Event) bool {
	about := e.InvolvedObject
	name := types.NamespacedName{Namespace: about.Namespace, Name: about.Name}
	isPod := about.Kind == "Pod"
	if isPod && k.left[name] {
		return false
	}
	if e.Type != corev1.EventTypeWarning {
		ofNode := about.Kind == "Node" && k.gpuNodes[about.Name]
		ofOperand := !isPod && k.operands[about.Namespace]
		ofQueue := about.Kind == "PodGroup" && e.Reason == "Unschedulable" // Volcano's only event before pods exist
		dies := isPod && e.Reason == "SandboxChanged" && e.Count > 1       // also for a pod that runs in between
		if !ofNode && !ofOperand && !ofQueue && !dies && !(isPod && k.unwell[name]) {
			return false
		}
	}
	e.ManagedFields = nil
	if len(e.Message) > longestMessage {
		e.Message = strings.ToValidUTF8(e.Message[:longestMessage], "") + "…"
	}
	return true
}
