package cudashim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

const (
	kindJob     = "Job"
	kindCronJob = "CronJob"
)

// finished returns the condition with which an object reports that its work is complete, or an empty string. Jobs and
// JobSets have such conditions.
func finished(object *unstructured.Unstructured) string {
	for _, e := range kubeedit.List(object.Object, kubeedit.Fields("status", "conditions")) {
		condition, _ := e.(map[string]any)
		kind, _ := condition["type"].(string)
		if condition["status"] == "True" &&
			slices.Contains([]string{"Complete", "Completed", "Failed", "SuccessCriteriaMet", "Succeeded"}, kind) {
			return kind
		}
	}
	return ""
}

// mayRecreate returns an error if recreating a workload would lose finished work.
func mayRecreate(w *Workload) error {
	if how := finished(w.Object); how != "" {
		return fmt.Errorf(
			"%s has finished (%s), so it can no longer fail: recreate it, and inject the fault into the new one",
			w.Ref(),
			how,
		)
	}
	if w.Object.GetKind() != kindJob {
		return nil
	}
	if indexes := kubeedit.Text(w.Object.Object, kubeedit.Fields("status", "completedIndexes")); indexes != "" {
		return fmt.Errorf("%s has completed indexes %s: if it is recreated, it repeats their work", w.Ref(),
			indexes)
	}
	if n, ok := kubeedit.Get(w.Object.Object, kubeedit.Fields("status", "succeeded")); ok && fmt.Sprint(n) != "0" {
		return fmt.Errorf("%s has completed pods (%v): if it is recreated, it repeats their work", w.Ref(), n)
	}
	return nil
}

// recreatable returns an object without the fields set by the API server and the Job controller, so that it can be
// created again.
func recreatable(object *unstructured.Unstructured) *unstructured.Unstructured {
	o := object.DeepCopy()
	delete(o.Object, "status")
	for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "selfLink",
		"deletionTimestamp",
		"deletionGracePeriodSeconds"} {
		unstructured.RemoveNestedField(o.Object, "metadata", name)
	}
	o.SetManagedFields(
		slices.DeleteFunc(o.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Subresource != "" }),
	)
	finalizers := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	o.SetFinalizers(finalizers)
	if o.GetKind() != kindJob {
		return o
	}
	if manual, _ := kubeedit.Get(o.Object, kubeedit.Fields("spec", "manualSelector")); manual != true {
		unstructured.RemoveNestedField(o.Object, "spec", "selector")
		// A Job without labels gets its template's labels, including the generated ones.
		if own := o.GetLabels(); len(own) > 0 && maps.Equal(own, templateLabels(o)) {
			unstructured.RemoveNestedField(o.Object, "metadata", "labels")
		}
		for _, label := range []string{
			"controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name",
		} {
			for _, labels := range []kubeedit.Path{
				kubeedit.Fields("metadata", "labels"), kubeedit.Fields("spec", "template", "metadata", "labels"),
			} {
				delete(kubeedit.Map(o.Object, labels), label)
			}
		}
		for _, labels := range []kubeedit.Path{
			kubeedit.Fields("metadata", "labels"), kubeedit.Fields("spec", "template", "metadata", "labels"),
		} {
			if l := kubeedit.Map(o.Object, labels); l != nil && len(l) == 0 {
				delete(kubeedit.Map(o.Object, labels[:len(labels)-1]), "labels")
			}
		}
	}
	return o
}

func templateLabels(job *unstructured.Unstructured) map[string]string {
	labels, _, _ := unstructured.NestedStringMap(job.Object, "spec", "template", "metadata", "labels")
	return labels
}

// deletionTimeout limits the time that pods may take to terminate, including their grace period.
const deletionTimeout = 3 * time.Minute

// replace deletes an object and its pods if allowed accepts it, waits for the deletion, and creates another object in
// its place.
func (c *Cluster) replace(
	ctx context.Context, w *Workload, with *unstructured.Unstructured, allowed func(*Workload) error,
) (*unstructured.Unstructured, error) {
	if err := c.deleteFully(ctx, w, allowed); err != nil {
		return nil, err
	}
	return c.create(ctx, w, with)
}

// deleteFully deletes an object only if it has not changed since allowed checked it, so that work that finishes in the
// meantime is not lost.
func (c *Cluster) deleteFully(ctx context.Context, w *Workload, allowed func(*Workload) error) error {
	foreground, uid := metav1.DeletePropagationForeground, w.Object.GetUID()
	err := retry(ctx, c.conflicts(), w.Ref(), func() error {
		now, err := c.resource(w).Get(ctx, w.Object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && now.GetUID() != uid:
			return nil
		case err != nil:
			return fmt.Errorf("get %s: %w", w.Ref(), err)
		case now.GetDeletionTimestamp() == nil && now.GetGeneration() != w.Object.GetGeneration():
			return fmt.Errorf("%s was not deleted, because another client has changed it: try again", w.Ref())
		}
		if err := allowed(&Workload{Object: now, Resource: w.Resource}); err != nil {
			return err
		}
		preconditions := &metav1.Preconditions{UID: &uid}
		if version := now.GetResourceVersion(); version != "" {
			preconditions.ResourceVersion = &version
		}
		err = c.resource(w).Delete(ctx, w.Object.GetName(),
			metav1.DeleteOptions{Preconditions: preconditions, PropagationPolicy: &foreground})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return explain(err, "delete "+w.Ref(), w.Object.GetNamespace())
	})
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, deletionTimeout, true,
		func(ctx context.Context) (bool, error) {
			var now *unstructured.Unstructured
			now, last = c.resource(w).Get(ctx, w.Object.GetName(), metav1.GetOptions{})
			return apierrors.IsNotFound(last) || last == nil && now.GetUID() != uid, nil
		})
	if err != nil {
		return fmt.Errorf("%s was not deleted within %s: check its pods and finalizers: %w",
			w.Ref(), deletionTimeout,
			errors.Join(err, last))
	}
	return nil
}

// create creates an object, and restores the owners of its fields from its metadata.
func (c *Cluster) create(
	ctx context.Context, w *Workload, object *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	owners := object.GetManagedFields()
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	created, err := c.resource(w).Create(ctx, object, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, explain(err, "recreate "+w.Ref(), w.Object.GetNamespace())
	}
	if len(owners) == 0 {
		return created, nil
	}
	return created,
		c.own(ctx, w, created.GetUID(), func(now []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, bool) {
			others := slices.DeleteFunc(slices.Clone(now), isOurs)
			return append(slices.Clone(owners),
					slices.DeleteFunc(others,
						func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "" })...),
				true
		})
}

// own changes only the managed fields of an object.
func (c *Cluster) own(
	ctx context.Context, w *Workload, uid types.UID,
	change func([]metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, bool),
) error {
	return retry(ctx, c.conflicts(), w.Ref(), func() error {
		now, err := c.resource(w).Get(ctx, w.Object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.GetUID() != uid {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get %s: %w", w.Ref(), err)
		}
		fields, changed := change(now.GetManagedFields())
		if !changed {
			return nil
		}
		return c.writeFields(ctx, w, now, kubeedit.EntriesForRequest(fields))
	})
}
