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

// restore creates an object again as it was, where it had to be created again with the additions.
func (u Undoer) restore(ctx context.Context, run ledger.Run, w *Workload, d *Data) (ledger.State, string, error) {
	original := &unstructured.Unstructured{}
	if err := original.UnmarshalJSON(d.Recreated.Original); err != nil {
		return "", "", fmt.Errorf("the record's undo cannot be read: %w", err)
	}
	now, err := u.Cluster.resource(w).Get(ctx, d.Name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	switch {
	case err != nil && !gone:
		return "", "", fmt.Errorf("get %s: %w", d.Ref(), err)
	case gone && d.Recreated.UID != "" && !u.deletedByUs(ctx, run, d):
		return ledger.StateSuperseded, fmt.Sprintf("somebody deleted %s meanwhile: it was not created again", d.Ref()),
			nil
	case gone: // a client died between the two
		if _, err := u.Cluster.create(ctx, w, original); err != nil {
			return "", "", err
		}
		return ledger.StateReverted, d.Ref() + " was created again as it was", nil
	case !d.is(now):
		return "", "", fmt.Errorf("the record's undo is rejected: %s is a %s", d.Ref(), now.GroupVersionKind())
	case string(now.GetUID()) == d.UID && now.GetDeletionTimestamp() == nil:
		return ledger.StateReverted, d.Ref() + " had not been changed", nil
	}
	there := &Workload{Object: now, Resource: w.Resource}
	if string(now.GetUID()) == d.UID { // it is still going away
		if _, err := u.Cluster.replace(ctx, there, original, func(*Workload) error { return nil }); err != nil {
			return "", "", err
		}
		return ledger.StateReverted, d.Ref() + " was created again as it was", nil
	}
	there.Templates = Templates(now)
	switch {
	case there.Run() != run.ID:
		return ledger.StateSuperseded,
			fmt.Sprintf("%s is another one than was changed (UID %s), and was left alone", d.Ref(), now.GetUID()), nil
	case finished(now) != "":
		return ledger.StateSuperseded, finishedText(d, finished(now)), nil
	}
	r := d.removeEdits(now, run.ID)
	with := recreatable(&unstructured.Unstructured{Object: r.object})
	with.SetManagedFields(original.GetManagedFields())
	// It gets those of its template again
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
	return state, said + "; it was created again, and its work begins anew", nil
}

// errFinished says that an object's work ended before it was deleted.
var errFinished = errors.New("it has finished")

func finishedText(d *Data, how string) string {
	return fmt.Sprintf(
		"%s has finished (%s) with the fault in its template, and was left: created again it would do its work again",
		d.Ref(), how,
	)
}

// announcement is the annotation that the ConfigMap has while its owner is deleted to be created again. An undo that is
// repeated after its client died must tell that from a user's deletion.
const announcement = "gpufault.dev/restoring"

func (u Undoer) announce(ctx context.Context, run ledger.Run, d *Data) error {
	err := changeConfigMap(ctx, u.Cluster.Client, d.Namespace, run.ID, func(cm *corev1.ConfigMap) error {
		cm.OwnerReferences = nil // it must outlive its owner
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, announcement, d.Name)
		return nil
	})
	if apierrors.IsNotFound(err) { // somebody deleted it: then there is only less that is certain after a crash
		return nil
	}
	return err
}

func (u Undoer) deletedByUs(ctx context.Context, run ledger.Run, d *Data) bool {
	cm, err := u.Cluster.Client.CoreV1().ConfigMaps(d.Namespace).Get(ctx, d.ConfigMap, metav1.GetOptions{})
	return err == nil && isOfRun(cm, run.ID) && cm.Annotations[announcement] == d.Name
}
