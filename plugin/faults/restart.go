package faults

import (
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/workload"
)

// withoutRestart refuses runs whose revert would restart something: most controllers replace the pods as soon as their template changes.
func withoutRestart(runs []ledger.Run) error {
	for _, run := range runs {
		for _, step := range run.Pending() {
			if step.Undo.Kind != workload.UndoKind {
				return fmt.Errorf("--without-restart is for faults in workloads, and run %s is in %s", run.ID, step.Target)
			}
			data, err := workload.ReadData(step)
			switch {
			case err != nil:
				return fmt.Errorf("run %s: %w", run.ID, err)
			case data == nil:
			case data.Recreated != nil:
				return fmt.Errorf("--without-restart: %s cannot be changed, so that it is deleted and created again to undo run %s; "+
					"to end the fault and let it go on: kubectl gpu-fault cuda disarm %s", data.Ref(), run.ID, run.ID)
			case data.Replaced == workload.Rolling:
				return fmt.Errorf("--without-restart: the controller of %s replaces its pods as soon as their template changes; "+
					"to end the fault of run %s and let them go on: kubectl gpu-fault cuda disarm %s, and revert later", data.Ref(), run.ID, run.ID)
			}
		}
	}
	return nil
}
