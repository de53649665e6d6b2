package facts

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

// IsProgram reports whether a built-in signature describes a defect in some releases of an image.
func IsProgram(image string) bool { return builtin().HasName(image) }

type programs []signatures.Line

// programsOf returns the releases of the programs in the cluster for which a signature describes a defect, for example
// of a scheduler that rejects another pod. It omits GPU workloads, whose defects do not affect other pods.
//
//	program: IMAGE
func programsOf(f *Facts) programs {
	var all programs
	seen := map[string]bool{}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if f.AsksForGPU(pod) {
			continue
		}
		for c := range Containers(pod) {
			if seen[c.Image] {
				continue
			}
			if seen[c.Image] = true; !f.Signatures.HasName(c.Image) {
				continue
			}
			all = append(all, signatures.Line{
				Place: signatures.Spec, Container: c.Name, Compared: true, Evidence: finding.Evidence{
					Source: PodObject(pod).String() + ", container " + c.Name + " .image",
					Text:   signatures.Program(c.Image),
				},
			})
		}
	}
	return all
}
