package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func libraryMismatchCheck() engine.Check {
	return engine.Check{
		ID: "drv.lib-mismatch", Layer: finding.LayerDriver,
		Title: "the versions of the driver's libraries and its loaded module differ",
		Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads: "/proc/driver/nvidia/version, the versions in the names of libnvidia-ml.so and libcuda.so, and what nvidia-smi, the kernel log, and failing pods report",
		Why: "After an update of the driver's packages, the old module stays loaded until the node is rebooted, and " +
			"new processes cannot use the GPUs. Libraries of other versions next to the right ones are leftovers and " +
			"do no harm.",
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
	if containerDriver(f, n) {
		issue.Fix = finding.Fix{Text: "The GPU operator's driver container loads the module. If the host also has " +
			"driver packages, remove them, or set driver.enabled=false to use only these. Otherwise, drain the node, " +
			"and restart the driver pod on it, which replaces the old module."}
		var restart []string
		for _, pod := range facts.Current(n, facts.Driver) {
			restart = append(restart, facts.RestartPod(pod.Namespace, pod.Name))
		}
		issue.Fix.Commands = facts.Drain(n, append(restart, facts.Uncordon(n))...)
	} else if by := packager(n); by == "apt" {
		issue.Fix.Commands = append(issue.Fix.Commands,
			shell.OnHost(n.Name, "sudo apt-mark hold 'nvidia-*' 'libnvidia-*'"))
	}
	said, says := podTexts(f, n, mismatchTexts()...)
	if n.Host == nil {
		if !says {
			r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
			return
		}
		issue.Evidence, issue.Confidence = []finding.Evidence{said}, finding.Likely // an image may have own libraries
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
	if libraries, module := n.MixedAtBoot(); module != "" && libraries != "" {
		issue.Title = fmt.Sprintf("the node starts with driver libraries %s and kernel module %s", libraries, module)
		issue.Fix = finding.Fix{Text: "A reboot does not help: the versions already differed when the module was " +
			"loaded. Fix the source of the difference: the node's image, its boot scripts, or a driver that was " +
			"installed a second time. Then replace or reinstall the node."}
	}
	if e, ok := grepKernel(n, "NVRM: API mismatch"); ok {
		issue.Evidence = append(issue.Evidence, e)
	}
	if says {
		issue.Evidence = append(issue.Evidence, said)
	}
	r.Add(issue)
}
