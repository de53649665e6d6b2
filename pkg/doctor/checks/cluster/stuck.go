package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// manyStuck is the number of ignored pods from which the kubelet counts as stuck.
const manyStuck = 2

// stuck returns a finding about a Ready node whose kubelet starts no pods: the scheduler assigned pods to the node long
// ago, but the kubelet has not set their startTime, and it has started no later pod.
func stuck(f *facts.Facts, n *facts.Node) (issue finding.Finding, found bool) {
	var pods []*corev1.Pod
	var since time.Time
	for _, pod := range n.Pods {
		s := pod.Status
		at := pod.CreationTimestamp.Time
		for _, c := range s.Conditions {
			if c.Type == corev1.PodScheduled {
				at = c.LastTransitionTime.Time
			}
		}
		if s.Phase != corev1.PodPending || s.StartTime != nil || len(s.ContainerStatuses) > 0 ||
			len(s.InitContainerStatuses) > 0 || pod.DeletionTimestamp != nil || f.Now.Sub(at) < slowJoinTime ||
			slices.ContainsFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
				return e.Source.Component == "kubelet" || e.ReportingController == "kubelet"
			}) {
			continue
		}
		if pods = append(pods, pod); since.IsZero() || at.Before(since) {
			since = at
		}
	}
	starts := slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return pod.Status.StartTime != nil && pod.Status.StartTime.After(since)
	})
	if len(pods) < manyStuck || starts || f.Missing("api/events") != "" {
		return issue, false
	}
	text := fmt.Sprintf("%s without startTime and container statuses, no later pod started",
		count.Of(len(pods), "assigned pod"))
	if driver := n.Driver(); driver != "" {
		text += ", driver " + driver
	}
	for name := range n.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/mig-") && n.Capacity(name) > 0 &&
			n.Capacity("nvidia.com/gpu") > 0 {
			text += ", MIG and full GPUs"
			break
		}
	}
	issue = finding.Finding{
		Object: n.Object(), Nodes: []string{n.Name}, Confidence: finding.Likely, Began: since,
		Title: "the node is Ready, but its kubelet has started no pods since " + facts.UntilClock(since),
		Evidence: []finding.Evidence{
			{Source: "status of the pods on " + n.Object().String(), Time: since, Text: text},
			finding.FieldEvidence(facts.PodObject(pods[0]), ".status", "phase Pending, node %s, no startTime", n.Name),
		},
		Fix: finding.Fix{
			Text: "Restart the kubelet, or reboot the node. The kubelet probably waits for a response without a timeout, " +
				"such as that of a device plugin whose driver hangs: if it stops starting pods again, see its journal " +
				"and the logs of the device plugins on the node. Deleting the pods does not help.",
			Commands: []string{
				shell.OnHost(n.Name, "sudo journalctl -u %s -n 100 --no-pager", kubeletUnit(n)),
				shell.OnHost(n.Name, "sudo systemctl restart %s", kubeletUnit(n)),
			},
		},
	}
	return issue, true
}
