//go:build e2e && scenario

package objects_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

// What is created looks as if somebody had used kubectl, is the first revision, writes no Events, and goes without a
// trace.
func TestATenantComesAndGoes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	creation := l.creation(l.client, l.manifests()...)
	if err := creation.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	permissions, err := creation.Permissions()
	if err != nil {
		t.Fatal(err)
	}
	plan := l.plan(l.client, creation.Change("create the tenant"))
	plan.Needs = permissions
	began := time.Now()
	run, err := l.session.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("created after %s: %s", time.Since(began), run.Steps[0].Undo.Data)
	deployment, err := l.typed.AppsV1().Deployments(l.team()).Get(t.Context(), "trainer", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range deployment.ManagedFields {
		if field.Manager != objects.ManagerCreate && field.Manager != "kube-controller-manager" {
			t.Errorf("a candidate sees the field manager %s", field.Manager)
		}
	}
	if text := fmt.Sprint(deployment.Labels, deployment.Annotations); strings.Contains(text, "gpu") ||
		strings.Contains(text, "fault") {
		t.Errorf("a candidate sees %s", text)
	}
	events, err := l.typed.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range events.Items {
		if strings.Contains(event.Message, run.ID) {
			t.Errorf("a quiet run has written an Event: %s", event.Message)
		}
	}
	if err := creation.Check(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "Namespace "+l.team()+" already exists") ||
		!strings.Contains(err.Error(), "ClusterRoleBinding "+l.team()+" already exists") {
		t.Errorf("a second creation: %v", err)
	}

	began = time.Now()
	run, err = l.session.Revert(t.Context(), run.ID, false)
	if err != nil || run.Steps[0].State != ledger.StateReverted {
		t.Fatalf("%v %+v", err, run)
	}
	t.Logf("reverted after %s: %s", time.Since(began), run.Steps[0].Message)
	if left := append(l.left(), l.seals(run)...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A later step that fails undoes the earlier ones, the last first, and says which object was in its way; that one
// stays.
func TestWhatExistsAlreadyIsLeftAndAllElseUndone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tenant := l.creation(l.client, l.manifests()...)
	more := l.creation(l.client, object("v1", "ConfigMap", l.team(), "settings", nil),
		object("v1", "ConfigMap", "default", l.team(), nil))
	again := l.creation(l.client, object("v1", "ConfigMap", l.team(), "other", nil),
		object("v1", "ServiceAccount", l.team(), "trainer", nil))
	run, err := l.session.Run(t.Context(), l.plan(l.client, tenant.Change("1"), more.Change("2"), again.Change("3")))
	if err == nil || !strings.Contains(err.Error(), "ServiceAccount "+l.team()+"/trainer already exists") {
		t.Fatalf("%v", err)
	}
	var states []string
	for _, step := range run.Steps {
		states = append(states, string(step.State))
	}
	if want := []string{"reverted", "reverted", "failed"}; !slices.Equal(states, want) || !run.IsClosed() ||
		run.Phase != ledger.Failed {
		t.Errorf("%s: %v, %q", run.Phase, states, run.Message)
	}
	if left := append(l.left(), l.seals(run)...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := l.typed.CoreV1().ConfigMaps("default").Get(t.Context(), l.team(), metav1.GetOptions{}); err == nil {
		t.Error("the ConfigMap in default is left")
	}
}
