package runtime

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kubectl/pkg/util/podutils"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// toolkitFix returns a fix that configures the NVIDIA container toolkit for the kubelet's containerd, depending on how
// the toolkit was installed.
func toolkitFix(f *facts.Facts, n *facts.Node) finding.Fix {
	if n.Distribution == facts.Talos || n.Distribution == facts.Bottlerocket {
		return finding.Fix{
			Text: fmt.Sprintf("%s includes the NVIDIA container toolkit (as a system extension or in its NVIDIA "+
				"variants), and the GPU operator's toolkit cannot change it: set toolkit.enabled=false in the "+
				"operator's values or, for these nodes only, set the label "+
				"nvidia.com/gpu.deploy.container-toolkit=false",
				n.Distribution),
		}
	}
	env := toolkitEnv(f, n)
	if len(env) == 0 {
		return finding.Fix{
			Text: "let doctor read the node to determine the toolkit settings", Commands: []string{lookAt(n)},
		}
	}
	text := "configure the NVIDIA container toolkit for the containerd that the kubelet uses"
	unit := "the runtime"
	if i := instance(n); i != nil {
		unit = i.UnitName()
	}
	if n.Distribution == facts.K3s || n.Distribution == facts.RKE2 {
		text =
			fmt.Sprintf("%s generates containerd's configuration, including the NVIDIA handlers if the toolkit's "+
				"programs are on the node. Do not edit the file: configure only the socket for the toolkit, and "+
				"restart %s once the toolkit is installed", n.Distribution, unit)
		fix := toolkitEnvFix(f, env[1:2], text)
		fix.Commands = append(fix.Commands, restartUnit(n))
		return fix
	}
	if !hasOperator(f) && len(f.Component(facts.Toolkit)) == 0 {
		fix := configureByHand(n, "nvidia")
		fix.Text = "no toolkit runs in this cluster, so " + fix.Text
		return fix
	}
	return toolkitEnvFix(f, env, text+"; the toolkit then adds the handlers and restarts "+unit)
}

// unreachedRuntime returns the finding about a toolkit that does not reach containerd, according to its log.
func unreachedRuntime(f *facts.Facts, n *facts.Node, e finding.Evidence) finding.Finding {
	found := finding.Finding{
		Object: n.Object(), Confidence: finding.Likely, Evidence: []finding.Evidence{e}, Fix: toolkitFix(f, n),
		Title: "the NVIDIA container toolkit finds no container runtime at its configured socket",
	}
	version := n.Status.NodeInfo.ContainerRuntimeVersion
	name, _, _ := strings.Cut(version, "://")
	if name == "" || n.IsContainerd() {
		return found
	}
	if n.IsCRIO() {
		name = "CRI-O"
	}
	found.Title = "the NVIDIA container toolkit is configured for containerd, but the node runs " + name
	found.Confidence = finding.Certain
	const field = ".status.nodeInfo.containerRuntimeVersion"
	found.Evidence = append(found.Evidence, finding.FieldEvidence(n.Object(), field, "%s", version))
	found.Fix = finding.Fix{
		Text: "No GPU node runs containerd. Remove RUNTIME and CONTAINERD_* from toolkit.env in the ClusterPolicy, " +
			"check operator.defaultRuntime, and restart the GPU operator, which then detects " + name + ".",
		Commands: []string{"kubectl get clusterpolicies.nvidia.com -o yaml"},
	}
	for _, other := range f.GPUNodes {
		if !other.IsContainerd() {
			continue
		}
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(other.Object(), field, "%s", other.Status.NodeInfo.ContainerRuntimeVersion))
		found.Fix = finding.Fix{
			Text: "The GPU operator configures the same runtime on all nodes, and " + other.Object().String() +
				" needs containerd. Keep its toolkit off the nodes with " + name + " with the label " +
				"nvidia.com/gpu.deploy.container-toolkit=false (in a NodeFeatureRule or in the node's " +
				"provisioning, if these set labels). There, install and configure the toolkit with the " +
				"operating system, unless its GPU pods already work. Do not change the operator's runtime, and " +
				"do not disable the toolkit for all nodes.",
			Commands: []string{
				shell.Command("kubectl label node %s nvidia.com/gpu.deploy.container-toolkit=false --overwrite", n.Name),
			},
		}
		break
	}
	return found
}

// toolkitEnv returns the environment variables that the toolkit needs on a node. They come from the runtime view or,
// failing that, from the node's distribution.
func toolkitEnv(f *facts.Facts, n *facts.Node) []runtimeview.Setting {
	place, ok := runtime(n.Distribution)
	// These distributions regenerate containerd's configuration from a template at each start.
	ofTemplate := n.Distribution == facts.MicroK8s || n.Distribution == facts.K0s
	if n.View != nil && !ofTemplate {
		if env := n.View.ToolkitEnv(); len(env) > 0 {
			return env
		}
	}
	if !ok {
		return nil
	}
	return []runtimeview.Setting{
		{Name: "CONTAINERD_CONFIG", Value: place.config}, {Name: "CONTAINERD_SOCKET", Value: place.socket},
		{Name: "RUNTIME_CONFIG_SOURCE", Value: "file=" + place.config},
	}
}

func hasOperator(f *facts.Facts) bool {
	_, release := facts.ReleaseOf(f, facts.ChartOperator)
	_, policy := facts.ClusterPolicy(f)
	return release || policy || len(f.Component(facts.Operator)) > 0
}

// toolkitEnvFix returns a fix that sets environment variables for the toolkit: in the operator's Helm release if there
// is one, otherwise in the ClusterPolicy, and otherwise in the DaemonSet. Helm and the ClusterPolicy replace entire
// lists, so the fix includes existing variables.
func toolkitEnvFix(f *facts.Facts, env []runtimeview.Setting, text string) finding.Fix {
	if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
		toolkit, _ := h.Values["toolkit"].(map[string]any)
		old, _ := toolkit["env"].([]any)
		if hasEnv(old, env) {
			return ignoredEnvFix(f, env)
		}
		values, err := yaml.Marshal(map[string]any{"toolkit": map[string]any{"env": withEnv(old, env)}})
		if err != nil {
			values = nil
		}
		return finding.Fix{
			Text: text +
				fmt.Sprintf(": save the values as values.yaml, and upgrade the Helm release %s with its current "+
					"version, %s", h.Name, h.ChartVersion),
			Commands: []string{facts.HelmUpgradeFile(h)}, Values: string(values),
		}
	}
	if p, ok := facts.ClusterPolicy(f); ok {
		old, _, _ := unstructured.NestedSlice(p.Object, "spec", "toolkit", "env")
		if hasEnv(old, env) {
			return ignoredEnvFix(f, env)
		}
		patch, err := yaml.Marshal(
			map[string]any{"spec": map[string]any{"toolkit": map[string]any{"env": withEnv(old, env)}}},
		)
		if err != nil {
			patch = nil
		}
		return finding.Fix{
			Text: text + ": save the values as patch.yaml, and patch the ClusterPolicy " + p.GetName(),
			Commands: []string{
				shell.Command("kubectl patch clusterpolicy %s --type merge --patch-file patch.yaml", p.GetName()),
			}, Values: string(patch),
		}
	}
	var words []string
	for _, s := range env {
		words = append(words, shell.ShellQuote(s.Name+"="+s.Value))
	}
	for _, set := range f.DaemonSets {
		if facts.ComponentOf(set.Labels, &set.Spec.Template.Spec) == facts.Toolkit ||
			strings.Contains(set.Name, "container-toolkit") {
			return finding.Fix{
				Text: text + fmt.Sprintf(
					": set the variables in DaemonSet %s/%s, or preferably in its chart or manifest",
					set.Namespace, set.Name,
				),
				Commands: []string{setEnv(set.Namespace, set.Name, env)},
			}
		}
	}
	return finding.Fix{Text: text + ": " + strings.Join(words, " ")}
}

// hasEnv reports whether all the variables are already set.
func hasEnv(old []any, env []runtimeview.Setting) bool {
	for _, s := range env {
		if !slices.ContainsFunc(old, func(v any) bool {
			variable, _ := v.(map[string]any)
			return variable["name"] == s.Name && variable["value"] == s.Value
		}) {
			return false
		}
	}
	return len(env) > 0
}

// ignoredEnvFix returns the fix for settings that are present but have no effect.
func ignoredEnvFix(f *facts.Facts, env []runtimeview.Setting) finding.Fix {
	var names []string
	for _, s := range env {
		names = append(names, s.Name)
	}
	return finding.Fix{
		Text: fmt.Sprintf("toolkit.env already sets %s, but the toolkit does not use it: compare toolkit.env with "+
			"the variables of the toolkit DaemonSet. If they differ, this release of the GPU operator ignores the "+
			"setting (v25.3.3 does, v25.3.2 and v25.3.4 do not): install another release", words.Joined(names)),
		Commands: []string{
			shell.Command("kubectl get daemonset -n %s nvidia-container-toolkit-daemonset -o yaml", facts.OperatorNamespace(f)),
		},
	}
}

// setEnv returns the command that sets environment variables in a DaemonSet.
func setEnv(namespace, name string, env []runtimeview.Setting) string {
	format, args := "kubectl set env daemonset/%s -n %s", []any{name, namespace}
	for _, s := range env {
		format, args = format+" %s=%s", append(args, s.Name, s.Value)
	}
	return shell.Command(format, args...)
}

// withEnv returns a copy of old in which the variables in env are set. It also replaces variables that use valueFrom.
func withEnv(old []any, env []runtimeview.Setting) []any {
	var all []any
	for _, v := range old {
		variable, _ := v.(map[string]any)
		name, _ := variable["name"].(string)
		if !slices.ContainsFunc(env, func(s runtimeview.Setting) bool { return s.Name == name }) {
			all = append(all, v)
		}
	}
	for _, s := range env {
		all = append(all, map[string]any{"name": s.Name, "value": s.Value})
	}
	return all
}

// toolkitVersion returns the version of the toolkit on a node, and the evidence for the version: the output of the
// toolkit's program if available, otherwise the image of the toolkit pod.
func toolkitVersion(f *facts.Facts, n *facts.Node) (string, finding.Evidence) {
	if n.Host != nil && n.Host.Probe.ToolkitVersion != "" {
		said := n.Host.Probe.ToolkitVersion
		return versionIn(said), finding.Evidence{
			Source: "nodes/" + n.Name + ": version of the NVIDIA container toolkit", Text: words.Clip(said),
		}
	}
	for _, pod := range facts.Current(n, facts.Toolkit) {
		if !podutils.IsPodReady(pod) {
			continue // it may not have installed its version
		}
		for _, c := range pod.Spec.Containers {
			if _, tag, ok := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":"); ok &&
				strings.Contains(c.Image, "container-toolkit") {
				return versionIn(tag), finding.FieldEvidence(
					facts.PodObject(pod), "container "+c.Name+" .image", "%s", c.Image,
				)
			}
		}
	}
	return "", finding.Evidence{}
}

// versionIn returns the first version in a string: 1.17.8 in "NVIDIA Container Runtime version 1.17.8" and
// "v1.17.8-ubuntu20.04".
func versionIn(text string) string {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }) {
		var x, y, z int
		if n, _ := fmt.Sscanf(word, "%d.%d.%d", &x, &y, &z); n == 3 {
			return fmt.Sprintf("%d.%d.%d", x, y, z)
		}
	}
	return ""
}

// versionBefore reports whether version x.y.z is earlier than another version.
func versionBefore(version, than string) bool {
	var a, b [3]int
	_, err := fmt.Sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2])
	_, other := fmt.Sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2])
	return err == nil && other == nil && slices.Compare(a[:], b[:]) < 0
}

// toolkitChecks returns the checks for the NVIDIA container toolkit's version.
func toolkitChecks() []engine.Check {
	return []engine.Check{{
		ID: "sec.ctk-cve", Layer: finding.LayerRuntime, From: []string{"api/pods"},
		Needs: []engine.Need{engine.NeedAPI},
		Title: "the NVIDIA container toolkit has a known vulnerability",
		Reads: "the version that the toolkit's program reports, or the tag of its image",
		Why: "containers can escape to the node in versions before 1.16.2 (CVE-2024-0132), 1.17.4 " +
			"(CVE-2025-23359) and 1.17.8 (CVE-2025-23266)",
		Doc:     "https://nvidia.custhelp.com/app/answers/detail/a_id/5659",
		Sources: []string{"CVE-2024-0132", "CVE-2025-23359", "CVE-2025-23266"},
		Run:     checkToolkitHoles,
	}}
}

func checkToolkitHoles(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		version, evidence := toolkitVersion(f, n)
		if version == "" {
			continue // no toolkit was found; nodes in clouds may not use one
		}
		var holes []string
		for _, hole := range []struct{ id, fixed string }{
			{"CVE-2024-0132", "1.16.2"}, {"CVE-2025-23359", "1.17.4"}, {"CVE-2025-23266", "1.17.8"},
		} {
			if versionBefore(version, hole.fixed) {
				holes = append(holes, hole.id)
			}
		}
		if len(holes) == 0 {
			r.Pass(n.Object())
			continue
		}
		r.Add(finding.Finding{
			Object: n.Object(), Severity: finding.Info, Evidence: []finding.Evidence{evidence},
			Title: fmt.Sprintf("containers can escape to the node with NVIDIA container toolkit %s: %s", version,
				strings.Join(holes, ", ")),
			Fix: finding.Fix{Text: "upgrade the toolkit to 1.17.8 or later, or the GPU operator to 25.3.1 or later"},
		})
	}
}
