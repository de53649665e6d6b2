//go:build e2e

// These tests need a real cluster, by KUBECONFIG, as its administrator. They work in namespaces of their own.
package ledger_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// connect returns a function that makes stores with clients of their own on one new namespace, and the count of their
// requests.
func connect(t *testing.T) (func() *ledger.Store, *atomic.Int32) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 500, 1000
	var calls atomic.Int32
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { calls.Add(1); return next.RoundTrip(r) })
	})
	namespace := fmt.Sprintf("led-%x", time.Now().UnixNano())
	open := func() *ledger.Store {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return ledger.New(client, namespace)
	}
	first := open()
	if created, err := first.EnsureNamespace(t.Context()); !created || err != nil {
		t.Fatalf("created %v, %v", created, err)
	}
	t.Cleanup(func() {
		if err := first.Client.CoreV1().Namespaces().Delete(
			context.Background(), namespace, metav1.DeleteOptions{},
		); err != nil {
			t.Error(err)
		}
	})
	return open, &calls
}

func e2eRun(nodes ...string) ledger.Run {
	run := newRun(nodes...)
	run.Deadline = time.Now().Add(time.Minute)
	return run
}

func TestE2EConcurrentSavesMerge(t *testing.T) {
	open, calls := connect(t)
	const clients, saves = 3, 40
	names := make([]string, clients*saves)
	for i := range names {
		names[i] = fmt.Sprintf("gpu-%d", i)
	}
	w := create(t, open(), e2eRun(names...))
	calls.Store(0)
	begin := time.Now()
	var wg sync.WaitGroup
	for c := range clients {
		own, err := open().Open(t.Context(), w.Run().ID)
		if err != nil {
			t.Fatal(err)
		}
		for i := range saves {
			wg.Go(func() {
				id := fmt.Sprint(c*saves + i + 1)
				if err := own.Save(
					t.Context(), func(run *ledger.Run) error { run.Step(id).State = ledger.StateProven; return nil },
				); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d saves of %d clients: %d requests, %s", clients*saves, clients, calls.Load(), time.Since(begin))
	run, err := open().Get(t.Context(), w.Run().ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range run.Steps {
		if step.State != ledger.StateProven {
			t.Errorf("step %s is lost", step.ID)
		}
	}
}

func TestE2ELocks(t *testing.T) {
	open, _ := connect(t)
	const n = 8
	var wg sync.WaitGroup
	runs, locks, errs := make([]ledger.Run, n), make([][]ledger.Lock, n), make([]error, n)
	for i := range n {
		store := open()
		runs[i] = create(t, store, e2eRun("c", "a", "b")).Run()
		wg.Go(func() { locks[i], errs[i] = store.Lock(t.Context(), runs[i], runs[i].Targets()) })
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		var locked *ledger.LockedError
		switch {
		case err == nil && winner >= 0:
			t.Error("two runs have the locks")
		case err == nil:
			winner = i
		case !errors.As(err, &locked):
			t.Error(err)
		}
	}
	store := open()
	if got := leases(t, store); winner < 0 || len(got) != 3 {
		t.Fatalf("winner %d, locks %v", winner, got)
	}
	// The winner closes and dies before it unlocks: of those who take over, one gets them; the old locks no longer
	// count.
	if err := store.Close(t.Context(), runs[winner].ID, ledger.Failed, ""); err != nil {
		t.Fatal(err)
	}
	others := append(runs[:winner:winner], runs[winner+1:]...)
	got := 0
	for _, run := range others {
		store := open()
		wg.Go(func() { _, _ = store.Lock(t.Context(), run, run.Targets()) })
	}
	wg.Wait()
	holder := ""
	for _, run := range others {
		if mine, err := store.LocksOf(t.Context(), run.ID); err != nil {
			t.Error(err)
		} else if len(mine) > 0 {
			got, holder = got+len(mine), run.ID
		}
	}
	if err := store.Unlock(t.Context(), locks[winner]); err != nil {
		t.Error(err)
	}
	after, err := store.LocksOf(t.Context(), holder)
	if err != nil || got != 3 || len(after) != 3 {
		t.Errorf("%d locks were taken over; after the old holder's unlock %d are left, %v", got, len(after), err)
	}
	if err := store.Unlock(t.Context(), after); err != nil || len(leases(t, store)) != 0 {
		t.Errorf("left %v, %v", leases(t, store), err)
	}
}

func TestE2EPruneCountsBeforeItReads(t *testing.T) {
	open, calls := connect(t)
	store := open()
	for range 5 {
		id := create(t, store, e2eRun("a")).Run().ID
		if err := store.Close(t.Context(), id, ledger.Reverted, ""); err != nil {
			t.Fatal(err)
		}
	}
	calls.Store(0)
	if n, err := store.Prune(t.Context(), 20); n != 0 || err != nil || calls.Load() != 1 {
		t.Errorf("pruned %d with %d requests, %v", n, calls.Load(), err)
	}
	if n, err := store.Prune(t.Context(), 2); n != 3 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
}

func TestE2ETheServersSizeLimitIsOurs(t *testing.T) {
	open, _ := connect(t)
	store := open()
	w := create(t, store, e2eRun("a"))
	// Random hexadecimal digits are compressed to one half.
	random := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	fill := func(size int) error {
		return w.Save(t.Context(), func(run *ledger.Run) error {
			run.Message = hex.EncodeToString(random[:size])
			return nil
		})
	}
	if err := fill(1<<20 - 256<<10); err != nil {
		t.Errorf("a record just below the limit: %v", err)
	}
	var tooLarge *ledger.TooLargeError
	if err := fill(1 << 20); !errors.As(err, &tooLarge) || apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("a record above the limit: %v", err)
	}
}
