package exercise

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

const rbac = "rbac.authorization.k8s.io/v1"

func object(apiVersion, kind, name string, more map[string]any) map[string]any {
	o := map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"namespace": "harbour", "name": name},
	}
	for key, value := range more {
		o[key] = value
	}
	return o
}

func binding(role, account string) map[string]any {
	return object(rbac, "RoleBinding", "page", map[string]any{
		"roleRef":  map[string]any{"kind": "Role", "name": role},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": account}},
	})
}

func role(name string, verbs ...any) map[string]any {
	return object(rbac, "Role", name, map[string]any{"rules": []any{map[string]any{"verbs": verbs}}})
}

// applying returns a candidate in a namespace that has some objects.
func applying(t *testing.T, there ...map[string]any) (*candidate, *fake.FakeDynamicClient) {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	lists := map[schema.GroupVersionResource]string{}
	for apiVersion, kinds := range map[string][]string{rbac: {"Role", "RoleBinding"}, "apps/v1": {"Deployment"}} {
		gv, err := schema.ParseGroupVersion(apiVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			mapper.Add(gv.WithKind(kind), meta.RESTScopeNamespace)
			lists[gv.WithResource(strings.ToLower(kind)+"s")] = kind + "List"
		}
	}
	var objects []runtime.Object
	for _, one := range there {
		objects = append(objects, (&unstructured.Unstructured{Object: one}).DeepCopy())
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	return &candidate{lab: &Lab{Mapper: mapper}, e: &Exercise{}, dynamic: client}, client
}

func (c *candidate) has(t *testing.T, of map[string]any) map[string]any {
	t.Helper()
	ref := refOf(&unstructured.Unstructured{Object: of})
	reach, err := c.reach(ref)
	if err != nil {
		t.Fatal(err)
	}
	found, err := reach.Get(t.Context(), ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	return found.Object
}

// A module is applied as Terraform would: what differs is changed, what cannot be is made anew, and what it no longer
// has is deleted. What is as it says is not touched, and what it says nothing of stays.
func TestApply(t *testing.T) {
	t.Parallel()
	labeled := role("page", "get")
	labeled["metadata"].(map[string]any)["labels"] = map[string]any{"app.kubernetes.io/instance": "x"}
	c, client := applying(t, labeled, binding("view", "page"), role("same", "get"), role("old", "get"))
	module := terraform.Module{Objects: []terraform.Object{
		role("page", "get", "create"), binding("page", "page"), role("same", "get"), role("new", "list"),
	}}
	known := []scenario.Ref{
		refOf(&unstructured.Unstructured{Object: role("old")}), refOf(&unstructured.Unstructured{Object: role("page")}),
		{APIVersion: rbac, Kind: "Role", Namespace: "harbour", Name: "gone"},
	}
	done, brought, err := c.apply(t.Context(), module, known)
	want := []string{
		"changed Role harbour/page", "replaced RoleBinding harbour/page", "created Role harbour/new",
		"deleted Role harbour/old",
	}
	if err != nil || !slices.Equal(done.Changes, want) || len(done.Problems) > 0 || len(brought) != 4 {
		t.Fatalf("%+v %v %v", done, brought, err)
	}
	page := c.has(t, role("page"))
	if page["metadata"].(map[string]any)["labels"] == nil ||
		!sameJSON(page["rules"], role("page", "get", "create")["rules"]) {
		t.Errorf("%v", page)
	}
	if got := c.has(t, binding("", "")); !sameJSON(got["roleRef"], binding("page", "page")["roleRef"]) {
		t.Errorf("%v", got)
	}
	if c.has(t, role("old")) != nil {
		t.Error("what was taken out of the module is there")
	}
	client.ClearActions()
	done, _, err = c.apply(t.Context(), module, nil)
	if err != nil || len(done.Changes)+len(done.Problems) > 0 {
		t.Errorf("applied again: %+v %v", done, err)
	}
	if len(module.Objects[0]["metadata"].(map[string]any)) != 2 {
		t.Errorf("the module itself was changed: %v", module.Objects[0])
	}
}

// What the API server refuses is a problem of the module, and the rest is applied; an API server that is away is none.
func TestApplyRefused(t *testing.T) {
	t.Parallel()
	c, client := applying(t, role("page", "get"))
	resource := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}
	answer := error(apierrors.NewForbidden(resource, "page", errors.New("attempting to grant what you do not have")))
	client.PrependReactor("create", "rolebindings",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
	module := terraform.Module{Objects: []terraform.Object{binding("cluster-admin", "page"), role("page", "list")}}
	done, _, err := c.apply(t.Context(), module, nil)
	if err != nil || done.OK() || !strings.Contains(done.Problems[0], "do not have") ||
		!slices.Equal(done.Changes, []string{"changed Role harbour/page"}) {
		t.Errorf("%+v %v", done, err)
	}
	if result := done.results()[0]; result.OK || !strings.Contains(result.Message, "do not have") ||
		result.Saw != "changed Role harbour/page" {
		t.Errorf("%+v", result)
	}
	answer = apierrors.NewInternalError(errors.New("etcd is away"))
	if _, _, err := c.apply(t.Context(), module, nil); err == nil || !strings.Contains(err.Error(), "etcd is away") {
		t.Errorf("%v", err)
	}
}

// withModule makes the scenario of testdata one with a module, and a check of it.
func withModule() []string {
	return []string{
		"  choices:\n", "  terraform: The page is kept as code.\n  choices:\n",
		"sealed:\n  broken:",
		"terraform:\n  variables: {team: \"${p.ns}\"}\n  manages:\n    - {apiVersion: apps/v1, kind: Deployment, namespace: \"${p.ns}\", name: page}\n" +
			"  resources: {google_compute_firewall: {page: {name: page, network: all}}}\nsealed:\n  broken:",
		"    unchanged:\n",
		"      - {name: the cloud lets users in, terraform: google_compute_firewall, expect: \"list.exists(f, has(f.allow))\"}\n    unchanged:\n",
	}
}

// A module that was handed in is applied by the candidate before the cluster is judged, and the report says so. What it
// brought in is known to the next grade, also of another trainer's.
func TestGradeWithModule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.play(withModule()...)
	trainer, e := w.started(StartOptions{Terraform: true}, withModule()...)
	if card := CardOf(e); card.Terraform != "The page is kept as code." || !strings.Contains(card.Submit, "Terraform") {
		t.Errorf("%+v", card)
	}
	began, err := r.Module()
	if err != nil {
		t.Fatal(err)
	}
	names := func(report *Report) (all []string) {
		for _, result := range report.Fixed {
			all = append(all, result.Name)
		}
		return all
	}
	report, err := trainer.Grade(t.Context(), e.ID)
	if err != nil || report.Applied != nil || !slices.Equal(names(report), []string{"both of the page's pods run"}) {
		t.Fatalf("without a module: %+v, %v", report, err)
	}

	files, err := began.Write()
	if err != nil {
		t.Fatal(err)
	}
	files["more.tf"] = []byte(`resource "kubernetes_manifest" "second" {
  manifest = { apiVersion = "apps/v1", kind = "Deployment", metadata = { name = "second", namespace = var.team } }
}`)
	module, err := terraform.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.SubmitModule(t.Context(), e.ID, *module); err != nil {
		t.Fatal(err)
	}
	var as *candidate
	stand := func(e *Exercise, r *scenario.Resolved) *candidate {
		if as == nil {
			as, _ = applying(t)
		}
		as.e, as.r = e, r
		return as
	}
	trainer.fake.stand = stand
	report, err = trainer.Grade(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{
		"created Deployment harbour/page", "created Deployment harbour/second",
	}; report.Applied == nil ||
		!slices.Equal(report.Applied.Changes, want) {
		t.Errorf("%+v", report.Applied)
	}
	if want := []string{
		"the submitted Terraform module is applied", "both of the page's pods run", "the cloud lets users in",
	}; !slices.Equal(names(report), want) {
		t.Errorf("%q", names(report))
	}
	if !slices.ContainsFunc(report.Timeline, func(m Moment) bool { return strings.Contains(m.What, "Terraform") }) {
		t.Errorf("%+v", report.Timeline)
	}

	// The next module lacks the second one, which nobody but the first module has made; another trainer grades it.
	delete(files, "more.tf")
	if module, err = terraform.Read(files); err != nil {
		t.Fatal(err)
	}
	other := w.trainer("desktop")
	other.fake.stand = stand
	if _, err := other.SubmitModule(t.Context(), e.ID, *module); err != nil {
		t.Fatal(err)
	}
	report, err = other.Grade(t.Context(), e.ID)
	if err != nil || !slices.Equal(report.Applied.Changes, []string{"deleted Deployment harbour/second"}) {
		t.Errorf("%+v, %v", report, err)
	}
}

// A module is applied when it is graded: who has handed it in, and the diagnosis, and waits for the trainer is not
// slower for it, neither the first time nor later. Who goes on working after it is.
func TestTimeEndsWithTheModule(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		diagnosis, module time.Duration // after which they are handed in, one after the other
		goesOn            bool
		took              time.Duration
	}{
		"the module comes last":    {3 * time.Minute, 5 * time.Minute, false, 5 * time.Minute},
		"the diagnosis comes last": {5 * time.Minute, 3 * time.Minute, false, 5 * time.Minute},
		"goes on":                  {3 * time.Minute, 5 * time.Minute, true, 25 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.play(withModule()...)
			trainer, e := w.started(StartOptions{Terraform: true, For: 20 * time.Minute}, withModule()...)
			began, err := r.Module()
			if err != nil {
				t.Fatal(err)
			}
			handIn := map[time.Duration]func() error{
				test.diagnosis: func() error { _, err := trainer.Submit(t.Context(), e.ID, right); return err },
				test.module: func() error {
					_, err := trainer.SubmitModule(t.Context(), e.ID, began.Module)
					return err
				},
			}
			passed := time.Duration(0)
			for _, at := range []time.Duration{3 * time.Minute, 5 * time.Minute} {
				w.pass(at - passed)
				passed = at
				if err := handIn[at](); err != nil {
					t.Fatal(err)
				}
			}
			w.pass(20 * time.Minute)
			as, client := applying(t)
			as.e, as.r = e, r
			trainer.fake.stand = func(*Exercise, *scenario.Resolved) *candidate { return as }
			trainer.fake.capture = func(context.Context) (*baseline.Baseline, error) {
				if test.goesOn {
					return &baseline.Baseline{Missing: []string{"the candidate's change"}}, nil
				}
				for _, action := range client.Actions() {
					if action.GetVerb() == "create" {
						return &baseline.Baseline{Missing: []string{"the module's change"}}, nil
					}
				}
				return &baseline.Baseline{}, nil
			}
			for _, which := range []string{"first", "second"} {
				report, err := trainer.Grade(t.Context(), e.ID)
				if err != nil || report.Took != test.took || report.Late != test.goesOn {
					t.Errorf("%s grade: took %s, late: %t, %v; wanted %s", which, report.Took, report.Late, err,
						test.took)
				}
				if len(report.Applied.Changes) == 0 && which == "first" {
					t.Error("the module changed nothing, so that this shows nothing")
				}
			}
		})
	}
}

// A module that cannot be applied is a failure with that reason.
func TestGradeWithRefusedModule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.play(withModule()...)
	trainer, e := w.started(StartOptions{Terraform: true}, withModule()...)
	began, err := r.Module()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.SubmitModule(t.Context(), e.ID, began.Module); err != nil {
		t.Fatal(err)
	}
	as, client := applying(t)
	client.PrependReactor("create", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil,
			apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "page", errors.New("not yours"))
	})
	trainer.fake.stand = func(e *Exercise, r *scenario.Resolved) *candidate { return as }
	report, err := trainer.Grade(t.Context(), e.ID)
	if err != nil || report.Passed || !strings.Contains(strings.Join(report.Reasons, ""), "not yours") {
		t.Errorf("%+v, %v", report, err)
	}
}

// What is no module of this exercise is refused, before anything is stored.
func TestSubmitModuleRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.play(withModule()...)
	trainer := w.trainer("laptop")
	without, err := trainer.Start(t.Context(), r, StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if without.Public.Terraform != "" {
		t.Error("who gets no module is told of one")
	}
	_, err = trainer.SubmitModule(t.Context(), without.ID, terraform.Module{})
	wants(t, err, "started without a module", "--terraform")
	if _, err := trainer.End(t.Context(), without.ID, EndOptions{}); err != nil {
		t.Fatal(err)
	}
	e, err := trainer.Start(t.Context(), r, StartOptions{Terraform: true})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]map[string]any{
		"supported kinds: Deployment.apps": role("page", "get"),
		`in namespace "kube-system"`: {
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": map[string]any{"name": "x", "namespace": "kube-system"},
		},
		"KiB, but the maximum is 64": object("apps/v1", "Deployment", "page",
			map[string]any{"spec": strings.Repeat("x", 70<<10)}),
	} {
		_, err := trainer.SubmitModule(t.Context(), e.ID, terraform.Module{Objects: []terraform.Object{change}})
		wants(t, err, want)
	}
	if stored, err := trainer.Get(context.Background(), e.ID); err != nil || stored.Module != nil {
		t.Errorf("%+v, %v", stored, err)
	}
}

// What a module has changed gets time to show; what the module itself says is as it is at once, and so is a cluster in
// which nothing was changed.
func TestSettling(t *testing.T) {
	t.Parallel()
	checks := []scenario.Check{
		{Name: "pods", Within: scenario.Duration(time.Second)}, {Name: "cloud", Terraform: "google_compute_firewall"},
	}
	g := &grading{report: Report{Applied: &Applied{Changes: []string{"changed Role harbour/page"}}}}
	got := g.settling(checks)
	if time.Duration(got[0].Within) != settle || got[1].Within != 0 || time.Duration(checks[0].Within) != time.Second {
		t.Errorf("%+v of %+v", got, checks)
	}
	for _, applied := range []*Applied{nil, {}} {
		g.report.Applied = applied
		if got := g.settling(checks); time.Duration(got[0].Within) != time.Second {
			t.Errorf("%+v", got)
		}
	}
}
