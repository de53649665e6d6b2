package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// The charts that install what doctor looks at, and the repository that has each.
const (
	chartOperator     = "gpu-operator"
	chartDevicePlugin = "nvidia-device-plugin"
	chartDRA          = "nvidia-dra-driver-gpu"
	chartDCGM         = "dcgm-exporter"
	chartNFD          = "node-feature-discovery"
)

// chartRepository returns where NVIDIA and others publish a chart.
func chartRepository(chart string) string {
	switch chart {
	case chartDevicePlugin:
		return "https://nvidia.github.io/k8s-device-plugin"
	case chartDCGM:
		return "https://nvidia.github.io/dcgm-exporter/helm-charts"
	case chartNFD:
		return "https://kubernetes-sigs.github.io/node-feature-discovery/charts"
	}
	return "https://helm.ngc.nvidia.com/nvidia"
}

// releaseOf returns the Helm release of a chart.
func releaseOf(f *Facts, chart string) (snapshot.HelmRelease, bool) {
	for _, h := range f.HelmReleases {
		if h.Chart == chart {
			return h, true
		}
	}
	return snapshot.HelmRelease{}, false
}

// helmUpgrade changes values of an installed release and nothing else: the same chart, its version, and all values that
// it has.
func helmUpgrade(h snapshot.HelmRelease, set ...string) string {
	format, args := "helm upgrade %s %s --repo %s -n %s --version %s --reuse-values",
		[]any{h.Name, h.Chart, chartRepository(h.Chart), h.Namespace, h.ChartVersion}
	for _, s := range set {
		format, args = format+" --set %s", append(args, s)
	}
	return command(format, args...)
}

// helmUpgradeFile is helmUpgrade with values from a file that the user makes.
func helmUpgradeFile(h snapshot.HelmRelease) string {
	if line := helmUpgrade(h); line != leftOut {
		return line + " -f values.yaml"
	}
	return leftOut
}

// changeOperator returns the command that sets values of the operator: by Helm where Helm installed it, because the
// next upgrade would undo anything else, or on the ClusterPolicy. A path is the same for both: "toolkit.enabled".
func changeOperator(f *Facts, path string, value any) []string {
	if h, ok := releaseOf(f, chartOperator); ok {
		return []string{helmUpgrade(h, fmt.Sprintf("%s=%v", path, value))}
	}
	policy, ok := clusterPolicy(f)
	if !ok {
		return nil
	}
	spec := value
	for _, key := range slices.Backward(strings.Split(path, ".")) {
		spec = map[string]any{key: spec}
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return nil // a value of ours that JSON does not know
	}
	return []string{command("kubectl patch clusterpolicy %s --type merge -p %s", policy.GetName(), string(patch))}
}

// clusterPolicy returns the one that the operator obeys: the first that is not ignored.
func clusterPolicy(f *Facts) (unstructured.Unstructured, bool) {
	for _, p := range f.ClusterPolicies {
		if state, _, _ := unstructured.NestedString(p.Object, "status", "state"); state != "ignored" {
			return p, true
		}
	}
	return unstructured.Unstructured{}, false
}

// policyString returns a field of the ClusterPolicy; empty when there is none.
func policyString(f *Facts, fields ...string) string {
	p, ok := clusterPolicy(f)
	if !ok {
		return ""
	}
	text, _, _ := unstructured.NestedString(p.Object, fields...)
	return text
}

// policyOff reports whether the ClusterPolicy switches a part off.
func policyOff(f *Facts, part string) bool {
	p, ok := clusterPolicy(f)
	if !ok {
		return false
	}
	on, found, _ := unstructured.NestedBool(p.Object, "spec", part, "enabled")
	return found && !on
}

// operatorNamespace returns where the operator's operands run.
func operatorNamespace(f *Facts) string {
	for _, c := range []Component{Operator, Validator, Toolkit, Driver} {
		for _, pod := range f.Component(c) {
			return pod.Namespace
		}
	}
	if h, ok := releaseOf(f, chartOperator); ok {
		return h.Namespace
	}
	return "gpu-operator"
}

// restartPod returns the command that deletes a pod, so that its DaemonSet makes a new one.
func restartPod(namespace, name string) string {
	return command("kubectl delete pod %s -n %s", name, namespace)
}

// gpuLost returns the findings of the scheduling layer that follow where GPUs are not advertised, or fewer than there
// are.
func gpuLost(more ...string) []string {
	return append(more,
		"sched.insufficient-gpu", "sched.none-advertised", "sched.all-in-use", "sched.fragmented",
		"sched.waiting", "alloc.unexpected-admission",
	)
}
