package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

func updates(n *atomic.Int32, each func() error) ledgertest.Hooks {
	return ledgertest.Hooks{Before: func(c ledgertest.Call) error {
		if c.Verb == "update" && c.Resource == "configmaps" {
			n.Add(1)
			return each()
		}
		return nil
	}}
}

func TestConcurrentSavesShareUpdates(t *testing.T) {
	const n = 200
	var count atomic.Int32
	server := ledgertest.New(t)
	store := newStore(t, server.Client(updates(&count, func() error { time.Sleep(5 * time.Millisecond); return nil })))
	nodes := make([]string, n)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("gpu-%d", i)
	}
	w := create(t, store, newRun(nodes...))
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprint(i + 1)
			if err := w.Save(
				t.Context(), func(run *ledger.Run) error { run.Step(id).State = ledger.StateApplying; return nil },
			); err != nil {
				t.Error(err)
			}
			// Durable when Save returns, for everybody.
			if i%20 == 0 {
				run, err := store.Get(t.Context(), w.Run().ID)
				if err != nil || run.Step(id).State != ledger.StateApplying {
					t.Errorf("step %s is not in the ledger: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	run, err := store.Get(t.Context(), w.Run().ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range run.Steps {
		if step.State != ledger.StateApplying {
			t.Errorf("step %s: %s", step.ID, step.State)
		}
	}
	if got := count.Load(); got > n/10 {
		t.Errorf("%d updates for %d saves", got, n)
	}
}

func TestAFailedUpdateFailsItsSavesOnly(t *testing.T) {
	var count atomic.Int32
	gate := make(chan struct{})
	store := newStore(t, ledgertest.New(t).Client(updates(&count, func() error {
		switch count.Load() {
		case 1:
			<-gate // the second batch gathers meanwhile
		case 2:
			return errors.New("etcd is down")
		}
		return nil
	})))
	w := create(t, store, newRun("a", "b", "c", "d"))
	save := func(id string) error {
		return w.Save(t.Context(), func(run *ledger.Run) error { run.Step(id).Message = "saved"; return nil })
	}
	results := make([]error, 5)
	var wg sync.WaitGroup
	wg.Go(func() { results[1] = save("1") })
	for count.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, id := range []int{2, 3} {
		wg.Go(func() { results[id] = save(fmt.Sprint(id)) })
	}
	time.Sleep(20 * time.Millisecond) // both are in the queue
	close(gate)
	wg.Wait()
	results[4] = save("4")
	for id, failed := range []bool{1: false, 2: true, 3: true, 4: false} {
		if id > 0 && (results[id] != nil) != failed {
			t.Errorf("save %d: %v", id, results[id])
		}
	}
	run, _ := store.Get(t.Context(), w.Run().ID)
	for i, want := range []string{"saved", "", "", "saved"} {
		if got := run.Steps[i].Message; got != want {
			t.Errorf("step %d: %q", i+1, got)
		}
	}
}

func TestOneBadChangeDoesNotSpoilItsBatch(t *testing.T) {
	var count atomic.Int32
	gate := make(chan struct{})
	store := newStore(t, ledgertest.New(t).Client(updates(&count, func() error {
		if count.Load() == 1 {
			<-gate
		}
		return nil
	})))
	w := create(t, store, newRun("a", "b", "c", "d"))
	results := make([]error, 5)
	var wg sync.WaitGroup
	wg.Go(func() { results[0] = w.Save(t.Context(), func(*ledger.Run) error { return nil }) })
	for count.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for id, change := range map[int]func(*ledger.Run) error{
		1: func(run *ledger.Run) error { run.Steps[0].Message = "good"; return nil },
		2: func(run *ledger.Run) error { run.Steps[1].Message = "half"; return errors.New("refused") },
		3: func(run *ledger.Run) error { run.Steps[2].Message = strings.Repeat("x", ledger.MaxSize); return nil },
		4: func(*ledger.Run) error { panic("a bug") },
	} {
		wg.Go(func() { results[id] = w.Save(t.Context(), change) })
	}
	time.Sleep(20 * time.Millisecond)
	close(gate)
	wg.Wait()
	var tooLarge *ledger.TooLargeError
	if results[0] != nil || results[1] != nil || results[2] == nil || !errors.As(results[3], &tooLarge) ||
		results[4] == nil {
		t.Errorf("%v", results)
	}
	run, _ := store.Get(t.Context(), w.Run().ID)
	if run.Steps[0].Message != "good" || run.Steps[1].Message != "" || run.Steps[2].Message != "" {
		t.Errorf("%+v", run.Steps)
	}
}

func TestSavesOfTwoClientsMerge(t *testing.T) {
	server := ledgertest.New(t)
	store := newStore(t, server.Client(ledgertest.Hooks{}))
	a := create(t, store, newRun("a", "b"))
	b, err := ledger.New(server.Client(ledgertest.Hooks{}), store.Namespace).Open(t.Context(), a.Run().ID)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for id, w := range map[string]*ledger.Writer{"1": a, "2": b} {
		wg.Go(func() {
			for i := range 30 {
				if err := w.Save(
					t.Context(), func(run *ledger.Run) error { run.Step(id).Message = fmt.Sprint(i); return nil },
				); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	run, _ := store.Get(t.Context(), a.Run().ID)
	if run.Steps[0].Message != "29" || run.Steps[1].Message != "29" {
		t.Errorf("%+v", run.Steps)
	}
}

func TestSaveTellsTheTruthWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var count atomic.Int32
	store := newStore(t,
		ledgertest.New(t).Client(
			updates(&count, func() error { cancel(); time.Sleep(10 * time.Millisecond); return nil }),
		))
	w := create(t, store, newRun("a"))
	set := func(run *ledger.Run) error { run.Phase = ledger.Applying; return nil }
	if err := w.Save(ctx, set); err != nil {
		t.Errorf("the update landed, and Save says: %v", err)
	}
	if err := w.Save(ctx, set); !errors.Is(err, context.Canceled) || count.Load() != 1 {
		t.Errorf("%d updates, error: %v", count.Load(), err)
	}
}
