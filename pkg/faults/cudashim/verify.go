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

// Whoever may write the ledger's ConfigMaps must not get, by a record, the rights of whoever reverts it. So an undo is
// sealed, and is about the object that the record shows as the step's target, within the bounds of every Injection.

// checkTarget refuses data of another object than the step's. ReadData has compared all but a UID that the step does
// not name.
func (d *Data) checkTarget(target ledger.Target) error {
	switch {
	case d.Kind != target.Kind || d.Namespace != target.Namespace || d.Name != target.Name:
		return fmt.Errorf("it is about %s in namespace %s, and its step about %s", d.Ref(), d.Namespace, target)
	case target.UID != "" && d.UID != target.UID:
		return fmt.Errorf("it is about the %s with the UID %s, and its step about that with %s", d.Ref(), d.UID,
			target.UID)
	}
	return nil
}

// checkUndo refuses what may be read, but not be undone: workloads out of bounds, and objects that are not what the
// data says.
func (d *Data) checkUndo(target ledger.Target, ledgerNamespace string) error {
	if d.UID != target.UID {
		return errors.New("its step does not name the object's UID")
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
		return fmt.Errorf("the object as it was cannot be read: %w", err)
	}
	if !d.is(original) || original.GetNamespace() != d.Namespace || original.GetName() != d.Name {
		return fmt.Errorf("it holds %s in namespace %s", refOf(original), original.GetNamespace())
	}
	if len(Templates(original)) == 0 {
		return fmt.Errorf("it holds a %s, which has no pod template", original.GetKind())
	}
	return nil
}

// is reports whether an object has the type that the data says: the resource alone could be another's.
func (d *Data) is(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind() == schema.GroupVersionKind{Group: d.Group, Version: d.Version, Kind: d.Kind}
}

// isWithin reports whether an edit is in one of the templates.
func isWithin(e kubeedit.Edit, templates []Template) bool {
	return slices.ContainsFunc(templates, func(t Template) bool {
		return e.Path.HasPrefix(t.spec) || t.meta != nil && e.Path.HasPrefix(t.meta)
	})
}
