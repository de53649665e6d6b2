package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
)

const (
	// deleteTimeout is the maximum time for deleting a pod. It includes gentleFor, the time after which the deletion is
	// forced.
	deleteTimeout = 20 * time.Second
	gentleFor     = 8 * time.Second
	// goneEvery is the interval at which the deletion is polled.
	goneEvery = 150 * time.Millisecond
	// nameLength leaves room for the random part of a name.
	nameLength = 50
	// fieldManager resembles kubectl's, because candidates see it.
	fieldManager = "kubectl-create"
)

// ownPod is a pod that a check creates and deletes.
type ownPod struct {
	*Checker
	namespace, name string
	uid             types.UID
	made            time.Time
}

func (c *Checker) pods(namespace string) dynamic.ResourceInterface {
	return c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(namespace)
}

// newPod returns a pod with a unique name, which has not been created yet.
func (c *Checker) newPod(object map[string]any) (*ownPod, *unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(object)}
	o.SetAPIVersion("v1")
	o.SetKind("Pod")
	if o.GetNamespace() == "" {
		return nil, nil, errNoNamespace
	}
	base := strings.TrimRight(cmp.Or(o.GetName(), o.GetGenerateName(), "check"), "-.")
	o.SetName(base[:min(len(base), nameLength)] + "-" + rand.String(8))
	o.SetGenerateName("")
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	o.SetLabels(labels)
	if err := c.harden(o.Object); err != nil {
		return nil, nil, err
	}
	return &ownPod{Checker: c, namespace: o.GetNamespace(), name: o.GetName()}, o, nil
}

// create creates the pod. If it returns an error, the pod may still exist, unless the API server rejected it.
func (p *ownPod) create(ctx context.Context, o *unstructured.Unstructured) error {
	p.made = time.Now()
	created, err := p.pods(p.namespace).Create(ctx, o,
		metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) { // a previous response was lost, because the name is unique
		created, err = p.pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	}
	if err != nil {
		if refused(err) {
			p.made = time.Time{}
		}
		return fmt.Errorf("create pod %s/%s: %w", p.namespace, p.name, err)
	}
	p.uid = created.GetUID()
	return nil
}

// refused reports whether the API server rejected the pod, so that it certainly does not exist.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}

// settling reports whether a pod was rejected because the ServiceAccount in its new namespace does not exist yet.
func settling(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account")
}

// read gets the current pod, as an unstructured object and as a Pod. It returns errGone if the pod was deleted.
func (p *ownPod) read(ctx context.Context) (map[string]any, *corev1.Pod, error) {
	o, err := p.pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err),
		err == nil && (p.uid != "" && o.GetUID() != p.uid || o.GetDeletionTimestamp() != nil):
		return nil, nil, fmt.Errorf("pod %s/%s: %w", p.namespace, p.name, errGone)
	case err != nil:
		return nil, nil, fmt.Errorf("get pod %s/%s: %w", p.namespace, p.name, err)
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, pod); err != nil {
		return nil, nil, fmt.Errorf("pod %s/%s: %w", p.namespace, p.name, err)
	}
	return o.Object, pod, nil
}

// remove deletes the pod and its events, and waits until the pod no longer exists, even if ctx is done. If the node
// does not respond, remove force-deletes the pod.
func (p *ownPod) remove(ctx context.Context) error {
	if p == nil || p.made.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	if err := p.untilGone(ctx); err != nil {
		return fmt.Errorf("a pod was not deleted: %w; to delete it, run: kubectl delete pod %s -n %s", err, p.name,
			p.namespace)
	}
	p.made = time.Time{}
	// Best effort: this requires an additional permission, and the events are only about our own pod.
	_ = p.Client.CoreV1().Events(p.namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + p.name})
	return nil
}

func (p *ownPod) untilGone(ctx context.Context) error {
	options := metav1.DeleteOptions{}
	if p.uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &p.uid}
	}
	began := time.Now()
	for forced := false; ; {
		if late := time.Since(began) > gentleFor; late && !forced {
			forced, options.GracePeriodSeconds = true, new(int64)
		}
		err := p.pods(p.namespace).Delete(ctx, p.name, options)
		switch {
		case apierrors.IsConflict(err): // the UID belongs to another pod
			return nil
		case apierrors.IsNotFound(err):
			if p.uid != "" || time.Since(p.made) > lostFor {
				return nil
			}
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsMethodNotSupported(err):
			return err
		case err == nil:
			err = errStillThere
		}
		if stopped := sleep(ctx, goneEvery); stopped != nil {
			return err
		}
	}
}

// lostFor is the time within which a create request may still take effect if its response was lost.
const lostFor = 2 * time.Second

var errStillThere = errors.New("the node has not terminated the pod")
