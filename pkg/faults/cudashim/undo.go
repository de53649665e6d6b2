package cudashim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Undoer removes the shim from workloads. Cluster may be nil if only Describe is called.
type Undoer struct {
	Cluster *Cluster
	// Progress receives the progress of a step. It may be nil.
	Progress func(step ledger.Step, text string)
	// Settle is the time that running processes have to notice that they are disarmed before the file is removed. 0
	// means three seconds. Processes read the file once a second, and their kubelets refresh it immediately.
	Settle time.Duration
	// LedgerNamespace is the namespace of the records. An undo never changes anything in it. Empty means
	// ledger.DefaultNamespace.
	LedgerNamespace string
}

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	d, err := ReadData(step)
	switch {
	case err != nil || d == nil:
		return "restore the pod template"
	case d.Recreated != nil:
		return fmt.Sprintf("delete %s in namespace %s and recreate it with its original content; delete configmap %s", d.Ref(),
			d.Namespace, d.ConfigMap)
	}
	text := fmt.Sprintf("remove %s from the pod templates of %s in namespace %s; delete configmap %s",
		count.Of(len(d.Edits), "edit"), d.Ref(), d.Namespace,
		d.ConfigMap)
	if d.Replaced == Rolling {
		text += "; the pods are replaced"
	}
	return text
}

// Verify implements fault.Verifier.
func (u Undoer) Verify(ctx context.Context, run ledger.Run, step ledger.Step) error {
	d, sealed, err := u.read(ctx, run, step)
	if err != nil || d == nil || sealed {
		return err
	}
	_, _, err = u.unsealed(ctx, run, d)
	return err
}

// read returns a step's undo data after checking it. sealed reports whether the run's ConfigMap contains the data's
// seal. Undo data without a seal is never used.
func (u Undoer) read(ctx context.Context, run ledger.Run, step ledger.Step) (d *Data, sealed bool, err error) {
	d, err = ReadData(step)
	switch {
	case err != nil || d == nil:
		return nil, false, err
	case d.ConfigMap != Name(run.ID):
		return nil, false,
			fmt.Errorf("the record's undo data is rejected: %s is not the ConfigMap of run %s", d.ConfigMap, run.ID)
	case u.Cluster == nil:
		return nil, false, errors.New("undoing the change requires a connection to the cluster")
	}
	if err := d.checkUndo(step.Target, u.LedgerNamespace); err != nil {
		return nil, false, fmt.Errorf("the record's undo data is rejected: %w", err)
	}
	sealed, err = configMapKeeper{u.Cluster.Client, d.Namespace, run.ID}.Has(ctx, d.seal(run.ID))
	return d, sealed, err
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	d, sealed, err := u.read(ctx, run, step)
	switch {
	case err != nil:
		return "", "", err
	case d == nil:
		return ledger.StateReverted, "nothing was changed", nil
	case !sealed:
		return u.unsealed(ctx, run, d)
	}
	w := d.workload()
	end := u.disarm(ctx, run, step, d)
	u.say(step, "restoring "+d.Ref())
	var state ledger.State
	var said string
	var needed bool
	if d.Recreated != nil {
		state, said, err = u.restore(ctx, run, w, d)
	} else {
		state, said, needed, err = u.takeBack(ctx, run, w, d)
	}
	if err == nil {
		err = end.settle(ctx, step)
	}
	if err != nil {
		return "", "", err
	}
	if state == ledger.StateReverted {
		said += end.pods(d)
	}
	if needed {
		return state, said + fmt.Sprintf("\nconfigmap %s was not deleted, because it is still mounted", d.ConfigMap),
			nil
	}
	left, err := end.close(ctx, d)
	if err != nil {
		return "", "", err
	}
	return state, said + left, nil
}

// unsealed returns the result for a record without a seal. The possible reasons are that an earlier undo was
// interrupted before it could record that it had finished, that nothing was changed, or that another client wrote the
// record. unsealed changes nothing.
func (u Undoer) unsealed(ctx context.Context, run ledger.Run, d *Data) (ledger.State, string, error) {
	w := d.workload()
	now, err := u.Cluster.resource(w).Get(ctx, d.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return ledger.StateSuperseded, fmt.Sprintf(
			"%s no longer exists and was not recreated, because no ConfigMap confirms the record", d.Ref(),
		), nil
	case err != nil:
		return "", "", fmt.Errorf("get %s: %w", d.Ref(), err)
	}
	there := &Workload{Object: now, Resource: w.Resource, Templates: Templates(now)}
	if there.Run() == run.ID {
		return "", "", &seal.BrokenError{
			Where: configMapKeeper{u.Cluster.Client, d.Namespace, run.ID}.Where(""),
			ByHand: fmt.Sprintf(
				"delete it (kubectl delete configmap %s -n %s) and remove what is left of the run with: kubectl gpu-fault leftovers --clean",
				run.ID, run.Namespace,
			),
		}
	}
	return ledger.StateReverted, fmt.Sprintf("%s: its pod templates contain none of the run's changes", d.Ref()), nil
}

func (u Undoer) settle() time.Duration {
	if u.Settle > 0 {
		return u.Settle
	}
	return 3 * time.Second
}

func (u Undoer) say(step ledger.Step, text string) {
	if u.Progress != nil {
		u.Progress(step, text)
	}
}

// workload returns the workload that the data identifies, without its content.
func (d *Data) workload() *Workload {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(schema.GroupVersion{Group: d.Group, Version: d.Version}.String())
	o.SetKind(d.Kind)
	o.SetNamespace(d.Namespace)
	o.SetName(d.Name)
	o.SetUID(types.UID(d.UID))
	return &Workload{Object: o, Resource: d.gvr()}
}

// takeBack reverts the edits in the object.
func (u Undoer) takeBack(
	ctx context.Context, run ledger.Run, w *Workload, d *Data,
) (state ledger.State, said string, needed bool, err error) {
	var r *removal
	var after *unstructured.Unstructured
	err = retry(ctx, u.Cluster.conflicts(), d.Ref(), func() error {
		r = nil
		now, err := u.Cluster.resource(w).Get(ctx, d.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			said = fmt.Sprintf("%s no longer exists", d.Ref())
			return nil
		case err != nil:
			return fmt.Errorf("get %s: %w", d.Ref(), err)
		case !d.is(now):
			return fmt.Errorf("the record's undo data is rejected: %s is a %s", d.Ref(), now.GroupVersionKind())
		case string(now.GetUID()) != d.UID:
			said = fmt.Sprintf("%s was not changed, because it is a different object (UID %s, not %s)", d.Ref(),
				now.GetUID(), d.UID)
			return nil
		case now.GetDeletionTimestamp() != nil:
			said = fmt.Sprintf("%s was not changed, because it is being deleted", d.Ref())
			return nil
		}
		removed := d.removeEdits(now, run.ID)
		after = now
		if removed.changed {
			after, err = u.Cluster.patch(ctx, &Workload{Object: now, Resource: w.Resource},
				&unstructured.Unstructured{Object: removed.object}, false)
			if err != nil {
				return explain(err, "restore "+d.Ref(), d.Namespace)
			}
		}
		r = removed
		return nil
	})
	if err != nil {
		return "", "", false, err
	}
	if r == nil {
		return ledger.StateSuperseded, said, false, nil
	}
	err = u.Cluster.own(ctx, w, types.UID(d.UID),
		func(now []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, bool) {
			return giveBack(now, d.Owned)
		})
	if err != nil {
		return "", "", false, err
	}
	state, said = d.verdict(r, after)
	return state, said, r.mountsConfigMap(), nil
}

// verdict returns the result for the object.
func (d *Data) verdict(r *removal, after *unstructured.Unstructured) (ledger.State, string) {
	said := fmt.Sprintf("%s: its pod templates are restored", d.Ref())
	switch same := d.Before == "" || sum(after) == d.Before; {
	case len(r.kept) > 0:
		return ledger.StateSuperseded,
			fmt.Sprintf("%s: the run's edits were removed from its pod templates; other clients' changes were kept:\n  %s",
				d.Ref(), strings.Join(r.kept, "\n  "))
	case !r.changed && same:
		said += " already"
	case !r.changed:
		said = d.Ref() + ": its pod templates contain none of the run's edits, but other clients have changed them"
	case !same:
		said = d.Ref() +
			": the run's edits were removed from its pod templates; other clients' changes were kept"
	}
	return ledger.StateReverted, said
}

var _ fault.Verifier = Undoer{}
