package ledger_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

func leases(t *testing.T, store *ledger.Store) (names []string) {
	t.Helper()
	list, err := store.Client.CoordinationV1().Leases(store.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range list.Items {
		names = append(names, lease.Name)
	}
	return names
}

func TestALockedTargetIsRefusedAndNamesTheHolder(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	first, second := create(t, store, newRun("b")).Run(), create(t, store, newRun("a", "b", "c")).Run()
	locks, err := store.Lock(t.Context(), first, first.Targets())
	if err != nil {
		t.Fatal(err)
	}
	store.Clock = func() time.Time { return start.Add(90 * time.Second) }
	_, err = store.Lock(t.Context(), second, second.Targets())
	var locked *ledger.LockedError
	if !errors.As(err, &locked) || locked.Holder != first.ID {
		t.Fatalf("error: %v", err)
	}
	for _, want := range []string{
		"node/b is locked by run " + first.ID, "of alice on host laptop", "(1m30s ago)",
		"kubectl gpu-fault revert " + first.ID, "may be in progress until",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if got := leases(t, store); len(got) != 1 {
		t.Errorf("all or none, but there are: %v", got)
	}
	if err := store.Unlock(t.Context(), locks); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Lock(t.Context(), second, second.Targets()); err != nil {
		t.Errorf("after the unlock: %v", err)
	}
	if again, err := store.Lock(t.Context(), second, second.Targets()); err != nil || len(again) != 3 {
		t.Errorf("a run may lock what it has: %v, %v", again, err)
	}
}

func TestWhenALockIsTakenOver(t *testing.T) {
	expired := func(s *ledger.Store) { s.Clock = func() time.Time { return start.Add(12 * time.Minute) } }
	for name, test := range map[string]struct {
		holder func(*ledger.Run)
		then   func(*ledger.Store, string)
		taken  bool
	}{
		"running":                  {taken: false},
		"expired, nothing changed": {then: func(s *ledger.Store, _ string) { expired(s) }, taken: true},
		"just expired, clocks may differ": {then: func(s *ledger.Store, _ string) {
			s.Clock = func() time.Time { return start.Add(10*time.Minute + 30*time.Second) }
		}},
		"expired, a change is in place": {
			holder: func(r *ledger.Run) { r.Steps[0].State = ledger.StateApplying },
			then:   func(s *ledger.Store, _ string) { expired(s) },
		},
		"expired, a change that is for ever": {
			holder: func(r *ledger.Run) { r.Steps[0].State, r.Steps[0].Undo.Permanent = ledger.StateApplying, true },
			then:   func(s *ledger.Store, _ string) { expired(s) }, taken: true,
		},
		"closed": {
			then: func(s *ledger.Store, id string) { _ = s.Close(t.Context(), id, ledger.Reverted, "") }, taken: true,
		},
		"gone": {then: func(s *ledger.Store, id string) {
			_ = s.Client.CoreV1().ConfigMaps(s.Namespace).Delete(t.Context(), id, metav1.DeleteOptions{})
		}, taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
			run := newRun("a")
			if test.holder != nil {
				test.holder(&run)
			}
			holder := create(t, store, run).Run()
			old, err := store.Lock(t.Context(), holder, holder.Targets())
			if err != nil {
				t.Fatal(err)
			}
			if test.then != nil {
				test.then(store, holder.ID)
			}
			refusals, err := store.Refusals(t.Context())
			if err != nil || (len(refusals) == 0) != test.taken {
				t.Errorf("refusals %v, %v", refusals, err)
			}
			next := newRun("a")
			next.Deadline = start.Add(time.Hour)
			other := create(t, store, next).Run()
			_, err = store.Lock(t.Context(), other, other.Targets())
			if (err == nil) != test.taken {
				t.Fatalf("error: %v", err)
			}
			if !test.taken {
				return
			}
			// The former holder wakes up: it must not free what is no longer its own.
			if err := store.Unlock(t.Context(), old); err != nil {
				t.Error(err)
			}
			if mine, err := store.LocksOf(t.Context(), other.ID); err != nil || len(mine) != 1 {
				t.Errorf("locks of the new holder: %v, %v", mine, err)
			}
		})
	}
}

func TestOfManyRunsOneGetsAllLocks(t *testing.T) {
	server := ledgertest.New(t)
	store := newStore(t, server.Client(ledgertest.Hooks{}))
	var mu sync.Mutex
	var wg sync.WaitGroup
	winners := 0
	for range 8 {
		run := create(t, store, newRun("c", "a", "b")).Run()
		own := ledger.New(server.Client(ledgertest.Hooks{}), store.Namespace)
		own.Clock = store.Clock
		wg.Go(func() {
			_, err := own.Lock(t.Context(), run, run.Targets())
			var locked *ledger.LockedError
			switch {
			case err == nil:
				mu.Lock()
				winners++
				mu.Unlock()
			case !errors.As(err, &locked):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := leases(t, store); winners != 1 || len(got) != 3 {
		t.Errorf("%d winners, locks %v", winners, got)
	}
}

func TestALockWhoseAnswerWasLostIsGivenBack(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{After: func(c ledgertest.Call) error {
		if c.Verb == "create" && c.Resource == "leases" && strings.HasPrefix(c.Name, "node-b") {
			return errors.New("connection reset")
		}
		return nil
	}}))
	run := create(t, store, newRun("a", "b")).Run()
	if _, err := store.Lock(t.Context(), run, run.Targets()); err == nil {
		t.Fatal("no error")
	}
	if got := leases(t, store); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestATakenOverLockStaysValid: a Lease with a counter at its end, which anyone who may write Leases can write, must
// not keep others from the target.
func TestATakenOverLockStaysValid(t *testing.T) {
	t.Parallel()
	store := ledger.New(ledgertest.New(t).Client(ledgertest.Hooks{}), ledger.DefaultNamespace)
	if _, err := store.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	target := ledger.Target{Kind: "Node", Name: "gpu-1"}
	run := ledger.Run{ID: "xid-222222", Fault: "xid", Deadline: time.Now().Add(time.Minute)}
	if _, err := store.Lock(t.Context(), run, []ledger.Target{target}); err != nil {
		t.Fatal(err)
	}
	leases := store.Client.CoordinationV1().Leases(ledger.DefaultNamespace)
	for _, counter := range []int32{math.MaxInt32, -5} {
		list, err := leases.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatal(list, err)
		}
		lease := list.Items[0]
		lease.Spec = coordinationv1.LeaseSpec{LeaseTransitions: &counter}
		lease.Labels = nil
		if _, err := leases.Update(t.Context(), &lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		locks, err := store.Lock(t.Context(), run, []ledger.Target{target})
		if err != nil || len(locks) != 1 {
			t.Fatalf("%d: %v, %v", counter, locks, err)
		}
		now, err := leases.Get(t.Context(), lease.Name, metav1.GetOptions{})
		if err != nil || *now.Spec.LeaseTransitions < 1 {
			t.Errorf("%d: %v, %v", counter, now.Spec.LeaseTransitions, err)
		}
	}
}

func TestLockNamesAreValidAndDistinct(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	run := newRun()
	long := strings.Repeat("a", 250)
	targets := []ledger.Target{
		{Kind: "Node", Name: "a.b"}, {Kind: "Node", Name: "a-b"}, {Kind: "Node", Name: long + "xyz"},
		{Kind: "Node", Name: long + "xyy"},
		{Kind: "Deployment", Namespace: "a", Name: "b"}, {Kind: "Deployment", Namespace: "a-b", Name: "b"},
		{Kind: "DaemonSet", Namespace: "a", Name: "b"},
	}
	if _, err := store.Lock(t.Context(), create(t, store, run).Run(), targets); err != nil {
		t.Fatal(err)
	}
	got := leases(t, store)
	if len(got) != len(targets) {
		t.Errorf("%d locks for %d targets", len(got), len(targets))
	}
	for _, name := range got {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}

// A record that somebody damaged must cost its own target, not all runs on all targets.
func TestADamagedHolderLocksOnlyItsTarget(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	holder := create(t, store, newRun("b")).Run()
	if _, err := store.Lock(t.Context(), holder, holder.Targets()); err != nil {
		t.Fatal(err)
	}
	configMaps := store.Client.CoreV1().ConfigMaps(store.Namespace)
	cm, err := configMaps.Get(t.Context(), holder.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key := range cm.Data {
		cm.Data[key] = "{damaged"
	}
	if _, err := configMaps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	refusals, err := store.Refusals(t.Context())
	if err != nil || len(refusals) != 1 || refusals[0].Target.Name != "b" {
		t.Fatalf("refusals %v, error %v: wanted one, of node b", refusals, err)
	}
	for _, want := range []string{"node/b is locked by run " + holder.ID, "cannot be read", "kubectl delete lease "} {
		if !strings.Contains(refusals[0].Error(), want) {
			t.Errorf("%v lacks %q", refusals[0], want)
		}
	}
	other := create(t, store, newRun("a")).Run()
	if _, err := store.Lock(t.Context(), other, other.Targets()); err != nil {
		t.Errorf("a run on another node: %v", err)
	}
}

// Two runs that want the same fleet at the same time: one gets all of it, the other none, and nothing stays locked for
// it. Then all is freed.
func TestAFleetIsLockedAsAWhole(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("gpu-%03d", i))
	}
	runs := []ledger.Run{create(t, store, newRun(names...)).Run(), create(t, store, newRun(names...)).Run()}
	locks, errs := make([][]ledger.Lock, 2), make([]error, 2)
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() { locks[i], errs[i] = store.Lock(t.Context(), runs[i], runs[i].Targets()) })
	}
	wg.Wait()
	winner := 0
	if errs[0] != nil {
		winner = 1
	}
	if errs[winner] != nil || !errors.As(errs[1-winner], new(*ledger.LockedError)) || len(locks[winner]) != 200 {
		t.Fatalf("%d and %d locks, errors: %v", len(locks[0]), len(locks[1]), errs)
	}
	for i, run := range runs {
		held, err := store.LocksOf(t.Context(), run.ID)
		if err != nil || len(held) != map[bool]int{true: 200}[i == winner] {
			t.Errorf("run %d of 2 holds %d locks, %v", i+1, len(held), err)
		}
	}
	if err := store.Unlock(t.Context(), locks[winner]); err != nil || len(leases(t, store)) != 0 {
		t.Errorf("%d locks are left, %v", len(leases(t, store)), err)
	}
}

// If a lock of a fleet cannot be taken, the others are freed: those before it, and those that were requested meanwhile.
func TestOneRefusalFreesTheFleet(t *testing.T) {
	var refuse string
	server := ledgertest.New(t)
	store := newStore(t, server.Client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Verb == "create" && call.Resource == "leases" && call.Name == refuse {
			return errors.New("no")
		}
		return nil
	}}))
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("gpu-%03d", i))
	}
	run := create(t, store, newRun(names...)).Run()
	locks, err := store.Lock(t.Context(), run, run.Targets())
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range leases(t, store) {
		if i == 50 {
			refuse = name
		}
	}
	if err := store.Unlock(t.Context(), locks); err != nil {
		t.Fatal(err)
	}
	if locks, err := store.Lock(t.Context(), run, run.Targets()); err == nil || locks != nil {
		t.Errorf("%d locks, %v", len(locks), err)
	}
	if left := leases(t, store); len(left) != 0 {
		t.Errorf("%d locks are left", len(left))
	}
}

// A run that holds a thousand locks is read once to tell who holds them: its record is large.
func TestRefusalsReadEachHolderOnce(t *testing.T) {
	var reads atomic.Int32
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Verb == "get" && call.Resource == "configmaps" {
			reads.Add(1)
		}
		return nil
	}}))
	run := create(t, store, newRun("a", "b", "c", "d", "e")).Run()
	if _, err := store.Lock(t.Context(), run, run.Targets()); err != nil {
		t.Fatal(err)
	}
	reads.Store(0)
	refusals, err := store.Refusals(t.Context())
	if err != nil || len(refusals) != 5 || reads.Load() != 1 {
		t.Errorf("%d refusals with %d reads of the record, %v", len(refusals), reads.Load(), err)
	}
}
