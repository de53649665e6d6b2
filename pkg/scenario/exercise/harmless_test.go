package exercise

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// Beside a solution, a candidate may tidy up the workload that it changes, and create what has no effect by itself; it
// may not create or delete the workload, nor tidy up others.
func TestHarmlessChanges(t *testing.T) {
	t.Parallel()
	allow := harmless([]scenario.Allowed{
		{Kind: "Deployment", Namespace: "a", Name: "train", Fields: []string{"spec.x"}, Created: true, Deleted: true},
		{Kind: "ConfigMap", Namespace: "a", Name: "settings", Fields: []string{"data"}},
		{Kind: "Pod", Namespace: "a", Deleted: true},
	}, []string{"a"})
	if got := harmless([]scenario.Allowed{{Fields: []string{"metadata.labels[x]"}}}, nil); len(got) != 1 {
		t.Errorf("a rule for all kinds makes more harmless: %+v", got)
	}
	if len(allow) != 6+len(workloads) {
		t.Fatalf("%+v", allow)
	}
	if tidy := allow[0]; tidy.Kind != "Deployment" || tidy.Name != "train" || tidy.Created || tidy.Deleted ||
		!slices.Contains(tidy.Fields, "metadata.labels") || slices.Contains(tidy.Fields, "spec.template") {
		t.Errorf("%+v", tidy)
	}
	if lock := allow[1]; lock.Name != "settings" || lock.Created || !slices.Contains(lock.Fields, "immutable") {
		t.Errorf("%+v", lock)
	}
	if note := allow[2]; note.Kind != kindNode || note.Created || note.Deleted ||
		!slices.Equal(note.Fields, []string{"metadata.annotations"}) {
		t.Errorf("%+v", note)
	}
	for _, one := range allow[3:] {
		workload := slices.Contains(workloads, one.Kind)
		if one.Namespace != "a" || one.Created == workload || one.Deleted || len(one.Fields) == 0 ||
			strings.Contains(strings.Join(one.Fields, " "), "spec") {
			t.Errorf("%+v", one)
		}
	}
}

// A probe that a container did not have makes a workload stricter. One that replaces a probe, or that runs a command,
// may be a way around it.
func TestNewProbesAreHarmless(t *testing.T) {
	t.Parallel()
	ref := scenario.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "a", Name: "train"}
	of := func(container string) func(scenario.Ref) map[string]any {
		var o map[string]any
		if err := yaml.Unmarshal([]byte("spec: {template: {spec: {containers: ["+container+"]}}}"), &o); err != nil {
			t.Fatal(err)
		}
		return func(scenario.Ref) map[string]any { return o }
	}
	allow := []scenario.Allowed{{Kind: "Deployment", Namespace: "a", Fields: []string{"spec.x"}}}
	changed := []baseline.Difference{{Ref: ref, Kind: baseline.Changed}}
	for name, test := range map[string]struct {
		before, after string
		want          []string
	}{
		"new": {
			"{name: main}", "{name: main, readinessProbe: {tcpSocket: {port: 1}}}",
			[]string{"spec.template.spec.containers[main].readinessProbe"},
		},
		"other than before": {
			"{name: main, readinessProbe: {tcpSocket: {port: 1}}}",
			"{name: main, readinessProbe: {tcpSocket: {port: 2}}}", nil,
		},
		"a command": {"{name: main}", "{name: main, readinessProbe: {exec: {command: [sh]}}}", nil},
		"restarts":  {"{name: main}", "{name: main, livenessProbe: {tcpSocket: {port: 1}}}", nil},
		"another container": {
			"{name: main}", "{name: other, readinessProbe: {tcpSocket: {port: 1}}}", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := of(test.before), of(test.after)
			var got []string
			for _, one := range probing(allow, changed, before, after) {
				got = append(got, one.Fields...)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("allowed %q, expected %q", got, test.want)
			}
		})
	}
	other := []scenario.Allowed{{Kind: "Deployment", Namespace: "a", Name: "other", Fields: []string{"spec.x"}}}
	if got := probing(other, changed, of("{name: main}"),
		of("{name: main, readinessProbe: {tcpSocket: {port: 1}}}")); got != nil {
		t.Errorf("a workload that no solution changes: %+v", got)
	}
}

// Pods left over from debugging are not damage, unless they request a device or are in another namespace.
func TestPodsForDebugging(t *testing.T) {
	t.Parallel()
	pod := func(resource string) map[string]any {
		return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
			"name": "c", "resources": map[string]any{"limits": map[string]any{resource: "1"}},
		}}}}
	}
	for _, test := range []struct {
		kind, namespace, resource string
		want                      bool
	}{
		{"Pod", "a", "cpu", true}, {"Pod", "a", "nvidia.com/gpu", false}, {"Pod", "b", "cpu", false},
		{"Deployment", "a", "cpu", false},
	} {
		ref := scenario.Ref{APIVersion: "v1", Kind: test.kind, Namespace: test.namespace, Name: "x"}
		if got := debugs(ref, pod(test.resource), []string{"a"}); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}
