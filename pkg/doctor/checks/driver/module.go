package driver

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

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
		Reads: "the loaded modules, the GPUs on the PCI bus and the module bound to each, nvidia.ko under /lib/modules, the output of nvidia-smi; if the node was not read, the container toolkit's messages in pod events",
		Why: "A module is built for one kernel, and may be missing for a new kernel after an update. GPUs that are assigned to virtual machines (vfio-pci) do not need it. A driver container " +
			"may take 20 minutes to build the driver.",
		// A driver that is still being installed explains these findings.
		Explains: driverSymptoms("drv.devnodes", "drv.uvm-missing", "fab.fabricmanager"), InfoExplains: true,
		Doc: installDoc,
		Sources: []string{
			"nvidia-docker#365", "nvidia-docker#804", "nvidia-docker#988", "compute-gpu-installation#18",
			"compute-gpu-installation#25", "compute-gpu-installation#33",
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
	case !known:
		r.Unknown(n.Object(), "loaded modules: %s", host.Probe.Unread["modules"])
		return
	case engine.LacksPCI(r, n):
		return
	case len(own) == 0:
		r.Pass(n.Object())
		return
	}
	kernel := kernelOf(n)
	issue := finding.Finding{
		Title: "no NVIDIA driver is loaded", Object: n.Object(), Fix: installDriver(f, n),
		Evidence: []finding.Evidence{{
			Source: "/proc/modules and /sys/bus/pci/devices on node " + n.Name,
			Text:   fmt.Sprintf("module nvidia is not loaded; GPU %s has driver %q", own[0].Address, own[0].Driver),
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
				"lock), or install the driver's package for %s. Or replace the node with one whose image has a "+
				"matching pair.",
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
		if age := f.Now.Sub(pod.CreationTimestamp.Time); !facts.PodReady(pod) && age < facts.DriverGrace &&
			restarts(pod) == 0 {
			issue.Severity, issue.Title = finding.Info, "the NVIDIA driver is being installed"
			issue.Evidence = append(issue.Evidence,
				finding.FieldEvidence(facts.PodObject(pod), ".metadata.creationTimestamp",
					"%s", pod.CreationTimestamp.UTC().Format(time.RFC3339)))
		}
	}
	r.Add(issue)
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
		Title:    "an in-tree module, nouveau or nova, is bound to the GPUs, so NVIDIA's driver cannot use them",
		Needs:    []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads:    "the module bound to each GPU (/sys/bus/pci/devices), the loaded modules, the kernel log, the logs of driver pods",
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
	issue, module := finding.Finding{Object: n.Object()}, "nouveau"
	if e, ok := driverPodSays(f, n, nouveauTexts()...); ok {
		issue.Evidence = append(issue.Evidence, e)
	}
	if n.Host != nil {
		for _, d := range n.Host.Probe.PCI {
			if own := kernelsOwn(d); facts.IsGPUDevice(d) && own != "" {
				module = own
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
	issue.Title, issue.Fix = "the module "+module+" is bound to the node's GPUs, so NVIDIA's driver cannot use them",
		blacklist(n, module)
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

// kernelsOwn returns the in-tree module that is bound to a device, or an empty string if none is. The name of a driver
// can differ from the name of its module: the driver of nova_core is NovaCore.
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

func uvmCheck() engine.Check {
	return engine.Check{
		ID: "drv.uvm-missing", Symptom: engine.Precise, Layer: finding.LayerDriver,
		Title: "the module nvidia_uvm or its device, which CUDA needs, is missing",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "the loaded modules, /dev/nvidia-uvm (also under /run/nvidia/driver), and what failing pods report about it",
		Why: "nvidia-smi works without nvidia_uvm, but CUDA does not (unknown error, 999). If nothing on the node has used CUDA since boot, the device may not exist yet. This is a warning, or an " +
			"error if a pod fails because of it.",
		Explains: driverSymptoms(),
		Doc:      installDoc,
		Sources: []string{
			"nvidia-docker#106", "nvidia-docker#139", "nvidia-docker#319", "nvidia-docker#396", "nvidia-docker#512",
			"gpu-operator#1923", "dra#1380",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			r.EachHost(f, func(n *facts.Node, host *api.Diagnosis) { checkUVM(f, r, n, host) })
		},
	}
}

func checkUVM(f *facts.Facts, r *engine.Result, n *facts.Node, host *api.Diagnosis) {
	driver, known := moduleLoaded(host, "nvidia")
	if !known {
		r.Unknown(n.Object(), "loaded modules: %s", host.Probe.Unread["modules"])
		return
	}
	said, says := podTexts(f, n, "Could not load UVM kernel module", "/dev/nvidia-uvm: no such file")
	if !driver || len(host.Probe.Modules) == 0 {
		r.Pass(n.Object()) // reported by drv.not-loaded
		return
	}
	uvm, _ := moduleLoaded(host, "nvidia_uvm")
	device := hasDevice(host, "nvidia-uvm")
	if uvm && (device || len(host.Probe.Devices) == 0) {
		r.Pass(n.Object())
		return
	}
	issue := finding.Finding{
		Severity: finding.Warning, Confidence: finding.Likely,
		Title:  "the device /dev/nvidia-uvm, which CUDA needs, is missing",
		Object: n.Object(),
		Evidence: []finding.Evidence{{
			Source: "/proc/modules and /dev on node " + n.Name,
			Text:   fmt.Sprintf("module nvidia_uvm loaded: %t; device nvidia-uvm: %t", uvm, device),
		}},
		Fix: finding.Fix{
			Text: "Load the module and create its device. At each boot, nvidia-persistenced or a udev rule from the driver's packages does this.",
			Commands: []string{
				shell.OnHost(n.Name, "sudo nvidia-modprobe -u -c=0"), shell.OnHost(n.Name, "ls -l /dev/nvidia-uvm"),
			},
		},
	}
	if !uvm {
		issue.Title = "the module nvidia_uvm, which CUDA needs, is not loaded"
	}
	if says {
		issue.Severity, issue.Confidence, issue.Evidence = finding.Error, finding.Certain, append(issue.Evidence, said)
	}
	if containerDriver(f, n) {
		issue.Fix.Text =
			"The GPU operator's driver container loads the module: restart the driver pod on the node when no GPU is in use."
		for _, pod := range n.Component(facts.Driver) {
			issue.Fix.Commands = []string{facts.RestartPod(pod.Namespace, pod.Name)}
		}
	}
	r.Add(issue)
}

// hasDevice reports whether a device node with the name exists on the host or in a driver container.
func hasDevice(host *api.Diagnosis, name string) bool {
	return slices.ContainsFunc(host.Probe.Devices, func(d api.DeviceNode) bool { return path.Base(d.Path) == name })
}

func deviceNodesCheck() engine.Check {
	return engine.Check{
		ID: "drv.devnodes", Layer: finding.LayerDriver,
		Title: "GPU device nodes are missing in /dev",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "/dev/nvidiactl and /dev/nvidiaN (also under /run/nvidia/driver), and the GPUs bound to the driver",
		Why: "The driver does not create its device nodes itself: nvidia-modprobe, nvidia-persistenced, or udev does. Without them, CDI specifications and containers cannot be created. This is an error if a pod " +
			"fails because of it.",
		Explains: driverSymptoms("drv.uvm-missing"),
		Doc:      installDoc, Sources: []string{"gpu-operator#377", "dra#1380", "dra#1458"},
		Run: func(f *facts.Facts, r *engine.Result) {
			r.EachHost(f, func(n *facts.Node, host *api.Diagnosis) { checkDevices(f, r, n, host) })
		},
	}
}

func checkDevices(f *facts.Facts, r *engine.Result, n *facts.Node, host *api.Diagnosis) {
	driver, _ := moduleLoaded(host, "nvidia")
	if why := host.Probe.Unread["devices"]; why != "" {
		r.Unknown(n.Object(), "/dev: %s", why)
		return
	}
	if !driver || driverVersion(host) == "" || strings.Contains(strings.ToLower(kernelOf(n)), "microsoft") {
		r.Pass(n.Object()) // reported by drv.not-loaded; WSL 2 has /dev/dxg instead
		return
	}
	gpus := map[string]bool{}
	for _, d := range host.Probe.Devices {
		if name := path.Base(d.Path); strings.HasPrefix(name, "nvidia") &&
			strings.Trim(name[len("nvidia"):], "0123456789") == "" && name != "nvidia" {
			gpus[name] = true
		}
	}
	want := 0
	for _, d := range host.Probe.PCI {
		if facts.IsGPUDevice(d) && d.Driver == "nvidia" {
			want++
		}
	}
	control := hasDevice(host, "nvidiactl")
	if control && len(gpus) >= want || want == 0 {
		r.Pass(n.Object())
		return
	}
	issue := finding.Finding{
		Severity: finding.Warning, Confidence: finding.Likely, Title: "GPU device nodes are missing in /dev",
		Object: n.Object(),
		Evidence: []finding.Evidence{{Source: "/dev on node " + n.Name,
			Text: fmt.Sprintf("nvidiactl: %t; GPUs with a device node: %d of %d (%s)", control, len(gpus), want,
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(gpus)), " "), "none"))}},
		Fix: finding.Fix{
			Text: "Create the device nodes now (run nvidia-modprobe once for each GPU, with its number instead of 0), and run nvidia-persistenced or install the driver's udev rules, so that they exist after a reboot.",
			Commands: []string{
				shell.OnHost(n.Name, "sudo nvidia-modprobe -c 0 -u"),
				shell.OnHost(n.Name,
					"sudo nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules"),
			},
		},
	}
	if p, ok := platform.Of(string(n.Distribution)); ok && !p.HasShell() {
		issue.Fix = finding.Fix{Text: "Reboot the node. If the device nodes are missing again, its driver does not " +
			"start: see the node's logs of the driver's units or extensions."}
	}
	if e, ok := podTexts(f, n, "/dev/nvidiactl: no such file", "/dev/nvidia0: no such file", "driver/dev/nvidia"); ok {
		issue.Severity, issue.Confidence, issue.Evidence = finding.Error, finding.Certain, append(issue.Evidence, e)
	}
	r.Add(issue)
}

func libraryMismatchCheck() engine.Check {
	return engine.Check{
		ID: "drv.lib-mismatch", Layer: finding.LayerDriver,
		Title: "the versions of the driver's libraries and its loaded module differ",
		Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads: "/proc/driver/nvidia/version, the versions in the names of libnvidia-ml.so and libcuda.so, and what nvidia-smi, the kernel log, and failing pods report",
		Why: "After an update of the driver's packages, the old module stays loaded until the node is rebooted, and new processes cannot use the GPUs. Libraries of other versions next to the right one are leftovers " +
			"and do no harm.",
		Explains: driverSymptoms("fab.fabricmanager"),
		Doc:      installDoc,
		Sources: []string{
			"nvidia-container-toolkit#394", "nvidia-container-toolkit#171", "nvidia-docker#1168", "nvidia-docker#1451",
			"k8s-device-plugin#1431",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkLibraries(f, r, n)
			}
		},
	}
}

func mismatchTexts() []string {
	return []string{"Driver/library version mismatch", "driver/library version mismatch"}
}

func checkLibraries(f *facts.Facts, r *engine.Result, n *facts.Node) {
	issue := finding.Finding{
		Title: "the versions of the driver's libraries and the loaded module differ", Object: n.Object(),
		Fix: finding.Fix{
			Text: "The driver was updated while its old module was loaded. Drain the node, and load the new module, or reboot if rmmod reports that the old one is in use. To prevent this, hold the driver's packages, or exclude " +
				"them from unattended upgrades.",
			Commands: reloadDriver(n),
		},
	}
	if by := packager(n); by == "apt" {
		issue.Fix.Commands = append(issue.Fix.Commands,
			shell.OnHost(n.Name, "sudo apt-mark hold 'nvidia-*' 'libnvidia-*'"))
	}
	said, says := podTexts(f, n, mismatchTexts()...)
	if n.Host == nil {
		if !says {
			r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
			return
		}
		issue.Evidence = []finding.Evidence{said}
		r.Add(issue)
		return
	}
	host := n.Host
	module, versions := driverVersion(host), libraryVersions(host)
	if line := words.FirstLine(host.Probe.SMIError); words.ContainsAny(line, mismatchTexts()) {
		issue.Evidence = append(issue.Evidence, finding.Evidence{Source: "nvidia-smi on node " + n.Name, Text: line})
	}
	if module != "" && len(versions) > 0 && versions[module] == nil {
		newest := slices.MaxFunc(slices.Collect(maps.Keys(versions)), compareVersions)
		issue.Evidence = append(issue.Evidence,
			finding.Evidence{Source: "/proc/driver/nvidia/version on node " + n.Name, Text: module},
			finding.Evidence{Source: "driver's libraries on node " +
				n.Name, Text: strings.Join(versions[newest], ", ")},
		)
	}
	if len(issue.Evidence) == 0 {
		r.Pass(n.Object())
		return
	}
	if e, ok := grepKernel(n, "NVRM: API mismatch"); ok {
		issue.Evidence = append(issue.Evidence, e)
	}
	if says {
		issue.Evidence = append(issue.Evidence, said)
	}
	r.Add(issue)
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
		Title: "the driver unloads its state whenever no process uses a GPU",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: persistence_mode; the process nvidia-persistenced",
		Why:   "Without persistence the first CUDA call after a pause takes seconds, and settings such as clocks and power limits are lost. This is not a fault, so it is only Info.",
		Doc:   "https://docs.nvidia.com/deploy/driver-persistence/", Sources: []string{"gpud: persistence-mode"},
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
						Title:    "the driver unloads its state whenever no process uses the GPU (persistence mode is off)",
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

// compareVersions compares driver versions such as 580.95.05 by their numbers.
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
