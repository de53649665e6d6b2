package ledger_test

import (
	"fmt"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

// aRun returns a run on 50 nodes.
func aRun() ledger.Run {
	var nodes []string
	for i := range 50 {
		nodes = append(nodes, fmt.Sprintf("gpu-%d", i))
	}
	return newRun(nodes...)
}

// BenchmarkSave changes the record of a run on 50 nodes: read, decode, encode, write.
func BenchmarkSave(b *testing.B) {
	store := ledger.New(ledgertest.New(b).Client(ledgertest.Hooks{}), ledger.DefaultNamespace)
	if _, err := store.EnsureNamespace(b.Context()); err != nil {
		b.Fatal(err)
	}
	w, err := store.Create(b.Context(), aRun())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		err := w.Save(b.Context(), func(r *ledger.Run) error {
			r.Steps[0].State = ledger.StateApplied
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet reads the record of a run on 50 nodes.
func BenchmarkGet(b *testing.B) {
	store := ledger.New(ledgertest.New(b).Client(ledgertest.Hooks{}), ledger.DefaultNamespace)
	if _, err := store.EnsureNamespace(b.Context()); err != nil {
		b.Fatal(err)
	}
	w, err := store.Create(b.Context(), aRun())
	if err != nil {
		b.Fatal(err)
	}
	id := w.Run().ID
	b.ReportAllocs()
	for b.Loop() {
		if _, err := store.Get(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}
