package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
	"sigs.k8s.io/yaml"
)

// TestResolved holds what comes out: one seed as it is played, whole. A change of it changes what seeds mean that
// people have written down.
func TestResolved(t *testing.T) {
	t.Parallel()
	for seed := range int64(2) {
		r, err := good(t).Resolve(seed, nil, SampleFacts())
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, fmt.Sprintf("resolved-%d.yaml", seed), string(text))
	}
}

// TestSeeds holds that a seed always means the same, that different seeds differ, that all choices come up, and that
// giving one parameter does not change what is drawn for the others.
func TestSeeds(t *testing.T) {
	t.Parallel()
	s, seen := good(t), map[string]int{}
	for seed := range int64(150) {
		one, err := s.Resolve(seed, nil, SampleFacts())
		if err != nil {
			t.Fatal(err)
		}
		two, err := good(t).Resolve(seed, nil, SampleFacts())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(one, two, withoutSource); diff != "" {
			t.Fatalf("seed %d is not always the same:\n%s", seed, diff)
		}
		given, err := s.Resolve(seed, map[string]string{"team": "vega"}, SampleFacts())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"variant", "replicas", "asked"} {
			if given.Drawn[name] != one.Drawn[name] {
				t.Errorf("seed %d: giving team changed %s", seed, name)
			}
		}
		seen[fmt.Sprint(one.Drawn["team"], one.Drawn["variant"], one.Drawn["replicas"])]++
	}
	if len(seen) != 18 {
		t.Errorf("%d of 18 combinations in 150 seeds", len(seen))
	}
}

// TestFewSeedsShowAllVariants holds that n seeds from a multiple of n on draw each of n choices once, so that nobody
// who tries seeds one after the other meets the same variant again and again, and that parameters with as many choices
// do not go together.
func TestFewSeedsShowAllVariants(t *testing.T) {
	t.Parallel()
	together := map[[2]int]bool{}
	for _, n := range []int{1, 2, 3, 5, 7} {
		for block := range int64(40) {
			seen := map[int]bool{}
			for i := range int64(n) {
				seed := block*int64(n) + i
				seen[choose(seed, "variant", n)] = true
				if n == 3 {
					together[[2]int{choose(seed, "variant", n), choose(seed, "team", n)}] = true
				}
			}
			if len(seen) != n {
				t.Errorf("%d seeds from %d on draw %v of %d", n, block*int64(n), seen, n)
			}
		}
	}
	if len(together) != 9 {
		t.Errorf("two parameters of three choices come in %d of 9 pairs", len(together))
	}
}

// TestGiven holds that what a user gives is what the seed could have drawn, with its type.
func TestGiven(t *testing.T) {
	t.Parallel()
	s := &Scenario{Params: map[string]Param{
		"mode": {OneOf: []any{"a", int64(2), map[string]any{"name": "third", "size": int64(3)}}},
		"n":    {Between: []int{2, 4}}, "free": {Expr: "1"},
	}}
	for given, want := range map[string]any{
		"mode=a": "a", "mode=2": int64(2), "mode=third": map[string]any{"name": "third", "size": int64(3)},
		"n=3": int64(3), "free=7": int64(7), "free=[a, 1]": []any{"a", int64(1)},
		"mode=b": `invalid value "b" for parameter mode: supported values: a, 2, third`,
		"n=5":    `invalid value "5" for parameter n: must be a number from 2 to 4`,
		"n=x":    `invalid value "x" for parameter n: must be a number from 2 to 4`,
		"mod=a":  "unknown parameter mod; did you mean mode?",
		"zzz=1":  "unknown parameter zzz; supported parameters: free, mode, n",
		"free=[": `invalid value "[" for parameter free: not valid YAML`,
	} {
		name, value, _ := strings.Cut(given, "=")
		drawn, err := s.draw(1, map[string]string{name: value}, nil, nil)
		if err != nil {
			if text, is := want.(string); !is || !strings.HasPrefix(err.Error(), text) {
				t.Errorf("%s: %v, and not %v", given, err, want)
			}
			continue
		}
		if diff := cmp.Diff(want, drawn[name]); diff != "" {
			t.Errorf("%s: %s", given, diff)
		}
	}
}

// TestComputedParams holds that parameters made of others wait for them, whatever their names, and that a circle is
// told.
func TestComputedParams(t *testing.T) {
	t.Parallel()
	s := &Scenario{
		Params: map[string]Param{"a": {Expr: "p.z + 1"}, "z": {Expr: "p['m'] * 2"}, "m": {OneOf: []any{int64(20)}}},
	}
	drawn, err := s.draw(1, nil, nil, nil)
	if err != nil || drawn["a"] != int64(41) {
		t.Errorf("%v, %v", drawn, err)
	}
	s.Params["m"] = Param{Expr: "p.a"}
	if _, err := s.draw(1, nil, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "circular dependency between a, m, z") {
		t.Errorf("a circle: %v", err)
	}
	s.Params["m"] = Param{Expr: "p.nothing"}
	if _, err := s.draw(1, nil, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "params.m.expr: p has no field \"nothing\"") {
		t.Errorf("a name that is not there: %v", err)
	}
}

// edit returns the good file with a piece replaced.
func edit(t testing.TB, pairs ...string) (*Scenario, error) {
	t.Helper()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("testdata/good.yaml has no %q", pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return Parse("good.yaml", []byte(text))
}

// TestResolveIsStrict holds that an expression cannot bring in what Parse refuses, and that its problems have their
// places.
func TestResolveIsStrict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, new, want string }{
		{"minutes: 15", "minutes: 0", "must be from 1 to 480"},
		{"stableFor: 10s", `stableFor: "${'10'}"`, `good.yaml:104:16: sealed.grade.stableFor: invalid duration "10"`},
		{
			"stableFor: 10s", `stableFor: "${p.replicas}"`,
			"must be a duration with a unit, such as 90s or 5m, not number",
		},
		{"within: 20s", `within: "${p.nothing}"`, "sealed.broken[0].within: ${p.nothing}: p has no field \"nothing\""},
		{
			"title: Training of ${p.team} does not start", `title: "${p.replicas}"`,
			"public.title: must be a string, not number",
		},
		{
			"title: Training of ${p.team} does not start", "title: Training of ${p.team + 1}",
			"does not support the types of its arguments",
		},
		{"title: Training of ${p.team} does not start", "title: ${omit}", "public.title: is missing"},
		{
			"story: The Deployment asks for what no node has.", "story: |\n    One.\n    Two ${p.x} and ${facts.y}.",
			"good.yaml:86:11: sealed.story: ${p.x}: p has no field \"x\"",
		},
		{`fields: ["spec.template.spec.containers[*].resources"]}`, `fields: "${[1]}"}`, "must be a string, not number 1"},
		{
			"merge: {spec: {replicas: 0}}", "merge: {}\n            json: \"${p.replicas > 0 ? [] : omit}\"",
			"conflicts with merge",
		},
		{"merge: {spec: {replicas: 0}}", `merge: "${omit}"`, "must have one of: merge, json"},
		{"namespaces: [\"${p.ns}\"]", "namespaces: [\"${omit}\"]", "at least one namespace"},
		{"when: p.variant == \"count\"", "when: p.variant", `sealed.hints[1].when: p.variant must be true or false`},
		{
			"when: p.variant == \"count\"", "when: p.variant ==",
			"sealed.hints[1].when: unexpected end of the expression",
		},
		{
			"when: p.variant == \"count\"", "when: o.x",
			"sealed.hints[1].when: unknown name o; supported variables: facts, p",
		},
	} {
		s, err := edit(t, c.old, c.new)
		if err == nil {
			_, err = s.Resolve(1, nil, SampleFacts())
		}
		var p *Problem
		if !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got\n%v\nand not %q", c.new, err, c.want)
		}
	}
}

// TestExpressionsOfAnyType holds that an expression can stand for a number, a truth value, a duration, a list and a
// whole step.
func TestExpressionsOfAnyType(t *testing.T) {
	t.Parallel()
	s, err := edit(t, "cost: 3", `cost: "${p.replicas + 1}"`, "stableFor: 10s", `stableFor: "${string(p.replicas)}s"`,
		`fields: ["spec.template.spec.containers[*].resources"]}`, `fields: "${['a', 'b']}", deleted: "${1 < 2}"}`,
		"delete: {apiVersion: apps/v1, kind: Deployment, namespace: \"${p.ns}\", name: trainer}",
		`delete: "${{'apiVersion': 'v1', 'kind': 'Pod', 'name': p.team}}"`)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(1, map[string]string{"replicas": "3", "team": "vega", "variant": "count"}, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	allow := r.Sealed.Grade.Collateral.Allow[0]
	if r.Sealed.Hints[1].Cost != 4 || r.Sealed.Grade.StableFor.String() != "3s" || len(allow.Fields) != 2 ||
		!allow.Deleted ||
		*r.Sealed.WrongFixes[1].Steps[0].Delete != (Ref{APIVersion: "v1", Kind: "Pod", Name: "vega"}) {
		t.Errorf("got %+v, %+v", allow, r.Sealed.Hints)
	}
}

// TestKeys holds that the keys of manifests are interpolated too, and what a key cannot be.
func TestKeys(t *testing.T) {
	t.Parallel()
	for labels, want := range map[string]string{
		`{app: trainer, "team-${p.team}": "${p.team}", "$${x}": y}`: `map[${x}:y app:trainer team-vega:vega]`,
		`{app: trainer, "${p.replicas}": y}`:                        `good.yaml:56:36: inject[0].create.objects[0].metadata.labels["${p.replicas}"]: key must be a string, not 3`,
		`{app: trainer, "${'app'}": y}`:                             `duplicate key`,
		`{app: trainer, "${p.no}": y}`:                              `labels["${p.no}"]: ${p.no}: p has no field "no"`,
	} {
		s, err := edit(t, "labels: {app: trainer}\n          spec:", "labels: "+labels+"\n          spec:")
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve(1, map[string]string{"team": "vega", "replicas": "3"}, SampleFacts())
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(r.Inject[0].Create.Objects[0]["metadata"].(map[string]any)["labels"])
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %s, and not %s", labels, got, want)
		}
	}
}

// TestScenarioMadeInGo holds that a scenario needs no file: what JSON has of it is resolved.
func TestScenarioMadeInGo(t *testing.T) {
	t.Parallel()
	s, err := edit(t, "$${PRICES}", "the wiki") // what is resolved has no more escapes
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(1, nil, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r.Scenario)
	if err != nil {
		t.Fatal(err)
	}
	var made Scenario
	if err := json.Unmarshal(data, &made); err != nil {
		t.Fatal(err)
	}
	again, err := made.Resolve(1, nil, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Inject, again.Inject); diff != "" {
		t.Error(diff)
	}
}
