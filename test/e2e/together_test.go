//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// TestExercisesTogether: a candidate gets two exercises with one kubeconfig, and repairs one. Both are graded, each by
// itself, and both end. What affects nodes is refused.
func TestExercisesTogether(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t)
	e.cluster.Trainer(t)
	t.Cleanup(func() {
		if t.Failed() {
			e.plugin("scenario", "end", "--yes")
		}
	})
	start := []string{
		"scenario", "start", "shm-too-small", "--seed", "5", "--yes", "--allow-control-plane", "--allow-majority",
		"--allow-last-gpu-node", "-o", "json",
	}
	refused := e.plugin(append(start, "--with", "runtime-handler")...)
	if refused.code != 1 || !strings.Contains(refused.stderr, "runtime-handler with seed 5 changes nodes") {
		t.Errorf("exit %d: %s", refused.code, refused.stderr)
	}

	kubeconfig := filepath.Join(t.TempDir(), "candidate")
	var started struct {
		Items []struct {
			ID, Scenario string
			Card         struct{ Context, Namespace string }
		}
	}
	answer := e.ok(append(start, "--with", "wrong-role-binding", "--kubeconfig-out", kubeconfig)...).stdout
	if err := json.Unmarshal([]byte(answer), &started); err != nil || len(started.Items) != 2 {
		t.Fatalf("%v:\n%s", err, answer)
	}
	text, err := os.ReadFile(kubeconfig)
	for _, item := range started.Items {
		if err != nil || !strings.Contains(string(text), "name: "+item.Card.Context) {
			t.Errorf("%v: the kubeconfig has no context %q", err, item.Card.Context)
		}
		if strings.Contains(string(text), item.Scenario) {
			t.Errorf("the kubeconfig tells the candidate the scenario: %s", item.Scenario)
		}
	}

	// The first exercise is repaired, by its candidate.
	first := started.Items[0].Card
	e.kubectl("--kubeconfig", kubeconfig, "--context", first.Context, "patch",
		strings.TrimSpace(e.kubectl("get", "deployment", "-n", first.Namespace, "-o", "name")), "--type=json", "-p", `[
			{"op": "add", "path": "/spec/template/spec/volumes",
			 "value": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
			{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts",
			 "value": [{"name": "shm", "mountPath": "/dev/shm"}]}]`)
	var graded struct {
		Items []struct {
			ID     string
			Passed bool
		}
	}
	cluster.Eventually(t, time.Minute, "the repaired exercise passes, and the other does not", func() (bool, string) {
		r := e.plugin("scenario", "grade", "-o", "json")
		if err := json.Unmarshal([]byte(r.stdout), &graded); err != nil || r.code != 2 || len(graded.Items) != 2 {
			return false, r.stderr
		}
		return graded.Items[0].Passed && !graded.Items[1].Passed && graded.Items[0].ID == started.Items[0].ID, r.stdout
	})
	e.ok("scenario", "end", "--yes")
	if open := e.ok("scenario", "status", "-o", "name").stdout; open != "" {
		t.Errorf("still open: %s", open)
	}
}
