//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// tables returns those of the node's nftables that the scenario may make.
func (e *env) tables() string {
	e.t.Helper()
	return strings.TrimSpace(e.worker.Sh(e.t, "sh", "-c",
		"for t in hardening site-baseline egress-guard; do nft list table inet $t 2>/dev/null; done; true"))
}

// TestBlockedEgressWithoutPolicies: the cluster enforces no NetworkPolicies, so that in the place of the exercise that
// needs them comes the one with a firewall rule on a node, and that is said. The rule ends by itself, and `revert`
// removes it before.
func TestBlockedEgressWithoutPolicies(t *testing.T) {
	e := setup(t)
	e.cluster.WithoutPolicies(t)
	if before := e.tables(); before != "" {
		t.Fatalf("the node has such tables already:\n%s", before)
	}
	t.Cleanup(func() { e.plugin("revert", "--all", "--yes") })
	r := e.ok("scenario", "start", "blocked-egress", "--seed", "7", "--yes", "--allow-control-plane",
		"--allow-majority", "--allow-last-gpu-node", "-o", "json")
	if !strings.Contains(
		r.stderr, "does not enforce NetworkPolicies: blocked-egress-node replaces blocked-egress",
	) {
		t.Errorf("nobody says that it is another exercise:\n%s", r.stderr)
	}
	var exercise struct{ ID, Scenario string }
	if err := json.Unmarshal([]byte(r.stdout), &exercise); err != nil || exercise.Scenario != "blocked-egress-node" {
		t.Fatalf("%v: started %+v", err, exercise)
	}
	if now := e.tables(); !strings.Contains(now, "drop") || !strings.Contains(now, "expires") {
		t.Errorf("no rule that ends by itself is on the node:\n%s", now)
	}

	e.ok("revert", exercise.ID, "--yes")
	cluster.Eventually(t, patience, "no rule is on the node after revert", func() (bool, string) {
		left := e.tables()
		return left == "", left
	})
	for _, run := range e.runs("--all") {
		if run.Phase != ledger.Reverted {
			t.Errorf("run %s is %s: %s", run.ID, run.Phase, run.Message)
		}
	}
	e.ok("scenario", "end", exercise.ID, "--yes")
}
