//go:build e2e && scenario

package objects_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

// A client may die at every write, before or after it took effect: a revert finds and deletes all that was made.
func TestAClientMayDieWhileItCreates(t *testing.T) {
	t.Parallel()
	probe := newLab(t)
	counting := &killer{}
	c := probe.newClient(counting)
	if _, err := c.session.Run(
		t.Context(), probe.plan(c, probe.creation(c, probe.manifests()...).Change("create the tenant")),
	); err != nil {
		t.Fatal(err)
	}
	all := len(counting.writes)
	t.Logf("%d writes: %s", all, strings.Join(counting.writes, ", "))
	for after := 3; after <= all; after++ {
		for _, landed := range []bool{true, false} {
			if !landed && after%3 > 0 { // before it took effect is after the one before, but for the ledger's answer
				continue
			}
			t.Run(fmt.Sprintf("%d landed=%v", after, landed), func(t *testing.T) {
				t.Parallel()
				l := newLab(t)
				k := &killer{after: after, landed: landed}
				victim := l.newClient(k)
				_, err := victim.session.Run(t.Context(),
					l.plan(victim, l.creation(victim, l.manifests()...).Change("create the tenant")))
				if !k.dead || err == nil {
					t.Fatalf("the client lives: %v", err)
				}
				t.Logf("died at %s; left: %v", k.writes[len(k.writes)-1], l.left())
				l.revertAll()
			})
		}
	}
}

// revertAll reverts what the ledger knows, from another machine, and holds that nothing is left.
func (l *lab) revertAll() {
	l.Helper()
	listing, err := l.session.Ledger.List(l.Context(), ledger.All)
	if err != nil {
		l.Fatal(err)
	}
	for _, run := range listing.Runs {
		reverted, err := l.session.Revert(l.Context(), run.ID, false)
		if err != nil {
			l.Fatal(err)
		}
		if left := l.seals(reverted); len(left) > 0 || !reverted.IsClosed() {
			l.Errorf("left: %v; %s, %q", left, reverted.Phase, reverted.Steps[0].Message)
		}
	}
	if left := l.left(); len(left) > 0 { // also without a record: then nothing may have been made
		l.Errorf("left: %v", left)
	}
}

// Who reverts may die as well, and the next goes on where they stopped.
func TestAClientMayDieWhileItReverts(t *testing.T) {
	t.Parallel()
	for after := 1; after <= 10; after++ {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			run, err := l.session.Run(t.Context(),
				l.plan(l.client, l.creation(l.client, l.manifests()...).Change("create the tenant")))
			if err != nil {
				t.Fatal(err)
			}
			k := &killer{after: after, landed: after%2 == 0}
			victim := l.newClient(k)
			if _, err := victim.session.Revert(t.Context(), run.ID, false); k.dead && err == nil && after < 7 {
				t.Errorf("it died at %s, and says nothing", k.writes[len(k.writes)-1])
			}
			if len(k.writes) > 0 {
				t.Logf("dead %v at %s; left: %v", k.dead, k.writes[len(k.writes)-1], l.left())
			}
			l.revertAll()
		})
	}
}

// A client may die at every write of a patch: a revert puts the node back, or finds that it is as it was.
func TestAClientMayDieWhileItPatches(t *testing.T) {
	for after := 3; after <= 9; after++ {
		for _, landed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d landed=%v", after, landed), func(t *testing.T) {
				l := newLab(t)
				label, name := "example.com/dies-"+l.word, l.worker().Name
				k := &killer{after: after, landed: landed}
				victim := l.newClient(k)
				patch := l.nodePatch(victim, name, func(p *objects.Patching) {
					p.Merge = map[string]any{"metadata": map[string]any{"labels": map[string]any{label: "x"}}}
				})
				plan := l.plan(victim, patch.Change("label"))
				plan.Allow.LastGPUNode, plan.Allow.Majority = true, true
				_, _ = victim.session.Run(t.Context(), plan)
				_, is := l.node(name).Labels[label]
				t.Logf("died at %s; labeled: %v", k.writes[len(k.writes)-1], is)
				l.revertAll()
				if _, is := l.node(name).Labels[label]; is {
					t.Error("the label is left")
				}
			})
		}
	}
}
