package driver

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
)

func fabricManagerCheck() engine.Check {
	return engine.Check{
		ID: "fab.fabricmanager", Symptom: engine.Precise, Layer: finding.LayerDriver,
		Title: "GPUs connected by NVSwitches have no working Fabric Manager",
		Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads: "NVSwitches on the PCI bus, the nv-fabricmanager process and its version, the fabric's state in nvidia-smi -q -x, the journal of nvidia-fabricmanager, the driver pod's log, and pods that fail with error 802",
		Why: "If GPUs are connected by NVSwitches, CUDA programs fail with \"system not yet initialized\" (802) until the Fabric Manager has configured the switches. The Fabric Manager's version must be exactly the driver's. " +
			"Nodes without NVSwitches need none; for GPUs in virtual machines, it runs on the host.",
		Explains: facts.GPUSymptoms(),
		Doc:      "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
		Sources: []string{"gpu-operator#375", "gpu-operator#1043", "gpu-operator#2781", "pytorch#35710", "jax#34113",
			"huggingface_hub#4128", "huggingface_hub#4134", "gpu-burn#133",
			"gpustack#4154"},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkFabric(f, r, n)
			}
		},
	}
}

func notInitialized() []string {
	return []string{"system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY", "Error 802"}
}

func checkFabric(f *facts.Facts, r *engine.Result, n *facts.Node) {
	for _, pod := range facts.Current(n, facts.Driver) {
		if e, ok := facts.LogEvidence(f, pod, "fabric manager NVIDIA GPU driver interface version"); ok {
			r.Add(finding.Finding{
				Title: "the Fabric Manager in the driver's image does not work with the driver", Object: n.Object(),
				Confidence: finding.Likely, Evidence: []finding.Evidence{e}, Fix: fabricFix(f, n, ""),
			})
			return
		}
	}
	said, says := podTexts(f, n, notInitialized()...)
	if n.Host == nil {
		if !says {
			r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
			return
		}
		r.Add(finding.Finding{
			Title: "CUDA is waiting for the NVSwitch fabric to be configured", Confidence: finding.Likely,
			Object:   n.Object(),
			Evidence: []finding.Evidence{said}, Fix: fabricFix(f, n, ""),
		})
		return
	}
	host, v := n.Host, n.GPUs()
	var switches []api.PCIDevice
	for _, d := range host.Probe.PCI {
		if facts.IsNVSwitch(d) {
			switches = append(switches, d)
		}
	}
	waiting, done := fabricStates(v.SMI)
	driver, manager := driverVersion(host), host.Probe.FabricManager
	running := len(host.Probe.Processes["nv-fabricmanager"]) > 0 ||
		len(host.Probe.Processes["nvidia-fabricmanager"]) > 0
	issue := finding.Finding{Object: n.Object()}
	switch {
	case len(switches) > 0 && running && manager != "" && driver != "" && manager != driver:
		issue.Title = "the versions of the Fabric Manager and the driver differ"
		issue.Evidence = []finding.Evidence{
			{Source: "nv-fabricmanager --version on node " + n.Name, Text: manager},
			{Source: "/proc/driver/nvidia/version on node " + n.Name, Text: driver},
		}
	case len(switches) > 0 && !running && done == 0 && driver != "":
		issue.Title = "the Fabric Manager is not running, but the GPUs are connected by NVSwitches"
		issue.Evidence = []finding.Evidence{{Source: "processes and PCI devices on node " + n.Name, Text: fmt.Sprintf(
			"%s (%s), no nv-fabricmanager process", count.Of(len(switches), "NVSwitch"), switches[0].Address,
		)}}
		if manager != "" && manager != driver {
			issue.Evidence = append(issue.Evidence, finding.Evidence{
				Source: "nv-fabricmanager --version on node " + n.Name, Text: manager + ", but the driver is " + driver,
			})
		}
		if host.Probe.Unread["processes"] != "" {
			issue.Confidence = finding.Possible
		}
	case len(waiting) > 0:
		issue.Title, issue.Confidence = "the fabric that connects the GPUs is not configured", finding.Likely
	case says:
		issue.Title, issue.Confidence = "CUDA is waiting for the NVSwitch fabric to be configured", finding.Likely
	case engine.LacksPCI(r, n):
		return
	default:
		r.Pass(n.Object())
		return
	}
	for _, g := range waiting[:min(len(waiting), 2)] {
		issue.Evidence = append(issue.Evidence, facts.SMIEvidence(n, g, "state", g.Fabric.State))
		if g.Fabric.Status != "" {
			issue.Evidence = append(issue.Evidence, facts.SMIEvidence(n, g, "status", g.Fabric.Status))
		}
	}
	if says {
		issue.Evidence = append(issue.Evidence, said)
	}
	complaints := journalErrors(n, 2)
	issue.Evidence = append(issue.Evidence, complaints...)
	issue.Fix = fabricFix(f, n, driver)
	if len(complaints) > 0 && !running && (manager == "" || manager == driver) && !containerDriver(f, n) {
		issue.Fix.Text = "The Fabric Manager is installed, and its journal shows why it failed: fix the cause, and " +
			"start it again. If the node's image contains the Fabric Manager, use another version of the image."
	}
	r.Add(issue)
}

// fabricStates returns the GPUs whose fabric is not ready, and the number of GPUs whose fabric is ready. GPUs without
// NVSwitches report no state.
func fabricStates(log *nvidiasmi.Log) (waiting []nvidiasmi.GPU, done int) {
	if log == nil {
		return nil, 0
	}
	for _, g := range log.GPUs {
		switch state := strings.ToLower(g.Fabric.State); {
		case state == "completed" && (g.Fabric.Status == "" || strings.EqualFold(g.Fabric.Status, "Success")):
			done++
		case state == "completed", state == "in progress", state == "not started":
			waiting = append(waiting, g)
		}
	}
	return waiting, done
}

// managesFabric reports whether a unit is the Fabric Manager, including that of a system extension (Talos).
func managesFabric(unit string) bool {
	return strings.HasSuffix(strings.TrimSuffix(unit, ".service"), "-fabricmanager")
}

// logsFabric reports whether a Fabric Manager on the node has a journal, which shows that it is installed.
func logsFabric(n *facts.Node) bool {
	return n.Host != nil && slices.ContainsFunc(words.SortedKeys(n.Host.Journals), func(unit string) bool {
		return managesFabric(unit) && strings.TrimSpace(n.Host.Journals[unit]) != ""
	})
}

// complaint matches a journal line that reports an error.
var complaint = regexp.MustCompile(`(?i)error|fail|invalid|cannot|not found`)

// journalErrors quotes the newest distinct errors in the Fabric Manager's journal, up to the given number.
func journalErrors(n *facts.Node, most int) []finding.Evidence {
	var all []finding.Evidence
	seen := map[string]bool{}
	for _, unit := range words.SortedKeys(n.Host.Journals) {
		if !managesFabric(unit) {
			continue
		}
		lines := strings.Split(strings.TrimSpace(n.Host.Journals[unit]), "\n")
		for _, line := range slices.Backward(lines) {
			said := line
			if _, after, ok := strings.Cut(line, "]: "); ok {
				said = after
			}
			if len(all) == most || seen[said] || !complaint.MatchString(said) {
				continue
			}
			seen[said] = true
			all = append(all, finding.Evidence{
				Source: "journal of " + unit + " on node " + n.Name, Text: words.Clip(line),
			})
		}
	}
	return all
}

func fabricFix(f *facts.Facts, n *facts.Node, driver string) finding.Fix {
	branch, _, _ := strings.Cut(driver, ".")
	fix := finding.Fix{
		Text: "Install a Fabric Manager with exactly the driver's version, and start it. On B200 and later " +
			"generations, first load the InfiniBand modules (ib_umad, mlx5_ib). In a virtual machine, check the host.",
		Commands: []string{
			shell.OnHost(n.Name, "sudo systemctl enable --now nvidia-fabricmanager"),
		},
	}
	installed := logsFabric(n)
	other := n.Host != nil && n.Host.Probe.FabricManager != "" && n.Host.Probe.FabricManager != driver
	if driver != "" && (other || !installed) {
		switch packager(n) {
		case "apt":
			fix.Commands = append([]string{
				shell.OnHost(n.Name, "sudo apt-get install -y nvidia-fabricmanager-%s=%s", branch, driver+"-*"),
			}, fix.Commands...)
		case "dnf":
			fix.Commands = append([]string{
				shell.OnHost(n.Name, "sudo dnf install -y nvidia-fabric-manager-%s", driver),
			},
				fix.Commands...)
		}
	}
	if !containerDriver(f, n) {
		fix.Commands = append([]string{
			shell.OnHost(n.Name, "sudo journalctl -u nvidia-fabricmanager -n 50 --no-pager"),
		}, fix.Commands...)
		if p, _ := platform.Of(string(n.Distribution)); p.Fabric != "" {
			fix.Text = p.Fabric
		}
		return fix
	}
	version := ""
	if driver != "" {
		version = " (" + driver + ")"
	}
	fix.Text = "Check whether the driver pod's log mentions the Fabric Manager, which most driver images start if " +
		"they find NVSwitches. If it failed, fix the cause that the log shows. If the log does not mention it, the " +
		"image does not contain it, and a restart does not help: install a Fabric Manager with exactly the driver's " +
		"version" + version +
		" on the node and start it, or use a driver image that contains it."
	if logs := driverLogs(n); len(logs) > 0 {
		fix.Commands = logs
	}
	return fix
}

func licenseCheck() engine.Check {
	return engine.Check{
		ID: "vgpu.license", Symptom: engine.Precise, Layer: finding.LayerDriver,
		Title:    "a virtual GPU has no license",
		Needs:    []engine.Need{engine.NeedNode},
		Reads:    "nvidia-smi -q -x: vgpu_software_licensed_product; the journal of nvidia-gridd",
		Why:      "A vGPU without a license slows down after some minutes, and CUDA then stops working. GPUs that are not vGPUs report no license.",
		Explains: []string{"wl.pod-failing", "wl.cuda-error", "op.init-chain", "op.operand-failing"},
		Doc:      "https://docs.nvidia.com/license-system/latest/",
		Sources:  []string{"gpu-operator#220", "gpu-operator#628", "gpu-operator#663", "AKS#4870", "aks-gpu#90"},
		Run: func(f *facts.Facts, r *engine.Result) {
			engine.EachSMI(f, r, func(n *facts.Node, v *facts.GPUView) {
				for _, g := range v.SMI.GPUs {
					if !strings.HasPrefix(strings.ToLower(g.License.Status), "unlicensed") ||
						strings.EqualFold(g.Virtualization, "Pass-Through") {
						r.Pass(facts.SMIObject(n, g))
						continue
					}
					issue := finding.Finding{
						Severity: finding.Warning,
						Title:    "the virtual GPU has no license and will be slowed down",
						Object:   facts.SMIObject(n, g), Nodes: []string{n.Name},
						Evidence: []finding.Evidence{facts.SMIEvidence(n, g, "license_status", g.License.Status)},
						Fix: finding.Fix{
							Text: "Give the driver a client token from NVIDIA's license system (/etc/nvidia/ClientConfigToken), and check that the node can reach the license server (nvidia-gridd).",
							Commands: []string{
								shell.OnHost(n.Name, "sudo journalctl -u nvidia-gridd -n 50 --no-pager"),
							},
						},
					}
					if strings.Contains(strings.ToLower(g.License.Status), "(restricted)") {
						issue.Severity, issue.Title = finding.Error,
							"the virtual GPU has no license and is therefore restricted"
					}
					if containerDriver(f, n) {
						issue.Fix.Text =
							"Create a Secret (or ConfigMap) with gridd.conf and client_configuration_token.tok, set it as driver.licensingConfig.secretName, and check that the node can reach the license server."
						issue.Fix.Commands = facts.ChangeOperator(f, "driver.licensingConfig.secretName", "SECRET")
					}
					if !containerDriver(f, n) {
						issue.Evidence = append(issue.Evidence, withoutGridd(f, n)...)
					}
					r.Add(issue)
				}
			})
		},
	}
}

// withoutGridd returns evidence that no service on the node fetches a license: the journal of nvidia-gridd is empty, or
// only other nodes have this journal.
func withoutGridd(f *facts.Facts, n *facts.Node) []finding.Evidence {
	said, read := journalOf(n, "nvidia-gridd")
	elsewhere := slices.ContainsFunc(f.GPUNodes, func(other *facts.Node) bool {
		said, _ := journalOf(other, "nvidia-gridd")
		return strings.Contains(said, "gridd[")
	})
	if strings.Contains(said, "gridd[") || !read && (!elsewhere || n.Host == nil || len(n.Host.Journals) == 0) {
		return nil
	}
	return []finding.Evidence{{
		Source: "journal of nvidia-gridd on node " + n.Name,
		Text:   "no line from nvidia-gridd; driver " + driverVersion(n.Host),
	}}
}

// journalOf returns the journal of a unit. The name may include the suffix .service. read is false if the journal was
// not read.
func journalOf(n *facts.Node, unit string) (said string, read bool) {
	if n.Host == nil {
		return "", false
	}
	if said, read = n.Host.Journals[unit]; !read {
		said, read = n.Host.Journals[unit+".service"]
	}
	return said, read
}
