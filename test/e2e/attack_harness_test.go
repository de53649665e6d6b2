//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// The tests named TestAttack are attacks: each subtest is one, and passes when it gained nothing. `make test-attacks`
// runs them all. Who attacks has the rights that the test grants, and no others: the API server is asked as that user.

// writer is someone who may write ConfigMaps in the ledger's namespace, and nothing else anywhere.
type writer struct {
	*env
	user   string
	client kubernetes.Interface
}

func newWriter(e *env) *writer {
	e.t.Helper()
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	w := &writer{env: e, user: "mallory-" + e.ledger}
	w.client = e.grant(w.user, fault.Permissions(configMapWrites(e.ledger)))
	return w
}

func configMapWrites(namespace string) (all []fault.Permission) {
	for _, verb := range []string{"get", "list", "create", "update", "patch", "delete"} {
		all = append(all, fault.Permission{Verb: verb, Resource: "configmaps", Namespace: namespace})
	}
	return all
}

// grant gives a user exactly these rights, and returns their client once the rights are in force.
func (e *env) grant(user string, rights []fault.Permission) kubernetes.Interface {
	e.t.Helper()
	for _, object := range fault.Roles(
		user, rights, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	) {
		if err := e.make(object); err != nil {
			e.t.Fatal(err)
		}
	}
	e.inForce(user, rights[len(rights)-1])
	return e.as(user)
}

// forge writes a record as the tool would: with the right labels and sums, of a run that is proven and whose time is
// up.
func (w *writer) forge(run ledger.Run) string {
	w.t.Helper()
	now := time.Now()
	if run.Fault == "" {
		run.Fault = "runtime"
	}
	run.Summary, run.By, run.Phase = "containerd missing-handler (nvidia)", "kubernetes-admin", ledger.Proven
	run.Created, run.Deadline = now.Add(-time.Hour), now.Add(-50*time.Minute)
	if run.Until.IsZero() {
		run.Until = now.Add(-30 * time.Minute)
	}
	written, err := ledger.New(w.client, w.ledger).Create(w.t.Context(), run)
	if err != nil {
		w.t.Fatal(err)
	}
	return written.Run().ID
}

// step returns one that was proven, with its undo.
func step(target ledger.Target, kind string, data any) ledger.Step {
	text, isText := data.(string)
	if !isText {
		encoded, err := json.Marshal(data)
		if err != nil {
			panic(err) // the data is the test's own
		}
		text = string(encoded)
	}
	return ledger.Step{
		ID: "1", Target: target, Action: "edit containerd's configuration", State: ledger.StateProven,
		Undo: ledger.Undo{Kind: kind, Data: json.RawMessage(text)},
	}
}

// rewrite changes the data of a record as its writer can: with a new sum.
func (w *writer) rewrite(id string, change func(run *ledger.Run)) {
	w.t.Helper()
	records := w.client.CoreV1().ConfigMaps(w.ledger)
	record, err := records.Get(w.t.Context(), id, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var run ledger.Run
	w.decode(record.Data["run.json"], &run)
	change(&run)
	if err := records.Delete(w.t.Context(), id, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := ledger.New(w.client, w.ledger).Create(w.t.Context(), run); err != nil {
		w.t.Fatal(err)
	}
}

// forget deletes a forged record, so that the next attack begins without it.
func (w *writer) forget(id string) {
	_ = w.client.CoreV1().ConfigMaps(w.ledger).Delete(context.WithoutCancel(w.t.Context()), id, metav1.DeleteOptions{})
}

// holds fails the attack unless what it aimed at is the same before and after the command of the victim.
func (e *env) holds(t *testing.T, see func() string, args ...string) result {
	t.Helper()
	before := see()
	r := e.plugin(args...)
	if after := see(); after != before {
		t.Errorf("kubectl gpu-fault %s gave the attacker what they wanted:\n%s\nexit %d\n%s%s", strings.Join(args, " "),
			difference(before, after), r.code, r.stdout, r.stderr)
	}
	return r
}

// says fails the attack unless the command ended with the code and its output has the text.
func (r result) says(t *testing.T, code int, text string) {
	t.Helper()
	if said := r.stdout + r.stderr; r.code != code || !strings.Contains(said, text) {
		t.Errorf("exit %d, wanted %d and %q:\n%s", r.code, code, text, said)
	}
}

// restoredByItself waits until the node's dead man's switch has restored all files.
func (e *env) restoredByItself(t *testing.T, before string) {
	t.Helper()
	cluster.Eventually(t, 2*time.Minute, "the node restores itself when the time is up", func() (bool, string) {
		now := e.files()
		return now == before, difference(before, now)
	})
}

// as returns a client of a user.
func (e *env) as(user string) kubernetes.Interface {
	e.t.Helper()
	config := rest.CopyConfig(e.cluster.RESTConfig)
	config.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		e.t.Fatal(err)
	}
	return client
}

// sorted are lines in their order.
func sorted(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
