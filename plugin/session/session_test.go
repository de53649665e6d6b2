package session

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
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
