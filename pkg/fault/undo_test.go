package fault

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// A run on many nodes can be closed: the messages of its revert are as short as its record needs them to be. A thousand
// nodes once left no room for the last of them, so that the run stayed open for good.
func TestTheRecordHasRoomForTheRevert(t *testing.T) {
	said := strings.Repeat("\"", 5000) // twice as long as JSON
	for _, steps := range []int{1, 100, 1000, 1150} {
		run := ledger.Run{ID: "xid-1"}
		for range steps {
			run.Steps = append(run.Steps, ledger.Step{
				ID: "1000", Action: strings.Repeat("x", 750), State: ledger.StateProven,
			})
		}
		most := maxSaid(run)
		if steps == 1 && most != 4096 || steps == 1000 && most < 20 {
			t.Errorf("%d steps: at most %d bytes", steps, most)
		}
		for i := range run.Steps {
			run.Steps[i].State, run.Steps[i].Undone = ledger.StateSuperseded, time.Now()
			run.Steps[i].Message = shorten(said, most)
		}
		if size := ledger.Size(run); size > ledger.MaxSize {
			t.Errorf("%d steps: %d bytes, at most %d fit", steps, size, ledger.MaxSize)
		}
	}
}
