package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// asTerraform is the field manager for a module's objects; Terraform's provider uses the same name.
const asTerraform = "Terraform"

// apply creates or updates a module's objects, and deletes known objects that the module no longer contains. brought
// are the objects of the module. A rejection by the API server is a problem of the module; apply returns an error only
// if it cannot determine the result.
func (c *candidate) apply(
	ctx context.Context, module terraform.Module, known []scenario.Ref,
) (done Applied, brought []scenario.Ref, err error) {
	note := func(what string, ref scenario.Ref, err error) error {
		name := ref.Kind + " " + ref.Namespace + "/" + ref.Name
		switch {
		case err != nil && refusal(err):
			done.Problems = append(done.Problems, fmt.Sprintf("%s: %v", name, err))
		case err != nil:
			return fmt.Errorf("apply the module: %s: %w", name, c.explain(err))
		case what != "":
			done.Changes = append(done.Changes, what+" "+name)
		}
		return nil
	}
	for _, one := range module.Objects {
		object := (&unstructured.Unstructured{Object: one}).DeepCopy()
		ref := refOf(object)
		brought = append(brought, ref)
		what, err := c.applyOne(ctx, object)
		if err := note(what, ref, err); err != nil {
			return done, brought, err
		}
	}
	for _, ref := range known {
		if slices.ContainsFunc(brought, func(has scenario.Ref) bool { return sameObject(has, ref) }) {
			continue
		}
		what, err := c.unapply(ctx, ref)
		if err := note(what, ref, err); err != nil {
			return done, brought, err
		}
	}
	return done, brought, nil
}

// refusal reports whether the API server rejected the request, as opposed to failing to process it.
func refusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err) ||
		apierrors.IsAlreadyExists(err) || apierrors.IsMethodNotSupported(err)
}

// applyOne creates or updates an object. It returns a description of the change, or "" if there was none.
func (c *candidate) applyOne(ctx context.Context, object *unstructured.Unstructured) (did string, err error) {
	reach, err := c.reach(refOf(object))
	if err != nil {
		return "", err
	}
	create := func(did string) (string, error) {
		_, err := reach.Create(ctx, object,
			metav1.CreateOptions{FieldManager: asTerraform, FieldValidation: metav1.FieldValidationStrict})
		return did, err
	}
	for range updateAttempts {
		now, err := reach.Get(ctx, object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return create("created")
		case err != nil:
			return "", err
		case replaces(now, object):
			if err := remove(ctx, reach, object.GetName()); err != nil {
				return "", err
			}
			return create("replaced")
		}
		options := metav1.UpdateOptions{FieldManager: asTerraform, FieldValidation: metav1.FieldValidationStrict}
		stored, err := reach.Update(ctx, overlay(now, object), options) // the resourceVersion is the precondition
		switch {
		case apierrors.IsConflict(err):
			continue
		case err != nil:
			return "", err
		case sameJSON(content(stored), content(now)): // fields that the module omits have the API server's defaults
			return "", nil
		}
		return "changed", nil
	}
	return "", errors.New("too many conflicting changes; try again")
}

// replaces reports whether Terraform recreates the object, because the roleRef of a binding is immutable.
func replaces(now, object *unstructured.Unstructured) bool {
	before, is := now.Object["roleRef"]
	return is && !sameJSON(before, object.Object["roleRef"])
}

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// content returns the fields of an object that users set.
func content(object *unstructured.Unstructured) map[string]any {
	asked := maps.Clone(object.Object)
	delete(asked, "status")
	asked["metadata"] = []any{object.GetLabels(), object.GetAnnotations()}
	return asked
}

// overlay returns an object with the module's fields. Other labels and annotations are preserved.
func overlay(now, object *unstructured.Unstructured) *unstructured.Unstructured {
	next := now.DeepCopy()
	for key, value := range object.Object {
		if key != "metadata" && key != "status" {
			next.Object[key] = value
		}
	}
	if more := object.GetLabels(); len(more) > 0 {
		all := map[string]string{}
		maps.Copy(all, next.GetLabels())
		maps.Copy(all, more)
		next.SetLabels(all)
	}
	if more := object.GetAnnotations(); len(more) > 0 {
		all := map[string]string{}
		maps.Copy(all, next.GetAnnotations())
		maps.Copy(all, more)
		next.SetAnnotations(all)
	}
	return next
}

// unapply deletes an object that the module no longer contains. It returns a description of the change, or "" if the
// object did not exist.
func (c *candidate) unapply(ctx context.Context, ref scenario.Ref) (did string, err error) {
	reach, err := c.reach(ref)
	if err != nil {
		return "", err
	}
	if _, err := reach.Get(ctx, ref.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return "", nil
	}
	return "deleted", remove(ctx, reach, ref.Name)
}
