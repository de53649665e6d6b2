package fault_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

// killed ends a client after its nth write, with or without the write taking effect.
type killed struct {
	after  int
	landed bool

	mu     sync.Mutex
	writes int
	isDead bool
}

func (k *killed) dead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.isDead
}

var errKilled = errors.New("killed")

func (k *killed) hooks() ledgertest.Hooks {
	return ledgertest.Hooks{
		Before: func(call ledgertest.Call) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.isDead {
				return errKilled
			}
			if call.Write() {
				k.writes++
				if k.writes == k.after && !k.landed {
					k.isDead = true
					return errKilled
				}
			}
			return nil
		},
		After: func(call ledgertest.Call) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if call.Write() && k.writes == k.after && !k.isDead {
				k.isDead = true
				return errKilled
			}
			return nil
		},
	}
}

// TestAClientMayDieAfterEveryWrite kills the client at each of its writes, in Run and then in Revert. Whatever it
// changed must be in the ledger then, and a fresh client must be able to put everything back.
func TestAClientMayDieAfterEveryWrite(t *testing.T) {
	for _, landed := range []bool{false, true} {
		for _, stop := range []string{"", "failing step", "ctrl-c"} {
			for after, done := 1, false; !done; after++ {
				name := fmt.Sprintf("%d landed=%v %s", after, landed, stop)
				done = survives(t, name, stop, &killed{after: after, landed: landed})
				if after > 100 {
					t.Fatal("it never gets through")
				}
			}
		}
	}
}

func survives(t *testing.T, name, stop string, k *killed) (finished bool) {
	t.Helper()
	w := newWorld(t)
	victim := w.client(k.hooks())
	victim.Parallel = 1 // the same order every time
	victim.dead = k.dead
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	plan := victim.plan("gpu-1", "gpu-2")
	apply := plan.Changes[1].Apply
	plan.Changes[1].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		evidence, err := apply(ctx, r)
		switch {
		case err != nil:
			return nil, err
		case stop == "failing step":
			return nil, errors.New("it did not land")
		case stop == "ctrl-c":
			cancel()
		}
		return evidence, nil
	}
	run, _ := victim.Run(ctx, plan)
	if !k.dead() && run != nil && !run.IsClosed() {
		_, _ = victim.Revert(t.Context(), run.ID, false) // and die in there
	}

	// What is broken is in the ledger, to be undone.
	for _, node := range w.broken() {
		recorded := false
		for _, run := range w.state(t).runs {
			for _, step := range run.Pending() {
				recorded = recorded || step.Target.Name == node && run.ID == w.file(node)
			}
		}
		if !recorded {
			t.Errorf("%s: %s is broken, and no record says so", name, node)
		}
	}
	// While something is to be undone, nobody else gets the target, also after the deadline.
	for _, node := range w.broken() {
		other := w.client(ledgertest.Hooks{}).later(time.Hour)
		if _, err := other.Run(t.Context(), other.plan(node)); err == nil ||
			!strings.Contains(err.Error(), "is locked by run") {
			t.Errorf("%s: a second run on %s: %v", name, node, err)
		}
	}
	// Someone else puts it back, from another machine, later.
	fresh := w.client(ledgertest.Hooks{}).later(time.Hour)
	for _, run := range w.state(t).runs {
		if _, err := fresh.Revert(t.Context(), run.ID, false); err != nil {
			t.Errorf("%s: revert: %v", name, err)
		}
	}
	now := w.state(t)
	if len(w.broken())+len(now.leases) > 0 {
		t.Errorf("%s: after the revert: broken %v, locks %v", name, w.broken(), now.leases)
	}
	for _, run := range now.runs {
		if !run.IsClosed() || len(run.Pending()) > 0 {
			t.Errorf("%s: after the revert: %+v", name, run)
		}
	}
	if again := w.client(ledgertest.Hooks{}).later(2 * time.Hour); !t.Failed() {
		if _, err := again.Run(t.Context(), again.plan("gpu-1", "gpu-2")); err != nil {
			t.Errorf("%s: the next run: %v", name, err)
		}
	}
	return !k.dead()
}
