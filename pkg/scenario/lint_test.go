package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// TestLintFiles holds, for each file in testdata/lint, what Lint says of it, with the places.
func TestLintFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/lint/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Parse(filepath.Base(file), data)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, p := range s.Lint() {
				if p.Warning {
					b.WriteString("warning: ")
				}
				b.WriteString(p.Error() + "\n")
			}
			golden.Compare(t, "lint/"+strings.TrimSuffix(filepath.Base(file), ".yaml")+".txt", b.String())
		})
	}
}

// TestLint holds that each of Lint's rules sees what it is for: one change of the good file, one finding.
func TestLint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, new, want string }{
		{
			"title: Training of ${p.team} does", "title: Training of ${p.taem} does",
			"public.title: p.taem: unknown parameter taem; did you mean team?",
		},
		{
			"title: Training of ${p.team} does", "title: Training of ${facts.node} does",
			"public.title: unknown fact node; did you mean nodes?",
		},
		{
			"title: Training of ${p.team} does", "title: Training of ${p.team +} does",
			"public.title: unexpected end of the expression",
		},
		{
			"has been waiting", "asks for too many gpus",
			`good.yaml:26:13: public.briefing: contains "too many GPUs", which reveals the answer`,
		},
		{
			"has been waiting", "(variant ${p.variant}) has been waiting",
			`public.briefing: contains "selector", which reveals the answer`,
		},
		{
			"labels: {app: trainer}", "labels: {app: trainer, fault: injected}",
			`good.yaml:56:43: inject[0].create.objects[0].metadata.labels: "fault injected" reveals "fault"`,
		},
		{
			"simulated: The GPUs of this cluster are not real.", "simulated: A library simulates the defect of the GPU.",
			`public.simulated: reveals that an error is simulated`,
		},
		{"- name: main", "- name: too-many-gpus", `"too-many-gpus" reveals "too many GPUs"`},
		{
			"            name: trainer\n", "            name: starved-trainer\n",
			`metadata.name: "starved-trainer" reveals "starved-trainer"`,
		},
		{
			"expect: o != null", "expect: text != ''",
			"healthy[0].expect: unknown name text; supported variables: facts, now, o, p, was",
		},
		{
			"expect: o != null", "expect: o.metadata.name == p.nss",
			"healthy[0].expect: p.nss: unknown parameter nss; did you mean ns?",
		},
		{
			"variant:\n    oneOf: [count, selector, resource-name]", "variant:\n    oneOf: [count, oops, selector]",
			"sealed.rootCause.mechanism.value: ${{'count'",
		},
		{"mechanism: [requests-more-than-any-node-has, no-such-node-label, misspelt-resource, quota-exceeded]",
			"mechanism: [a, no-such-node-label, misspelt-resource]",
			`public.choices.mechanism: must include the correct answer, "requests-more-than-any-node-has"`},
		{
			"    stableFor: 10s",
			"    stableFor: 10s\n    weights: {fixed: 50, diagnosis: 25, collateral: 10, time: 10, hints: 6}",
			"sealed.grade.weights: must add up to 100, not 101",
		},
		{"cost: 2", "cost: -2", "sealed.hints[0].cost: is negative"},
		{"cost: 2", "cost: 6", "sealed.hints: cost 6 points in total, but hints are worth only 5"},
		{`- {kind: Deployment, namespace: "${p.ns}", name: trainer, fields: ["spec.template.spec.containers[*].resources"]}`, "- {kind: Job}",
			`sealed.solutions[0].steps[0]: changing Deployment/trainer in namespace "team-`},
		{
			"    - name: scaled to zero", "    - name: deleted",
			`good.yaml:124:7: sealed.wrongFixes[1].name: duplicate name "deleted"`,
		},
		{
			"    - name: deleted\n", "    - name: deleted\n      when: p.variant == \"count\"\n",
			"sealed.wrongFixes: found 2 when ",
		},
		{
			"    - name: asks for one GPU", "    - name: asks for one GPU\n      when: p.variant == \"count\"",
			"sealed.solutions: is empty when the variant is ",
		},
		{
			"    - name: no pod runs", "    - name: no pod runs\n      when: p.team == \"vega\"",
			"sealed.broken: is empty when the variant is ",
		},
		{
			"  choices:\n", "  terraform: There is one.\n  choices:\n",
			"public.terraform: requires a module, but terraform is missing",
		},
		{"sealed:\n", "terraform: {manages: []}\nsealed:\n", "public.terraform: is missing: must describe"},
		{
			"sealed:\n", "terraform: {manages: [{apiVersion: v1, kind: Secret, namespace: x, name: y}]}\nsealed:\n",
			`terraform.manages: neither setup nor inject creates Secret y in namespace "x"`,
		},
		{
			"sealed:\n", "terraform: {manages: [], resources: {null_resource: {x: {}}}}\nsealed:\n",
			"terraform: null_resource.x: unsupported resource type",
		},
		{
			"sealed:\n",
			"terraform: {manages: [], resources: {google_compute_firewall: {x: {name: too-many-gpus, network: x}}}}\nsealed:\n",
			`main.tf of the module contains "too many GPUs"`,
		},
		{"sealed:\n", "terraform: {manages: []}\nsealed:\n", "sealed.solutions: must include a solution that uses the Terraform module when "},
		{
			"    - name: scaled to zero\n", "    - name: scaled to zero\n      terraform: true\n",
			"requires a module, but terraform is missing",
		},
		{
			"  nodes: 2\n", "  nodes: 2\n  otherwise: noop\n",
			"requires.otherwise: requires networkPolicy: true",
		},
		{
			"    collateral:\n", "    collateral:\n      nodes: [/]\n",
			`nodes[0]: "/" is not the absolute path of a file or directory`,
		},
		{
			`fields: ["spec.template.spec.containers[*].resources"]`, "fields: [spec.template]",
			"allow[0].fields: spec.template of Deployment trainer covers the program itself",
		},
		{
			`, fields: ["spec.template.spec.containers[*].resources"]`, "",
			"allow[0].fields: every field of Deployment trainer covers the program itself",
		},
		{
			"  nodes: 2\n", "  nodes: 2\n  networkPolicy: true\n  otherwise: nop\n",
			`requires.otherwise: scenario "nop" not found; did you mean noop?`,
		},
		{
			"  nodes: 2\n", "  nodes: 2\n  networkPolicy: true\n  otherwise: blocked-egress\n",
			"requires.otherwise: scenario blocked-egress also requires networkPolicy",
		},
		{
			"inject:\n", "inject:\n  - device: {node: \"${facts.nodes[0].name}\", gpu: \"0\"}\n",
			"inject[0].device: requires.devicePlugin and requires.nodeAccess must be set",
		},
		{
			"    namespaces: [\"${p.ns}\"]", "    namespaces: [default]",
			"public.access.namespaces[0]: neither setup nor inject creates namespace \"default\"",
		},
	} {
		s, err := edit(t, c.old, c.new)
		if err != nil {
			t.Errorf("%s: %v", c.new, err)
			continue
		}
		found := false
		var all []string
		for _, p := range s.Lint() {
			all = append(all, p.Error())
			found = found || strings.Contains(p.Error(), c.want)
		}
		if !found {
			t.Errorf("%s: got\n%s\nand not %q", c.new, strings.Join(all, "\n"), c.want)
		}
	}
}

// TestLintOfHousekeeping holds that a solution may create what is never damage, and only in the exercise's namespaces.
func TestLintOfHousekeeping(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, namespace string
		damage          bool
	}{
		{"ConfigMap", "${p.ns}", false}, {"PodDisruptionBudget", "${p.ns}", false},
		{"Secret", "${p.ns}", false}, {"ConfigMap", "default", true}, {"Secret", "default", true},
	} {
		why := "      why: a replica needs one\n      steps:\n"
		object := "{apiVersion: v1, kind: " + c.kind + ", metadata: {name: x, namespace: \"" + c.namespace + "\"}}"
		s, err := edit(t, why, why+"        - create: {objects: ["+object+"]}\n")
		if err != nil {
			t.Fatal(err)
		}
		damage := slices.ContainsFunc(s.Lint(), func(p Problem) bool {
			return strings.Contains(p.Error(), "counts as damage")
		})
		if damage != c.damage {
			t.Errorf("%+v: counts as damage: %t", c, damage)
		}
	}
}
