package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// A cell in which one of several trials failed must not say ok, and the count must be that of the trials.
func TestMatrixShowsEveryFailure(t *testing.T) {
	t.Parallel()
	bad := errors.New("not restored")
	var out strings.Builder
	restored := printMatrix(&out, []result{
		{trial: trial{group: "xid 79", row: "create record", column: before}},
		{trial: trial{group: "disturbed", row: "disk full", column: alone}, err: bad},
		{trial: trial{group: "xid 79", row: "create record", column: after}, err: bad},
		{trial: trial{group: "xid 79", row: "create record", column: after}},
		{trial: trial{group: "xid 79", row: "says: debug pod running", column: during}},
	})
	if restored != 3 {
		t.Errorf("%d restored, wanted 3", restored)
	}
	golden.Compare(t, "matrix.golden", out.String())
}

// TestSample protects `make test`, which kills at each kind of step once, before or after it: no kind is left out, but
// for trials that wait until the time is up, of which one in each group is enough.
func TestSample(t *testing.T) {
	t.Parallel()
	var all []trial
	for _, group := range []string{"xid", "runtime", "cuda"} {
		for _, row := range []string{"create lock", "create record", "exec", "exec 2"} {
			for _, column := range []string{before, after} {
				all = append(all, trial{group: group, row: row, column: column})
			}
		}
	}
	all = append(all,
		trial{group: "cuda", row: "killed", column: alone}, trial{group: "cuda", row: "lost", column: alone},
		trial{group: "xid", row: "finished", column: alone})
	rows, columns := map[string]int{}, map[string]bool{}
	for _, drawn := range sample(all) {
		rows[again.ReplaceAllString(drawn.row, "")]++
		columns[drawn.column] = true
	}
	if rows["killed"] != 1 || rows["lost"] != 0 || rows["finished"] != 1 {
		t.Errorf("drawn: rows %v; want killed and finished: one trial of each group waits until the time is up", rows)
	}
	if len(rows) != 5 || rows["create lock"] != 1 || rows["create record"] != 1 || rows["exec"] != 1 ||
		len(columns) != 3 {
		t.Errorf("drawn: rows %v, columns %v; want each row once, and all three columns", rows, columns)
	}
}
