package facts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Names of the Helm charts that install the GPU stack. ChartRepository returns their repositories.
const (
	ChartOperator     = "gpu-operator"
	ChartDevicePlugin = "nvidia-device-plugin"
	ChartDRA          = "nvidia-dra-driver-gpu"
	chartDCGM         = "dcgm-exporter"
	ChartNFD          = "node-feature-discovery"
)

// ChartRepository returns the URL of the repository that publishes a chart.
func ChartRepository(chart string) string {
	switch chart {
	case ChartDevicePlugin:
		return "https://nvidia.github.io/k8s-device-plugin"
	case chartDCGM:
		return "https://nvidia.github.io/dcgm-exporter/helm-charts"
	case ChartNFD:
		return "https://kubernetes-sigs.github.io/node-feature-discovery/charts"
	}
	return "https://helm.ngc.nvidia.com/nvidia"
}

// ReleaseOf returns the Helm release that installed a chart.
func ReleaseOf(f *Facts, chart string) (snapshot.HelmRelease, bool) {
	for _, h := range f.HelmReleases {
		if h.Chart == chart {
			return h, true
		}
	}
	return snapshot.HelmRelease{}, false
}

// HelmUpgrade returns the command that changes values of an installed release and keeps the chart, the chart version
// and all other values.
func HelmUpgrade(h snapshot.HelmRelease, set ...string) string {
	format, args := "helm upgrade %s %s --repo %s -n %s --version %s --reuse-values",
		[]any{h.Name, h.Chart, ChartRepository(h.Chart), h.Namespace, h.ChartVersion}
	for _, s := range set {
		format, args = format+" --set %s", append(args, s)
	}
	return shell.Command(format, args...)
}

// HelmUpgradeFile is like HelmUpgrade, with values from a file that the user creates.
func HelmUpgradeFile(h snapshot.HelmRelease) string {
	if line := HelmUpgrade(h); line != shell.LeftOut {
		return line + " -f values.yaml"
	}
	return shell.LeftOut
}

// ChangeOperator returns the commands that set a value in the GPU operator's configuration. They use Helm if Helm
// installed the operator, because the next upgrade would revert any other change; otherwise, they patch the
// ClusterPolicy. The path, for example "toolkit.enabled", is the same in both cases.
func ChangeOperator(f *Facts, path string, value any) []string {
	policy, ok := ClusterPolicy(f)
	// If Flux installed the release, the engine shows a note instead of the command that patches the ClusterPolicy.
	byFlux := ok && policy.GetLabels()["helm.toolkit.fluxcd.io/name"] != ""
	if h, released := ReleaseOf(f, ChartOperator); released && !byFlux {
		return []string{HelmUpgrade(h, fmt.Sprintf("%s=%v", path, value))}
	}
	if !ok {
		return nil
	}
	spec := value
	for _, key := range slices.Backward(strings.Split(path, ".")) {
		spec = map[string]any{key: spec}
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return nil // the value cannot be encoded as JSON
	}
	return []string{shell.Command("kubectl patch clusterpolicy %s --type merge -p %s", policy.GetName(), string(patch))}
}

// ClusterPolicy returns the ClusterPolicy that the operator uses: the first one that it does not ignore.
func ClusterPolicy(f *Facts) (unstructured.Unstructured, bool) {
	for _, p := range f.ClusterPolicies {
		if state, _, _ := unstructured.NestedString(p.Object, "status", "state"); state != "ignored" {
			return p, true
		}
	}
	return unstructured.Unstructured{}, false
}

// PolicyString returns a string field in the ClusterPolicy, or "" if it is not set.
func PolicyString(f *Facts, fields ...string) string {
	p, ok := ClusterPolicy(f)
	if !ok {
		return ""
	}
	text, _, _ := unstructured.NestedString(p.Object, fields...)
	return text
}

// PolicyOff reports whether the ClusterPolicy disables a component.
func PolicyOff(f *Facts, part string) bool {
	p, ok := ClusterPolicy(f)
	if !ok {
		return false
	}
	on, found, _ := unstructured.NestedBool(p.Object, "spec", part, "enabled")
	return found && !on
}

// OperatorNamespace returns the namespace of the operator's operands.
func OperatorNamespace(f *Facts) string {
	for _, c := range []Component{Operator, Validator, Toolkit, Driver} {
		for _, pod := range f.Component(c) {
			return pod.Namespace
		}
	}
	if h, ok := ReleaseOf(f, ChartOperator); ok {
		return h.Namespace
	}
	return "gpu-operator"
}

// OperatorLog returns the command that shows the end of the operator's log.
func OperatorLog(f *Facts) string {
	for _, pod := range f.Component(Operator) {
		return shell.Command("kubectl logs -n %s %s --tail=50", pod.Namespace, pod.Name)
	}
	return shell.Command("kubectl logs -n %s -l app=gpu-operator --tail=50", OperatorNamespace(f))
}

// RestartPod returns the command that deletes a pod so that its DaemonSet recreates it.
func RestartPod(namespace, name string) string {
	return shell.Command("kubectl delete pod %s -n %s", name, namespace)
}

// GPULost returns the IDs of the scheduling findings that follow if a node advertises no GPUs, or fewer than it has.
func GPULost(more ...string) []string {
	return append(more,
		"sched.insufficient-gpu", "sched.none-advertised", "sched.all-in-use", "sched.fragmented",
		"sched.waiting", "alloc.unexpected-admission",
	)
}
