package ledger_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

const fleetID = "fleet-7k3f9q"

func createFleet(t *testing.T, store *ledger.Store, shards int) {
	t.Helper()
	for i := range shards {
		run := newRun("gpu-1")
		run.ID, run.Fleet = ledger.FleetRun(fleetID, i), fleetID
		run.Created = start.Add(time.Duration(i) * time.Minute)
		create(t, store, run)
	}
}

func ids(runs []ledger.Run) (all []string) {
	for _, run := range runs {
		all = append(all, run.ID)
	}
	return all
}

// The runs of a fleet are found in the order of their shards, and a record that only has its label is not one of them.
func TestFleetRuns(t *testing.T) {
	client := ledgertest.New(t).Client(ledgertest.Hooks{})
	store := newStore(t, client)
	createFleet(t, store, 11)
	foreign := create(t, store, newRun("gpu-2")).Run()
	records := client.CoreV1().ConfigMaps(store.Namespace)
	cm, err := records.Get(t.Context(), foreign.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Labels[ledger.LabelFleet] = fleetID
	if _, err := records.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A record may claim to be of the fleet, but its ID is none of a shard.
	for _, id := range []string{"runtime-abcdef", fleetID + "-x", fleetID + "-007"} {
		claims := newRun("gpu-3")
		claims.ID, claims.Fleet = id, fleetID
		create(t, store, claims)
	}
	found, err := store.FleetRuns(t.Context(), fleetID)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 11 {
		want = append(want, ledger.FleetRun(fleetID, i))
	}
	if diff := cmp.Diff(want, ids(found.Runs)); diff != "" {
		t.Error(diff)
	}
}

// A fleet with more runs than the history keeps must not delete its own first records, which say where it landed.
func TestPruneCountsAFleetAsOneRun(t *testing.T) {
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	old := newRun("gpu-9")
	old.Created = start.Add(-time.Hour)
	oldID := create(t, store, old).Run().ID
	createFleet(t, store, 5)
	for _, id := range []string{
		oldID, ledger.FleetRun(fleetID, 0), ledger.FleetRun(fleetID, 1), ledger.FleetRun(fleetID, 2),
	} {
		if err := store.Close(t.Context(), id, ledger.Reverted, ""); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := store.Prune(t.Context(), 1); n != 1 || err != nil {
		t.Errorf("pruned %d (%v), wanted only the older run", n, err)
	}
	if found, err := store.FleetRuns(t.Context(), fleetID); err != nil || len(found.Runs) != 5 {
		t.Errorf("%d runs of the fleet remain: %v", len(found.Runs), err)
	}
}

// IDs of fleets are distinguished from those of runs: a fleet's ID selects a Job that is deleted.
func TestIsFleet(t *testing.T) {
	for id, want := range map[string]bool{
		fleetID: true, fleetID + "-0": false, "xid-7k3f9q": false, "fleet-": false, "fleet-aaaaaa": false, "": false,
	} {
		if got := ledger.IsFleet(id); got != want {
			t.Errorf("%q is a fleet: %v", id, got)
		}
	}
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{}))
	if id, err := store.NewFleetID(); err != nil || !ledger.IsFleet(id) {
		t.Errorf("new ID %q: %v", id, err)
	}
}
