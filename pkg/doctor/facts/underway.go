package facts

import (
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// This file determines, for all checks, which changes are in progress. Such changes are not failures: for example, a
// node's driver is being upgraded, or a pod is waiting for the rest of its gang.

// upgradeDone contains the values of the GPU operator's driver upgrade label that mean that no upgrade is in progress.
// The value upgrade-failed requires manual action.
//
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-driver-upgrades.html
var upgradeDone = []string{"", "upgrade-done", "upgrade-required", "upgrade-failed"}

// Underway describes the change that is in progress on a node, or returns "". Such a change completes without
// intervention.
func Underway(n *Node) string {
	if state := n.Labels["nvidia.com/gpu-driver-upgrade-state"]; !slices.Contains(upgradeDone, state) {
		return "the GPU operator is upgrading the node's driver (" + state + ")"
	}
	for label, value := range n.Labels {
		switch {
		case !strings.HasPrefix(label, "nvidia.com/gpu.deploy."):
		case strings.Contains(value, "paused-for-driver-upgrade"):
			return "the GPU operator is upgrading the node's driver"
		case strings.Contains(value, "paused-for-mig-change"):
			if _, pod := LeftPaused(n); pod != nil {
				continue
			}
			return "the MIG manager is changing the node's MIG devices"
		}
	}
	if n.Labels["nvidia.com/mig.config.state"] == "rebooting" {
		return "the MIG manager is rebooting the node"
	}
	// https://github.com/openshift/machine-config-operator/blob/main/docs/MachineConfigDaemon.md
	if state := n.Annotations["machineconfiguration.openshift.io/state"]; state == "Working" {
		return "OpenShift is updating the node"
	}
	for _, t := range n.Spec.Taints {
		switch t.Key {
		case "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption",
			"node.cloudprovider.kubernetes.io/shutdown", "aws-node-termination-handler/spot-itn",
			"aws-node-termination-handler/scheduled-maintenance", "cloud.google.com/impending-node-termination":
			return "the node is about to be removed (taint " + t.Key + ")"
		}
	}
	return ""
}

// IsTemporary reports whether a taint keeps pods off a node only while the node is starting, or until the node is
// removed. The controller that set such a taint also removes it, and a toleration does not help.
func IsTemporary(t *corev1.Taint) bool {
	return words.ContainsAny(t.Key,
		[]string{"not-ready", "cloudprovider", "utoscaler", "karpenter.sh/dis", "karpenter.sh/unreg", "termination"})
}

// pausers contains the GPU operator's components that pause others on a node while they change its GPUs. The key is the
// label value that they set, and the value is part of the names of their pods.
var pausers = map[string]string{
	"paused-for-vgpu-change": "vgpu-device-manager",
	"paused-for-mig-change":  "mig-manager",
}

// LeftPaused returns the labels that pause operands of the GPU operator on a node, and the pod that should reset these
// labels but is waiting in an init container. All other operator pods on the node are ready, so the pod is waiting for
// the paused operands: a deadlock.
func LeftPaused(n *Node) (labels []string, waits *corev1.Pod) {
	for _, label := range words.SortedKeys(n.Labels) {
		name := pausers[n.Labels[label]]
		if name == "" || !strings.HasPrefix(label, "nvidia.com/gpu.deploy.") {
			continue
		}
		for _, pod := range n.Pods {
			if strings.Contains(pod.Name, name) && !Ended(pod) && pod.DeletionTimestamp == nil && inInit(pod) {
				labels, waits = append(labels, label), pod
			}
		}
	}
	if waits != nil && slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return pod != waits && pod.Namespace == waits.Namespace && !Ended(pod) && !podutils.IsPodReady(pod)
	}) {
		return nil, nil
	}
	return labels, waits
}

// inInit reports whether one of the pod's init containers is running and the pod's other containers have not started.
func inInit(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil && !s.Ready
	}) && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil
	})
}

// UnderwayEffects returns the IDs of findings about a node that follow from a change in progress.
func UnderwayEffects() []string {
	return []string{
		"dp.none", "dp.capacity-zero", "dp.not-running", "dp.unhealthy", "op.*", "gfd.*", "obs.*", "drv.not-loaded",
		"drv.devnodes", "drv.uvm-missing", "share.*", "rt.handler-missing", "node.not-ready", "node.condition",
	}
}

// gangs matches scheduler messages about a pod whose gang is not complete yet.
var gangs = regexp.MustCompile(
	`(?i)sibling pods|minCount pods from a gang|waiting for (?:the )?(?:pod ?group|gang)|` +
		`pod ?group is not ready|minMember|placeholder|waiting for .* pods? of the (?:group|gang)`,
)

// queues matches scheduler messages about a pod that is waiting for queue quota.
var queues = regexp.MustCompile(
	`(?i)\bover (?:its )?(?:queue )?quota\b|queue .*(?:quota|limit)|waiting for quota|exceeds? (?:the )?(?:queue|deserved)`,
)

// gangForms is the maximum time until all pods in a gang exist.
const gangForms = 15 * time.Minute

// Waits describes what a pending pod is waiting for by design: the rest of its gang, or its turn in a queue. It returns
// "" if the pod is not waiting by design. all is true if all GPUs that the pod could use are in use.
func (f *Facts) Waits(pod *corev1.Pod, all bool) string {
	if pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName != "" {
		return ""
	}
	message := ""
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			message = c.Message
		}
	}
	own := pod.Spec.SchedulerName != "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName
	switch {
	case gangs.MatchString(message) && (all || f.Age(pod) < gangForms):
		return "the rest of its gang"
	case own && queues.MatchString(message):
		return "its queue's quota"
	case own && all:
		return "its turn in the queue of " + pod.Spec.SchedulerName
	}
	return ""
}
