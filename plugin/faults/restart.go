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

// withoutRestart refuses runs whose revert would restart something, or might: most controllers replace the pods as soon
// as their template changes.
func withoutRestart(ctx context.Context, objects dynamic.Interface, runs []ledger.Run) error {
	for _, run := range runs {
		disarm := "kubectl gpu-fault cuda disarm " + run.ID
		for _, step := range run.Pending() {
			if step.Undo.Kind != cudashim.UndoKind {
				return fmt.Errorf("--without-restart is for faults in workloads, and run %s is in %s", run.ID,
					step.Target)
			}
			data, err := cudashim.ReadData(step)
			switch {
			case err != nil:
				return fmt.Errorf("run %s: %w", run.ID, err)
			case data == nil:
				continue
			case data.Recreated != nil:
				return fmt.Errorf("--without-restart: %s cannot be changed, so that it is deleted and created again to undo run %s; "+
					"to end the fault and let it go on: %s", data.Ref(), run.ID, disarm)
			}
			how, err := replacement(ctx, objects, data)
			if err != nil {
				return fmt.Errorf("--without-restart: what becomes of the pods of run %s cannot be told: %w", run.ID,
					err)
			}
			switch how {
			case none, cudashim.OnDelete, cudashim.NextJob, cudashim.Paused:
			case cudashim.Rolling:
				return fmt.Errorf("--without-restart: the controller of %s replaces its pods as soon as their template changes; "+
					"to end the fault of run %s and let them go on: %s, and revert later", data.Ref(), run.ID, disarm)
			default:
				return fmt.Errorf("--without-restart: nobody knows whether the controller of %s replaces its pods when their template changes; "+
					"to end the fault of run %s and let them go on: %s, and revert later", data.Ref(), run.ID, disarm)
			}
		}
	}
	return nil
}

// none is the replacement of a workload that is not there any more, or is another one now: a revert leaves that alone.
const none cudashim.Replacement = ""

// replacement returns when pods are replaced, by the workload as it is now: somebody may have changed its strategy, or
// resumed it, since the run was made.
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
