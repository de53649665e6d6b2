package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// pulledBefore is the maximum time between an image pull and disk pressure that the pull may have caused.
const pulledBefore = 15 * time.Minute

// describeDisk adds details about a full disk: its size, the total size of the container images, the last image pull,
// and whether the kubelet finds unused images to remove.
func describeDisk(f *facts.Facts, n *facts.Node, since time.Time, issue *finding.Finding) {
	if slices.ContainsFunc(n.Pods, f.FillsDisk) {
		issue.As = finding.FillsDisk // the pod's eviction explains the disk pressure
	}
	disk := n.Capacity(corev1.ResourceEphemeralStorage)
	var images int64
	for _, image := range n.Status.Images {
		images += image.SizeBytes
	}
	if disk > 0 && images > 0 {
		issue.Evidence = append(issue.Evidence, finding.FieldEvidence(n.Object(), ".status",
			"ephemeral-storage: %d GiB; images, according to the runtime: %.1f GiB", disk>>30, float64(images)/(1<<30)))
	}
	for _, e := range f.Events {
		if at := facts.EventTime(e); strings.HasPrefix(e.Message, "Successfully pulled image") &&
			e.Source.Host == n.Name && at.Before(since) && since.Sub(at) < pulledBefore {
			issue.Evidence = append(issue.Evidence, finding.Clipped(facts.Quote(e)))
			break
		}
	}
	for _, e := range f.EventsOf("Node", "", n.Name) {
		if !strings.Contains(e.Reason, "FreeDiskSpaceFailed") || facts.EventTime(e).Before(since) ||
			!words.ContainsAny(e.Message, []string{"freed 0 bytes", "only found 0 bytes"}) {
			continue
		}
		issue.Evidence = append(issue.Evidence, finding.Clipped(facts.Quote(e)))
		issue.Title = "the node's disk is full, and the kubelet finds no unused image to remove"
		if disk > 0 {
			issue.Title = fmt.Sprintf("the node's %d GiB disk is full, and the kubelet finds no unused image to remove",
				disk>>30)
		}
		issue.Fix.Text = "Find out what is filling the disk (df, then du). If it is images that pods use, the disk " +
			"is too small, and pruning does not help: GPU images take 10 to 20 GB each. Give the node group or pool " +
			"a larger disk and replace its nodes, because existing nodes keep their disks. If logs or files from " +
			"pods fill it, remove them."
		return
	}
}
