//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// TestWhatACandidateLeavesOnANode holds that a job, a line in a file and a firewall table that a candidate left on a
// node fail the grade, and that the end names each of them with the command that removes it.
func TestWhatACandidateLeavesOnANode(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t)
	id := e.startsHandler()
	const clean = `rm -f /etc/cron.d/later /etc/containerd/conf.d/later.toml
sed -i '/later.example/d' /etc/hosts
nft delete table inet later 2>/dev/null
true`
	t.Cleanup(func() { e.worker.Sh(t, "sh", "-c", clean) })
	e.worker.Sh(t, "sh", "-c", `set -e
mkdir -p /etc/cron.d
echo '0 3 * * * root nft add table inet later' >/etc/cron.d/later
echo '192.0.2.1 later.example' >>/etc/hosts
nft add table inet later
nft add chain inet later output '{ type filter hook output priority 5; policy accept; }'
nft add rule inet later output tcp dport 5999 drop
mkdir -p /etc/containerd/conf.d
echo '# nothing' >/etc/containerd/conf.d/later.toml`)
	left := []string{
		"the file /etc/cron.d/later is new", "the file /etc/hosts was changed", "the nftables table inet later is new",
	}
	graded := e.plugin("scenario", "grade", id, "-o", "json")
	for _, what := range left {
		if !strings.Contains(graded.stdout, what) {
			t.Errorf("the grade does not say %q: %s", what, graded.stdout)
		}
	}
	if strings.Contains(graded.stdout, "later.toml") {
		t.Errorf("a solution may change containerd's configuration: %s", graded.stdout)
	}
	const added = ": the file /etc/containerd/conf.d/later.toml is new"
	if asked := e.plugin("scenario", "end", id, "--restore"); !strings.Contains(asked.stderr, added) {
		t.Errorf("the end asks without saying what it would remove:\n%s%s", asked.stdout, asked.stderr)
	}
	ended := e.plugin("scenario", "end", id, "--restore", "--yes")
	for _, what := range append(left, "chroot /host rm /etc/cron.d/later", "chroot /host nft delete table inet later") {
		if !strings.Contains(ended.stdout, what) {
			t.Errorf("the end does not say %q:\n%s%s", what, ended.stdout, ended.stderr)
		}
	}
	if !strings.Contains(ended.stdout, "later.toml is new; it has been removed") ||
		strings.Contains(e.worker.Sh(t, "ls", "/etc/containerd/conf.d"), "later.toml") {
		t.Errorf("the file in a directory where candidates may work is left:\n%s", ended.stdout)
	}
	if ended.code == 0 || strings.Contains(ended.stdout, "in its previous state") {
		t.Errorf("exit %d:\n%s", ended.code, ended.stdout)
	}
}
