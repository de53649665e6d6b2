package hardware

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// busy is the utilization, in percent, above which a slow PCIe link to a GPU is a problem.
const busy = 20

func pcieCheck() engine.Check {
	return engine.Check{
		ID: "hw.pcie-degraded", Layer: finding.LayerHardware,
		Title: "a GPU's PCIe link is narrower or slower than the GPU and slot support",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: pci_gpu_link_info and utilization; current_link_width and max_link_width in /sys/bus/pci/devices if nvidia-smi does not report them",
		Why: "A link with fewer lanes than the GPU and slot support is faulty. If the node is a virtual machine, its " +
			"host may be built this way, so the finding is Info. The link generation drops while a GPU is idle, " +
			"which is normal, so a low generation is reported only for a GPU under load. The limit is what the slot " +
			"supports, not what the GPU could use elsewhere.",
		Doc: debugDoc, Sources: []string{"NVSentinel#890", "nvtop#6", "tinygrad-ogkm#6"},
		Run: func(f *facts.Facts, r *engine.Result) {
			r.EachHost(f, func(n *facts.Node, host *api.Diagnosis) {
				v := n.GPUs()
				if v.SMI != nil {
					for _, g := range v.SMI.GPUs {
						checkLink(r, n, g)
					}
					return
				}
				if len(host.Probe.PCI) == 0 && !engine.LacksPCI(r, n) {
					r.Unknown(n.Object(), "neither nvidia-smi nor /sys/bus/pci/devices shows the node's GPUs")
				}
				for _, d := range host.Probe.PCI {
					if p, err := xid.ParsePCI(d.Address); err == nil && facts.IsGPUDevice(d) && d.ConfigReadable &&
						d.LinkWidth > 0 && d.LinkWidth < d.MaxLinkWidth {
						r.Add(finding.Finding{
							Severity: finding.Warning, Confidence: finding.Possible, Title: fmt.Sprintf(
								"the PCIe link of the GPU has %s, but the GPU supports %d",
								count.Of(d.LinkWidth, "lane"), d.MaxLinkWidth,
							),
							Object: facts.GPUObject(n, p), Nodes: []string{n.Name}, Fix: linkFix(n, p),
							Evidence: []finding.Evidence{{
								Source: "/sys/bus/pci/devices/" + d.Address + " on node " + n.Name,
								Text: "current_link_width " + strconv.Itoa(d.LinkWidth) + ", max_link_width " +
									strconv.Itoa(d.MaxLinkWidth),
							}},
						})
					}
				}
			})
		},
	}
}

func checkLink(r *engine.Result, n *facts.Node, g nvidiasmi.GPU) {
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	issue := finding.Finding{
		Severity: finding.Warning, Object: facts.SMIObject(n, g), Nodes: []string{n.Name}, Fix: linkFix(n, at),
	}
	link := g.PCIe
	fastest := link.MaxGeneration
	if link.HostGeneration != nil && fastest != nil && *link.HostGeneration < *fastest {
		fastest = link.HostGeneration
	}
	switch {
	case g.Lost():
		return
	case link.Width != nil && link.MaxWidth != nil && *link.Width < *link.MaxWidth:
		issue.Title, issue.Confidence = fmt.Sprintf("the PCIe link of the GPU has %s out of %d",
			count.Of(*link.Width, "lane"), *link.MaxWidth), finding.Likely
		issue.Evidence = []finding.Evidence{
			facts.SMIEvidence(n, g, "current_link_width", fmt.Sprintf("%dx", *link.Width)),
			facts.SMIEvidence(n, g, "max_link_width", fmt.Sprintf("%dx", *link.MaxWidth)),
		}
		// In clouds, GPUs that are passed through to virtual machines have only as many lanes as the host provides: 8
		// of 16 for T4 and A10G on AWS.
		if strings.EqualFold(g.Virtualization, "Pass-Through") {
			issue.Severity, issue.Confidence = finding.Info, finding.Possible
			issue.Evidence = append(issue.Evidence, facts.SMIEvidence(n, g, "virtualization_mode", g.Virtualization))
		}
	case link.Generation != nil && fastest != nil && *link.Generation < *fastest && g.Utilization != nil &&
		moreThan(g.Utilization.GPU, busy):
		issue.Title, issue.Confidence = fmt.Sprintf(
			"the PCIe link of the GPU runs at generation %d of %d under load", *link.Generation, *fastest,
		), finding.Likely
		issue.Evidence = []finding.Evidence{
			facts.CountEvidence(n, g, "current_link_gen", link.Generation),
			facts.CountEvidence(n, g, "max_link_gen", link.MaxGeneration),
			facts.SMIEvidence(n, g, "gpu_util", fmt.Sprintf("%d %%", *g.Utilization.GPU)),
		}
	default:
		r.Pass(facts.SMIObject(n, g))
		return
	}
	if moreThan(link.Replays, 0) {
		issue.Evidence = append(issue.Evidence, facts.CountEvidence(n, g, "replay_counter", link.Replays))
	}
	r.Add(issue)
}

func linkFix(n *facts.Node, p xid.PCI) finding.Fix {
	return finding.Fix{
		Text: "In a cloud, replace the node. Otherwise, reseat the GPU, its riser or its cable, and check the " +
			"firmware settings of the slot (bifurcation, link speed). Until then, copies between host and GPU are " +
			"slower; computation on the GPU is not affected.",
		Commands: []string{shell.OnHost(n.Name, "sudo lspci -vv -s %s | grep -e LnkCap: -e LnkSta:", p.WithFunction())},
	}
}

func acsCheck() engine.Check {
	return engine.Check{
		ID: "hw.acs-iommu", Layer: finding.LayerHardware,
		Title: "PCIe access control or the IOMMU slows down traffic between GPUs",
		Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads: "the ACS settings of the bridges above each GPU, the kernel command line, and collective timeouts in the logs of GPU pods",
		Why: "With ACS request redirection, PCIe traffic between GPUs goes through the root complex, and collectives " +
			"are slow or hang. Many servers ship this way, and virtual machines with GPUs need it, so the finding is " +
			"a warning only if the kernel command line enables IOMMU translation for all devices on a node without " +
			"NVSwitches, or if NCCL reports timeouts in a pod on the node.",
		// A slow link explains failed pods only if NCCL reports errors.
		Explains: []string{"wl.pod-failing"}, ExplainsAs: map[string][]string{"": nil},
		Doc:     "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs",
		Sources: []string{"nccl#603", "nccl#606", "nccl#629", "nccl#1086", "nccl#2079"},
		Run: func(f *facts.Facts, r *engine.Result) {
			r.EachHost(f, func(n *facts.Node, host *api.Diagnosis) {
				if engine.LacksPCI(r, n) {
					return
				}
				var redirected []string
				gpus := 0
				for _, d := range host.Probe.PCI {
					if !facts.IsGPUDevice(d) || d.Driver == "vfio-pci" {
						continue
					}
					gpus++
					if facts.Yes(d.ACSRedirect) {
						redirected = append(redirected, d.Address)
					}
				}
				if len(redirected) == 0 || gpus < 2 || strings.Contains(host.Probe.Cmdline, "pci=noacs") {
					r.Pass(n.Object())
					return
				}
				issue := finding.Finding{
					Severity: finding.Info, Confidence: finding.Possible,
					Title:  "PCIe bridges redirect traffic between GPUs to the root complex (ACS)",
					Object: n.Object(),
					Evidence: []finding.Evidence{{
						Source: "PCI bridges above GPUs on node " + n.Name,
						Text:   "ACS request redirect is on above " + strings.Join(redirected, ", "),
					}, {
						Source: "/proc/cmdline on node " + n.Name, Text: words.Clip(host.Probe.Cmdline),
					}},
					Fix: finding.Fix{
						Text: "If GPUs communicate over PCIe and are not passed through to virtual machines, disable ACS in the firmware or on the bridges, and boot the kernel with iommu=pt.",
					},
				}
				if translates(host.Probe.Cmdline) && !slices.ContainsFunc(host.Probe.PCI, facts.IsNVSwitch) {
					issue.Severity, issue.Title = finding.Warning,
						"PCIe bridges redirect traffic between GPUs through the IOMMU, which translates it (ACS)"
				}
				for _, pod := range n.Pods {
					if !f.AsksForGPU(pod) {
						continue
					}
					if e, ok := facts.LogEvidence(
						f, pod, "Watchdog caught collective operation timeout", "NCCL watchdog", "NCCL WARN Timeout",
					); ok {
						issue.Severity, issue.Evidence, issue.As = finding.Warning, append(issue.Evidence, e),
							"collectives"
						issue = issue.ForPods(pod.Namespace + "/" + pod.Name)
						break
					}
				}
				r.Add(issue)
			})
		},
	}
}

// translates reports whether a kernel command line enables an IOMMU without pass-through mode.
func translates(cmdline string) bool {
	words := strings.Fields(cmdline)
	on := slices.Contains(words, "intel_iommu=on") || slices.Contains(words, "amd_iommu=on") ||
		slices.Contains(words, "iommu.passthrough=0")
	return on && !slices.Contains(words, "iommu=pt") && !slices.Contains(words, "iommu.passthrough=1")
}
