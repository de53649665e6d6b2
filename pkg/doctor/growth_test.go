//go:build unix

package doctor

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// growth returns the ratio of the processor time for 10*n and n: 10 if the work is linear in n, 100 if it is quadratic.
// It uses the lowest of three measurements. Tests that call it do not run in parallel with others in this package,
// because the time is that of the process.
func growth(t *testing.T, n int, work func(n int)) float64 {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would fall on one measurement or the other
	least := func(n int) time.Duration {
		least := time.Duration(math.MaxInt64)
		for range 3 {
			runtime.GC()
			before := used()
			work(n)
			least = min(least, used()-before)
		}
		return max(least, time.Microsecond)
	}
	return float64(least(10*n)) / float64(least(n))
}

// TestFoldOfManyNodes verifies that the time per node is the same for findings on thousands of nodes as on hundreds.
func TestFoldOfManyNodes(t *testing.T) {
	cause := engine.Check{ID: "a", Title: "cause", Layer: finding.LayerDriver, Explains: []string{"b"}}
	effect := engine.Check{ID: "b", Title: "effect", Layer: finding.LayerDevicePlugin}
	factor := growth(t, 1000, func(n int) {
		var nodes []string
		for i := range n {
			nodes = append(nodes, fmt.Sprintf("node-%d", i))
		}
		results := []*engine.Result{{Check: cause}, {Check: effect}}
		for _, r := range results {
			for _, name := range nodes {
				r.Add(finding.Finding{Title: r.Check.Title, Object: finding.Object{Kind: "Node", Name: name}})
			}
		}
		found, _ := engine.Gather(results, nil, []engine.Check{cause, effect})
		items, edges := engine.Fold(found)
		if len(items) != 2 || len(edges) != 1 || len(items[0].Objects) != n || !items[0].Root || items[1].Root {
			t.Errorf("%d items, %v", len(items), edges)
		}
	})
	if factor > 40 {
		t.Errorf("ten times as many nodes take %.0f times as long", factor)
	}
}

// TestPendingOfManyNodes verifies that similar pods are evaluated only once, so that a thousand of them on a thousand
// nodes are not slow.
func TestPendingOfManyNodes(t *testing.T) {
	factor := growth(t, 100, func(n int) {
		b := newBench()
		for i := range n {
			b.node(fmt.Sprint("n", i), 8).pod(fmt.Sprint("h", i), fmt.Sprint("n", i), 8)
		}
		for i := range n {
			b.pod(fmt.Sprint("p", i), "", 1)
		}
		r := Examine(&b.Snapshot, Options{Checks: []string{"sched.*"}})
		if len(r.Items) != 1 || len(r.Items[0].Objects) != n {
			t.Errorf("%d pods that wait for the same make %d findings, want one", n, len(r.Items))
		}
	})
	if factor > 40 {
		t.Errorf("ten times as many nodes and pods take %.0f times as long", factor)
	}
}
