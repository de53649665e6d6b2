package runtime

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
)

// reportUnrequested reports a node on which more GPUs are in use than its pods request. It counts only whole GPUs,
// because a shared GPU, a MIG device or a GPU in a ResourceClaim may have several users.
func reportUnrequested(f *facts.Facts, r *engine.Result, n *facts.Node) {
	log := n.GPUs().SMI
	if log == nil || n.Allocatable("nvidia.com/gpu") != int64(len(log.GPUs)) {
		return
	}
	busy := 0
	for i := range log.GPUs {
		if slices.ContainsFunc(log.GPUs[i].Processes, computes) {
			busy++
		}
	}
	var held int64
	var others []string
	for _, pod := range n.Pods {
		switch {
		case len(pod.Spec.ResourceClaims) > 0:
			return
		case facts.Ended(pod):
		case f.AsksForGPU(pod):
			held += facts.Demand(pod)[corev1.ResourceName("nvidia.com/gpu")]
		case pod.Namespace != "kube-system" && facts.ComponentOf(pod.Labels, &pod.Spec) == "" &&
			!strings.HasPrefix(facts.OwnerOf(pod), "daemonset/"):
			others = append(others, pod.Namespace+"/"+pod.Name)
		}
	}
	if int64(busy) <= held || len(others) == 0 {
		return
	}
	r.Add(finding.Finding{
		Object: n.Object(), Nodes: []string{n.Name}, Severity: finding.Info, Confidence: finding.Possible,
		Title: fmt.Sprintf("%s in use on the node, but its pods request %d: a pod (possibly one of %s) uses a "+
			"GPU that it has not requested, and DCGM's metrics for that GPU have no pod "+
			"label", count.Of(busy, "GPU"), held,
			words.Joined(others[:min(len(others), words.Few)])),
		Evidence: []finding.Evidence{
			{Source: "nvidia-smi on " + n.Object().String(), Text: fmt.Sprintf("GPUs in use: %d of %d", busy,
				len(log.GPUs))},
		},
		Fix: finding.Fix{
			Text: "Identify the pod of each process by its cgroup (see the command), and request nvidia.com/gpu in " +
				"the pod that does not request it: otherwise, the scheduler may also give the pod's GPU to another " +
				"pod.",
			Commands: []string{
				shell.OnHost(n.Name, "nvidia-smi --query-compute-apps=pid,name,gpu_uuid --format=csv; "+
					"for p in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader); do cat /proc/$p/cgroup; done"),
			},
		},
	})
}

// computes reports whether a process is a compute process other than an MPS server.
func computes(p nvidiasmi.Process) bool {
	return strings.Contains(p.Type, "C") && !strings.Contains(p.Name, "mps-server")
}
