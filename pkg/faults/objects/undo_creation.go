package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// live returns an object, or nil if it does not exist.
func (u undoing) live(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
	live, err := reach(u.Dynamic, o).Get(ctx, o.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", o, err)
	case !o.is(live):
		return nil,
			fmt.Errorf("the record's undo data is rejected: the object is a %s, not a "+
				"%s", live.GroupVersionKind(), o.Kind)
	}
	return live, nil
}

// created deletes the objects that the step created. Namespaces are deleted last, together with everything in them.
func (u undoing) created(ctx context.Context) (ledger.State, string, error) {
	trusted := false
	if u.data.Sealed {
		var err error
		if trusted, err = keeper(u.Dynamic).Has(ctx, u.seal); err != nil {
			return "", "", err
		}
	}
	var gone []Object
	var left []string
	for _, namespacesNow := range []bool{false, true} {
		for _, o := range slices.Backward(u.data.Created) {
			if o.isNamespace() != namespacesNow {
				continue
			}
			uid, why, err := u.delete(ctx, o, trusted)
			switch {
			case err != nil:
				return "", "", err
			case why != "":
				left = append(left, why)
			case uid != "":
				o.UID = string(uid)
				gone = append(gone, o)
			}
		}
	}
	if len(gone) > 0 {
		u.deleteNamespaces(ctx)
	}
	if err := u.waitForDeletion(ctx, gone); err != nil {
		return "", "", err
	}
	if u.data.Sealed {
		if err := keeper(u.Dynamic).Drop(ctx, u.seal); err != nil {
			return "", "", err
		}
	}
	if len(left) > 0 {
		return ledger.StateSuperseded, strings.Join(left, "; "), nil
	}
	return ledger.StateReverted, u.said(gone), nil
}

func (u undoing) said(gone []Object) string {
	if len(gone) == 0 {
		return "the objects no longer exist, or are being deleted with their namespace"
	}
	var names []string
	for _, o := range gone {
		names = append(names, o.String())
	}
	return listed(names) + " deleted"
}

// delete deletes one object if the step created it, and returns the UID of the deleted object. why describes why an
// object was not deleted.
func (u undoing) delete(ctx context.Context, o Object, trusted bool) (uid types.UID, why string, err error) {
	if o.Namespace != "" {
		if goes, err := u.goes(ctx, o.Namespace); err != nil || goes {
			return "", "", err
		}
	}
	live, err := u.live(ctx, o)
	if err != nil || live == nil {
		return "", "", err
	}
	if why, ours := u.judge(o, live, trusted); !ours {
		return "", why, nil
	}
	u.report("deleting " + o.String())
	uid = live.GetUID()
	foreground := metav1.DeletePropagationForeground // also deletes dependents
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &foreground}
	if o.isNamespace() {
		options.PropagationPolicy = nil
	}
	err = reach(u.Dynamic, o).Delete(ctx, o.Name, options)
	// Deleting a namespace that is already being deleted returns a conflict.
	if err != nil && !apierrors.IsNotFound(err) && !(o.isNamespace() && apierrors.IsConflict(err)) {
		return "", "", fmt.Errorf("delete %s: %w", o, err)
	}
	// Do not shorten the grace periods in a namespace that was just recreated.
	if o.isNamespace() && (err == nil || live.GetDeletionTimestamp() != nil) {
		u.hurry(ctx, o.Name)
	}
	return uid, "", nil
}

// judge reports whether the step created an object. If it did not, why describes the reason.
func (u undoing) judge(o Object, live *unstructured.Unstructured, trusted bool) (why string, ours bool) {
	same := o.UID == string(live.GetUID())
	switch {
	case live.GetLabels()[LabelInstance] == o.mark(u.seal):
		return "", true
	case o.UID == "": // the creation failed, possibly because the object already existed
		return "", false
	case same && trusted:
		return "", true
	case same:
		return fmt.Sprintf(
			"%s was not deleted: it does not have the mark of this run (label %s), so another client may have created it",
			o,
			LabelInstance,
		), false
	case trusted && u.Successors:
		return "", true
	}
	return fmt.Sprintf("%s was not deleted: another client has recreated it (UID %s, not %s)", o, live.GetUID(), o.UID),
		false
}

// hurry terminates the pods in a namespace that is being deleted without waiting for their grace periods. It is best
// effort.
func (u undoing) hurry(ctx context.Context, namespace string) {
	pods := Object{Version: "v1", Resource: "pods", Kind: "Pod", Namespace: namespace}
	now := int64(1) // 0 would delete the objects of pods that may still be running
	err := u.Dynamic.Resource(pods.GVR()).Namespace(namespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !errors.Is(err, context.Canceled) {
		u.report("pods in namespace " + namespace + " are given their full grace periods to terminate: " + err.Error())
	}
}
