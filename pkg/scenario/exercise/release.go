package exercise

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// This file protects the end of an exercise from what a candidate may have added: owner references, through which the
// deletion of the exercise's objects would also delete other objects, and finalizers, which prevent the deletion.

// release removes owner references from objects outside the exercise's namespaces, if the references were added during
// the exercise and refer to objects that will be deleted: the exercise's own, and those that the candidate created.
// Otherwise, Kubernetes would delete the outside objects, even nodes, along with their owner.
func (l *Lab) release(ctx context.Context, e *Exercise, r *scenario.Resolved, before *baseline.Baseline) error {
	now, err := l.capture(ctx, e.whole())
	if err != nil {
		return err
	}
	undone, err := l.undoes(ctx, e.ID)
	if err != nil {
		return err
	}
	differences := baseline.Diff(before, now)
	doomed := func(owner scenario.Ref) bool {
		created := func(d baseline.Difference) bool {
			return d.Kind == baseline.Created && sameObject(d.Ref, owner) && l.candidates(e, r, before, now, d)
		}
		return undone(baseline.Difference{Ref: owner}) || slices.ContainsFunc(differences, created)
	}
	for _, difference := range differences {
		ref := difference.Ref
		if difference.Kind != baseline.Changed || ref.Namespace != "" && e.has(ref) {
			continue
		}
		var owners []string
		stood := ownersIn(before.Get(ref))
		for _, owner := range ownersIn(now.Get(ref)) {
			if !slices.Contains(stood, owner) && doomed(owner) {
				owners = append(owners, owner.Kind+" "+owner.Name)
			}
		}
		if len(owners) == 0 {
			continue
		}
		if err := l.disown(ctx, ref, owners); err != nil {
			return fmt.Errorf("%s %s would be deleted along with %s, which it names as its owner; remove its "+
				"metadata.ownerReferences, and run the command again: %w", ref.Kind, ref.Name,
				strings.Join(owners, " and "), err)
		}
		l.say("%s %s named %s as its owner and would have been deleted along with it; the reference was removed",
			ref.Kind, ref.Name, strings.Join(owners, " and "))
	}
	return nil
}

// candidates reports whether a difference is surely the candidate's, so that --restore reverts it.
func (l *Lab) candidates(
	e *Exercise, r *scenario.Resolved, before, now *baseline.Baseline, d baseline.Difference,
) bool {
	return surely(e, r, writersOf(r.Public.Access, l.Mapper), stoodIn(before), d.Ref) ||
		d.Kind == baseline.Created && bindsOnly(e, stoodIn(before), now.Get(d.Ref))
}

// ownersIn returns the owners of an object in a baseline. The references contain no namespace, even if the owner is in
// the object's namespace.
func ownersIn(body map[string]any) []scenario.Ref {
	list, _, _ := unstructured.NestedSlice(body, "metadata", "ownerReferences")
	var owners []scenario.Ref
	for _, each := range list {
		owner, _ := each.(map[string]any)
		version, _ := owner["apiVersion"].(string)
		kind, _ := owner["kind"].(string)
		name, _ := owner["name"].(string)
		owners = append(owners, scenario.Ref{APIVersion: version, Kind: kind, Name: name})
	}
	return owners
}

// disown removes owner references, given as KIND NAME, from an object.
func (l *Lab) disown(ctx context.Context, ref scenario.Ref, owners []string) error {
	reach, err := resource(l.Dynamic, l.Mapper, ref)
	if err != nil {
		return err
	}
	live, err := reach.Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(live.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
		return slices.Contains(owners, owner.Kind+" "+owner.Name)
	})
	return patchMetadata(ctx, l, live, map[string]any{"ownerReferences": kept})
}

// patchMetadata sets metadata of an object, unless the object was changed since it was read.
func patchMetadata(ctx context.Context, l *Lab, live *unstructured.Unstructured, metadata map[string]any) error {
	reach, err := resource(l.Dynamic, l.Mapper, refOf(live))
	if err != nil {
		return err
	}
	metadata["resourceVersion"] = live.GetResourceVersion()
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = reach.Patch(ctx, live.GetName(), types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: objects.ManagerPatch})
	return err
}

// unblock removes finalizers from built-in objects in the namespaces, and from cluster-scoped objects of the exercise,
// if no controller of Kubernetes removes these finalizers. It begins after a while, only touches objects that are
// already being deleted, and continues until stop is called.
func (l *Lab) unblock(
	ctx context.Context, owned func(scenario.Ref) bool, namespaces []string, pause time.Duration,
) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			for _, namespace := range namespaces {
				l.unblockIn(ctx, namespace)
			}
			for _, r := range clusterScoped {
				l.unblockAll(ctx, l.Dynamic.Resource(r),
					func(o *unstructured.Unstructured) bool { return owned(refOf(o)) })
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// unblockIn removes such finalizers once from the objects in a namespace. Errors are ignored, because a deletion that
// does not finish reports them.
func (l *Lab) unblockIn(ctx context.Context, namespace string) {
	lists, _ := discovery.ServerPreferredNamespacedResources(l.Client.Discovery())
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			// Endpoints are skipped, because the API server returns warnings about them.
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "patch") || r.Name == "endpoints" {
				continue
			}
			l.unblockAll(ctx, l.Dynamic.Resource(gv.WithResource(r.Name)).Namespace(namespace), nil)
		}
	}
}

// clusterScoped are the cluster-scoped kinds that exercises create.
var clusterScoped = []schema.GroupVersionResource{
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
	rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
	nodev1.SchemeGroupVersion.WithResource("runtimeclasses"),
}

// unblockAll removes such finalizers from the objects of a list; wanted may be nil.
func (l *Lab) unblockAll(
	ctx context.Context, reach dynamic.ResourceInterface, wanted func(*unstructured.Unstructured) bool,
) {
	found, err := reach.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range found.Items {
		object := &found.Items[i]
		held := baseline.HeldBy(object.GroupVersionKind().GroupKind(), object.GetFinalizers())
		if len(held) > 0 && object.GetDeletionTimestamp() != nil && (wanted == nil || wanted(object)) {
			l.unhold(ctx, object, held)
		}
	}
}

// unhold removes finalizers from an object that is being deleted.
func (l *Lab) unhold(ctx context.Context, object *unstructured.Unstructured, held []string) {
	kept := slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return slices.Contains(held, f) })
	if patchMetadata(ctx, l, object, map[string]any{"finalizers": kept}) == nil {
		l.say("removed the finalizer %s, which prevented the deletion of %s %s/%s", strings.Join(held, ", "),
			object.GetKind(), object.GetNamespace(), object.GetName())
	}
}

// bindsOnly reports whether an object is a binding whose subjects are all service accounts in the exercise's own
// namespaces, which are deleted.
func bindsOnly(e *Exercise, stood func(namespace string) bool, object map[string]any) bool {
	u := unstructured.Unstructured{Object: object}
	subjects, _, _ := unstructured.NestedSlice(object, "subjects")
	if len(subjects) == 0 || u.GroupVersionKind().Group != rbacv1.GroupName {
		return false
	}
	return !slices.ContainsFunc(subjects, func(each any) bool {
		subject, _ := each.(map[string]any)
		namespace, _ := subject["namespace"].(string)
		if name, _ := subject["name"].(string); subject["kind"] == rbacv1.UserKind {
			account, _ := strings.CutPrefix(name, "system:serviceaccount:")
			namespace, _, _ = strings.Cut(account, ":")
		}
		return !slices.Contains(e.Namespaces, namespace) || stood(namespace)
	})
}
