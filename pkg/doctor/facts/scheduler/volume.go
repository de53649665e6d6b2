package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// VolumeElsewhere is the scheduler's message about a volume that the nodes of other zones cannot attach.
const VolumeElsewhere = "volume node affinity conflict"

// volume returns the verdict if a volume excludes the pod from the nodes that have room for it.
func (s *Scheduler) volume(pod *corev1.Pod, message string, roomy []*facts.Node) verdict {
	v := verdict{
		Id: "sched.volume", Severity: finding.Error, Confidence: finding.Certain,
		Title: "a volume of the pod prevents it from being scheduled",
	}
	if message == "" {
		v.Confidence = finding.Possible
	}
	var claims []string
	for _, volume := range pod.Spec.Volumes {
		if claim := volume.PersistentVolumeClaim; claim != nil {
			v.Evidence = append(v.Evidence, finding.FieldEvidence(
				facts.PodObject(pod), ".spec.volumes[].persistentVolumeClaim", "%s", claim.ClaimName,
			))
			v.Fix.Commands = append(v.Fix.Commands,
				shell.Command("kubectl -n %s describe pvc %s", pod.Namespace, claim.ClaimName))
			claims = append(claims, claim.ClaimName)
		}
	}
	v.Fix.Text =
		"Bind the claim: its storage class must exist and have a provisioner, and an existing volume must be " +
			"accessible from a GPU node's zone."
	if strings.Contains(message, VolumeElsewhere) {
		for _, claim := range claims {
			v.Evidence = append(v.Evidence, s.elsewhere(pod.Namespace, claim, roomy)...)
		}
	}
	return v
}

// elsewhere compares the place of the volume of a claim with the zones of the nodes that have room for the pod.
func (s *Scheduler) elsewhere(namespace, claim string, roomy []*facts.Node) []finding.Evidence {
	name, there := facts.PlacesOf(s.F, namespace, claim)
	var here []string
	for _, n := range roomy {
		here = append(here, n.Labels[corev1.LabelTopologyZone])
	}
	slices.Sort(here)
	here = slices.Compact(here)
	both := func(zone string) bool { return slices.Contains(here, zone) }
	if len(there) == 0 || slices.ContainsFunc(there, both) {
		return nil
	}
	return []finding.Evidence{{
		Source: "PersistentVolume " + name + " .spec.nodeAffinity, and labels of nodes",
		Text:   "volume in " + words.Joined(there) + "; GPU nodes with room in " + words.OrNone(words.Joined(here)),
	}}
}
