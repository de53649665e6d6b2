package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// busy is the utilization in per cent above which a GPU's PCIe link has no reason to be slow.
const busy = 20

func pcieCheck() Check {
	return Check{
		ID: "hw.pcie-degraded", Layer: LayerHardware,
		Title: "a GPU's PCIe link is narrower or slower than it can be",
		Needs: []Need{NeedNode},
		Reads: "nvidia-smi -q -x: pci_gpu_link_info and utilization; current_link_width and max_link_width in /sys/bus/pci/devices where nvidia-smi does not say",
		Why: "A link with fewer lanes than GPU and slot have is at fault; in a virtual machine it may be how its host is built, so that it is information there. Its generation falls while a GPU is idle, which is normal: it is told only of a GPU that works. What the slot can do counts, and " +
			"not what the GPU could do elsewhere.",
		Doc: debugDoc, Sources: []string{"NVSentinel#890", "nvtop#6", "tinygrad-ogkm#6"},
		Run: func(f *Facts, r *Result) {
			r.EachHost(f, func(n *Node, host *api.Diagnosis) {
				v := n.gpus()
				if v.smi != nil {
					for _, g := range v.smi.GPUs {
						checkLink(r, n, g)
					}
					return
				}
				if len(host.Probe.PCI) == 0 && !lacksPCI(r, n) {
					r.Unknown(n.Object(), "neither nvidia-smi nor /sys/bus/pci/devices say anything about its GPUs")
				}
				for _, d := range host.Probe.PCI {
					if p, err := xid.ParsePCI(d.Address); err == nil && IsGPUDevice(d) && d.ConfigReadable &&
						d.LinkWidth > 0 && d.LinkWidth < d.MaxLinkWidth {
						r.Add(Finding{
							Severity: Warning, Confidence: Possible, Title: fmt.Sprintf(
								"the PCIe link of the GPU has %s, and the GPU could use %d",
								count.Of(d.LinkWidth, "lane"), d.MaxLinkWidth,
							),
							Object: gpuObject(n, p), Nodes: []string{n.Name}, Fix: linkFix(n, p),
							Evidence: []Evidence{{
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

func checkLink(r *Result, n *Node, g nvidiasmi.GPU) {
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	finding := Finding{Severity: Warning, Object: smiObject(n, g), Nodes: []string{n.Name}, Fix: linkFix(n, at)}
	link := g.PCIe
	fastest := link.MaxGeneration
	if link.HostGeneration != nil && fastest != nil && *link.HostGeneration < *fastest {
		fastest = link.HostGeneration
	}
	switch {
	case g.Lost():
		return
	case link.Width != nil && link.MaxWidth != nil && *link.Width < *link.MaxWidth:
		finding.Title, finding.Confidence = fmt.Sprintf("the PCIe link of the GPU has %s of %d",
			count.Of(*link.Width, "lane"), *link.MaxWidth), Likely
		finding.Evidence = []Evidence{
			smiEvidence(n, g, "current_link_width", fmt.Sprintf("%dx", *link.Width)),
			smiEvidence(n, g, "max_link_width", fmt.Sprintf("%dx", *link.MaxWidth)),
		}
		// Clouds give whole GPUs to virtual machines with as many lanes as the host has for them: 8 of 16 for T4 and
		// A10G at AWS.
		if strings.EqualFold(g.Virtualization, "Pass-Through") {
			finding.Severity, finding.Confidence = Info, Possible
			finding.Evidence = append(finding.Evidence, smiEvidence(n, g, "virtualization_mode", g.Virtualization))
		}
	case link.Generation != nil && fastest != nil && *link.Generation < *fastest && g.Utilization != nil &&
		moreThan(g.Utilization.GPU, busy):
		finding.Title, finding.Confidence = fmt.Sprintf(
			"the PCIe link of the GPU runs at generation %d of %d under load", *link.Generation, *fastest,
		), Likely
		finding.Evidence = []Evidence{
			countEvidence(n, g, "current_link_gen", link.Generation),
			countEvidence(n, g, "max_link_gen", link.MaxGeneration),
			smiEvidence(n, g, "gpu_util", fmt.Sprintf("%d %%", *g.Utilization.GPU)),
		}
	default:
		r.Pass(smiObject(n, g))
		return
	}
	if moreThan(link.Replays, 0) {
		finding.Evidence = append(finding.Evidence, countEvidence(n, g, "replay_counter", link.Replays))
	}
	r.Add(finding)
}

func linkFix(n *Node, p xid.PCI) Fix {
	return Fix{
		Text: "Reseat the GPU, its riser or its cable, and look at the firmware's settings for that slot (bifurcation, link speed). Copies between host and GPU are slower until then; " +
			"work on the GPU itself is not.",
		Commands: []string{onHost(n.Name, "sudo lspci -vv -s %s | grep -e LnkCap: -e LnkSta:", p.WithFunction())},
	}
}

func acsCheck() Check {
	return Check{
		ID: "hw.acs-iommu", Layer: LayerHardware,
		Title: "PCIe access control or the IOMMU slows traffic between GPUs down",
		Needs: []Need{NeedNode, NeedLogs},
		Reads: "ACS of the bridges above each GPU, the kernel's command line, and the logs of GPU pods for collectives that time out",
		Why: "With ACS request redirection on, GPUs that talk over PCIe go through the root complex, and collectives are slow or hang. That is how many servers are shipped, and right where virtual " +
			"machines get GPUs, so it is a warning only where the kernel's command line switches the IOMMU's translation on for all devices and there are no NVSwitches, or where NCCL complains in a pod of the node.",
		// slow is not failing, but where NCCL complains
		Explains: []string{"wl.pod-failing"}, ExplainsAs: map[string][]string{"": nil},
		Doc:     "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs",
		Sources: []string{"nccl#603", "nccl#606", "nccl#629", "nccl#1086", "nccl#2079"},
		Run: func(f *Facts, r *Result) {
			r.EachHost(f, func(n *Node, host *api.Diagnosis) {
				if lacksPCI(r, n) {
					return
				}
				var redirected []string
				gpus := 0
				for _, d := range host.Probe.PCI {
					if !IsGPUDevice(d) || d.Driver == "vfio-pci" {
						continue
					}
					gpus++
					if yes(d.ACSRedirect) {
						redirected = append(redirected, d.Address)
					}
				}
				if len(redirected) == 0 || gpus < 2 || strings.Contains(host.Probe.Cmdline, "pci=noacs") {
					r.Pass(n.Object())
					return
				}
				finding := Finding{
					Severity: Info, Confidence: Possible,
					Title:  "PCIe bridges redirect traffic between GPUs to the root complex (ACS)",
					Object: n.Object(),
					Evidence: []Evidence{{
						Source: "PCI bridges above GPUs on node " + n.Name,
						Text:   "ACS request redirect is on above " + strings.Join(redirected, ", "),
					}, {
						Source: "/proc/cmdline on node " + n.Name, Text: clip(host.Probe.Cmdline),
					}},
					Fix: Fix{
						Text: "Where GPUs talk over PCIe, and no virtual machine gets them, switch ACS off in the firmware or on the bridges, and give the kernel iommu=pt.",
					},
				}
				if translates(host.Probe.Cmdline) && !slices.ContainsFunc(host.Probe.PCI, isNVSwitch) {
					finding.Severity, finding.Title = Warning,
						"PCIe bridges redirect traffic between GPUs through the IOMMU, which translates it (ACS)"
				}
				for _, pod := range n.Pods {
					if !f.wantsGPU(pod) {
						continue
					}
					if e, ok := logEvidence(
						f, pod, "Watchdog caught collective operation timeout", "NCCL watchdog", "NCCL WARN Timeout",
					); ok {
						finding.Severity, finding.Evidence, finding.as = Warning, append(finding.Evidence, e),
							"collectives"
						finding = finding.ForPods(pod.Namespace + "/" + pod.Name)
						break
					}
				}
				r.Add(finding)
			})
		},
	}
}

// translates reports whether a kernel's command line switches an IOMMU on, and not to pass-through.
func translates(cmdline string) bool {
	words := strings.Fields(cmdline)
	on := slices.Contains(words, "intel_iommu=on") || slices.Contains(words, "amd_iommu=on") ||
		slices.Contains(words, "iommu.passthrough=0")
	return on && !slices.Contains(words, "iommu=pt") && !slices.Contains(words, "iommu.passthrough=1")
}
