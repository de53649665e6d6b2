//go:build e2e && scenario

package exercise

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// A candidate who mends the text of the module mends the cluster by it, as often as it is graded; what they take out of
// it is gone, and nothing of it is left in the end.
func TestE2EModule(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	r := s.resolved(lab, s.parsed(append(own(t), withModule()...)...), 1)
	e, err := lab.Start(t.Context(), r, StartOptions{Terraform: true})
	if err != nil {
		t.Fatal(err)
	}
	page := "Deployment " + e.Public.Access.Namespaces[0] + "/page"
	began, err := r.Module()
	if err != nil {
		t.Fatal(err)
	}
	files, err := began.Write()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "module")
	if err := files.WriteFolder(folder); err != nil {
		t.Fatal(err)
	}
	main := filepath.Join(folder, "main.tf")
	before, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	handIn := func(text string) *Report {
		t.Helper()
		if err := os.WriteFile(main, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		module, err := terraform.ReadFolder(folder)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lab.SubmitModule(t.Context(), e.ID, *module); err != nil {
			t.Fatal(err)
		}
		if _, err := lab.Submit(t.Context(), e.ID, rightOf(r.Sealed.RootCause)); err != nil {
			t.Fatal(err)
		}
		report, err := lab.Grade(t.Context(), e.ID)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}

	if report := handIn(string(before)); report.Passed || len(report.Applied.Changes)+len(report.Applied.Problems) > 0 {
		t.Errorf("a module that is as broken as the cluster: %+v %+v", report.Applied, report.Reasons)
	}
	cluster := strings.Replace(string(before), "-v2", "", 1)
	if report := handIn(cluster); report.Passed || !slices.Equal(report.Applied.Changes, []string{"changed " + page}) ||
		!strings.Contains(strings.Join(report.Reasons, ""), "the cloud lets users in") {
		t.Errorf("the cluster's half: %+v %+v", report.Applied, report.Reasons)
	}
	all := strings.Replace(cluster, "network = \"all\"\n",
		"network = \"all\"\n\n  allow {\n    protocol = \"tcp\"\n  }\n", 1)
	if report := handIn(all); !report.Passed || len(report.Applied.Changes) > 0 {
		t.Errorf("mended: %+v %+v", report.Applied, report.Reasons)
	}
	without := all[strings.Index(all, "resource \"google_compute_firewall\""):]
	if report := handIn(without); report.Passed || !slices.Equal(report.Applied.Changes, []string{"deleted " + page}) {
		t.Errorf("taken out: %+v %+v", report.Applied, report.Reasons)
	}
	ending, err := lab.End(t.Context(), e.ID, EndOptions{})
	if err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
}

// What the candidate may not do themselves the module does not do for them, and grading says why.
func TestE2EModuleWithoutRights(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	r := s.resolved(lab, s.parsed(append(own(t), withModule()...)...), 1)
	e, err := lab.Start(t.Context(), r, StartOptions{Terraform: true})
	if err != nil {
		t.Fatal(err)
	}
	as, err := lab.stand(t.Context(), e, r)
	if err != nil {
		t.Fatal(err)
	}
	done, _, err := as.apply(t.Context(), terraform.Module{Objects: []terraform.Object{
		{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": map[string]any{"name": "x", "namespace": "default"}, "spec": map[string]any{},
		},
		{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
			"metadata": map[string]any{"name": "x", "namespace": e.Public.Access.Namespaces[0]},
			"roleRef": map[string]any{
				"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
			}},
	}}, []scenario.Ref{{APIVersion: "v1", Kind: "ServiceAccount", Namespace: "kube-system", Name: "default"}})
	if err != nil || len(done.Problems) != 3 || len(done.Changes) > 0 {
		t.Errorf("%+v, %v", done, err)
	}
	for _, problem := range done.Problems {
		if !strings.Contains(problem, "forbidden") {
			t.Errorf("%s", problem)
		}
	}
	if ending, err := lab.End(t.Context(), e.ID, EndOptions{}); err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
}
