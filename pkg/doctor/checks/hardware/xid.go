package hardware

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// linkNonfatal reports whether the line about an NVLink 5 error is marked as nonfatal: "RLW_SRC_TRACK Nonfatal XC1 i0
// Link 12 (...)".
func linkNonfatal(body string) bool {
	fields := strings.Fields(body)
	return len(fields) > 1 && strings.EqualFold(fields[1], "nonfatal")
}

func xidCheck() engine.Check {
	return engine.Check{
		ID: "hw.xid-recent", Layer: finding.LayerHardware,
		Title: "the driver has reported a GPU error since the node booted",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "XIDs in the kernel log since boot, one finding per code and GPU, newest first; if the node was not read, the codes that its conditions name",
		Why: "The meaning of an XID and the fix for it come from NVIDIA's catalog. Codes that applications cause " +
			"(13, 31, 43, 45 and others) concern the workload, not the GPU: they are Info, or a warning if they " +
			"repeat. Codes that accompany another code for the same GPU in the same minute (45, 154 and others) are " +
			"reported with that code. Errors more than a day old are Info if nvidia-smi shows that the GPU needs no " +
			"action. Past errors explain only pods that failed within ten minutes of the error. Lost GPUs, memory, " +
			"links and the GSP have their own checks.",
		Explains: facts.GPUSymptoms(),
		Doc:      facts.XIDDoc,
		Sources:  []string{"NVIDIA XID catalog (October 2025)", "gpud: xid", "k8s-device-plugin#1974"},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkXIDs(f, r, n)
			}
		},
	}
}

func checkXIDs(f *facts.Facts, r *engine.Result, n *facts.Node) {
	v := n.GPUs()
	groups := facts.GroupIncidents(v.Of("hw.xid-recent"))
	for _, g := range groups {
		severity, meaning, fix := evaluate(n, g)
		if code, _ := xid.Lookup(g.Event.Code); code.Class == "app" && severity == finding.Info {
			switch {
			case code.Detectors[xid.IDDevicePlugin].Fatal && withdrawn(n):
				severity = finding.Warning
				meaning += ", for which the device plugin marks the GPU unhealthy"
				fix.Text += " The GPU stays unhealthy until the device plugin's pod is restarted; DP_DISABLE_HEALTHCHECKS lists codes to ignore."
			case g.Count() >= repeated:
				severity = finding.Warning
			}
		}
		r.Add(v.IncidentFinding(g, severity, meaning, fix))
	}
	if len(v.Strangers) > 0 {
		newest := v.Strangers[len(v.Strangers)-1]
		r.Add(finding.Finding{
			Severity: finding.Info, Confidence: finding.Possible,
			Title:    "the kernel log contains XIDs for GPUs that the node does not have",
			Object:   n.Object(),
			Evidence: []finding.Evidence{v.Quote(newest)},
			Fix: finding.Fix{
				Text: "The XIDs do not concern the node's GPUs: a test wrote them, or the GPU was removed after the node booted.",
			},
		})
	}
	switch {
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	case len(groups) == 0:
		if why := n.Host.Probe.Unread["kernelLog"]; why != "" && len(n.Host.KernelLog) == 0 {
			r.Unknown(n.Object(), "the kernel log: %s", why)
			return
		}
		r.Pass(n.Object())
	}
}

// repeated is the number of application XIDs on one GPU that triggers a warning.
const repeated = 10

// withdrawn reports whether the device plugin has marked any of the node's GPUs as unhealthy.
func withdrawn(n *facts.Node) bool {
	for name, have := range n.Status.Capacity {
		if can, ok := n.Status.Allocatable[name]; facts.IsGPUResource(name) && ok && can.Cmp(have) < 0 {
			return true
		}
	}
	return false
}

// evaluate returns the severity, meaning, and fix of an XID from NVIDIA's catalog.
func evaluate(n *facts.Node, g facts.SameKind) (finding.Severity, string, finding.Fix) {
	name := facts.CodeName(g.Event)
	if g.Event.Code == 154 {
		return evaluateRecovery(n, g)
	}
	code, known := xid.Lookup(g.Event.Code)
	if !known {
		return finding.Warning, "the driver reports " + name + ", which is not in the catalog", finding.Fix{
			Text: "Check the surrounding log lines, and contact the GPU vendor.",
		}
	}
	switch code.NVIDIA.Immediate {
	case "RESET_GPU":
		return finding.Error, "the driver reports " + name + ": the GPU needs a reset", finding.Fix{
			Text:     "Drain the node, then reset the GPU or reboot." + afterwards(code),
			Commands: facts.Drain(n, facts.ResetGPU(n, g.Event.PCI), facts.Uncordon(n)),
		}
	case "RESTART_BM", "RESTART_VM":
		return finding.Error, "the driver reports " + name + ": the node needs a reboot", finding.Fix{
			Text: "Drain the node and reboot it." + afterwards(code), Commands: facts.Drain(n),
		}
	case "CHECK_MECHANICALS":
		return finding.Error, "the driver reports " + name + ": the GPU's power or cooling is faulty", finding.Fix{
			Text: "Drain the node, and check the GPU's power connectors, seating and cooling." +
				afterwards(code),
			Commands: facts.Drain(n),
		}
	case "UPDATE_SWFW":
		return finding.Warning, "the driver reports " + name + ": the driver and firmware do not match", finding.Fix{
			Text: "Update the driver, or the host's vGPU software, so that both are from the same release.",
		}
	case "RESTART_APP", "WORKFLOW_XID_45", "CHECK_UVM":
		return finding.Info, "a workload on the GPU failed with " + name,
			finding.Fix{Text: "Check the workload: its log contains the CUDA error, and the usual cause is a bug in " +
				"its code. Restart its pod, because the CUDA context is lost. If different workloads fail this way " +
				"on one GPU only, run dcgmi diag on that GPU."}
	case "IGNORE":
		return finding.Info, "the driver reports " +
			name, finding.Fix{Text: "This XID alone requires no action." + afterwards(code)}
	}
	switch code.Class {
	case "gpu_fatal", "memory":
		return finding.Error, "the driver reports " + name, finding.Fix{
			Text:     "Drain the node, and reset the GPU." + cmp.Or(afterwards(code), recurs),
			Commands: facts.Drain(n, facts.ResetGPU(n, g.Event.PCI)),
		}
	case "app":
		return finding.Info, "a workload on the GPU failed with " +
			name, finding.Fix{Text: "Check the workload's log."}
	case "info":
		return finding.Info, "the driver reports " + name, finding.Fix{Text: "This XID alone requires no action."}
	}
	return finding.Warning, "the driver reports " + name, finding.Fix{
		Text: "Check the surrounding log lines." + cmp.Or(afterwards(code), recurs),
	}
}

// evaluateRecovery returns the severity, meaning, and fix of an XID 154. The XID that caused it may no longer be in the
// log.
func evaluateRecovery(n *facts.Node, g facts.SameKind) (finding.Severity, string, finding.Fix) {
	body := g.Incidents[0].Primary.Event.Body
	_, to, _ := strings.Cut(body, " to ")
	need, severity := facts.Recovery(to)
	if need == "" {
		return finding.Info, "the driver reports that the GPU no longer needs recovery (XID 154)", finding.Fix{
			Text: "No action is required.",
		}
	}
	last := facts.ResetGPU(n, g.Event.PCI)
	if strings.Contains(need, "reboot") {
		last = facts.Reboot(n)
	}
	return severity, "the driver reports that the GPU needs " + need + " (XID 154)", finding.Fix{
		Text:     "Drain the node, perform the recovery action, and uncordon the node.",
		Commands: facts.Drain(n, last, facts.Uncordon(n)),
	}
}

const recurs = " If the error recurs, contact the GPU vendor."

// afterwards describes the investigation that NVIDIA recommends after an XID.
func afterwards(c xid.Code) string {
	text := map[string]string{
		"CONTACT_SUPPORT":     strings.TrimSpace(recurs),
		"INVESTIGATE_SW":      "If the error recurs, check for a newer driver.",
		"INVESTIGATE_LINK_SI": "If the error recurs, have the links' cables and connectors checked.",
		"XID_137_FLOW":        "Check for an XID 48, 94 or 95 on the GPUs that are linked to this GPU.",
		"CHECK_APP/CUDA":      "Check the workload.",
	}[c.NVIDIA.Investigatory]
	if text == "" {
		return ""
	}
	return " " + text
}

func throttleCheck() engine.Check {
	return engine.Check{
		ID: "hw.throttle", Layer: finding.LayerHardware,
		Title: "a GPU is slowed down by heat or by its power supply",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: clocks_event_reasons (clocks_throttle_reasons with older drivers), temperature and " +
			"its thresholds",
		Why: "A hardware slowdown always needs attention: the GPU is too hot, or the power supply asserted the power brake. Low clocks on an idle GPU, and a power limit reached under load, " +
			"are normal and not reported.",
		Explains: []string{"node.condition"},
		Doc:      debugDoc,
		Sources:  []string{"NVSentinel#890", "open_clip#703", "azurehpc#595", "hardware-observer#307"},
		Run: func(f *facts.Facts, r *engine.Result) {
			engine.EachSMI(f, r, func(n *facts.Node, v *facts.GPUView) {
				prefix := "clocks_event_reason_"
				if strings.Contains(n.Host.SMI, "<clocks_throttle_reason_") {
					prefix = "clocks_throttle_reason_"
				}
				for _, g := range v.SMI.GPUs {
					issue := finding.Finding{
						Severity: finding.Warning, Object: facts.SMIObject(n, g), Nodes: []string{n.Name},
					}
					reason := ""
					switch s := g.Slowdown; {
					case facts.Yes(s.PowerBrake):
						reason, issue.Title = "hw_power_brake_slowdown",
							"the power supply slows the GPU down (power brake)"
						issue.Fix.Text =
							"Check the node's power supplies and their cables, and the power budget of its rack. In " +
								"the meantime, a lower GPU power limit (nvidia-smi -pl) helps."
					case facts.Yes(s.HardwareThermal):
						reason, issue.Title = "hw_thermal_slowdown",
							"the GPU is so hot that its hardware slows it down"
					case facts.Yes(s.Hardware):
						reason, issue.Title = "hw_slowdown", "the GPU's hardware slows it down"
					case facts.Yes(s.SoftwareThermal):
						reason, issue.Title = "sw_thermal_slowdown",
							"the driver slows the GPU down to prevent overheating"
					default:
						r.Pass(facts.SMIObject(n, g))
						continue
					}
					issue.Fix.Text = cmp.Or(issue.Fix.Text,
						"Check the node's fans, airflow and inlet temperature, and the seating of the GPU's heat sink.")
					issue.Evidence = []finding.Evidence{facts.SMIEvidence(n, g, prefix+reason, "Active")}
					for _, t := range []struct {
						element string
						value   *int64
					}{
						{"gpu_temp", g.Temperature.GPU}, {"gpu_temp_slow_threshold", g.Temperature.Slowdown},
						{"gpu_temp_tlimit", g.Temperature.Margin},
						{"gpu_temp_slow_tlimit_threshold", g.Temperature.SlowdownMargin},
					} {
						if t.value != nil {
							issue.Evidence = append(issue.Evidence,
								facts.SMIEvidence(n, g, t.element, fmt.Sprintf("%d C", *t.value)))
						}
					}
					r.Add(issue)
				}
			})
		},
	}
}
