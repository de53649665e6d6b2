package cuda

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func (in *injecting) printDryRun(streams genericiooptions.IOStreams, d *decided, plan fault.Plan) error {
	if !in.format.IsTable() {
		return in.format.Object(streams.Out, plan.Planned(), d.workload.Ref())
	}
	_, err := fmt.Fprintf(streams.Out, "%s injected (%s dry run)\n", d.workload.Ref(), in.dryRun)
	return err
}

// print prints the evidence as a table, or the whole record in other formats.
func (in *injecting) print(streams genericiooptions.IOStreams, store *ledger.Store, d *decided, run *ledger.Run) error {
	if run == nil {
		return nil
	}
	if !in.format.IsTable() {
		return in.format.Object(streams.Out, run, "run/"+run.ID)
	}
	table := &printer.Table{Header: []string{"SOURCE", "PROOF"}, NoHeader: in.format.NoHeader}
	for _, step := range run.Steps {
		if step.State != ledger.StateProven {
			continue
		}
		for _, e := range step.Evidence {
			table.Add(e.Source, e.Text)
			if e.Omitted > 0 {
				table.Add("...", fmt.Sprintf("%d more", e.Omitted))
			}
		}
	}
	if len(table.Rows) == 0 {
		return nil
	}
	if err := table.Write(streams.Out); err != nil {
		return err
	}
	say := func(format string, args ...any) { printer.Talk(streams.ErrOut, format, args...) }
	say("%s, %s", in.outcome(d, *run), end(*run))
	if in.disarmed {
		say("To start the fault: %s", store.Command("cuda", "arm", run.ID))
	} else {
		say("To show the status of the processes: %s", store.Command("cuda", "status", run.ID))
	}
	say("To revert the run: %s", store.Command("revert", run.ID))
	return nil
}

// outcome describes the state of the workload.
func (in *injecting) outcome(d *decided, run ledger.Run) string {
	inPods := slices.ContainsFunc(run.Steps, func(step ledger.Step) bool {
		return slices.ContainsFunc(step.Evidence,
			func(e ledger.Evidence) bool { return strings.HasPrefix(e.Source, "pod ") })
	})
	switch {
	case in.disarmed && inPods:
		return d.workload.Ref() + " has the shim, disarmed"
	case inPods:
		return d.workload.Ref() + " has the fault"
	case in.disarmed:
		return "new pods of " + d.workload.Ref() + " will have the disarmed shim"
	default:
		return "new pods of " + d.workload.Ref() + " will have the fault"
	}
}

// end describes when a run ends.
func end(run ledger.Run) string {
	if run.Until.IsZero() {
		return "until the run is reverted"
	}
	return "until " + run.Until.Local().Format("15:04:05")
}

// ofRun returns the step of a run with the given kind of undo, or nil if there is none.
func ofRun(run ledger.Run, kind string) *ledger.Step {
	for i := range run.Steps {
		if run.Steps[i].Undo.Kind == kind {
			return &run.Steps[i]
		}
	}
	return nil
}
