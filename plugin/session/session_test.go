package session

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// The ledger can be read by others: it must not hold credentials.
func TestTheRecordedCommandHasNoCredentials(t *testing.T) {
	t.Parallel()
	got := CommandLine([]string{
		"/usr/bin/kubectl-gpu_fault", "xid", "79", "n", "--token", "secret", "--token=secret",
		"--server=https://u:secret@h:1", "https://u:secret@h/x", "--message=a=b",
	})
	want := []string{
		"kubectl-gpu_fault", "xid", "79", "n", "--token", "...", "--token=...", "--server=https://...@h:1",
		"https://...@h/x", "--message=a=b",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What a detector needs to forget is told only of those that can have seen the line.
func TestForget(t *testing.T) {
	t.Parallel()
	text := strings.Join(forget(xid.DetectorsOn(nil), []string{"79", "gpu-note"}), "\n")
	if !strings.Contains(text, "NVSentinel") || !strings.Contains(text, "node-problem-detector") ||
		strings.Contains(text, "tracepoint") || strings.Contains(text, "GKE") {
		t.Errorf("for 79:\n%s", text)
	}
	if len(forget(xid.Detectors(), []string{"9999"})) == 0 {
		t.Error("nothing is told for a code of the user's own")
	}
}

// A run on many nodes must not list all nodes again for each of them, or its costs grow with their square.
func TestRevertingListsTheNodesOnce(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	s := New(t.Context(), &kube.Cluster{Client: client, Config: &rest.Config{}}, &kube.Connection{}, 1, podflags.New(),
		progress.New(io.Discard))
	step := ledger.Step{Detail: []byte(`{"xids":["79"]}`)}
	for range 3 {
		state, said, err := s.Undoers[kernellog.UndoKind].Undo(t.Context(), ledger.Run{}, step)
		if err != nil || state != ledger.StatePermanent || !strings.Contains(said, "NVSentinel") {
			t.Fatalf("%s, %v:\n%s", state, err, said)
		}
	}
	if n := len(client.Actions()); n != 1 {
		t.Errorf("%d requests for 3 steps, wanted 1", n)
	}
}
