// Package hardware checks GPUs, using the output of nvidia-smi and the kernel log.
package hardware

import (
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// Checks returns the checks for the hardware layer. They have these limitations:
//   - hw.nvlink does not read `nvidia-smi nvlink -s`, because the debug pod runs nvidia-smi only once and its XML
//     contains no links. The check relies on XIDs and SXids.
//   - For the same reason, hw.acs-iommu does not run `nvidia-smi topo -p2p r`, and cannot determine whether GPUs are
//     connected by NVLink.
//   - The workload layer reports which process uses the memory of a GPU (wl.cuda-oom).
func Checks() []engine.Check {
	return []engine.Check{
		gpuLostCheck(), gpuCountCheck(), rowRemapCheck(), eccCheck(), nvlinkCheck(), xidCheck(), recoveryCheck(),
		throttleCheck(), pcieCheck(), acsCheck(),
	}
}

const (
	debugDoc = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/"
	remapDoc = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
)

func recoveryCheck() engine.Check {
	return engine.Check{
		ID: "hw.recovery-action", Layer: finding.LayerHardware,
		Title: "the driver reports that a GPU needs a reset or a reboot",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: gpu_recovery_action; gpu_reset_status with drivers before R555",
		Why: "The driver records which recovery action a GPU needs after an error. Until the action is taken, workloads fail on the GPU, or run without the memory or links that the error disabled. " +
			"If the XID of the error is still in the kernel log, the XID is reported instead.",
		Explains: facts.GPUSymptoms(),
		Doc:      debugDoc, Sources: []string{"open-gpu-kernel-modules#1080", "NVIDIA XID catalog: 154"},
		Run: func(f *facts.Facts, r *engine.Result) {
			engine.EachSMI(f, r, func(n *facts.Node, v *facts.GPUView) {
				for _, g := range v.SMI.GPUs {
					if troubled(v, g) {
						r.Pass(facts.SMIObject(n, g))
						continue
					}
					checkRecovery(r, n, g)
				}
			})
		},
	}
}

// troubled reports whether another check in this layer explains why a GPU needs a reset.
func troubled(v *facts.GPUView, g nvidiasmi.GPU) bool {
	if _, found := facts.RemapFinding(v.Node, g); found {
		return true
	}
	if f, found := eccFinding(v.Node, g); found && f.Severity != finding.Info {
		return true
	}
	for _, group := range facts.GroupIncidents(v.Incidents) {
		if g.PCI == nil || group.Event.PCI.String() != g.PCI.String() || v.Over(group) || v.Past(group) {
			continue
		}
		severity := finding.Error
		switch facts.OwnerOfCode(group.Event) {
		case "hw.xid-recent":
			severity, _, _ = evaluate(v.Node, group)
		case "hw.nvlink":
			severity, _ = linkError(group.Event)
		case "hw.row-remap":
			if group.Event.Code == 63 {
				severity = finding.Info
			}
		}
		if severity != finding.Info {
			return true
		}
	}
	return false
}

func checkRecovery(r *engine.Result, n *facts.Node, g nvidiasmi.GPU) {
	need, severity := facts.Recovery(g.RecoveryAction)
	evidence := []finding.Evidence{facts.SMIEvidence(n, g, "gpu_recovery_action", g.RecoveryAction)}
	switch {
	case need != "":
	case facts.Yes(g.ResetRequired):
		need, severity, evidence = "a reset", finding.Error, []finding.Evidence{
			facts.SMIEvidence(n, g, "reset_required", "Yes"),
		}
	case facts.Yes(g.DrainAndReset):
		need, severity, evidence = "a reset after its workloads have terminated", finding.Warning,
			[]finding.Evidence{facts.SMIEvidence(n, g, "drain_and_reset_recommended", "Yes")}
	default:
		r.Pass(facts.SMIObject(n, g))
		return
	}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	last := facts.ResetGPU(n, at)
	if strings.Contains(need, "reboot") {
		last = facts.Reboot(n)
	}
	r.Add(finding.Finding{
		Severity: severity, Title: "the driver reports that the GPU needs " + need, Object: facts.SMIObject(n, g),
		Nodes: []string{n.Name}, Evidence: evidence,
		Fix: finding.Fix{
			Text:     "Drain the node, perform the recovery action, and uncordon the node.",
			Commands: facts.Drain(n, last, facts.Uncordon(n)),
		},
	})
}
