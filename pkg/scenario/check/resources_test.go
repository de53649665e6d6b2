package check

import (
	"context"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// What our scenarios expect of the cloud's half of their modules tells a module that is mended from one that is not, in
// each variant. The modules go the way of a candidate's: written, and read back.
func TestModulesOfTheCloud(t *testing.T) {
	t.Parallel()
	for name, ways := range map[string][]string{
		"blocked-egress":     {"dns", "port", "label", "server", "pull"},
		"wrong-role-binding": {"role", "namespace", "group", "verb", "subject"},
	} {
		s, err := scenario.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, way := range ways {
			parameter := "how"
			if name == "blocked-egress" {
				parameter = "draw"
			}
			r, err := s.Resolve(1, map[string]string{parameter: way}, scenario.SampleFacts())
			if err != nil {
				t.Fatal(err)
			}
			right := func(source *terraform.Source, err error) bool {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", way, err)
				}
				return isFixed(t, r, source)
			}
			if got := right(r.Module()); got != (way == "pull") { // what pulls images is no firewall's
				t.Errorf("%s as it is written, %s: mended is %t", name, way, got)
			}
			for _, a := range r.Sealed.Solutions {
				if a.Terraform && !right(r.ModuleAfter(a)) {
					t.Errorf("%s, %s: the solution %q does not count", name, way, a.Name)
				}
			}
			for _, a := range r.Sealed.WrongFixes {
				cloud := strings.HasPrefix(a.Name, "everywhere") || strings.HasPrefix(a.Name, "owner") ||
					strings.Contains(a.Name, "half")
				if cloud && right(r.ModuleAfter(a)) {
					t.Errorf("%s, %s: the wrong fix %q counts", name, way, a.Name)
				}
			}
		}
	}
}

// isFixed reports whether all checks of a grade that look at the module hold.
func isFixed(t *testing.T, r *scenario.Resolved, source *terraform.Source) bool {
	t.Helper()
	files, err := source.Write()
	if err != nil {
		t.Fatal(err)
	}
	module, err := terraform.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	var checks []scenario.Check
	for _, one := range append(r.Sealed.Grade.Fixed, r.Sealed.Grade.Unchanged...) {
		if one.Terraform != "" {
			checks = append(checks, one)
		}
	}
	if len(checks) < 3 {
		t.Fatalf("%d checks look at the module", len(checks))
	}
	c := &Checker{Params: r.Drawn, Facts: r.Facts, Module: module}
	results, err := c.Run(t.Context(), checks)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		if strings.Contains(result.Message, "has no field") || strings.Contains(result.Message, "does not take") {
			t.Errorf("%s: %s", result.Name, result.Message)
		}
	}
	return OK(results)
}

// Where no module was handed in a check of it says so, and does not pass for want of resources.
func TestNoModule(t *testing.T) {
	t.Parallel()
	c := &Checker{ping: func(ctx context.Context) error { return nil }}
	results, err := c.Run(t.Context(),
		[]scenario.Check{{Name: "x", Terraform: "google_compute_firewall", Expect: "size(list) == 0"}})
	if err != nil || results[0].OK || !strings.Contains(results[0].Message, "no Terraform module") {
		t.Errorf("%+v, %v", results, err)
	}
}

// A ReplicaSet keeps pods that have ended, and has replaced them: they are not what a candidate's workload is. Pods of
// others have to be looked at.
func TestAbandonedPods(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		owner, phase string
		want         bool
	}{
		"rejected by the kubelet": {"ReplicaSet", "Failed", true},
		"ended":                   {"ReplicaSet", "Succeeded", true},
		"runs":                    {"ReplicaSet", "Running", false},
		"of a Job":                {"Job", "Failed", false},
		"of nobody":               {"", "Failed", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := map[string]any{"metadata": map[string]any{}, "status": map[string]any{"phase": test.phase}}
			if test.owner != "" {
				pod["metadata"] = map[string]any{"ownerReferences": []any{map[string]any{
					"apiVersion": "v1", "kind": test.owner, "name": "x", "uid": "u", "controller": true,
				}}}
			}
			if got := abandoned(pod); got != test.want {
				t.Errorf("abandoned: %t", got)
			}
		})
	}
	if abandoned("text") {
		t.Error("a text is taken for an abandoned pod")
	}
}
