//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// hostile clears the screen, sets the title, rings, hides what follows, reverses it, and begins a line that looks like
// the tool's own.
const hostile = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202egnihton\u2066\u2028\r\nrun/xid-999999 reverted"

// plain fails the attack if a text moves the cursor, or has a line that begins with what the attacker wrote.
func plain(t *testing.T, what, text string) {
	t.Helper()
	for i, r := range text {
		if r != '\n' && r != '\t' && printer.IsDangerous(r) {
			t.Errorf("%s has %U in %q", what, r, text[max(0, i-40):min(len(text), i+40)])
			return
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "run/xid-999999") {
			t.Errorf("%s has a line that the attacker wrote: %q", what, line)
		}
	}
}

// TestAttackScreen: whatever the cluster says, and whoever wrote it, is shown as text.
func TestAttackScreen(t *testing.T) {
	w := newWriter(setup(t))
	namespace := w.cluster.Namespace(t)
	client := w.cluster.Client
	record := func() string {
		run := ledger.Run{Message: hostile, Steps: []ledger.Step{step(
			ledger.Target{Kind: "Node", Name: w.worker.Name}, "node-files",
			map[string]any{
				"files": []any{map[string]any{"path": "/etc/" + hostile, "before": "x", "after": "y"}},
				"image": hostile,
			},
		)}}
		run.Command = []string{"kubectl-gpu_fault", hostile}
		run.Steps[0].Message, run.Steps[0].Evidence = hostile, []ledger.Evidence{{Source: hostile, Text: hostile}}
		return w.forge(run)
	}
	object := func(text string, args ...any) {
		t.Helper()
		w.kubectlWith(fmt.Sprintf(text, args...), "create", "-f", "-")
	}
	quoted, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	broken := func() {
		object(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"hostile","namespace":%[1]q,"annotations":{"note":%[2]s}},"spec":{"restartPolicy":"Never","nodeName":%[3]q,"containers":[{"name":"main","image":"busybox:1.35","imagePullPolicy":"Never",
			"resources":{"limits":{"nvidia.com/gpu":"1"}},"command":["sh","-c",%[4]q]}]}}`, namespace, quoted, w.worker.Name,
			"printf '\\033[2J\\007\\xc2\\x9b31m\\342\\200\\256run/xid-999999 reverted CUDA error: no CUDA-capable device is detected\\n' | tee /dev/termination-log; exit 3")
		object(`{"apiVersion":"v1","kind":"Event","metadata":{"name":"hostile","namespace":%[1]q},"type":"Warning","reason":"FailedCreatePodSandBox","message":%[2]s,"count":1,
			"lastTimestamp":%[3]q,"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":%[1]q,"name":"hostile"},"source":{"component":"kubelet"}}`, namespace, quoted, time.Now().UTC().Format(time.RFC3339))
		cluster.Eventually(t, patience, "the pod has failed", func() (bool, string) {
			pod, err := client.CoreV1().Pods(namespace).Get(t.Context(), "hostile", metav1.GetOptions{})
			return err == nil && (pod.Status.Phase == corev1.PodFailed), fmt.Sprint(err)
		})
	}
	condition := func() {
		patch := fmt.Sprintf(
			`{"status":{"conditions":[{"type":"Hostile","status":"True","reason":"Xid79","message":%s,"lastHeartbeatTime":%q,"lastTransitionTime":%[2]q}]}}`,
			quoted, time.Now().UTC().Format(time.RFC3339),
		)
		if _, err := client.CoreV1().Nodes().Patch(
			t.Context(), w.worker.Name, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{},
			"status",
		); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			gone := []byte(`{"status":{"conditions":[{"$patch":"delete","type":"Hostile"}]}}`)
			_, _ = client.CoreV1().Nodes().Patch(context.Background(), w.worker.Name,
				"application/strategic-merge-patch+json", gone, metav1.PatchOptions{}, "status")
		})
	}
	broken()
	condition()
	id := record()
	defer w.forget(id)
	dir := t.TempDir()
	for _, args := range [][]string{
		{"list"}, {"list", "-o", "wide"}, {"list", "--all", "-o", "wide"}, {"list", "-A"}, {"list", "-o", "name"},
		{"leftovers"}, {"leftovers", "-o", "wide"}, {"revert", id, "--dry-run=client"}, {"revert", "--all"},
		{"runtime", "show", w.worker.Name}, {"xid", "79", w.worker.Name, "--dry-run=client"},
		{"doctor", "--api-only"}, {"doctor", "--api-only", "-o", "wide"}, {"doctor", "-n", namespace},
		{"doctor", "--api-only", "-o", "name"},
		{"doctor", "--api-only", "-o", "junit"}, {"doctor", "--api-only", "--html", filepath.Join(dir, "page.html")},
		{"xid", "79", "--pod", "hostile", "-n", namespace, "--yes"},
		{"cuda", "inject", "pod/hostile", "-n", namespace, "--xid", "79", "--yes"}, {"revert", id, "--yes"},
		{"list", "--all", "-o", "wide"},
	} {
		t.Run(strings.ReplaceAll(strings.Join(args, " "), dir, ""), func(t *testing.T) {
			r := w.plugin(args...)
			plain(t, "stdout", r.stdout)
			plain(t, "stderr", r.stderr)
		})
	}
	t.Run("the page", func(t *testing.T) {
		page, err := os.ReadFile(filepath.Join(dir, "page.html"))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range string(page) { // what the attacker wrote is in a quotation, with its lines
			if r != '\n' && r != '\t' && printer.IsDangerous(r) {
				t.Fatalf("the page has %U in %q", r, page[max(0, i-40):min(len(page), i+40)])
			}
		}
	})
	t.Run("JSON is verbatim, and valid", func(t *testing.T) {
		var list struct{ Items []ledger.Run }
		w.decode(w.plugin("list", "--all", "-o", "json").stdout, &list)
	})
}
