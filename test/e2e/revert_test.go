//go:build e2e

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// In an emergency one record that somebody damaged must not keep the others from being undone.
func TestADamagedRecordDoesNotStopRevertAll(t *testing.T) {
	t.Parallel()
	e := setup(t)
	out := e.inject("43", e.worker.Name)
	damaged := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: "bad-1", Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelFault: "xid"},
		},
		Data: map[string]string{"run.json": "{damaged"},
	}
	if _, err := e.cluster.Client.CoreV1().ConfigMaps(e.ledger).Create(
		t.Context(), damaged, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	r := e.plugin("revert", "--all", "--yes")
	e.mustSay(r, 1, "bad-1", "kubectl get configmap bad-1 -n "+e.ledger)
	if !strings.Contains(r.stdout, out.ID) {
		t.Errorf("run %s was not reverted:\n%s", out.ID, r.stdout)
	}
	e.inject("43", e.worker.Name) // nor other runs from being made
}

// A dry run prints what was asked for, and closes nothing.
func TestRevertDryRun(t *testing.T) {
	t.Parallel()
	e := setup(t)
	out := e.inject("43", e.worker.Name)
	var list struct {
		Kind  string       `json:"kind"`
		Items []ledger.Run `json:"items"`
	}
	e.decode(e.ok("revert", "--all", "--dry-run", "-o", "json").stdout, &list)
	if list.Kind != "RunList" || len(list.Items) != 1 || list.Items[0].ID != out.ID {
		t.Errorf("printed %+v, wanted the one run %s", list, out.ID)
	}
	if runs := e.runs(); len(runs) != 1 {
		t.Errorf("the dry run closed the run: %+v", runs)
	}
}
