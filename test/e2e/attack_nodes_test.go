//go:build e2e

package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// images returns the events of the pods in the ledger's namespace: the kubelet names the image of each.
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

const evilImage = "docker.io/library/evil:1"

// TestAttackRecordsOfNodes: whatever a record in the ledger claims, the node does what its own record says: nothing.
// The image of the privileged pod is not the record's.
func TestAttackRecordsOfNodes(t *testing.T) {
	w := newWriter(setup(t))
	sums := func() string {
		return w.worker.Sh(t, "sh", "-c",
			"sha256sum /etc/profile /etc/passwd /etc/containerd/*.toml; stat -c '%a %y' /etc/profile; nft list tables; lsmod | wc -l; ls /etc/systemd/system")
	}
	// As a record would be for which a revert wrote "root" over the end of containerd's configuration, which is as
	// the record says it was left.
	config := w.worker.Sh(t, "cat", "/etc/containerd/config.toml")
	before, after := patch.Sum([]byte(config[:len(config)-1]+"root")), patch.Sum([]byte(config))
	edits := fmt.Sprintf(`[{"offset":%d,"old":%q,"new":%q}]`, len(config)-1,
		base64.StdEncoding.EncodeToString([]byte("root")),
		base64.StdEncoding.EncodeToString([]byte(config[len(config)-1:])))
	file := fmt.Sprintf(
		`{"path":"/etc/containerd/config.toml","before":%q,"after":%q,"edits":%s,"meta":{"mode":511,"uid":0,"gid":0,"modTime":"2026-01-02T03:04:05Z"}}`,
		before, after, edits,
	)
	for name, forged := range map[string]struct {
		kind, data string
		code       int
		says       string
	}{
		"a file that is not the runtime's": {
			"node-files", `{"files":[{"path":"/etc/profile","before":"","after":"x"}],"image":"` + evilImage + `"}`, 0,
			"no record of the run",
		},
		"a path with dots and a link": {
			"node-files", `{"files":[{"path":"/var/lib/kubelet/pods/../../../../etc/passwd","before":"","after":"x"}]}`,
			0, "no record of the run",
		},
		"bytes, mode, unit and socket": {"node-files", `{"files":[` + file +
			`],"service":{"unit":"ssh.service","socket":"/run/evil.sock"},"settings":{"image":"` + evilImage +
			`"}}`, 1, "nothing was restored"},
		"a lost node, and a late end": {
			"node-files", `{"files":[],"nodeLoss":true}`, 0, "no record of the run",
		},
		"files that are not a list": {"node-files", `{"files":"/etc/passwd"}`, 1, "cannot read the undo"},
		"the table of a firewall": {
			"node-firewall",
			`{"firewall":{"table":"filter","port":22,"drop":"requests","ttl":1},"settings":{"image":"` + evilImage +
				`"}}`,
			0, "has no table from this run",
		},
		"the table of kube-proxy": {
			"node-firewall", `{"firewall":{"table":"kube-proxy","port":443,"drop":"requests","ttl":1}}`, 0,
			"has no table from this run",
		},
		"a kernel module, with an image": {"kernel-module", `{"image":"` + evilImage + `"}`, 0, "not loaded"},
		"a kernel module of somebody else's": {
			"kernel-module", `{"module":"overlay","name":"overlay"}`, 0, "not loaded",
		},
		"a script in the command line and ID": {
			"node-files", `{"files":[{"path":"/etc/containerd/$(reboot).toml","before":"","after":"x"}]}`, 0,
			"no record of the run",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := ledger.Run{
				Steps: []ledger.Step{step(ledger.Target{Kind: "Node", Name: w.worker.Name}, forged.kind, forged.data)},
			}
			if name == "a lost node, and a late end" {
				run.Until = time.Date(2035, 1, 1, 0, 0, 0, 0, time.UTC)
			}
			id := w.forge(run)
			defer w.forget(id)
			r := w.holds(t, sums, "revert", id, "--yes")
			r.says(t, forged.code, forged.says)
			if strings.Contains(r.stdout+r.stderr, "evil.sock") {
				t.Errorf("the socket of the record is followed:\n%s%s", r.stdout, r.stderr)
			}
			if pulled := w.images(); strings.Contains(pulled, "evil") ||
				forged.says != "cannot read the undo" && !strings.Contains(pulled, id) {
				t.Errorf("the pod of the revert did not start with the default image:\n%s", pulled)
			}
		})
	}
	w.noPods()
}

// TestAttackRecordsOfOtherNodes: a record chooses no node for a privileged pod that its reader would not have chosen.
func TestAttackRecordsOfOtherNodes(t *testing.T) {
	t.Parallel()
	w := newWriter(setup(t))
	ghost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ghost-" + w.ledger}}
	node, err := w.cluster.Client.CoreV1().Nodes().Create(t.Context(), ghost, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.drop(w.cluster.Client.CoreV1().Nodes(), ghost.Name) })
	for name, forged := range map[string]struct {
		target ledger.Target
		code   int
		says   string
	}{
		"the control plane": {
			ledger.Target{Kind: "Node", Name: w.control.Name}, 1, "--allow-control-plane",
		},
		"a node that was registered again": {
			ledger.Target{Kind: "Node", Name: w.worker.Name, UID: "0"}, 2, "not the node that was changed",
		},
		"a node that is not in the cluster": {
			ledger.Target{Kind: "Node", Name: "nowhere", UID: "0"}, 2, "not in the cluster",
		},
		"no node at all": {
			ledger.Target{Kind: "Pod", Namespace: "kube-system", Name: w.worker.Name}, 1, "the undo changes a node",
		},
		"a name that is a flag":          {ledger.Target{Kind: "Node", Name: "--privileged"}, 1, "--privileged"},
		"a node that never starts a pod": {ledger.Target{Kind: "Node", Name: node.Name}, 1, node.Name},
		"a name that is a path":          {ledger.Target{Kind: "Node", Name: "../" + w.control.Name}, 1, "../"},
		"the control plane, as another kind": {
			ledger.Target{Kind: "node", Name: w.control.Name}, 1, "the undo changes a node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := w.forge(ledger.Run{Steps: []ledger.Step{step(forged.target, "node-files", `{"files":[]}`)}})
			defer w.forget(id)
			r := w.holds(t, func() string { return strings.Join(w.podsOnNodes(id), "\n") }, "revert", id, "--yes",
				"--timeout", "10s")
			r.says(t, forged.code, forged.says)
			for _, where := range w.podsOnNodes(id) {
				if !strings.Contains(where, node.Name) {
					t.Errorf("a privileged pod was made: %s", where)
				}
			}
		})
	}
}

// podsOnNodes returns the pods of a run that the API server has heard of, and where they were to run.
func (e *env) podsOnNodes(run string) (all []string) {
	e.t.Helper()
	events, err := e.cluster.Client.CoreV1().Events(e.ledger).List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, event := range events.Items {
		if strings.Contains(event.InvolvedObject.Name, run) {
			all = append(all, event.InvolvedObject.Name+" on "+event.Source.Host+event.ReportingInstance)
		}
	}
	return all
}

// TestAttackRecordsBesideOthers: a record that cannot be followed, or only after a long time, keeps nobody else's run
// from being reverted.
func TestAttackRecordsBesideOthers(t *testing.T) {
	t.Parallel()
	w := newWriter(setup(t))
	ghost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lost-" + w.ledger}}
	if _, err := w.cluster.Client.CoreV1().Nodes().Create(t.Context(), ghost, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.drop(w.cluster.Client.CoreV1().Nodes(), ghost.Name) })
	raw := func(text, sum string) func() string {
		return func() string {
			record := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Name: "xid-222222",
					Labels: map[string]string{
						ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelFault: "xid", ledger.LabelPhase: "Proven",
						ledger.LabelClosed: "false",
					},
					Annotations: map[string]string{ledger.AnnotationSum: sum},
				},
				Data: map[string]string{"run.json": text},
			}
			if _, err := w.client.CoreV1().ConfigMaps(w.ledger).Create(
				w.t.Context(), record, metav1.CreateOptions{},
			); err != nil {
				w.t.Fatal(err)
			}
			return record.Name
		}
	}
	good := func(text string) func() string { return raw(text, patch.Sum([]byte(text))) }
	onNode := ledger.Target{Kind: "Node", Name: w.worker.Name}
	for name, attack := range map[string]struct {
		plant func() string
		says  string
	}{
		"a sum of another text": {
			raw(`{"apiVersion":"gpufault.dev/v1alpha1","kind":"Run"}`, "0"), "xid-222222",
		},
		"no JSON": {good(`no JSON`), "xid-222222"},
		"a newer version": {
			good(`{"apiVersion":"gpufault.dev/v9","kind":"Run","id":"xid-222222"}`), "newer",
		},
		"a field that nobody knows": {
			good(`{"apiVersion":"gpufault.dev/v1alpha1","kind":"Run","id":"xid-222222","run":"rm -rf /"}`),
			"xid-222222",
		},
		"the ID of another run": {
			good(`{"apiVersion":"gpufault.dev/v1alpha1","kind":"Run","id":"xid-333333"}`), "xid-222222",
		},
		"a JSON of a hundred thousand levels": {
			good(strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), "xid-222222",
		},
		"an undo that nobody knows": {func() string {
			return w.forge(ledger.Run{Steps: []ledger.Step{step(onNode, "shell", `{"command":"reboot"}`)}})
		}, `unknown kind of undo "shell"`},
		"a thousand steps": {func() string {
			run := ledger.Run{}
			for i := range 1000 {
				s := step(ledger.Target{Kind: "Node", Name: fmt.Sprintf("node-%d", i)}, "node-files", `{"files":[]}`)
				s.ID = fmt.Sprint(i)
				s.Target.UID = "0"
				run.Steps = append(run.Steps, s)
			}
			return w.forge(run)
		}, "node-999"},
		"a node that is lost for years": {func() string {
			return w.forge(ledger.Run{Until: time.Now().Add(10 * 365 * 24 * time.Hour), Steps: []ledger.Step{
				step(ledger.Target{Kind: "Node", Name: ghost.Name}, "node-files", `{"files":[],"nodeLoss":true}`),
			}})
		}, "restores itself"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := attack.plant()
			defer w.forget(bad)
			genuine := w.inject("43", w.worker.Name).ID
			start := time.Now()
			r := w.plugin("revert", "--all", "--yes", "--timeout", "20s")
			if said := r.stdout + r.stderr; !strings.Contains(said, attack.says) {
				t.Errorf("revert --all says nothing of it: exit %d:\n%s", r.code, said)
			}
			for _, run := range w.runs() {
				if run.ID == genuine {
					t.Errorf("the run %s of somebody else was not reverted: %s%s", genuine, r.stdout, r.stderr)
				}
			}
			if took := time.Since(start); took > 90*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
