package facts

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// This file compares a pod with the objects that keep it waiting or prevent it from using a resource.

// heldVolume reports a pod on another node that uses the same claim, if the claim's volume cannot be attached for this
// pod.
func (f *Facts) heldVolume(pod *corev1.Pod, n *Node) (source, text string) {
	if pod.Status.Phase != corev1.PodPending {
		return "", ""
	}
	refused := slices.DeleteFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
		return e.Reason != "FailedAttachVolume"
	})
	if len(refused) == 0 {
		return "", "" // do not search all pods in a large cluster for each pending pod
	}
	named := func(other *corev1.Pod) bool {
		return slices.ContainsFunc(refused, func(e *corev1.Event) bool {
			return strings.Contains(e.Message, other.Name)
		})
	}
	for i := range f.Snapshot.Pods {
		other := &f.Snapshot.Pods[i]
		if other.Namespace != pod.Namespace || other.Spec.NodeName == "" || other.Spec.NodeName == n.Name ||
			Ended(other) || other.DeletionTimestamp != nil || !named(other) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil || !mounts(other, v.PersistentVolumeClaim.ClaimName) {
				continue
			}
			claim := v.PersistentVolumeClaim.ClaimName
			source = PodObject(other).String() + " .spec.volumes and .metadata.ownerReferences"
			text = "volume held: claim " + claim + " by Pod " + other.Name + " on " + other.Spec.NodeName
			deployment, set := DeploymentOf(pod)
			if by, its := DeploymentOf(other); by != "" && by == deployment && its != set &&
				other.CreationTimestamp.Before(&pod.CreationTimestamp) {
				return source, text + ", an old pod of Deployment " + by
			}
			if metav1.GetControllerOfNoCopy(other) == nil && !f.AsksForGPU(other) {
				return source, text + ", no controller and no GPU"
			}
		}
	}
	return "", ""
}

// mounts reports whether one of the pod's volumes refers to the claim.
func mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// DeploymentOf returns the names of a pod's Deployment and ReplicaSet.
func DeploymentOf(pod *corev1.Pod) (deployment, set string) {
	c := metav1.GetControllerOfNoCopy(pod)
	if c == nil || c.Kind != "ReplicaSet" {
		return "", ""
	}
	return DeploymentName(pod, c.Name), c.Name
}

// variable matches a reference to an environment variable in a command.
var variable = regexp.MustCompile(`\$\((\w+)\)`)

// unexpanded reports a reference in a container's command to an environment variable that is not set in the container,
// if the shell interpreted the reference as a command.
func (f *Facts) unexpanded(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		c := containerNamed(pod, l.Container)
		if c == nil {
			continue
		}
		for _, m := range variable.FindAllStringSubmatch(strings.Join(wordsOf(c), " "), -1) {
			if m[1] == strings.ToLower(m[1]) { // lowercase names are usually commands
				continue
			}
			if strings.Contains(l.Text, m[1]+": not found") || strings.Contains(l.Text, m[1]+": command not found") {
				return PodObject(pod).String() + ", container " + c.Name + " .command, .args and .env",
					"unexpanded: " + m[0] + " in container " + c.Name
			}
		}
	}
	return "", ""
}

// aboveLimit matches the API server's rejection of a pod whose request exceeds its limit.
var aboveLimit = regexp.MustCompile(`must be less than or equal to (\w[\w-]*) limit of (\w+)`)

// defaultLimit reports a LimitRange whose default limit made the API server reject pods, according to this pod's log.
func (f *Facts) defaultLimit(pod *corev1.Pod, _ *Node) (source, text string) {
	if len(f.Snapshot.LimitRanges) == 0 {
		return "", ""
	}
	for _, l := range f.LogsOf(pod) {
		for line := range strings.Lines(l.Text) {
			m := aboveLimit.FindStringSubmatch(line)
			for i := range f.Snapshot.LimitRanges {
				r := &f.Snapshot.LimitRanges[i]
				for _, item := range r.Spec.Limits {
					if m == nil || item.Type != corev1.LimitTypeContainer || !strings.Contains(line, r.Namespace) {
						continue
					}
					if q, ok := item.Default[corev1.ResourceName(m[1])]; ok && q.String() == m[2] {
						return "LimitRange " + r.Namespace + "/" + r.Name + " .spec.limits[].default",
							"default limit: " + m[1] + " " + m[2] + ", of LimitRange " + r.Namespace + "/" + r.Name
					}
				}
			}
		}
	}
	return "", ""
}

// waitsForBinding reports a claim that is bound only when a pod uses it, if no pod does and the end of this pod's log
// states that the pod is waiting for the claim.
func (f *Facts) waitsForBinding(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		last := words.LastLine(l.Text)
		if !awaitsBinding.MatchString(last) {
			continue
		}
		for _, e := range f.Events {
			of := e.InvolvedObject
			if e.Reason == "WaitForFirstConsumer" && strings.Contains(last, of.Name) &&
				EventTime(e).Sub(e.FirstTimestamp.Time) > processed && f.Now.Sub(EventTime(e)) < processed &&
				!slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
					return pod.Namespace == of.Namespace && mounts(&pod, of.Name)
				}) {
				return LogSource(l), "claim " + of.Name + " in " + of.Namespace +
					" waits for its first consumer, and no pod mounts it: " + words.Clip(last)
			}
		}
	}
	return "", ""
}

// awaitsBinding matches log lines about a claim that is not bound yet.
var awaitsBinding = regexp.MustCompile(`(?i)\b(?:not|yet|until|want)\W.{0,20}\bbound\b`)

var (
	// selectorsOf and nicFound match lines in the log of the RDMA shared device plugin.
	selectorsOf = regexp.MustCompile(`\{ResourceName:(\S+) [^{}]*Selectors:\{([^}]*)\}`)
	nicFound    = regexp.MustCompile(`device found: (\S+)\s+\S+\s+(?:Mellanox|NVIDIA).*\t(\S.*\S)`)
)

// unselected reports an RDMA NIC that the selectors of the RDMA shared device plugin leave out, if no node offers the
// resource. The plugin checks all NICs, including Ethernet NICs, before it applies the selectors.
func (f *Facts) unselected(pod *corev1.Pod, _ *Node) (source, text string) {
	if !Serves(pod) {
		return "", ""
	}
	log := ""
	for _, l := range slices.Concat(f.HeadsOf(pod), f.LogsOf(pod)) {
		log += l.Text
	}
	for _, m := range selectorsOf.FindAllStringSubmatch(log, -1) {
		if !strings.Contains(log, "creating empty resource server for "+m[1]+"\n") {
			continue
		}
		for _, nic := range nicFound.FindAllStringSubmatch(log, -1) {
			// Otherwise, the plugin did not find the RDMA devices of the NIC, or another node has the resource.
			if !strings.Contains(log, "for device "+nic[1]) && !slices.ContainsFunc(f.Nodes, func(n *Node) bool {
				return n.Allocatable(corev1.ResourceName("rdma/"+m[1])) > 0
			}) {
				return "log of " + PodObject(pod).String() + ", compared", "selectors of " + m[1] + ": " + m[2] +
					"; not selected: NIC " + nic[1] + ", " + nic[2] + "; needed by " +
					strings.Join(f.PodsWaitingFor([]string{"/" + m[1]}), ", ")
			}
		}
	}
	return "", ""
}
