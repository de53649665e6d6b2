package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

func TestARecordThatIsTooLargeIsRefusedBeforeTheServerSeesIt(t *testing.T) {
	calls := 0
	store := newStore(t, ledgertest.New(t).Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
		if c.Write() && c.Resource == "configmaps" {
			calls++
		}
		return nil
	}}))
	run := newRun("gpu-1")
	run.Steps[0].Detail, _ = json.Marshal(strings.Repeat("x", ledger.MaxSize))
	var tooLarge *ledger.TooLargeError
	if _, err := store.Create(context.Background(), run); !errors.As(err, &tooLarge) || calls != 0 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestAThousandProofsFit(t *testing.T) {
	var evidence []ledger.Evidence
	for i := range 1000 {
		evidence = append(evidence, ledger.Evidence{
			Source: fmt.Sprintf("/dev/kmsg sequence %d", 4711+i), Time: start,
			Text: "kernel: NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
		})
	}
	if got := ledger.Condense(evidence, ledger.MaxSize/2); len(got) != 1000 {
		t.Errorf("%d of 1000 left, though they fit", len(got))
	}
	const budget = 4000
	short := ledger.Condense(evidence, budget)
	text, _ := json.Marshal(short)
	if len(text) > budget || len(text) < budget/2 {
		t.Errorf("%d bytes of %d", len(text), budget)
	}
	if short[0].Source != evidence[0].Source || short[len(short)-1].Source != evidence[999].Source {
		t.Error("the range of sequence numbers is lost")
	}
	kept, omitted := 0, 0
	for _, e := range short {
		kept++
		omitted += e.Omitted
	}
	if kept+omitted != 1000 {
		t.Errorf("%d kept and %d omitted", kept, omitted)
	}
	if evidence[0].Omitted+evidence[len(short)/2].Omitted != 0 {
		t.Error("the caller's evidence was changed")
	}
}
