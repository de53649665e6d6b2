package injected

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestInjectedFaultText tests that a finding about an injected fault names the user, the targets, and the end time.
func TestInjectedFaultText(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	run := snapshot.Run{
		ID: "runtime-x", Fault: "runtime", Summary: "containerd option-misplaced (nvidia)", By: "kubernetes-admin",
		Phase:   "Active",
		Created: now.Add(-6 * time.Second), Until: now.Add(30 * time.Minute),
		Revert: "kubectl gpu-fault revert runtime-x",
		Targets: []snapshot.Target{{Kind: "Node", Name: "node-b", Evidence: []snapshot.RunEvidence{
			{Source: "/etc/containerd/config.toml", Text: "SHA-256 was 0123, is 4567: 26 bytes taken out at 812"},
			{Source: "CRI Status of containerd 2.1.4", Text: "handler nvidia has no BinaryName"},
		}}},
	}
	f := facts.New(&snapshot.Snapshot{Meta: snapshot.Meta{Created: now}, Runs: []snapshot.Run{run}})
	found := Injected(f, run)
	if want := "kubernetes-admin injected a fault on purpose, 6s ago, until 12:30 UTC: containerd option-misplaced (nvidia) on node-b"; found.Title !=
		want {
		t.Errorf("title %q, want %q", found.Title, want)
	}
	if want := "nothing is wrong with the cluster: revert the run, or wait until 2026-01-01 12:30 UTC"; found.Fix.Text !=
		want {
		t.Errorf("fix %q, want %q", found.Fix.Text, want)
	}
	for _, e := range found.Evidence {
		if strings.Contains(e.Text, "SHA-256") {
			t.Errorf("unnecessary evidence: %s", e.Text)
		}
	}
	run.By, run.Created, run.Until = "", time.Time{}, now.Add(48*time.Hour)
	run.Targets = []snapshot.Target{
		{Kind: "Deployment", Namespace: "ml", Name: "a"}, {Kind: "Pod", Namespace: "ml", Name: "b"},
		{Kind: "Node", Name: "c"}, {Kind: "Node", Name: "d"},
	}
	want :=
		"an unknown user injected a fault on purpose, until 2026-01-03 12:00 UTC: containerd option-misplaced (nvidia) on Deployment ml/a, Pod ml/b, c and 1 more"
	if got := describeRun(f, run); got != want {
		t.Errorf("title %q, want %q", got, want)
	}
}
