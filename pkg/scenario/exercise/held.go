package exercise

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// passing are the kinds that baselines leave out, because controllers create and delete objects of these kinds all the
// time. If such an object has a finalizer, it prevents the deletion of its namespace.
var passing = []schema.GroupVersionResource{
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Version: "v1", Resource: "events"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
}

// held returns the objects of these kinds in the namespaces, if they have a finalizer that no controller removes.
func (l *Lab) held(ctx context.Context, namespaces []string) (all []baseline.Difference, _ error) {
	if l.fake.capture != nil {
		return nil, nil
	}
	for _, namespace := range namespaces {
		for _, resource := range passing {
			list, err := l.Dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list %s in namespace %s: %w", resource.Resource, namespace, err)
			}
			for i := range list.Items {
				object := &list.Items[i]
				held := baseline.HeldBy(object.GroupVersionKind().GroupKind(), object.GetFinalizers())
				if len(held) > 0 {
					all = append(all, baseline.Difference{
						Ref: refOf(object), Kind: baseline.Created,
						Note: baseline.HeldNote(held[0]),
					})
				}
			}
		}
	}
	return all, nil
}
