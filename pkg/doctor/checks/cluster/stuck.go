package cluster

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// manyStuck is the number of ignored pods at which the kubelet counts as stuck.
const manyStuck = 2

// stuck describes a node whose kubelet starts no pods: pods were assigned to the node long ago, but the kubelet has not
// set their startTime, and it has started no later pod. It returns "" if the kubelet starts pods.
func stuck(f *facts.Facts, n *facts.Node) (text string, since time.Time) {
	pods := 0
	var last time.Time // when the kubelet last started a pod
	for _, pod := range n.Pods {
		s := &pod.Status
		created := pod.CreationTimestamp.Time
		if s.StartTime != nil {
			if s.StartTime.After(last) {
				last = s.StartTime.Time
			}
		} else if s.Phase == corev1.PodPending && len(s.ContainerStatuses) == 0 && f.Now.Sub(created) > slowJoinTime {
			if pods++; since.IsZero() || created.Before(since) {
				since = created
			}
		}
	}
	if pods < manyStuck || last.After(since) {
		return "", since
	}
	text = count.Of(pods, "assigned pod") + " without startTime, no later pod started, driver " + n.Driver()
	for name := range n.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/mig-") && n.Capacity("nvidia.com/gpu") > 0 {
			return text + ", MIG and full GPUs", since
		}
	}
	return text, since
}
