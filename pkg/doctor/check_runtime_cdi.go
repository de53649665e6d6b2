package doctor

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// cdiChecks are about the Container Device Interface, by which newer toolkits and DRA hand out GPUs.
func cdiChecks() []Check {
	return []Check{
		{
			ID: "cdi.unresolvable", Layer: LayerRuntime, From: []string{"api/pods", "api/events"},
			Needs: []Need{NeedAPI, NeedNode},
			Title: "CDI devices that pods were given cannot be resolved",
			Reads: "events and states of containers; the CDI specifications in /etc/cdi and /var/run/cdi, the host paths and the driver version " +
				"in them, the loaded driver",
			Why:      "the runtime says `unresolvable CDI devices`; or a specification names files that are not there, or libraries of another driver than the loaded one",
			Explains: noPods(),
			Doc:      "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
			Sources: []string{
				"nvidia-container-toolkit#146", "nvidia-container-toolkit#434", "nvidia-container-toolkit#885",
				"nvidia-container-toolkit#1239", "dra-driver#736",
			},
			Run: checkUnresolvable,
		},
		{
			ID: "rt.cdi-off", Layer: LayerRuntime, From: []string{"api/pods"}, Needs: []Need{NeedAPI, NeedNode},
			Title: "containerd has CDI off, and GPUs come by CDI",
			Reads: "enable_cdi in memory, how the device plugin hands out devices, whether the DRA driver runs",
			Why: "with enable_cdi = false, the default of 1.7, containerd passes over CDI devices without an error; it matters where GPUs come in " +
				"no other way",
			Explains: noGPUs("cdi.unresolvable"), Sources: []string{"containerd docs/cri/config.md", "k8s-snap#2388"},
			Run: checkCDIOff,
		},
		{
			ID: "cdi.runtime-too-old", Layer: LayerRuntime, From: []string{"api/clusterpolicies", "api/pods"},
			Needs: []Need{NeedAPI},
			Title: "containerd is too old for CDI, by which GPUs are handed out",
			Reads: ".status.nodeInfo.containerRuntimeVersion, how the device plugin hands out devices, cdi.enabled of the ClusterPolicy and the " +
				"operator's version",
			Why:      "containerd before 1.7 knows no CDI; the GPU operator uses it by default since 25.10",
			Explains: noGPUs("cdi.unresolvable"), Sources: []string{"k8s-snap#2388", "gpud containerd component"},
			Run: checkRuntimeTooOld,
		},
	}
}

func policyBool(p unstructured.Unstructured, fields ...string) bool {
	on, _, _ := unstructured.NestedBool(p.Object, fields...)
	return on
}

func checkUnresolvable(f *Facts, r *Result) {
	for _, n := range f.Nodes {
		said := f.errorsOn("cdi.unresolvable", n)
		var wrong []Evidence
		if n.Host != nil {
			for _, spec := range n.Host.Probe.CDI {
				wrong = append(wrong, wrongSpec(n, spec)...)
			}
		}
		if len(said.errors) == 0 && len(wrong) == 0 {
			continue
		}
		finding := Finding{
			Object: n.Object(), Title: "CDI devices cannot be resolved",
			Evidence: append(said.evidence(), wrong[:min(len(wrong), 3)]...), Fix: cdiFix(f, n, said.name),
		}
		if len(said.errors) == 0 {
			finding.Title, finding.Severity = "a CDI specification does not fit to the node", Info
			if _, only := f.onlyCDI(n); only {
				finding.Severity = Warning
			}
		}
		r.Add(finding)
	}
}

// wrongSpec returns what is wrong with a specification of NVIDIA's.
func wrongSpec(n *Node, spec api.CDISpec) []Evidence {
	quote := func(format string, args ...any) Evidence {
		return clipped(Evidence{
			Source: "nodes/" + n.Name + ": " + spec.Path, Time: spec.Modified, Text: fmt.Sprintf(format, args...),
		})
	}
	loaded := n.Host.Probe.Driver.Kernel
	switch {
	case spec.Error != "" && strings.Contains(spec.Path, "nvidia"):
		return []Evidence{quote("%s", spec.Error)}
	case !strings.Contains(spec.Kind, "nvidia.com/"):
		return nil
	case len(spec.Missing) > 0:
		return []Evidence{quote("it names %s, not there", strings.Join(spec.Missing[:min(len(spec.Missing), 3)], ", "))}
	case spec.DriverVersion != "" && loaded != "" && spec.DriverVersion != loaded:
		return []Evidence{quote("it mounts libraries of driver %s, and %s is loaded", spec.DriverVersion, loaded)}
	}
	return nil
}

func cdiFix(f *Facts, n *Node, devices string) Fix {
	switch {
	case strings.Contains(devices, "k8s.gpu.nvidia.com") || strings.Contains(devices, "gpu.nvidia.com/"):
		fix :=
			Fix{Text: "the DRA driver writes the specification of a claim when it prepares it: start its pod on the node anew, and then the " +
				"pod that has the claim"}
		for _, pod := range current(n, DRADriver) {
			fix.Commands = append(fix.Commands, restartPod(pod.Namespace, pod.Name))
		}
		return fix
	case len(current(n, Toolkit)) > 0:
		pod := current(n, Toolkit)[0]
		return Fix{
			Text: "the toolkit's pod writes the specifications when it starts, for the driver that is loaded then: start it anew, and then the " +
				"device plugin's",
			Commands: []string{restartPod(pod.Namespace, pod.Name)},
		}
	}
	return Fix{
		Text: "write the specification anew, as after each change of the driver; and do not give pods that get devices by CDI the runtime class " +
			"nvidia-cdi",
		Commands: []string{onHost(n.Name, "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml")},
	}
}

func checkCDIOff(f *Facts, r *Result) {
	for _, n := range f.GPUNodes {
		source, only := f.onlyCDI(n)
		if !only || n.IsCRIO() {
			continue
		}
		i := n.instance()
		if i == nil || i.CDI == nil {
			r.Unknown(n.Object(), "whether its containerd has CDI on is not known: %s", f.hostProblem(n))
			continue
		}
		if *i.CDI || f.usesNRI() {
			r.Pass(n.Object())
			continue
		}
		r.Add(Finding{
			Object: n.Object(), Title: "containerd has CDI off, and GPUs are handed out by CDI only",
			Evidence: []Evidence{{Source: "nodes/" + n.Name + ": containerd's configuration in memory (CRI Status)",
				Text: "enableCDI: " +
					"false"}, source},
			Fix: Fix{
				Text: fmt.Sprintf("set enable_cdi = true in the table of CRI in %s, or RUNTIME_ENABLE_CDI=true for the toolkit, and restart "+
					"%s", i.ConfigPath, i.UnitName()),
				Commands: []string{restartUnit(n)},
			},
		})
	}
}

func checkRuntimeTooOld(f *Facts, r *Result) {
	for _, n := range f.GPUNodes {
		release, known := containerdRelease(n)
		if !known || release.AtLeast(1, 7) || f.usesNRI() {
			continue
		}
		source, only := f.onlyCDI(n)
		if p, ok := clusterPolicy(f); ok && !only && policyBool(p, "spec", "cdi", "enabled") {
			version := f.operatorVersion()
			source, only = fieldEvidence(Object{Kind: "ClusterPolicy", Name: p.GetName()}, ".spec.cdi.enabled",
				"true (GPU operator %s)", version), versionAtLeast(version, 25, 10)
		}
		if !only {
			continue
		}
		r.Add(Finding{
			Object: n.Object(), Confidence: Likely,
			Title: "containerd is too old for CDI, by which GPUs are handed out",
			Evidence: []Evidence{fieldEvidence(n.Object(), ".status.nodeInfo.containerRuntimeVersion", "%s",
				n.Status.NodeInfo.ContainerRuntimeVersion), source},
			Fix: Fix{Text: "upgrade containerd to 1.7 or later with enable_cdi = true; until then set cdi.enabled=false, so that GPUs come by the " +
				"NVIDIA runtime", Commands: changeOperator(f, "cdi.enabled", false)},
		})
	}
}
