package fleet

import (
	"fmt"
	"strings"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// result is the output of a command with --in-cluster.
type result struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	ID         string `json:"id"` // ID of the fleet
	Summary    string `json:"summary"`
	fleet.Outcome
	Runs []ledger.Run `json:"runs"`
}

func newResult(
	plan fleet.Plan, summary string, runs []ledger.Run, failures map[int]string, rest string,
) result {
	if runs == nil {
		runs = []ledger.Run{}
	}
	return result{
		APIVersion: ledger.APIVersion, Kind: "Fleet", ID: plan.ID, Summary: summary,
		Outcome: fleet.Of(plan, runs, failures, rest), Runs: runs,
	}
}

// print prints the table or the object. It returns an error if the fault was not injected on all nodes.
func (r result) print(streams genericiooptions.IOStreams, format printer.Format, store *ledger.Store) error {
	var err error
	if format.IsTable() {
		err = r.table(format).Write(streams.Out)
	} else {
		err = format.Object(streams.Out, r, "fleet/"+r.ID)
	}
	if err != nil {
		return err
	}
	said := fmt.Sprintf("landed on %d of %s", len(r.Landed), count.Of(r.Nodes, "node"))
	if len(r.Runs) > 0 {
		said += "; undo: " + store.Command("revert", r.ID)
	}
	if len(r.Missed) > 0 {
		return fmt.Errorf("%s", said)
	}
	printer.Talk(streams.ErrOut, "%s", said)
	return nil
}

func (r result) table(format printer.Format) *printer.Table {
	table := &printer.Table{Header: []string{"RESULT", "NODES", "REASON", "NAMES"}, NoHeader: format.NoHeader}
	if len(r.Landed) > 0 {
		table.Add("landed", fmt.Sprint(len(r.Landed)), printer.Blank, some(r.Landed, format))
	}
	for _, missed := range r.Missed {
		table.Add("missed", fmt.Sprint(len(missed.Nodes)), missed.Reason, some(missed.Nodes, format))
	}
	return table
}

// shownNames is the maximum number of names in a cell, except with -o wide.
const shownNames = 5

func some(names []string, format printer.Format) string {
	if len(names) <= shownNames || format.IsWide() {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shownNames], ","), len(names)-shownNames)
}
