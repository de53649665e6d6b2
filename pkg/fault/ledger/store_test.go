package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

var start = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func newStore(t *testing.T, client kubernetes.Interface) *ledger.Store {
	t.Helper()
	store := ledger.New(client, ledger.DefaultNamespace)
	store.Clock = func() time.Time { return start }
	store.Random = rand.NewChaCha8([32]byte{1})
	if _, err := store.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store
}

func newRun(nodes ...string) ledger.Run {
	run := ledger.Run{
		Fault: "runtime", Summary: "containerd without its runtime", By: "alice", From: "laptop",
		Deadline: start.Add(10 * time.Minute), Phase: ledger.Planned,
	}
	for i, name := range nodes {
		run.Steps = append(run.Steps, ledger.Step{
			ID: fmt.Sprint(i + 1), Target: ledger.Target{Kind: "Node", Name: name}, Action: "edit a file",
			State: ledger.StatePlanned,
			Undo:  ledger.Undo{Kind: "file", Data: json.RawMessage(`{"old":"x"}`)},
		})
	}
	return run
}

func create(t *testing.T, store *ledger.Store, run ledger.Run) *ledger.Writer {
	t.Helper()
	w, err := store.Create(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestARecordIsReadBackAsWritten(t *testing.T) {
	client := ledgertest.New(t).Client(ledgertest.Hooks{})
	store := newStore(t, client)
	w := create(t, store, newRun("gpu-1", "gpu-2"))
	got, err := store.Get(t.Context(), w.Run().ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w.Run(), got); diff != "" {
		t.Errorf("(-written +read)\n%s", diff)
	}
	cm, err := client.CoreV1().ConfigMaps(ledger.DefaultNamespace).Get(t.Context(), got.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"app.kubernetes.io/managed-by": "kubectl-gpu-fault", "gpufault.dev/fault": "runtime",
		"gpufault.dev/phase":  "Planned",
		"gpufault.dev/closed": "false",
	}
	if diff := cmp.Diff(want, cm.Labels); diff != "" {
		t.Errorf("labels (-want +got)\n%s", diff)
	}
	if got := cm.Annotations[ledger.AnnotationSummary]; got !=
		"containerd without its runtime, 2 steps, Planned, by alice" {
		t.Errorf("summary: %q", got)
	}
}

func TestAnIDThatIsTakenIsReplaced(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	random := func() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{7}) }
	store.Random = random()
	first := create(t, store, newRun("gpu-1")).Run().ID
	store.Random = random() // the same again
	second := create(t, store, newRun("gpu-1")).Run().ID
	if first == second {
		t.Errorf("two runs are called %s", first)
	}
}

func TestIDsAreUnambiguous(t *testing.T) {
	random := rand.NewChaCha8([32]byte{2})
	seen := map[string]bool{}
	for range 1000 {
		id, err := ledger.NewID("xid", random)
		if err != nil {
			t.Fatal(err)
		}
		if len(id) != len("xid-7k3f9q") || strings.ContainsAny(id[4:], "01ilaeou") || seen[id] {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
	if _, err := ledger.NewID("xid", strings.NewReader("")); err == nil {
		t.Error("no randomness, and no error")
	}
}

func TestClosedRunsDoNotChange(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	w := create(t, store, newRun("gpu-1"))
	id := w.Run().ID
	for range 2 { // the second does nothing
		if err := store.Close(t.Context(), id, ledger.Reverted, "done"); err != nil {
			t.Fatal(err)
		}
	}
	// The first client still believes that the run is open.
	err := w.Save(t.Context(), func(run *ledger.Run) error { run.Phase = ledger.Applying; return nil })
	if !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("error: %v", err)
	}
	if got := w.Run(); got.Phase != ledger.Reverted || !got.IsClosed() {
		t.Errorf("phase %s", got.Phase)
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	client := ledgertest.New(t).Client(ledgertest.Hooks{})
	store := newStore(t, client)
	good := create(t, store, newRun("gpu-1")).Run().ID
	for name, test := range map[string]struct {
		edit  func(string) string
		newer bool
		hand  bool // edited by hand: the sum in the annotation is not the text's
	}{
		"newer version": {func(s string) string { return strings.Replace(s, "v1alpha1", "v1", 1) }, true, false},
		"unknown field": {
			func(s string) string { return strings.Replace(s, `"phase"`, `"reaper":"x","phase"`, 1) }, true, false,
		},
		"not JSON":    {func(s string) string { return s[:20] }, false, false},
		"two records": {func(s string) string { return s + s }, false, false},
		"another run's": {
			func(s string) string { return strings.Replace(s, `"id":"runtime-`, `"id":"cuda-`, 1) }, false, false,
		},
		"another target": {
			func(s string) string { return strings.Replace(s, `"name":"gpu-1"`, `"name":"gpu-2"`, 1) }, false, true,
		},
		"no record in there": {nil, false, false},
		"two lines": {
			func(s string) string { return strings.Replace(s, `"by":"alice"`, `"by":"alice\nxid-1 reverted"`, 1) },
			false, false,
		},
		"turned text": {
			func(s string) string { return strings.Replace(s, `"name":"gpu-1"`, `"name":"gpu-\u202e1"`, 1) }, false,
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := create(t, store, newRun("gpu-1")).Run().ID
			maps := client.CoreV1().ConfigMaps(store.Namespace)
			cm, err := maps.Get(t.Context(), id, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if test.edit != nil {
				cm.Data["run.json"] = test.edit(cm.Data["run.json"])
			} else {
				cm.Data = nil
			}
			if !test.hand {
				cm.Annotations[ledger.AnnotationSum] = patch.Sum([]byte(cm.Data["run.json"]))
			}
			if _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err = store.Get(t.Context(), id)
			if err == nil || errors.Is(err, ledger.ErrNewer) != test.newer {
				t.Errorf("Get: %v", err)
			}
			if errors.Is(err, ledger.ErrTampered) != test.hand {
				t.Errorf("Get does not tell who changed it: %v", err)
			}
			if _, err := store.Update(t.Context(), id, func(*ledger.Run) error { return nil }); err == nil {
				t.Error("Update changed it")
			}
			listing, err := store.List(t.Context(), ledger.Active)
			if err != nil || len(listing.Unreadable) != 1 || len(listing.Runs) != 1 || listing.Runs[0].ID != good {
				t.Errorf("List: %+v, %v", listing, err)
			}
			if err := maps.Delete(t.Context(), id, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	var missing *ledger.NotFoundError
	if _, err := store.Get(t.Context(), "xid-nope"); !errors.As(err, &missing) {
		t.Errorf("missing: %v", err)
	}
}

func TestListAndPrune(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	var ids []string
	for i := range 6 {
		run := newRun("gpu-1")
		run.Created = start.Add(time.Duration(i) * time.Minute)
		ids = append(ids, create(t, store, run).Run().ID)
	}
	for _, id := range ids[:4] {
		if err := store.Close(t.Context(), id, ledger.Reverted, ""); err != nil {
			t.Fatal(err)
		}
	}
	list := func(scope ledger.Scope) (got []string) {
		listing, err := store.List(t.Context(), scope)
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range listing.Runs {
			got = append(got, run.ID)
		}
		return got
	}
	if diff := cmp.Diff([]string{ids[5], ids[4]}, list(ledger.Active)); diff != "" {
		t.Error(diff)
	}
	if n, err := store.Prune(t.Context(), 3); n != 1 || err != nil {
		t.Errorf("pruned %d: %v", n, err)
	}
	if diff := cmp.Diff([]string{ids[5], ids[4], ids[3], ids[2], ids[1]}, list(ledger.All)); diff != "" {
		t.Error(diff)
	}
}

func TestPruneAlsoForgetsWhatStandsForEver(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	for range 3 {
		run := newRun("gpu-1")
		run.Phase, run.Steps[0].State, run.Steps[0].Undo.Permanent = ledger.Proven, ledger.StateProven, true
		create(t, store, run)
	}
	if n, err := store.Prune(t.Context(), 1); n != 0 || err != nil {
		t.Errorf("pruned %d before their deadline: %v", n, err)
	}
	store.Clock = func() time.Time { return start.Add(time.Hour) }
	if n, err := store.Prune(t.Context(), 1); n != 2 || err != nil {
		t.Errorf("pruned %d: %v", n, err)
	}
}

// A hundred newer runs do not make an open one disappear before its TTL expires: users watch it, and its Job would be
// left over.
func TestPruneKeepsOpenRuns(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	for i := range 3 {
		run := newRun("gpu-1")
		run.Phase, run.Steps[0].State, run.Steps[0].Undo.Permanent = ledger.Proven, ledger.StateProven, true
		run.Created = start.Add(time.Duration(i) * time.Second)
		run.Until = start.Add(24 * time.Hour)
		create(t, store, run)
	}
	store.Clock = func() time.Time { return start.Add(23 * time.Hour) }
	if n, err := store.Prune(t.Context(), 1); n != 0 || err != nil {
		t.Errorf("pruned %d before their TTL expired: %v", n, err)
	}
	store.Clock = func() time.Time { return start.Add(25 * time.Hour) }
	if n, err := store.Prune(t.Context(), 1); n != 2 || err != nil {
		t.Errorf("pruned %d: %v", n, err)
	}
}

func TestEnsureNamespace(t *testing.T) {
	server := ledgertest.New(t)
	store := ledger.New(server.Client(ledgertest.Hooks{}), "faults")
	if _, err := store.Create(t.Context(), newRun("gpu-1")); !apierrors.IsNotFound(err) {
		t.Errorf("create without the namespace: %v", err)
	}
	for _, want := range []bool{true, false} {
		if created, err := store.EnsureNamespace(t.Context()); created != want || err != nil {
			t.Errorf("created %v, %v", created, err)
		}
	}
	ns, err := store.Client.CoreV1().Namespaces().Get(t.Context(), "faults", metav1.GetOptions{})
	if err != nil || ns.Labels["pod-security.kubernetes.io/enforce"] != "privileged" || !ledger.IsLedger(ns) {
		t.Errorf("labels %v, %v", ns.Labels, err)
	}
	denied := ledger.New(server.Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
		if c.Verb == "create" {
			return errors.New("no")
		}
		return nil
	}}), "others")
	if _, err := denied.EnsureNamespace(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "create namespace others") {
		t.Errorf("error: %v", err)
	}
}

// TestUnmarkedNamespace: a tenant may write ConfigMaps in a namespace of theirs, and so records; nothing follows them
// unless an administrator has marked the namespace.
func TestUnmarkedNamespace(t *testing.T) {
	store := ledger.New(ledgertest.New(t).Client(ledgertest.Hooks{}), "default")
	var unmarked *ledger.UnmarkedError
	if err := store.CheckNamespace(t.Context()); !errors.As(err, &unmarked) ||
		!strings.Contains(err.Error(), "label gpufault.dev/ledger=true") {
		t.Errorf("an unmarked namespace: %v", err)
	}
	if _, err := store.EnsureNamespace(t.Context()); !errors.As(err, &unmarked) {
		t.Errorf("an unmarked namespace, for debug pods: %v", err)
	}
	store.Namespace = "nowhere"
	if err := store.CheckNamespace(t.Context()); err != nil {
		t.Errorf("no namespace: %v", err)
	}
}

// TestTheSameRefusalAlwaysReadsTheSame: the namespace and the records are read at once; which answer comes first
// decides nothing.
func TestTheSameRefusalAlwaysReadsTheSame(t *testing.T) {
	store := ledger.New(ledgertest.New(t).Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
		return errors.New("no right to read " + c.Resource)
	}}), "faults")
	for range 50 {
		if _, err := store.List(t.Context(), ledger.Active); err == nil ||
			!strings.Contains(err.Error(), "no right to read namespaces") {
			t.Fatal(err)
		}
	}
}
