package cudashim

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// restore recreates the original object if the injection had to recreate it.
func (u Undoer) restore(ctx context.Context, run ledger.Run, w *Workload, d *Data) (ledger.State, string, error) {
	original := &unstructured.Unstructured{}
	if err := original.UnmarshalJSON(d.Recreated.Original); err != nil {
		return "", "", fmt.Errorf("decode the record's undo data: %w", err)
	}
	now, err := u.Cluster.resource(w).Get(ctx, d.Name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	switch {
	case err != nil && !gone:
		return "", "", fmt.Errorf("get %s: %w", d.Ref(), err)
	case gone && d.Recreated.UID != "" && !u.deletedByUs(ctx, run, d):
		return ledger.StateSuperseded,
			fmt.Sprintf("%s was not recreated, because another client has deleted it", d.Ref()),
			nil
	case gone: // a client died between deleting and creating
		if _, err := u.Cluster.create(ctx, w, original); err != nil {
			return "", "", err
		}
		return ledger.StateReverted, d.Ref() + " was recreated with its original content", nil
	case !d.is(now):
		return "", "", fmt.Errorf("the record's undo data is rejected: %s is a %s", d.Ref(), now.GroupVersionKind())
	case string(now.GetUID()) == d.UID && now.GetDeletionTimestamp() == nil:
		return ledger.StateReverted, d.Ref() + " was not changed", nil
	}
	there := &Workload{Object: now, Resource: w.Resource}
	if string(now.GetUID()) == d.UID { // the object is still being deleted
		if _, err := u.Cluster.replace(ctx, there, original, func(*Workload) error { return nil }); err != nil {
			return "", "", err
		}
		return ledger.StateReverted, d.Ref() + " was recreated with its original content", nil
	}
	there.Templates = Templates(now)
	switch {
	case there.Run() != run.ID:
		return ledger.StateSuperseded,
			fmt.Sprintf("%s was not changed, because it is a different object (UID %s)", d.Ref(), now.GetUID()), nil
	case finished(now) != "":
		return ledger.StateSuperseded, finishedText(d, finished(now)), nil
	}
	r := d.removeEdits(now, run.ID)
	with := recreatable(&unstructured.Unstructured{Object: r.object})
	with.SetManagedFields(original.GetManagedFields())
	// The API server adds the template's labels to a Job that has no labels.
	if len(original.GetLabels()) == 0 && maps.Equal(with.GetLabels(), templateLabels(with)) {
		unstructured.RemoveNestedField(with.Object, "metadata", "labels")
	}
	if err := u.announce(ctx, run, d); err != nil {
		return "", "", err
	}
	over := ""
	created, err := u.Cluster.replace(ctx, there, with, func(now *Workload) error {
		if over = finished(now.Object); over != "" {
			return errFinished
		}
		return nil
	})
	if errors.Is(err, errFinished) {
		return ledger.StateSuperseded, finishedText(d, over), nil
	}
	if err != nil {
		return "", "", err
	}
	state, said := d.verdict(r, recreatable(created))
	return state, said + "; it was recreated, and its work starts over", nil
}

// errFinished reports that an object finished its work before it was deleted.
var errFinished = errors.New("the workload has finished")

func finishedText(d *Data, how string) string {
	return fmt.Sprintf(
		"%s has finished (%s) with the fault in its template; it was not recreated, because that would repeat its work",
		d.Ref(), how,
	)
}

// announcement is an annotation on the ConfigMap while the undo recreates the ConfigMap's owner. If the client dies,
// the annotation allows the next undo to distinguish the recreation from a deletion by a user.
const announcement = "gpufault.dev/restoring"

func (u Undoer) announce(ctx context.Context, run ledger.Run, d *Data) error {
	err := changeConfigMap(ctx, u.Cluster.Client, d.Namespace, run.ID, func(cm *corev1.ConfigMap) error {
		cm.OwnerReferences = nil // the ConfigMap must outlive its owner
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, announcement, d.Name)
		return nil
	})
	if apierrors.IsNotFound(err) { // another client deleted it; this matters only if the client crashes now
		return nil
	}
	return err
}

func (u Undoer) deletedByUs(ctx context.Context, run ledger.Run, d *Data) bool {
	cm, err := u.Cluster.Client.CoreV1().ConfigMaps(d.Namespace).Get(ctx, d.ConfigMap, metav1.GetOptions{})
	return err == nil && isOfRun(cm, run.ID) && cm.Annotations[announcement] == d.Name
}
