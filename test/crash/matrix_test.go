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
