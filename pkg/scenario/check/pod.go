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
	// deleteTimeout is how long a pod's deletion may take, of which its node has gentleFor.
	deleteTimeout = 20 * time.Second
	gentleFor     = 8 * time.Second
	// goneEvery is the pause between two looks whether it is gone.
	goneEvery = 150 * time.Millisecond
	// nameLength leaves place for the random part of a name.
	nameLength = 50
	// fieldManager is what kubectl's is, as candidates see it.
	fieldManager = "kubectl-create"
)

// ownPod is a pod that a check makes, and deletes.
type ownPod struct {
	*Checker
	namespace, name string
	uid             types.UID
	made            time.Time
}

func (c *Checker) pods(namespace string) dynamic.ResourceInterface {
	return c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(namespace)
}

// newPod gives a pod that is not made yet a name of its own.
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

// create makes the pod. It may have been made though there is an error, unless the API server itself refused.
func (p *ownPod) create(ctx context.Context, o *unstructured.Unstructured) error {
	p.made = time.Now()
	created, err := p.pods(p.namespace).Create(ctx, o,
		metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) { // an answer that was lost: nobody else has this name
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

// refused reports whether the API server itself said no, so that there is certainly no pod.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}

// settling reports whether a refusal comes from a namespace so new that it has no ServiceAccount yet.
func settling(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account")
}

// read gets the pod as it is now, as an object and as Go has it. errGone: somebody has deleted it.
func (p *ownPod) read(ctx context.Context) (map[string]any, *corev1.Pod, error) {
	o, err := p.pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err),
		err == nil && (p.uid != "" && o.GetUID() != p.uid || o.GetDeletionTimestamp() != nil):
		return nil, nil, fmt.Errorf("pod %s/%s: %w: somebody deleted it", p.namespace, p.name, errGone)
	case err != nil:
		return nil, nil, fmt.Errorf("get pod %s/%s: %w", p.namespace, p.name, err)
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, pod); err != nil {
		return nil, nil, fmt.Errorf("pod %s/%s: %w", p.namespace, p.name, err)
	}
	return o.Object, pod, nil
}

// remove deletes the pod and its events, and waits until it is gone, also when ctx has ended. A node that does not let
// it go is not waited for: the pod is then deleted without it.
func (p *ownPod) remove(ctx context.Context) error {
	if p == nil || p.made.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	if err := p.untilGone(ctx); err != nil {
		return fmt.Errorf("a pod is left: %w; delete it with: kubectl delete pod %s -n %s", err, p.name, p.namespace)
	}
	p.made = time.Time{}
	// Best effort: it needs a right that nothing else does, and all they tell is of a pod of ours.
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
		case apierrors.IsConflict(err): // the UID is another's
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

// lostFor is how long a creation whose answer was lost may still be on its way.
const lostFor = 2 * time.Second

var errStillThere = errors.New("its node has not let it go")
