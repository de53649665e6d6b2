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
)

// cleanManager is who the API server says has edited. It is not fieldManager: what a clean-up writes is no leftover.
const cleanManager = fieldManager + "-leftovers"

// Cleaner removes what Finder found, in a cluster's API. What is on nodes is the helper's.
type Cleaner struct {
	Dynamic dynamic.Interface
	// Done, if set, hears of each leftover as soon as it was tried.
	Done func(Result)
}

// Result is what became of a leftover.
type Result struct {
	Leftover
	// Did is what was done: "deleted", "edited", or "gone" when somebody else was faster. Empty with an Err.
	Did string
	// Err is why it is still there.
	Err error
}

// The words of Result.Did.
const (
	DidDelete = "deleted"
	DidEdit   = "edited"
	DidGo     = "gone"
)

// ErrChanged says that an object is not any more what was found, so that it was left.
var ErrChanged = errors.New("it was changed meanwhile: look again")

// Clean removes the leftovers whose remedy is Delete or Edit; the others are not in the results. It goes on after a
// failure.
//
// An object is deleted only if it is the one that was found. Of an edited one only the additions are taken, from what
// it is now; a conflict with somebody else's change is tried again.
func (c *Cleaner) Clean(ctx context.Context, items []Leftover) []Result {
	stuck := map[string]string{} // namespaces in which something still needs Dynamo's ConfigMap
	for _, l := range items {
		if l.mountsSource && l.Remedy == Nobody {
			stuck[l.Namespace] = l.Ref()
		}
	}
	items = slices.DeleteFunc(slices.Clone(items),
		func(l Leftover) bool { return l.Remedy != Delete && l.Remedy != Edit })
	slices.SortStableFunc(items, func(a, b Leftover) int { return order(a) - order(b) })

	var results []Result
	for _, l := range items {
		result := Result{Leftover: l}
		switch {
		case ctx.Err() != nil:
			result.Err = context.Cause(ctx)
		case l.isSource() && stuck[l.Namespace] != "":
			result.Err = fmt.Errorf("%s still mounts it", stuck[l.Namespace])
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

// order is: first who injects, then faults, and what templates mount after them.
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

// isSource reports whether it is the ConfigMap that Dynamo's additions mount.
func (l Leftover) isSource() bool {
	return l.Of == Dynamo && l.Kind == "ConfigMap" && l.Name == dynamoConfigMap
}

func (c *Cleaner) delete(ctx context.Context, l Leftover) (string, error) {
	preconditions := &metav1.Preconditions{UID: &l.UID}
	if l.Of == Ours && (l.Kind == "Lease" || l.Kind == "ConfigMap") { // which another run may have taken over
		preconditions.ResourceVersion = &l.resourceVersion
	}
	background := metav1.DeletePropagationBackground
	err := c.resource(l).Delete(ctx, l.Name,
		metav1.DeleteOptions{Preconditions: preconditions, PropagationPolicy: &background})
	return outcome(DidDelete, err)
}

// outcome returns what became of a request to do something to a leftover.
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
			// A new run may aim at it
			return ErrChanged
		}
		if did = DidGo; !removeFrom(l, object) {
			return nil
		}
		did = DidEdit
		// Its resourceVersion is the precondition
		_, err = c.resource(l).Update(ctx, object, metav1.UpdateOptions{FieldManager: cleanManager})
		return err
	})
	if err != nil {
		return "", err
	}
	return did, nil
}

// removeFrom takes the additions out of an object, and returns whether there were any.
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

// withoutLabel takes the label of a run off the pod templates of an object.
func withoutLabel(k kind, object *unstructured.Unstructured, run string) {
	for _, spec := range k.specs {
		metadata, _ := field(object.Object, append(slices.Clone(spec[:len(spec)-1]), "metadata")...)
		if labels, ok := field(metadata, "labels"); ok && run != "" && text(labels, ledger.LabelRun) == run {
			delete(labels, ledger.LabelRun)
		}
	}
}

// unlabel takes the labels of Dynamo's tests off a node. Whether it is cordoned is not its business.
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
