//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// allowed are the flags that scenarios need on the test cluster.
var allowed = []string{"--yes", "--allow-control-plane", "--allow-majority", "--allow-last-gpu-node"}

// startsHandler starts the scenario runtime-handler in a variant that changes a file of a node, and returns its ID.
func (e *env) startsHandler() string {
	e.t.Helper()
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.plugin("scenario", "end", "--restore", "--yes")
		}
	})
	var started struct{ ID string }
	answer := e.ok(append([]string{
		"scenario", "start", "runtime-handler", "--set", "how=missing-handler", "-o", "json",
	}, allowed...)...).stdout
	if err := json.Unmarshal([]byte(answer), &started); err != nil || started.ID == "" {
		e.t.Fatalf("%v:\n%s", err, answer)
	}
	return started.ID
}

// TestRootOnANodeFindsNoAnswer holds that a candidate who is root on the node cannot read in the record what was
// changed, and that the exercise still ends with everything as before after the candidate has killed the dead man's
// switch.
func TestRootOnANodeFindsNoAnswer(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t)
	before := e.files()
	id := e.startsHandler()
	dir := deadman.Dir + "/" + id
	listed := e.worker.Sh(t, "ls", dir)
	if strings.Contains(listed, "restore.sh") || !strings.Contains(listed, "before-0") {
		t.Errorf("the record has %q", listed)
	}
	told := e.worker.Sh(t, "sh", "-c", "grep -rlE 'nvidia|config.toml|containerd' "+dir+"; grep -Lx '"+
		deadman.EncryptedMark+"' $(find "+dir+" -type f ! -name '*-room'); true")
	if told != "" {
		t.Errorf("these files can be read: %q", told)
	}
	e.worker.Sh(t, "pkill", "-9", "-f", "^gpu-fault-deadman "+id)
	if said := e.ok("scenario", "end", id, "--yes"); !strings.Contains(said.stdout, "in its previous state") {
		t.Errorf("%s%s", said.stdout, said.stderr)
	}
	if now := e.files(); now != before {
		t.Errorf("the node had\n%s\nand has\n%s", before, now)
	}
}

// TestSelftestSearchesNodes holds that a selftest finds an answer that a candidate who is root on the node can read.
func TestSelftestSearchesNodes(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t)
	const place = "/var/log/gpu-fault-planted"
	e.worker.Sh(t, "sh", "-c", "echo 'this was Handler-Not-Configured' >"+place)
	t.Cleanup(func() { e.worker.Sh(t, "rm", "-f", place) })
	r := e.plugin(append([]string{
		"scenario", "selftest", "runtime-handler", "--seeds", "0", "--attempt", "restart containerd", "-o", "json",
	}, allowed...)...)
	if r.code != 2 || !strings.Contains(r.stdout, place+" contains the answer") {
		t.Errorf("exit %d: %s", r.code, r.stdout)
	}
}
