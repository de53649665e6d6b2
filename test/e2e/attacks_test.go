//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// forge writes a record as anyone can who may write ConfigMaps in a namespace: with the right labels and sums, about
// a change that never was.
func (e *env) forge(namespace, kind, data string) string {
	e.t.Helper()
	now := time.Now()
	w, err := ledger.New(e.cluster.Client, namespace).Create(e.t.Context(), ledger.Run{
		Fault: "runtime", Summary: "containerd missing-handler (nvidia)", By: "kubernetes-admin", Phase: ledger.Proven,
		Created: now.Add(-time.Hour), Deadline: now.Add(-50 * time.Minute), Until: now.Add(-30 * time.Minute),
		Steps: []ledger.Step{{
			ID: "1", Target: ledger.Target{Kind: "Node", Name: e.worker.Name}, Action: "edit containerd's configuration",
			State: ledger.StateProven, Undo: ledger.Undo{Kind: kind, Data: json.RawMessage(data)},
		}},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return w.Run().ID
}

// images are the events of the pods in the ledger's namespace: the kubelet names the image of each.
func (e *env) images() string {
	e.t.Helper()
	events, err := e.cluster.Client.CoreV1().Events(e.ledger).List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	var all strings.Builder
	for _, event := range events.Items {
		fmt.Fprintln(&all, event.InvolvedObject.Name, event.Message)
	}
	return all.String()
}

// TestAForgedRecordReachesNothing: whatever a record in the ledger claims, the node does what its own record says:
// nothing. The image of the privileged pod is not the record's.
func TestAForgedRecordReachesNothing(t *testing.T) {
	e := setup(t)
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	sums := func() string {
		return e.worker.Sh(t, "sh", "-c", "sha256sum /etc/profile /etc/containerd/*.toml; stat -c '%a %y' /etc/profile; nft list tables")
	}
	before := sums()
	const evil = "docker.io/library/evil:1"
	// As a record would be for which a revert wrote "root" over the end of containerd's configuration, which is as
	// the record says it was left.
	config := e.worker.Sh(t, "cat", "/etc/containerd/config.toml")
	after, before64 := patch.Sum([]byte(config)), patch.Sum([]byte(config[:len(config)-1]+"root"))
	edits := fmt.Sprintf(`[{"offset":%d,"old":%q,"new":%q}]`, len(config)-1, base64.StdEncoding.EncodeToString([]byte("root")), base64.StdEncoding.EncodeToString([]byte(config[len(config)-1:])))
	file := fmt.Sprintf(`{"path":"/etc/containerd/config.toml","before":%q,"after":%q,"edits":%s,"meta":{"mode":511,"uid":0,"gid":0,"modTime":"2026-01-02T03:04:05Z"}}`, before64, after, edits)
	for name, forged := range map[string]struct {
		kind, data string
		code       int
		says       string
	}{
		"a file that is not the runtime's": {"node-files", `{"files":[{"path":"/etc/profile","before":"","after":"x"}],"image":"` + evil + `"}`, 0, "no record of the run"},
		"bytes, mode, unit and socket":     {"node-files", `{"files":[` + file + `],"service":{"unit":"ssh.service","socket":"/run/evil.sock"},"settings":{"image":"` + evil + `"}}`, 1, "nothing was restored"},
		"the table of a firewall":          {"node-firewall", `{"firewall":{"table":"filter","port":22,"drop":"requests","ttl":1},"settings":{"image":"` + evil + `"}}`, 0, "have nothing of this run"},
		"a kernel module, with an image":   {"kernel-module", `{"image":"` + evil + `"}`, 0, "not loaded"},
	} {
		id := e.forge(e.ledger, forged.kind, forged.data)
		r := e.plugin("revert", id, "--yes")
		if said := r.stdout + r.stderr; r.code != forged.code || !strings.Contains(said, forged.says) || strings.Contains(said, "evil.sock") {
			t.Errorf("%s: exit %d, wanted %d and %q: %s", name, r.code, forged.code, forged.says, said)
		}
		if after := sums(); after != before {
			t.Errorf("%s: the node had\n%s\nand has\n%s", name, before, after)
		}
		if pulled := e.images(); strings.Contains(pulled, "evil") || !strings.Contains(pulled, id) {
			t.Errorf("%s: the pod of the revert did not start with the default image:\n%s", name, pulled)
		}
	}
	e.noPods()
}

// TestATenantsRecordIsNotFollowed: a namespace without the ledger label is not a ledger, whatever ConfigMaps it holds.
func TestATenantsRecordIsNotFollowed(t *testing.T) {
	t.Parallel()
	e := setup(t)
	tenant := e.cluster.Namespace(t)
	id := e.forge(tenant, "node-files", `{"files":[]}`)
	e.mustSay(e.plugin("revert", id, "--yes", "--ledger-namespace", tenant), 1, "is not marked as a ledger", "kubectl label namespace "+tenant)
	if r := e.plugin("leftovers", "-o", "json"); strings.Contains(r.stdout, "revert "+id) || strings.Contains(r.stderr, "revert "+id) {
		t.Errorf("leftovers suggests to follow it:\n%s%s", r.stdout, r.stderr)
	}
	if r := e.ok("list", "-A"); strings.Contains(r.stdout, id) || !strings.Contains(r.stderr, "is not marked as a ledger") {
		t.Errorf("list -A:\n%s%s", r.stdout, r.stderr)
	}
	pods, err := e.cluster.Client.CoreV1().Pods(tenant).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("pods in the tenant's namespace: %v, %v", pods.Items, err)
	}
}
