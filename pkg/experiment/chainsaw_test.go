package experiment

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// exported returns an experiment on node-b as a test of Chainsaw.
func exported(t *testing.T, text string) (string, error) {
	t.Helper()
	e := parse(t, text)
	if e.Target == (Target{}) {
		e.Target.Node = "node-b"
	}
	out, err := e.Chainsaw(t.Context(), func(line []string) []string {
		if line[0] == "xid" {
			return []string{"--allow-majority"}
		}
		return nil
	})
	return string(out), err
}

// The tests that this was verified with, by the real Chainsaw on a cluster, had this form.
func TestChainsaw(t *testing.T) {
	t.Parallel()
	out, err := exported(t, `
steps:
- inject: {xid: 79, flags: {message: "it's $HOME"}}
- expect: [{name: detected, within: 1m}, {name: closed, reaction: cordon, by: NVSentinel, within: 2m}]
- expect-not: [{name: drained, for: 30s}]
- wait: 5s
- revert: {}
- inject: {device: unhealthy, gpu: 0}
- expect:
  - name: gone
    within: 30s
    node:
      metadata: {labels: {nvidia.com/gpu.present: "true"}}
      spec: {unschedulable: false, taints: [{key: a/b, effect: NoSchedule}]}
      status: {allocatable: {nvidia.com/gpu: "1"}}
- revert: {}
- expect: [{name: back, node: {status: {allocatable: {nvidia.com/gpu: "2"}}}, within: 30s}]
`)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "chainsaw.golden", out)
	if err := yaml.Unmarshal([]byte(out), new(map[string]any)); err != nil {
		t.Error(err)
	}
}

// What Chainsaw would do differently is an error that names the step.
func TestChainsawErrors(t *testing.T) {
	t.Parallel()
	const inject = "steps:\n- inject: {xid: 79}\n"
	const layers = "steps:\n- inject: {xid: 79, layers: [kernel, device]}\n"
	node := func(part string) string {
		return inject + "- expect: [{name: a, within: 1m, node: " + part + "}]"
	}
	for _, c := range []struct{ text, want string }{
		{"repeat: 2\n" + inject, "repeat cannot be expressed"},
		{"abort: {nodesUnschedulable: 1}\n" + inject, "abort cannot be expressed"},
		{"simulateRemediation: [cordon]\n" + inject, "simulateRemediation cannot be expressed"},
		{"load: [{name: a, url: 'http://a'}]\n" + inject, "load cannot be expressed"},
		{
			"steady: [{name: a, exec: {namespace: a, labels: a=b, command: [a]}, expect: 'true'}]\n" + inject,
			"steady cannot be expressed",
		},
		{"target: {selector: a=b}\n" + inject, "specify --node"},
		{"target: {podsOf: deployment/a}\n" + inject, "steps[0]: target: specify --node"},
		{inject + "- parallel: [{wait: 1s}]", "steps[1]: parallel cannot be expressed"},
		{inject + "- revert: {}\n- wait: 1s\n- expect: [{name: cordoned, within: 1m}]", "steps[1]: a reaction"},
		{"steps: [{expect: [{name: cordoned, within: 1m}]}]", "steps[0]: a reaction"},
		{inject + "- expect: [{name: evicted, pod: a/b, within: 1m}]", "steps[1]: evicted: pod cannot be expressed"},
		{inject + "- expect: [{name: cordoned, within: 1ms}]", "between 1s and 24h"},
		{inject + "- expect: [{name: cordoned, by: 'a,b', within: 1m}]", `by "a,b" cannot be expressed`},
		{inject + "- expect: [{name: cordoned, within: 1m}]\n- expect-not: [{name: cordoned, for: 1m}]", "twice"},
		{
			inject + "- expect: [{name: cordoned, within: 1m}]\n- expect: [{name: cordoned, by: a, within: 2m}]",
			"two time limits",
		},
		{
			inject + "- expect: [{name: cordoned, within: 1m}, {name: a, node: {spec: {unschedulable: true}}, within: 1m}]",
			"only directly after",
		},
		{
			inject + "- wait: 1s\n- expect: [{name: a, node: {spec: {unschedulable: true}}, within: 1m}]",
			"steps[2]: a: a node",
		},
		{inject + "- expect-not: [{name: a, node: {spec: {unschedulable: true}}, for: 1m}]", "expect-not with a node"},
		{node("{cel: node.spec.unschedulable}"), "an expression over all nodes"},
		{node("{spec: {unschedulable: 'true'}}"), "does not have the field types of a node"},
		{node("{status: {allocatable: {nvidia.com/gpu: 1}}}"), "status.allocatable.nvidia.com/gpu is not a value"},
		{node("{spec: {unknown: a}}"), "spec.unknown is not a value"},
		{node("{spec: {taints: []}}"), "spec.taints is not a value"},
		{node("{metadata: {name: a}}"), "remove this field"},
		{node("{metadata: {labels: {a: (x)}}}"), "Chainsaw, which would evaluate it"},
		{node("{metadata: {labels: {'(x)': a}}}"), "Chainsaw, which would evaluate it"},
		{node("{metadata: {labels: {'~.a': a}}}"), "Chainsaw, which would evaluate it"},
		{node("{metadata: {labels: {'a->b': a}}}"), "Chainsaw, which would evaluate it"},
		{node(`{spec: {taints: [{key: "a' || 'b"}]}}`), "key cannot be expressed"},
		{"steps:\n- inject: {cuda: deployment/a}", "steps[0]: the workload has no namespace"},
		{
			"target: {podsOf: deployment/a, namespace: b}\nsteps:\n- inject: {cuda: deployment/a}\n" +
				"- expect: [{name: served, within: 1m}]",
			"the cuda command does not support --expect",
		},
		{inject + "- inject: {command: [cuda, disarm, '${run}']}", "steps[1]: a command that changes an earlier run"},
		{layers + "- expect: [{name: cordoned, within: 1m}]", "several layers"},
	} {
		if out, err := exported(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n%v\nwanted %q\n%s", c.text, err, c.want, out)
		}
	}
}

// Words of a file reach the shell as they are.
func TestQuoted(t *testing.T) {
	t.Parallel()
	const want = `a 'b c' '$(x)' 'it'\''s' '' --x=a,b`
	if got := quoted([]string{"a", "b c", "$(x)", "it's", "", "--x=a,b"}); got != want {
		t.Error(got)
	}
}
