package leftover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// cleanManager is the field manager for cleanups. It differs from fieldManager, so that cleanups do not look like
// leftovers.
const cleanManager = fieldManager + "-leftovers"

// Cleaner removes the leftovers in the API that Finder found. The helper removes the leftovers on nodes.
type Cleaner struct {
	Dynamic dynamic.Interface
	// Done, if set, is called after each leftover has been processed.
	Done func(Result)
}

// Result is the result for one leftover.
type Result struct {
	Leftover
	// Did is the action that was taken: "deleted", "edited", or "gone" if another client was faster. It is empty if Err
	// is set.
	Did string
	// Err is the reason why the leftover still exists.
	Err error
}

// Values of Result.Did.
const (
	DidDelete = "deleted"
	DidEdit   = "edited"
	DidGo     = "gone"
)

// ErrChanged means that an object changed after it was found, and was skipped.
var ErrChanged = errors.New("the object has changed since it was found: search again")

// Clean removes the leftovers whose remedy is Delete or Edit; the results omit the others. It continues after a
// failure.
//
// An object is deleted only if it is still the one that was found. When an object is edited, only the additions are
// removed from its current state. Clean retries after a conflict.
func (c *Cleaner) Clean(ctx context.Context, items []Leftover) []Result {
	stuck := map[string]string{} // objects that still need Dynamo's ConfigMap, by namespace
	for _, l := range items {
		if l.mountsSource && l.Remedy == Nobody {
			stuck[l.Namespace] = l.Ref()
		}
	}
	items = slices.DeleteFunc(slices.Clone(items),
		func(l Leftover) bool { return l.Remedy != Delete && l.Remedy != Edit })
	sorting.StableFunc(items, func(a, b Leftover) int { return order(a) - order(b) })

	var results []Result
	for _, l := range items {
		result := Result{Leftover: l}
		switch {
		case ctx.Err() != nil:
			result.Err = context.Cause(ctx)
		case l.isSource() && stuck[l.Namespace] != "":
			result.Err = fmt.Errorf("%s still mounts the ConfigMap", stuck[l.Namespace])
		case l.Remedy == Delete:
			result.Did, result.Err = c.delete(ctx, l)
		default:
			result.Did, result.Err = c.edit(ctx, l)
		}
		if result.Err != nil && l.mountsSource {
			stuck[l.Namespace] = l.Ref()
		}
		results = append(results, result)
		if c.Done != nil {
			c.Done(result)
		}
	}
	return results
}

// order returns the order of removal: first injectors, then faults, then objects that templates mount.
func order(l Leftover) int {
	switch {
	case l.Of == Dynamo && (l.Kind == kindDeployment || l.Kind == "DaemonSet" || l.Kind == kindJob) &&
		l.Remedy == Delete:
		return 0
	case l.Kind == "NetworkPolicy", l.Kind == "NetworkChaos":
		return 1
	case l.Remedy == Edit:
		return 2
	default:
		return 3
	}
}

// isSource reports whether the leftover is the ConfigMap that Dynamo's additions mount.
func (l Leftover) isSource() bool {
	return l.Of == Dynamo && l.Kind == "ConfigMap" && l.Name == dynamoConfigMap
}

func (c *Cleaner) delete(ctx context.Context, l Leftover) (string, error) {
	preconditions := &metav1.Preconditions{UID: &l.UID}
	if l.Of == Ours && (l.Kind == "Lease" || l.Kind == "ConfigMap") { // another run may have taken the object over
		preconditions.ResourceVersion = &l.resourceVersion
	}
	background := metav1.DeletePropagationBackground
	err := c.resource(l).Delete(ctx, l.Name,
		metav1.DeleteOptions{Preconditions: preconditions, PropagationPolicy: &background})
	return outcome(DidDelete, err)
}

// outcome returns the result of a request to remove a leftover.
func outcome(did string, err error) (string, error) {
	switch {
	case err == nil:
		return did, nil
	case apierrors.IsNotFound(err):
		return DidGo, nil
	case apierrors.IsConflict(err):
		return "", ErrChanged
	default:
		return "", err
	}
}

func (c *Cleaner) edit(ctx context.Context, l Leftover) (did string, err error) {
	if l.Kind == "Node" {
		return c.unlabel(ctx, l)
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := c.resource(l).Get(ctx, l.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			did = DidGo
			return nil
		case err != nil:
			return err
		case object.GetUID() != l.UID, l.Of == Ours && object.GetGeneration() != l.generation:
			// A new run may use the object.
			return ErrChanged
		}
		if did = DidGo; !removeFrom(l, object) {
			return nil
		}
		did = DidEdit
		// The resourceVersion is the precondition.
		_, err = c.resource(l).Update(ctx, object, metav1.UpdateOptions{FieldManager: cleanManager})
		return err
	})
	if err != nil {
		return "", err
	}
	return did, nil
}

// removeFrom removes the additions from an object, and reports whether there were any.
func removeFrom(l Leftover, object *unstructured.Unstructured) bool {
	var all change
	for _, k := range workloads() {
		if k.resource == l.resource {
			for _, p := range k.places(object) {
				all.merge(l.edit(p))
			}
			if l.Of == Ours {
				withoutLabel(k, object, l.Run)
			}
		}
	}
	return len(all.gone) > 0
}

// withoutLabel removes a run's label from the pod templates of an object.
func withoutLabel(k kind, object *unstructured.Unstructured, run string) {
	for _, spec := range k.specs {
		metadata, _ := field(object.Object, append(slices.Clone(spec[:len(spec)-1]), "metadata")...)
		if labels, ok := field(metadata, "labels"); ok && run != "" && text(labels, ledger.LabelRun) == run {
			delete(labels, ledger.LabelRun)
		}
	}
}

// unlabel removes the labels set by Dynamo's tests from a node. It does not uncordon the node.
func (c *Cleaner) unlabel(ctx context.Context, l Leftover) (string, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": l.UID, "labels": map[string]any{labelCordoned: nil, labelReason: nil},
	}})
	if err != nil {
		return "", err
	}
	_, err = c.resource(l).Patch(ctx, l.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: cleanManager})
	return outcome(DidEdit, err)
}

func (c *Cleaner) resource(l Leftover) dynamic.ResourceInterface {
	if l.Namespace == "" {
		return c.Dynamic.Resource(l.resource)
	}
	return c.Dynamic.Resource(l.resource).Namespace(l.Namespace)
}
