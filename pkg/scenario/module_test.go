package scenario

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// An attempt in the module changes its objects as it would those of the cluster, and resources of a cloud by their
// bodies; the lab stays as it was.
func TestModuleAfter(t *testing.T) {
	t.Parallel()
	s, err := Find("wrong-role-binding")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(1, map[string]string{"how": "role", "app": "sweeper", "ns": "team-pricing"}, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	binding := Ref{
		APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding", Namespace: "team-pricing", Name: "sweeper",
	}
	role := Ref{APIVersion: binding.APIVersion, Kind: "Role", Namespace: "team-pricing", Name: "sweeper-jobs"}
	member := Ref{APIVersion: InModule, Kind: "google_project_iam_member", Name: "runs"}
	after, err := r.ModuleAfter(Attempt{Steps: []Step{
		{Patch: &Patch{
			Object: binding, JSON: []any{map[string]any{"op": "replace", "path": "/roleRef/name", "value": "edit"}},
		}},
		{Patch: &Patch{Object: member, Merge: map[string]any{"role": "roles/owner"}}},
		{Delete: &role},
	}})
	if err != nil {
		t.Fatal(err)
	}
	files, err := after.Write()
	if err != nil {
		t.Fatal(err)
	}
	module, err := terraform.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if len(module.Objects) != 1 || module.Objects[0]["roleRef"].(map[string]any)["name"] != "edit" ||
		module.Resources["google_project_iam_member"]["runs"]["role"] != "roles/owner" {
		t.Errorf("%+v", module)
	}
	began, err := r.Module()
	if err != nil || len(began.Objects) != 2 || began.Objects[1]["roleRef"].(map[string]any)["name"] != "view" ||
		began.Resources["google_project_iam_member"]["runs"]["role"] != "roles/container.viewer" {
		t.Errorf("%+v, %v", began, err)
	}
	for want, step := range map[string]Step{
		"the module does not contain Role x": {
			Delete: &Ref{APIVersion: role.APIVersion, Kind: "Role", Namespace: "team-pricing", Name: "x"},
		},
		"does not contain RoleBinding other": {Patch: &Patch{Object: Ref{Kind: "RoleBinding", Name: "other"}}},
		"must be patch, create or delete":    {NodeShell: &NodeShell{}},
	} {
		if _, err := r.ModuleAfter(Attempt{Steps: []Step{step}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// A module that does not say what it manages, or manages what the candidate cannot change, is none.
func TestModuleRefuses(t *testing.T) {
	t.Parallel()
	s, err := Find("wrong-role-binding")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(1, nil, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	r.Public.Access.Namespaces = []string{"another"}
	if _, err := r.Module(); err == nil || !strings.Contains(err.Error(), "the candidate is not allowed to change") {
		t.Errorf("%v", err)
	}
	r.Terraform = nil
	if module, err := r.Module(); module != nil || err != nil {
		t.Errorf("%v, %v", module, err)
	}
	if _, err := r.ModuleAfter(Attempt{Name: "x"}); err == nil ||
		!strings.Contains(err.Error(), "the scenario has no module") {
		t.Errorf("%v", err)
	}
}
