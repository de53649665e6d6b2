package driver

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

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
		Why: "The driver does not create its device nodes itself: nvidia-modprobe, nvidia-persistenced, or udev " +
			"does. Without the device nodes, CDI specifications and containers cannot be created. This is an error " +
			"if a pod fails because of it.",
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
	if validators := facts.Current(n, facts.Validator); containerDriver(f, n) && len(validators) > 0 {
		issue.Fix = finding.Fix{ // the host has no nvidia-modprobe
			Text: "The GPU operator's validator creates the device nodes of the driver's container: restart its pod " +
				"on the node, and check the log of its driver-validation container if they are still missing.",
			Commands: []string{facts.RestartPod(validators[0].Namespace, validators[0].Name)},
		}
	}
	if p, ok := platform.Of(string(n.Distribution)); ok && !p.HasShell() {
		issue.Fix = finding.Fix{Text: "Drain and reboot the node. If the device nodes are missing again, the driver " +
			"does not start: check the logs of the driver's units or extensions on the node."}
	}
	if e, ok := podTexts(f, n, "/dev/nvidiactl: no such file", "/dev/nvidia0: no such file", "driver/dev/nvidia"); ok {
		issue.Severity, issue.Confidence, issue.Evidence = finding.Error, finding.Certain, append(issue.Evidence, e)
	}
	r.Add(issue)
}
