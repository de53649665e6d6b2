//go:build e2e

package debugpod_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// TestFirewallOfANode: the rule is in the node's own network, as nft there shows it; it outlives the pod that made it;
// and whoever looks for leftovers finds it without a ledger, and removes it unless its run goes on.
func TestFirewallOfANode(t *testing.T) {
	w := onWorker(t)
	const run, table = "firewall-e2e", "e2e-firewall"
	rules := func() string { return w.Sh(t, "sh", "-c", "nft list table inet "+table+" 2>/dev/null || true") }
	t.Cleanup(func() { w.Sh(t, "sh", "-c", "nft delete table inet "+table+" 2>/dev/null || true") })

	session := w.start(t, run)
	proof, err := session.Firewall(t.Context(),
		api.Firewall{Table: table, Port: 27000, Drop: api.DropLarge, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"meta length > 576 tcp sport @ports-", "27000 timeout 1h expires", "hook forward"} {
		if now := rules(); !strings.Contains(now, want) {
			t.Errorf("the node's own nft does not show %q, the proof was %q:\n%s", want, proof.Rule, now)
		}
	}
	other := w.start(t, "other-run")
	find := func(what api.Leftovers) (deadman.Leftover, bool) {
		t.Helper()
		all, err := other.Leftovers(t.Context(), what)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			if l.Kind == deadman.LeftoverFirewall && strings.HasSuffix(l.Path, table) {
				return l, true
			}
		}
		return deadman.Leftover{}, false
	}
	if l, found := find(api.Leftovers{Clean: true, Keep: []string{run}}); !found || l.Removed || l.Run != run ||
		rules() == "" {
		t.Errorf("%+v, found %v: a firewall whose run goes on is told, and stays", l, found)
	}
	if l, found := find(api.Leftovers{Clean: true}); !found || !l.Removed || rules() != "" {
		t.Errorf("%+v, found %v: it should be removed, and the node has:\n%s", l, found, rules())
	}
	if _, found := find(api.Leftovers{}); found {
		t.Error("it is still found after it was removed")
	}
}
