package cudashim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// A user who can write the ledger's ConfigMaps must not gain, through a record, the permissions of the user who reverts
// it. An undo is therefore sealed, applies only to the object that the record shows as the step's target, and has the
// same limits as an Injection.

// checkTarget returns an error if the data is about a different object than the step. The step may lack a UID.
func (d *Data) checkTarget(target ledger.Target) error {
	switch {
	case d.Kind != target.Kind || d.Namespace != target.Namespace || d.Name != target.Name:
		return fmt.Errorf("it is for %s in namespace %s, but the step is for %s", d.Ref(), d.Namespace, target)
	case target.UID != "" && d.UID != target.UID:
		return fmt.Errorf("the record is for %s with UID %s, but its step is for UID %s", d.Ref(), d.UID, target.UID)
	}
	return nil
}

// checkUndo returns an error for data that is readable but must not be executed: for protected workloads, and for
// objects of a different type than the data claims.
func (d *Data) checkUndo(target ledger.Target, ledgerNamespace string) error {
	if d.UID != target.UID {
		return errors.New("the step does not contain the object's UID")
	}
	if d.Kind == "Pod" {
		return errors.New("a pod has no template")
	}
	if err := fault.CheckNamespace(target, d.Namespace, cmp.Or(ledgerNamespace, ledger.DefaultNamespace)); err != nil {
		return err
	}
	if d.Recreated == nil {
		return nil
	}
	original := &unstructured.Unstructured{}
	if err := original.UnmarshalJSON(d.Recreated.Original); err != nil {
		return fmt.Errorf("decode the original object: %w", err)
	}
	if !d.is(original) || original.GetNamespace() != d.Namespace || original.GetName() != d.Name {
		return fmt.Errorf("its original object is %s in namespace %s", refOf(original), original.GetNamespace())
	}
	if len(Templates(original)) == 0 {
		return fmt.Errorf("its original object is a %s, which has no pod template", original.GetKind())
	}
	return nil
}

// is reports whether an object has the type that the data claims. The resource alone does not determine it.
func (d *Data) is(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind() == schema.GroupVersionKind{Group: d.Group, Version: d.Version, Kind: d.Kind}
}

// isWithin reports whether an edit is in one of the templates.
func isWithin(e kubeedit.Edit, templates []Template) bool {
	return slices.ContainsFunc(templates, func(t Template) bool {
		return e.Path.HasPrefix(t.spec) || t.meta != nil && e.Path.HasPrefix(t.meta)
	})
}
