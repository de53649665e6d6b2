package driver

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func driverNotLoadedCheck() engine.Check {
	return engine.Check{
		ID: "drv.not-loaded", Symptom: engine.Explained, Layer: finding.LayerDriver,
		Title: "no NVIDIA driver is loaded on a node with GPUs",
		Needs: []engine.Need{engine.NeedNode, engine.NeedAPI},
		Reads: "the loaded modules, the GPUs on the PCI bus and the module bound to each, nvidia.ko under " +
			"/lib/modules, the output of nvidia-smi; if the modules and the bus were not read, the kernel log since " +
			"boot; if the node was not read, the container toolkit's messages in pod events",
		Why: "A module is built for one kernel, and may be missing for a new kernel after an update. GPUs that are assigned to virtual machines (vfio-pci) do not need it. A driver container " +
			"may take 20 minutes to build the driver.",
		// A driver that is still being installed also explains these findings.
		Explains: driverSymptoms("drv.devnodes", "drv.uvm-missing", "fab.fabricmanager"), InfoExplains: true,
		Doc: installDoc,
		Sources: []string{
			"nvidia-docker#365", "nvidia-docker#804", "nvidia-docker#988", "compute-gpu-installation#18",
			"compute-gpu-installation#25", "compute-gpu-installation#33", "eksctl#7794",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				if n.Host != nil {
					checkLoaded(f, r, n, n.Host)
				} else if said, says := podTexts(f, n, "nvml error: driver not loaded"); says {
					r.Add(finding.Finding{
						Title: "no NVIDIA driver is loaded", Object: n.Object(), Fix: installDriver(f, n),
						Evidence: []finding.Evidence{said},
					})
				} else {
					r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
				}
			}
		},
	}
}

func checkLoaded(f *facts.Facts, r *engine.Result, n *facts.Node, host *api.Diagnosis) {
	loaded, known := moduleLoaded(host, "nvidia")
	var own []api.PCIDevice
	for _, d := range host.Probe.PCI {
		if facts.IsGPUDevice(d) && d.Driver != "vfio-pci" && kernelsOwn(d) == "" {
			own = append(own, d)
		}
	}
	switch {
	case loaded || driverVersion(host) != "" || n.GPUs().SMI != nil:
		r.Pass(n.Object())
		return
	case len(host.Probe.Modules) == 0 && len(host.Probe.PCI) == 0 && reportSilent(f, r, n, host):
		return
	case !known:
		r.Unknown(n.Object(), "loaded modules: %s", host.Probe.Unread["modules"])
		return
	case engine.LacksPCI(r, n):
		return
	case len(own) == 0, n.Labels["nvidia.com/gpu.workload.config"] == "vm-passthrough":
		r.Pass(n.Object())
		return
	}
	kernel := kernelOf(n)
	issue := finding.Finding{
		Title: "no NVIDIA driver is loaded", Object: n.Object(), Fix: installDriver(f, n),
		Evidence: []finding.Evidence{{
			Source: "/proc/modules and /sys/bus/pci/devices on node " + n.Name,
			Text:   fmt.Sprintf("the nvidia module is not loaded; GPU %s has driver %q", own[0].Address, own[0].Driver),
		}},
	}
	if words.ContainsAny(
		host.Probe.SMIError, []string{"couldn't communicate with the NVIDIA driver", "not found", "No such file"},
	) {
		issue.Evidence = append(issue.Evidence,
			finding.Evidence{Source: "nvidia-smi on node " + n.Name, Text: words.FirstLine(host.Probe.SMIError)})
	}
	if built := builtFor(host); len(built) > 0 && !slices.Contains(built, kernel) {
		issue.Title = "the NVIDIA driver is not built for the running kernel, so it is not loaded"
		issue.Evidence = append(issue.Evidence, finding.Evidence{
			Source: "/lib/modules on node " + n.Name,
			Text:   fmt.Sprintf("nvidia.ko for %s; running kernel %s", strings.Join(built, ", "), kernel),
		})
		p, ok := platform.Of(string(n.Distribution))
		if ok && p.Driver.Fix != "" && len(n.Component(facts.Driver)) == 0 {
			issue.Fix.Commands = nil
			issue.Fix.Text = fmt.Sprintf("Boot the kernel %s, for which the driver was built, and keep it (package "+
				"lock), or install the driver's package for %s. Or replace the node with one whose image contains a "+
				"matching kernel and driver.",
				built[len(built)-1], kernel)
		}
	}
	if e, ok := grepKernel(
		n, "Module nvidia not found", "nvidia: probe of", "NVRM: No NVIDIA GPU found",
		"NVRM: None of the NVIDIA devices were initialized",
	); ok {
		issue.Evidence = append(issue.Evidence, e)
	}
	for _, pod := range n.Component(facts.Driver) {
		if age := f.Now.Sub(pod.CreationTimestamp.Time); !podutils.IsPodReady(pod) && age < facts.DriverGrace &&
			restarts(pod) == 0 {
			issue.Severity, issue.Title = finding.Info, "the NVIDIA driver is being installed"
			issue.Evidence = append(issue.Evidence,
				finding.FieldEvidence(facts.PodObject(pod), ".metadata.creationTimestamp",
					"%s", pod.CreationTimestamp.UTC().Format(time.RFC3339)))
		}
	}
	r.Add(issue)
}

// onBus matches a kernel log line about an NVIDIA display controller on the PCI bus.
var onBus = regexp.MustCompile(`pci \S+: \[10de:[0-9a-f]{4}\] type \S+ class 0x03`)

// reportSilent reports a node from which little more than the kernel log could be read, if the log begins at boot,
// shows a GPU, and contains no line from any driver for this GPU.
func reportSilent(f *facts.Facts, r *engine.Result, n *facts.Node, host *api.Diagnosis) bool {
	var gpu *api.KernelRecord
	booted := false
	for i := range host.KernelLog {
		k := &host.KernelLog[i]
		booted = booted || strings.Contains(k.Text, "Linux version ")
		if gpu == nil && onBus.MatchString(k.Text) {
			gpu = k
		}
		if words.ContainsAny(k.Text, []string{"nvidia", "NVRM", "nouveau", "nova", "vfio"}) {
			return false
		}
	}
	if gpu == nil || !booted {
		return false
	}
	r.Add(finding.Finding{
		Title: "no NVIDIA driver is loaded", Object: n.Object(), Fix: installDriver(f, n), Confidence: finding.Likely,
		Evidence: []finding.Evidence{n.QuoteKernel(*gpu), {
			Source: "nodes/" + n.Name + "/kernel.log, since boot",
			Text:   "(no line from the modules nvidia, nouveau, nova or vfio)",
		}},
	})
	return true
}

// builtFor returns the kernels for which nvidia.ko was built.
func builtFor(host *api.Diagnosis) []string {
	var kernels []string
	for _, p := range host.Probe.Driver.Built {
		_, rest, ok := strings.Cut(p, "/lib/modules/")
		kernel, _, _ := strings.Cut(rest, "/")
		if name := path.Base(p); ok && strings.HasPrefix(name, "nvidia.ko") && !slices.Contains(kernels, kernel) {
			kernels = append(kernels, kernel)
		}
	}
	return kernels
}

func nouveauCheck() engine.Check {
	return engine.Check{
		ID: "drv.nouveau", Layer: finding.LayerDriver,
		Title: "an in-tree module, nouveau or nova, is bound to the GPUs, so NVIDIA's driver cannot use them",
		Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads: "the module bound to each GPU (/sys/bus/pci/devices), the loaded modules, the kernel log, and the " +
			"logs of driver pods",
		Why:      "Nouveau and its successor nova are part of the kernel and bind to GPUs if they are loaded first. They do no harm if they are loaded but not bound to a GPU.",
		Explains: driverSymptoms("wl.message", "drv.not-loaded", "drv.build-fail", "drv.devnodes", "drv.uvm-missing"),
		Doc:      operatorDoc, Sources: []string{"gpu-operator#332", "bigdata#133", "oneflow#3106"},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkNouveau(f, r, n)
			}
		},
	}
}

func checkNouveau(f *facts.Facts, r *engine.Result, n *facts.Node) {
	issue, module, bound := finding.Finding{Object: n.Object()}, "nouveau", false
	if e, ok := driverPodLog(f, n, nouveauTexts()...); ok {
		issue.Evidence = append(issue.Evidence, e)
	}
	if n.Host != nil {
		for _, d := range n.Host.Probe.PCI {
			if own := kernelsOwn(d); facts.IsGPUDevice(d) && own != "" {
				module, bound = own, true
				issue.Evidence = append(issue.Evidence,
					finding.Evidence{Source: "/sys/bus/pci/devices/" + d.Address + "/driver on node " +
						n.Name, Text: d.Driver})
				break
			}
		}
		if len(issue.Evidence) > 0 {
			if e, ok := grepKernel(n, "The NVIDIA probe routine was not called for"); ok {
				issue.Evidence = append(issue.Evidence, e)
			}
		}
	}
	if bound {
		issue.Title = "the module " + module + " is bound to the node's GPUs, so NVIDIA's driver cannot use them"
	} else {
		issue.Title = "the module " + module + " is in use, so the driver's container cannot load NVIDIA's driver"
	}
	issue.Fix = blacklist(n, module)
	switch {
	case len(issue.Evidence) > 0:
		r.Add(issue)
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	case !engine.LacksPCI(r, n):
		r.Pass(n.Object())
	}
}

func nouveauTexts() []string {
	return []string{
		"The Nouveau kernel driver is currently in use", "nouveau kernel module is loaded", "Could not unload nouveau",
	}
}

// kernelsOwn returns the in-tree module that is bound to a device, or an empty string if none is bound. The driver's
// name can differ from the module's: the driver in nova_core is named NovaCore.
func kernelsOwn(d api.PCIDevice) string {
	switch strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(d.Driver)) {
	case "nouveau":
		return "nouveau"
	case "novacore", "nova":
		return "nova_core"
	}
	return ""
}

func blacklist(n *facts.Node, module string) finding.Fix {
	rebuild := map[string]string{
		"apt": "sudo update-initramfs -u", "dnf": "sudo dracut --force", "zypper": "sudo dracut --force",
	}[packager(n)]
	file := "/etc/modprobe.d/blacklist-" + module + ".conf"
	commands := []string{shell.OnHost(n.Name, "echo %s | sudo tee %s", "blacklist "+module, file)}
	if module == "nouveau" {
		commands = append(commands, shell.OnHost(n.Name, "echo %s | sudo tee -a %s", "options nouveau modeset=0", file))
	}
	if rebuild != "" {
		commands = append(commands, shell.OnHost(n.Name, rebuild))
	}
	return finding.Fix{
		Text:     "Prevent " + module + " from loading on " + osOf(n) + ", and reboot the node.",
		Commands: append(commands, facts.Drain(n, facts.Reboot(n), facts.Uncordon(n))...),
	}
}

func gspCheck() engine.Check {
	return engine.Check{
		ID: "drv.gsp", Layer: finding.LayerDriver,
		Title: "the firmware on a GPU's system processor (GSP) does not respond",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "XIDs 119 and 120, and lost heartbeats, in the kernel log since boot; whether nvidia-smi returns",
		Why: "Since Turing, much of the driver runs as firmware on the GPU. If the firmware hangs or crashes, each call takes 45 seconds and fails until the GPU is reset. If the same GPU also reports XID 79, XID 79 is " +
			"the cause.",
		Explains: facts.GPUSymptoms("fab.fabricmanager"),
		Doc:      facts.XIDDoc, Sources: []string{
			"open-gpu-kernel-modules#446", "open-gpu-kernel-modules#1080", "open-gpu-kernel-modules#1230", "gpud#500",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				v := n.GPUs()
				groups := facts.GroupIncidents(v.Of("drv.gsp"))
				for _, g := range groups {
					title := "the firmware on the GPU's system processor (GSP) does not respond"
					if g.Event.Code == 120 {
						title = "the firmware on the GPU's system processor (GSP) crashed"
					}
					fix := finding.Fix{
						Text: "Drain the node, and reset the GPU or reboot. If the problem recurs, update the driver" +
							versionNote(n) + ".",
						Commands: facts.Drain(n, facts.ResetGPU(n, g.Event.PCI), facts.Uncordon(n)),
					}
					if n.Host != nil && !n.Host.Probe.Driver.Open && driverVersion(n.Host) != "" {
						fix.Text += " With the proprietary module, on GPUs before Hopper, you can disable the firmware: NVreg_EnableGpuFirmware=0."
					}
					r.Add(v.IncidentFinding(g, finding.Error, title, fix))
				}
				switch {
				case n.Host == nil:
					r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
				case len(v.Incidents) == 0 && strings.Contains(v.SMIError, hangs):
					r.Add(finding.Finding{
						Severity: finding.Warning, Confidence: finding.Possible,
						Title:  "nvidia-smi does not return: the driver or a GPU's firmware hangs",
						Object: n.Object(),
						Evidence: []finding.Evidence{
							{Source: "nvidia-smi on node " + n.Name, Text: words.FirstLine(v.SMIError)},
						},
						Fix: finding.Fix{
							Text:     "Run nvidia-smi on the node, and watch the kernel log. If nvidia-smi hangs there too, drain and reboot the node.",
							Commands: facts.Drain(n, facts.Reboot(n)),
						},
					})
				case len(groups) == 0:
					r.Pass(n.Object())
				}
			}
		},
	}
}

// hangs is part of the debug pod's error message when nvidia-smi times out.
const hangs = "did not answer within"

// versionNote returns a note with the driver's version, or an empty string if the version is unknown.
func versionNote(n *facts.Node) string {
	if n.Host == nil || driverVersion(n.Host) == "" {
		return ""
	}
	return " (currently " + driverVersion(n.Host) + ")"
}

func persistenceCheck() engine.Check {
	return engine.Check{
		ID: "drv.persistence", Layer: finding.LayerDriver,
		Title: "the driver deinitializes a GPU whenever no process uses it",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: persistence_mode; the nvidia-persistenced process",
		Why: "Without persistence, the first CUDA call after a pause takes seconds, and settings such as clocks and " +
			"power limits are lost. This is not a fault, so it is only Info.",
		Doc: "https://docs.nvidia.com/deploy/driver-persistence/", Sources: []string{"gpud: persistence-mode"},
		Run: func(f *facts.Facts, r *engine.Result) {
			engine.EachSMI(f, r, func(n *facts.Node, v *facts.GPUView) {
				for _, g := range v.SMI.GPUs {
					if g.Persistence == nil || *g.Persistence ||
						len(n.Host.Probe.Processes["nvidia-persistenced"]) > 0 {
						r.Pass(facts.SMIObject(n, g))
						continue
					}
					r.Add(finding.Finding{
						Severity: finding.Info,
						Title:    "the driver deinitializes the GPU whenever no process uses it (persistence mode is off)",
						Object:   facts.SMIObject(n, g), Nodes: []string{n.Name},
						Evidence: []finding.Evidence{facts.SMIEvidence(n, g, "persistence_mode", "Disabled")},
						Fix: finding.Fix{
							Text:     "Run nvidia-persistenced on the node.",
							Commands: []string{shell.OnHost(n.Name, "sudo systemctl enable --now nvidia-persistenced")},
						},
					})
				}
			})
		},
	}
}

// compareVersions compares driver versions such as 580.95.05 numerically.
func compareVersions(a, b string) int {
	left, leftErr := version.ParseGeneric(a)
	right, rightErr := version.ParseGeneric(b)
	switch {
	case leftErr != nil || rightErr != nil:
		return strings.Compare(a, b)
	case left.LessThan(right):
		return -1
	case right.LessThan(left):
		return 1
	}
	return 0
}
