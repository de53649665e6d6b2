package faults

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// withoutRestart returns an error if reverting a run restarts pods or might restart them, because most controllers
// replace the pods as soon as their template changes.
func withoutRestart(ctx context.Context, objects dynamic.Interface, runs []ledger.Run) error {
	for _, run := range runs {
		disarm := "kubectl gpu-fault cuda disarm " + run.ID
		for _, step := range run.Pending() {
			if step.Undo.Kind != cudashim.UndoKind {
				return fmt.Errorf("--without-restart is only for faults in workloads, but the target of run %s is %s",
					run.ID,
					step.Target)
			}
			data, err := cudashim.ReadData(step)
			switch {
			case err != nil:
				return fmt.Errorf("run %s: %w", run.ID, err)
			case data == nil:
				continue
			case data.Recreated != nil:
				return fmt.Errorf("--without-restart: %s is immutable and must be recreated to revert run %s; "+
					"to stop the fault without a restart: %s", data.Ref(), run.ID, disarm)
			}
			how, err := replacement(ctx, objects, data)
			if err != nil {
				return fmt.Errorf("--without-restart: cannot determine whether the pods of run %s would be replaced: %w",
					run.ID,
					err)
			}
			switch how {
			case none, cudashim.OnDelete, cudashim.NextJob, cudashim.Paused:
			case cudashim.Rolling:
				return fmt.Errorf("--without-restart: the controller of %s replaces its pods as soon as their template changes; "+
					"to stop the fault of run %s without a restart: %s, and revert later", data.Ref(), run.ID, disarm)
			default:
				return fmt.Errorf("--without-restart: it is unknown whether the controller of %s replaces its pods when their template changes; "+
					"to stop the fault of run %s without a restart: %s, and revert later", data.Ref(), run.ID, disarm)
			}
		}
	}
	return nil
}

// none means that a workload was deleted or recreated, so a revert does not change it.
const none cudashim.Replacement = ""

// replacement determines when a revert would replace the pods, based on the current workload. Since the run started,
// the workload's strategy may have changed, or the workload may have been resumed.
func replacement(ctx context.Context, objects dynamic.Interface, data *cudashim.Data) (cudashim.Replacement, error) {
	resource := schema.GroupVersionResource{Group: data.Group, Version: data.Version, Resource: data.Resource}
	now, err := objects.Resource(resource).Namespace(data.Namespace).Get(ctx, data.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("get %s: %w", data.Ref(), err)
	case string(now.GetUID()) != data.UID:
		return none, nil
	}
	live := &cudashim.Workload{Object: now, Resource: resource, Templates: cudashim.Templates(now)}
	return live.Replacement(), nil
}
