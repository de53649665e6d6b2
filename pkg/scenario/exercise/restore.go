package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// goneTimeout is the maximum time for the deletion of an object.
const goneTimeout = time.Minute

// mappingOf returns the REST mapping of an object's kind.
func mappingOf(mapper meta.RESTMapper, ref scenario.Ref) (*meta.RESTMapping, error) {
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("kind %s in %s: %w", ref.Kind, ref.APIVersion, err)
	}
	return mapping, nil
}

// resource returns the client for an object.
func resource(client dynamic.Interface, mapper meta.RESTMapper, ref scenario.Ref) (dynamic.ResourceInterface, error) {
	mapping, err := mappingOf(mapper, ref)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return client.Resource(mapping.Resource).Namespace(ref.Namespace), nil
	}
	return client.Resource(mapping.Resource), nil
}

// restore reverts a difference.
func (l *Lab) restore(ctx context.Context, before, now *baseline.Baseline, difference baseline.Difference) error {
	reach, err := resource(l.Dynamic, l.Mapper, difference.Ref)
	if err != nil {
		return err
	}
	ref := difference.Ref
	if err := l.mayRestore(difference); err != nil {
		return err
	}
	if err := unmovedFrom(ctx, reach, now.Get(ref), ref); err != nil {
		return err
	}
	if difference.Kind == baseline.Created {
		return remove(ctx, reach, ref.Name)
	}
	switch {
	case ref.Kind == kindSecret:
		return errors.New("its contents were not stored, because it is a secret")
	case !before.Whole(ref) || difference.Kind == baseline.Changed && !now.Whole(ref):
		return errors.New("its previous state was not stored: the cluster has too many objects")
	case difference.Kind == baseline.Deleted:
		return recreate(ctx, reach, before.Get(ref))
	}
	return changeBack(ctx, reach, ref.Name, backPatch(now.Get(ref), before.Get(ref)))
}

// mayRestore returns an error for changes that must not be reverted automatically: changes to nodes that were deleted
// or replaced, to RBAC objects, and to objects that runs may never change. The record that names the object may be
// forged.
func (l *Lab) mayRestore(difference baseline.Difference) error {
	ref := difference.Ref
	if ref.Kind == kindNode {
		if difference.Kind != baseline.Changed || slices.Contains(difference.Fields, "metadata.uid") {
			return errors.New("not reverted: the node was deleted or replaced")
		}
		return nil
	}
	if groupOf(ref) == rbacv1.GroupName && difference.Kind != baseline.Created {
		return errors.New("not reverted: RBAC objects must be restored manually")
	}
	mapping, err := mappingOf(l.Mapper, ref)
	if err != nil {
		return err
	}
	is := mapping.Resource
	object := objects.Object{
		Group: is.Group, Version: is.Version, Resource: is.Resource, Kind: ref.Kind, Namespace: ref.Namespace,
		Name: ref.Name,
	}
	return object.MayTouch(l.LedgerNamespace)
}

// unmovedFrom returns an error if an object was recreated since the snapshot, or if a node has taints that Kubernetes
// set: snapshots do not contain these taints, so restoring the list would remove them.
func unmovedFrom(ctx context.Context, reach dynamic.ResourceInterface, seen map[string]any, ref scenario.Ref) error {
	if seen == nil {
		return nil // the object was deleted, and will be recreated
	}
	live, err := reach.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if uid := (&unstructured.Unstructured{Object: seen}).GetUID(); uid != "" && uid != live.GetUID() {
		return errors.New("not reverted: the object was recreated since the snapshot")
	}
	taints, _, err := unstructured.NestedSlice(live.Object, "spec", "taints")
	if err != nil || ref.Kind != kindNode {
		return err
	}
	for _, each := range taints {
		taint, _ := each.(map[string]any)
		key, _ := taint["key"].(string)
		own := strings.HasPrefix(key, "node.kubernetes.io/") ||
			strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
		if own && key != "node.kubernetes.io/unschedulable" { // this taint follows spec.unschedulable
			return fmt.Errorf("not reverted while the node has the taint %s", key)
		}
	}
	return nil
}

// remove deletes an object and waits until it no longer exists. A missing object is not an error.
func remove(ctx context.Context, reach dynamic.ResourceInterface, name string) error {
	found, err := reach.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	uid := found.GetUID()
	background := metav1.DeletePropagationBackground
	err = reach.Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	var last *unstructured.Unstructured
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, goneTimeout, true,
		func(ctx context.Context) (bool, error) {
			now, err := reach.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && now.GetUID() != uid {
				return true, nil
			}
			last = now
			return false, nil // the API server may be temporarily unavailable
		})
	if err != nil && ctx.Err() == nil && last != nil && len(last.GetFinalizers()) > 0 {
		return fmt.Errorf("deletion is waiting for finalizers %v", last.GetFinalizers())
	}
	return err
}

// errHashed means that only the hash of a value was stored.
var errHashed = errors.New("some values were too long to be stored")

// recreate creates an object in its previous state.
func recreate(ctx context.Context, reach dynamic.ResourceInterface, was map[string]any) error {
	object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(was)}
	switch {
	case baseline.Hashed(was):
		return errHashed
	case len(object.GetOwnerReferences()) > 0:
		return errors.New("its owner must recreate it")
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "uid")
	_, err := reach.Create(ctx, object, metav1.CreateOptions{FieldManager: objects.ManagerCreate})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// changeBack restores the previous values of an object's changed fields. Fields that snapshots do not contain
// are preserved.
func changeBack(ctx context.Context, reach dynamic.ResourceInterface, name string, patch map[string]any) error {
	// These fields differ only in a recreated object, and are immutable.
	if metadata, is := patch["metadata"].(map[string]any); is {
		delete(metadata, "uid")
		delete(metadata, "ownerReferences")
		if len(metadata) == 0 {
			delete(patch, "metadata")
		}
	}
	switch {
	case len(patch) == 0:
		return errors.New("the object was deleted and recreated, and its data is lost")
	case baseline.Hashed(patch):
		return errHashed
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = reach.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: objects.ManagerPatch})
	return err
}

// backPatch returns the JSON merge patch that changes an object from its state in now back to its state in was.
// Snapshots do not contain the labels and annotations that controllers set. So if an object has none in the snapshot,
// the patch does not remove all of them, but only individual ones.
func backPatch(now, was map[string]any) map[string]any {
	metadata, _ := was["metadata"].(map[string]any)
	current, _ := now["metadata"].(map[string]any)
	metadata, was = maps.Clone(metadata), maps.Clone(was)
	for _, name := range []string{"labels", "annotations"} {
		if metadata != nil && metadata[name] == nil && current[name] != nil {
			metadata[name] = map[string]any{}
		}
	}
	if metadata != nil {
		was["metadata"] = metadata
	}
	return mergePatch(now, was)
}

// mergePatch returns the JSON merge patch (RFC 7386) that changes an object from its state in now to its state in was.
func mergePatch(now, was map[string]any) map[string]any {
	patch := map[string]any{}
	for name := range now {
		if _, kept := was[name]; !kept {
			patch[name] = nil
		}
	}
	for name, old := range was {
		current, there := now[name]
		oldMap, isMap := old.(map[string]any)
		currentMap, wasMap := current.(map[string]any)
		switch {
		case there && isMap && wasMap:
			if inner := mergePatch(currentMap, oldMap); len(inner) > 0 {
				patch[name] = inner
			}
		case !there || !reflect.DeepEqual(current, old):
			patch[name] = old
		}
	}
	return patch
}

// howFor describes how a difference is reverted.
func howFor(difference baseline.Difference) string {
	switch difference.Kind {
	case baseline.Created:
		return "delete it"
	case baseline.Deleted:
		return "recreate it as it was"
	}
	return "restore the changed fields"
}

// byHand returns instructions for a trainer to revert a difference.
func byHand(difference baseline.Difference) string {
	ref := difference.Ref
	in := ""
	if ref.Namespace != "" {
		in = " -n " + ref.Namespace
	}
	switch difference.Kind {
	case baseline.Created:
		object := fmt.Sprintf("%s %s%s", kubectlKind(ref), ref.Name, in)
		if difference.Held() {
			return "kubectl patch " + object + ` --type=merge -p '{"metadata":{"finalizers":null}}' && ` +
				"kubectl delete " + object
		}
		return "kubectl delete " + object
	case baseline.Deleted:
		return fmt.Sprintf("apply %s %s%s again from its source", ref.Kind, ref.Name, in)
	}
	return fmt.Sprintf("kubectl edit %s %s%s: %v was %s", kubectlKind(ref), ref.Name, in, difference.Fields,
		difference.Before)
}

// kubectlKind returns an unambiguous kind for kubectl: Deployment.v1.apps.
func kubectlKind(ref scenario.Ref) string {
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if kind.Group == "" {
		return ref.Kind
	}
	return kind.Kind + "." + kind.Version + "." + kind.Group
}

// refsOf returns the objects that a step of a run created or changed.
func refsOf(run ledger.Run, step ledger.Step) []scenario.Ref {
	var refs []scenario.Ref
	for _, object := range objects.Objects(run, step) {
		refs = append(refs, scenario.Ref{
			APIVersion: object.APIVersion(), Kind: object.Kind, Namespace: object.Namespace, Name: object.Name,
		})
	}
	return refs
}
