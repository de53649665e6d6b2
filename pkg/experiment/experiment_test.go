package experiment

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const head = "apiVersion: gpufault.dev/v1alpha1\nkind: Experiment\nmetadata: {name: x}\n"

// The built-in experiments are valid, described, and expect something.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	all, err := Builtin()
	if err != nil || len(all) < 10 {
		t.Fatalf("%d, %v", len(all), err)
	}
	for _, e := range all {
		expects := func(s Step) bool { return len(s.Expect)+len(s.ExpectNot) > 0 }
		if e.Description == "" || !slices.ContainsFunc(e.Steps, expects) {
			t.Errorf("%s has no description, or expects nothing", e.Metadata.Name)
		}
	}
	if _, err := Named("xid79recovery"); err == nil || !strings.Contains(err.Error(), "did you mean xid79-recovery?") {
		t.Error(err)
	}
	if _, err := Source("../builtin"); err == nil {
		t.Error("a path is not a name")
	}
}

// The file in the documentation is a valid experiment.
func TestDocumentedFile(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "experiments.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	file, _, _ := strings.Cut(rest, "```")
	if _, err := Parse("experiments.md", []byte(file)); err != nil {
		t.Error(err)
	}
}

// What users who had only the documentation wrote for twenty public requests is accepted.
func TestUnseenFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "unseen", "*.yaml"))
	if err != nil || len(files) != 20 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		e, err := Parse(file, data)
		if err != nil {
			t.Error(err)
			continue
		}
		if lines, err := e.Lines(t.Context(), []string{"node-b"}); err != nil || len(lines) == 0 {
			t.Errorf("%s: %v, %v", file, lines, err)
		}
	}
}

// Each problem of a file is an error at its place.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"steps: []":                                             `:4:8: steps: an experiment must have at least one step`,
		"steps:\n- inject: {xid: 79, gpuu: 0}":                  `:5:21: steps[0].inject.gpuu: unknown field`,
		"steps:\n- inject: {}":                                  `:5:11: steps[0].inject: a fault must set exactly one of`,
		"steps:\n- inject: {device: sick}":                      `device must be unhealthy`,
		"steps:\n- inject: {xid: 79, layers: [dmesg]}":          `unknown layer "dmesg"`,
		"steps:\n- inject: {xid: 79, layers: [nvml]}":           `layer nvml requires layer kernel`,
		"steps:\n- inject: {layers: [cuda], device: unhealthy}": `layers requires xid`,
		"steps:\n- inject: {runtime: missing-handler, gpu: 0}":  `gpu requires xid or device`,
		"steps:\n- inject: {command: [revert, x]}":              `command must begin with one of xid`,
		"steps:\n- inject: {xid: 79, flags: {yes: true}}":       `flag yes is set by the experiment`,
		"steps:\n- inject: {xid: 79, flags: {--via: x}}":        `must be written without the dashes`,
		"steps:\n- wait: 5":                                     `:5:9: steps[0].wait: must be a duration with a unit`,
		"steps:\n- wait: 48h":                                   `wait must be at most`,
		"steps:\n- {wait: 1s, revert: {}}":                      `a step must set exactly one of`,
		"steps:\n- parallel:\n  - expect: [{name: cordoned}]":   `:6:14: steps[0].parallel[0].expect[0]: cordoned: within`,
		"steps:\n- expect: [{name: a, steady: b, within: 1s}]":  `no check in steady has the name "b"`,
		"target: {node: a, selector: b}\nsteps:\n- wait: 1s":    `only one of node, selector and podsOf`,
		"target: {podsOf: vllm}\nsteps:\n- wait: 1s":            `podsOf must be TYPE/NAME`,
		"target: {node: a, pick: 0}\nsteps:\n- wait: 1s":        `pick must be a number`,
		"target: {node: a, pick: 101%}\nsteps:\n- wait: 1s":     `pick must be a number`,
		"repeat: 1001\nsteps:\n- wait: 1s":                      `repeat: must be 0 to 1000`,
	} {
		_, err := Parse("f", []byte(head+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwanted %q", text, err, want)
		}
	}
}

// What an injection runs.
func TestCommands(t *testing.T) {
	t.Parallel()
	target := Target{PodsOf: "deployment/vllm", Namespace: "infer"}
	for _, c := range []struct {
		inject Inject
		want   []string
	}{
		{Inject{XID: int64(79)}, []string{"xid 79 a b"}},
		{Inject{XID: "48,63", GPU: "all", Flags: map[string]any{"cascade": true, "count": int64(2)}},
			[]string{"xid 48,63 a b --gpu all --cascade=true --count=2"}},
		{Inject{Device: "unhealthy", GPU: int64(1)}, []string{"device unhealthy a b --gpu 1"}},
		{Inject{Runtime: "missing-handler", Flags: map[string]any{"ttl": "5m"}},
			[]string{"runtime break a b --mode missing-handler --ttl=5m"}},
		{Inject{Network: "partition", Flags: map[string]any{"to": []any{"dns", "pod/b"}}},
			[]string{"network partition a b --workload deployment/vllm --namespace infer --to=dns,pod/b"}},
		{Inject{Network: "loss", Flags: map[string]any{"percent": int64(5)}},
			[]string{"network loss a b --workload deployment/vllm --namespace infer --percent=5"}},
		{Inject{Network: "slow", Flags: map[string]any{"latency": "100ms", "from": "pod/b"}},
			[]string{"network slow a b --workload deployment/vllm --namespace infer --from=pod/b --latency=100ms"}},
		{Inject{Network: "partition", Flags: map[string]any{"via": "chaos-mesh"}},
			[]string{"network partition a b --workload deployment/vllm --namespace infer --via=chaos-mesh"}},
		{Inject{CUDA: "job/train", Flags: map[string]any{"container": []any{"x", "y"}, "error": int64(719)}},
			[]string{"cuda inject job/train --namespace infer --container=x,y --error=719"}},
		{Inject{XID: int64(79), Layers: []string{"kernel", "device", "cuda"}, GPU: int64(0)}, []string{
			"xid 79 a b --gpu 0", "device unhealthy a b --gpu 0",
			"cuda inject deployment/vllm --namespace infer --xid 79",
		}},
		{Inject{XID: int64(48), Layers: []string{"device", "kernel", "nvml"}, GPU: int64(1)}, []string{
			"xid 48 a b --gpu 1 --layers kernel,nvml,device",
		}},
		{Inject{Command: []string{"cuda", "disarm", "${run}", "--node=${target.node}"}},
			[]string{"cuda disarm run-1 --node=a"}},
	} {
		lines, err := c.inject.commands(context.Background(), target, []string{"a", "b"}, "run-1")
		var got []string
		for _, line := range lines {
			got = append(got, strings.Join(line, " "))
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, %v; wanted %q", c.inject, got, err, c.want)
		}
	}
	partition := Inject{Network: "partition"}
	lines, err := partition.commands(t.Context(), Target{Namespace: "infer"}, []string{"a"}, "")
	if err != nil || strings.Join(lines[0], " ") != "network partition a" {
		t.Errorf("all pods of a node: %q, %v", lines, err)
	}
	alone := Inject{XID: 79, Layers: []string{"cuda"}}
	if _, err := alone.commands(t.Context(), Target{}, []string{"a"}, ""); err == nil {
		t.Error("layer cuda without a workload")
	}
}

// Which nodes a target is.
func TestTargets(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	for _, name := range []string{"d", "c", "b", "a"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"gpu": "yes"}}}
		if err := client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	for want, target := range map[string]Target{
		"a":       {Selector: "gpu=yes"},
		"a b":     {Selector: "gpu=yes", Pick: int64(2)},
		"a b c d": {Selector: "gpu=yes", Pick: "all"},
		"a b c":   {Selector: "gpu=yes", Pick: "75%"},
		"c":       {Node: "c"},
	} {
		got, err := target.Nodes(t.Context(), client, nil)
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%+v: %v, %v", target, got, err)
		}
	}
	drawn := Target{Selector: "gpu=yes", Pick: int64(2), Seed: 7}
	one, _ := drawn.Nodes(t.Context(), client, nil)
	two, _ := drawn.Nodes(t.Context(), client, nil)
	if !slices.Equal(one, two) || len(one) != 2 {
		t.Errorf("a seed draws %v, then %v", one, two)
	}
	none := func(context.Context, string, string) (labels.Selector, error) { return labels.Everything(), nil }
	for want, target := range map[string]Target{
		"has no target":   {},
		"no node matches": {Selector: "gpu=no"},
		"pick is 5, but the target has only 4 nodes": {Selector: "gpu=yes", Pick: int64(5)},
		"has no running pods":                        {PodsOf: "deployment/x"},
		"not found":                                  {Node: "z"},
	} {
		if _, err := target.Nodes(t.Context(), client, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", target, err)
		}
	}
}

// FuzzParse holds that no file makes Parse panic, and that what it accepts can be planned.
func FuzzParse(f *testing.F) {
	f.Add(head + "steps:\n- inject: {xid: 79}\n- expect: [{name: cordoned, within: 1m}]\n")
	f.Add(head + "steps:\n- inject: {command: [xid, \"${target.node}\"]}\n- parallel: [{wait: 1s}]\n")
	f.Add(head + "target: {selector: a, pick: 10%}\nsteps:\n- expect: [{name: x, node: {cel: \"true\"}, within: 1s}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		if e, err := Parse("f", []byte(text)); err == nil {
			_, _ = e.Lines(t.Context(), []string{"a"})
		}
	})
}

// A reaction may come between the start of a fault and its proof: who watches a run looks back to the start.
func TestBeganOf(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Date(2026, 11, 26, 22, 56, s, 0, time.UTC) }
	run := &ledger.Run{Steps: []ledger.Step{
		{State: ledger.StateFailed, Started: at(1), Ended: at(2)},
		{State: ledger.StateProven, Started: at(7), Ended: at(9)},
		{State: ledger.StateProven, Started: at(4), Ended: at(6)},
	}}
	if got := BeganOf(run); !got.Equal(at(4)) {
		t.Errorf("began %v, want %v", got, at(4))
	}
	if got := ProofOf(run); !got.Equal(at(9)) {
		t.Errorf("proven %v, want %v", got, at(9))
	}
	if !BeganOf(nil).IsZero() || !BeganOf(&ledger.Run{}).IsZero() {
		t.Error("a run without a proven change has begun")
	}
}
