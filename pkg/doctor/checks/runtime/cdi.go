package runtime

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// cdiChecks returns the checks for the Container Device Interface (CDI), which newer toolkits and DRA use to inject
// GPUs.
func cdiChecks() []engine.Check {
	return []engine.Check{
		{
			ID: "cdi.unresolvable", Symptom: engine.Precise,
			Layer: finding.LayerRuntime, From: []string{"api/pods", "api/events"},
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "CDI devices allocated to pods cannot be resolved",
			Reads: "events and container states; the CDI specifications in /etc/cdi and /var/run/cdi, their host " +
				"paths and driver versions, and the loaded driver",
			Why: "the runtime reports `unresolvable CDI devices`, or a specification refers to missing files or to " +
				"libraries of a driver that is not loaded",
			Explains: noPods(),
			Doc:      "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
			Sources: []string{
				"nvidia-container-toolkit#146", "nvidia-container-toolkit#434", "nvidia-container-toolkit#885",
				"nvidia-container-toolkit#1239", "dra-driver#736",
			},
			Run: checkUnresolvable,
		},
		{
			ID: "rt.cdi-off", Layer: finding.LayerRuntime, From: []string{"api/pods"},
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "CDI is disabled in containerd, but GPUs are provided through CDI",
			Reads: "enable_cdi in memory, how the device plugin provides devices, and whether the DRA driver is " +
				"running",
			Why: "with enable_cdi = false, the default in 1.7, containerd silently ignores CDI devices; this is " +
				"reported only if GPUs are not also provided in another way",
			Explains: noGPUs("cdi.unresolvable"), Sources: []string{"containerd docs/cri/config.md", "k8s-snap#2388"},
			Run: checkCDIOff,
		},
		{
			ID: "cdi.runtime-too-old", Layer: finding.LayerRuntime, From: []string{"api/clusterpolicies", "api/pods"},
			Needs: []engine.Need{engine.NeedAPI},
			Title: "GPUs are provided through CDI, but containerd is too old for it",
			Reads: ".status.nodeInfo.containerRuntimeVersion, how the device plugin provides devices, cdi.enabled of " +
				"the ClusterPolicy and the operator's version",
			Why: "containerd before 1.7 does not support CDI, which the GPU operator has used by default since " +
				"25.10",
			Explains: noGPUs("cdi.unresolvable"), Sources: []string{"k8s-snap#2388", "gpud containerd component"},
			Run: checkRuntimeTooOld,
		},
	}
}

func policyBool(p unstructured.Unstructured, fields ...string) bool {
	on, _, _ := unstructured.NestedBool(p.Object, fields...)
	return on
}

func checkUnresolvable(f *facts.Facts, r *engine.Result) {
	for _, n := range f.Nodes {
		said := errorsOn(f, "cdi.unresolvable", n)
		var wrong []finding.Evidence
		devices := said.name
		if n.Host != nil {
			for _, spec := range n.Host.Probe.CDI {
				if found := wrongSpec(n, spec); len(found) > 0 {
					wrong, devices = append(wrong, found...), cmp.Or(devices, spec.Kind)
				}
			}
		}
		if len(said.errors) == 0 && len(wrong) == 0 {
			continue
		}
		issue := finding.Finding{
			Object: n.Object(), Title: "CDI devices cannot be resolved",
			Evidence: append(said.evidence(), wrong[:min(len(wrong), 3)]...), Fix: cdiFix(f, n, devices),
		}
		if len(said.errors) == 0 {
			issue.Title, issue.Severity = "a CDI specification does not match the node", finding.Info
			if _, only := onlyCDI(f, n); only {
				issue.Severity = finding.Warning
			}
		}
		r.Add(issue)
	}
}

// wrongSpec quotes the error in an NVIDIA CDI specification. It returns nil if the specification is valid.
func wrongSpec(n *facts.Node, spec api.CDISpec) []finding.Evidence {
	quote := func(format string, args ...any) finding.Evidence {
		return finding.Clipped(finding.Evidence{
			Source: "nodes/" + n.Name + ": " + spec.Path, Time: spec.Modified, Text: fmt.Sprintf(format, args...),
		})
	}
	loaded := n.Host.Probe.Driver.Kernel
	switch {
	case spec.Error != "" && strings.Contains(spec.Path, "nvidia"):
		return []finding.Evidence{quote("%s", spec.Error)}
	case !strings.Contains(spec.Kind, "nvidia.com/"):
		return nil
	case len(spec.Missing) > 0:
		return []finding.Evidence{
			quote("names missing files: %s", strings.Join(spec.Missing[:min(len(spec.Missing), 3)], ", ")),
		}
	case spec.DriverVersion != "" && loaded != "" && spec.DriverVersion != loaded:
		return []finding.Evidence{
			quote("mounts libraries of driver %s, but %s is loaded", spec.DriverVersion, loaded),
		}
	}
	return nil
}

func cdiFix(f *facts.Facts, n *facts.Node, devices string) finding.Fix {
	switch {
	case strings.Index(devices, "/") > 0 && !strings.Contains(devices, "nvidia"): // not a path
		return finding.Fix{
			Text: "find the specification that names the device (" + words.Clip(devices) + "): its vendor's device " +
				"plugin, DRA driver or toolkit writes the specification. If it is missing or names a file that does " +
				"not exist, check the log of that program's pod or unit on the node",
			Commands: []string{shell.OnHost(n.Name, "sudo grep -rn kind: /etc/cdi /var/run/cdi")},
		}
	case strings.Contains(devices, "k8s.device-plugin.nvidia.com") && len(facts.Current(n, facts.DevicePlugin)) > 0:
		pod := facts.Current(n, facts.DevicePlugin)[0]
		fix := finding.Fix{
			Text: "The device plugin writes the specification of these devices when it starts: restart the device " +
				"plugin pod, and check its log if the specification is not in /var/run/cdi afterwards.",
			Commands: []string{facts.RestartPod(pod.Namespace, pod.Name)},
		}
		if strings.Contains(devices, "=MIG-") && strings.Contains(pod.Spec.Containers[0].Image, "hami") {
			fix.Text += " HAMi before 2.9.0 does not add the MIG instances that it creates later: upgrade HAMi."
		}
		return fix
	case strings.Contains(devices, "k8s.gpu.nvidia.com") || strings.Contains(devices, "gpu.nvidia.com/"):
		fix :=
			finding.Fix{Text: "the DRA driver writes a claim's specification when it prepares the claim: restart the " +
				"DRA driver pod on the node, then the pod with the claim"}
		for _, pod := range facts.Current(n, facts.DRADriver) {
			fix.Commands = append(fix.Commands, facts.RestartPod(pod.Namespace, pod.Name))
		}
		return fix
	case len(facts.Current(n, facts.Toolkit)) > 0:
		pod := facts.Current(n, facts.Toolkit)[0]
		return finding.Fix{
			Text: "the toolkit pod writes the specifications for the loaded driver when it starts: restart the " +
				"toolkit pod, then the device plugin pod",
			Commands: []string{facts.RestartPod(pod.Namespace, pod.Name)},
		}
	}
	if strings.Contains(devices, "management.nvidia.com") {
		fix := finding.Fix{
			Text: "the GPU operator's toolkit, which would write the specification of management.nvidia.com for the " +
				"operator's own pods, does not run on the node: generate the specification at each boot",
			Commands: []string{shell.OnHost(n.Name,
				"sudo nvidia-ctk cdi generate --mode=management --vendor=management.nvidia.com --output=/var/run/cdi/management.nvidia.com-gpu.yaml",
			)},
		}
		if label := "nvidia.com/gpu.deploy.container-toolkit"; n.Labels[label] == "false" {
			fix.Text = "the node's label " + label + "=false keeps the toolkit off the node: " + fix.Text
		}
		return fix
	}
	return finding.Fix{
		Text: "regenerate the specification, as is required after each driver change; do not use the nvidia-cdi " +
			"RuntimeClass for pods that get devices through CDI",
		Commands: []string{shell.OnHost(n.Name, "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml")},
	}
}

func checkCDIOff(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		source, only := onlyCDI(f, n)
		if !only || n.IsCRIO() {
			continue
		}
		i := instance(n)
		if i == nil || i.CDI == nil {
			r.Unknown(n.Object(), "could not determine whether CDI is enabled in containerd: "+
				"%s", cmp.Or(hostProblem(f, n), "its configuration does not show this"))
			continue
		}
		if *i.CDI || usesNRI(f) {
			r.Pass(n.Object())
			continue
		}
		r.Add(finding.Finding{
			Object: n.Object(), Title: "CDI is disabled in containerd, but GPUs are provided through CDI",
			Evidence: []finding.Evidence{{Source: "nodes/" + n.Name +
				": containerd's configuration in memory (CRI Status)",
				Text: "enableCDI: " +
					"false"}, source},
			Fix: finding.Fix{
				Text: fmt.Sprintf("set enable_cdi = true in the CRI plugin's table in %s (or in the template from "+
					"which the distribution generates this file), or set RUNTIME_ENABLE_CDI=true for the operator's "+
					"toolkit, and restart %s", i.ConfigPath, i.UnitName()),
				Commands: []string{restartUnit(n)},
			},
		})
	}
}

func checkRuntimeTooOld(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		release, known := containerdRelease(n)
		if !known || release.AtLeast(1, 7) || usesNRI(f) {
			continue
		}
		source, only := onlyCDI(f, n)
		p, operated := facts.ClusterPolicy(f)
		if operated && !only && policyBool(p, "spec", "cdi", "enabled") {
			version := operatorVersion(f)
			source,
				only = finding.FieldEvidence(finding.Object{Kind: "ClusterPolicy", Name: p.GetName()},
				".spec.cdi.enabled",
				"true (GPU operator %s)", version), versionAtLeast(version, 25, 10)
		}
		if !only {
			continue
		}
		fix := finding.Fix{Text: "upgrade containerd to 1.7 or later, and set enable_cdi = true"}
		if operated && policyBool(p, "spec", "cdi", "enabled") {
			fix.Text += "; until then, set cdi.enabled=false so that the NVIDIA runtime provides the GPUs"
			fix.Commands = facts.ChangeOperator(f, "cdi.enabled", false)
		}
		r.Add(finding.Finding{
			Object: n.Object(), Confidence: finding.Likely,
			Title: "GPUs are provided through CDI, but containerd is too old for it",
			Evidence: []finding.Evidence{finding.FieldEvidence(n.Object(), ".status.nodeInfo.containerRuntimeVersion",
				"%s",
				n.Status.NodeInfo.ContainerRuntimeVersion), source},
			Fix: fix,
		})
	}
}
