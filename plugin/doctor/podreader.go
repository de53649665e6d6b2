package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// podReader reads nodes by debug pods.
type podReader struct {
	cluster *kube.Cluster
	store   *ledger.Store
	pods    podflags.Flags
}

func newPodReader(cluster *kube.Cluster, connection *kube.Connection, pods podflags.Flags) *podReader {
	return &podReader{cluster, ledger.New(cluster.Client, connection.LedgerNamespace), pods}
}

// Admitted implements reader.
func (p *podReader) Admitted(ctx context.Context, nodeName string) error {
	for _, need := range podPermissions(p.store.Namespace) {
		if need.Optional || need.Verb == "create" && need.Resource == "namespaces" { // which may be there already
			continue
		}
		resource, sub, _ := strings.Cut(need.Resource, "/")
		review, err := p.cluster.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: need.Verb, Group: need.Group, Resource: resource, Subresource: sub, Namespace: need.Namespace,
			}},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed { // who cannot ask tries
			return fmt.Errorf("you may not %s %s (kubectl gpu-fault rbac doctor prints the roles)", need.Verb, need.Resource)
		}
	}
	return p.pods.Try(ctx, p.cluster, p.pods.Spec("preflight", nodeName, p.store.Namespace))
}

// Prepare implements reader.
func (p *podReader) Prepare(ctx context.Context) (bool, error) { return p.store.EnsureNamespace(ctx) }

// Read implements reader.
func (p *podReader) Read(ctx context.Context, nodeName string, progress func(string)) (found *node.Diagnosis, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, p.pods.Timeout, fmt.Errorf("not done within %s: raise --timeout", p.pods.Timeout))
	defer cancel()
	id, err := p.store.NewID("doctor")
	if err != nil {
		return nil, err
	}
	session, err := p.pods.Start(limited, p.cluster, p.pods.Spec(id, nodeName, p.store.Namespace), progress)
	if err != nil {
		return nil, errors.Join(err, context.Cause(limited))
	}
	defer func() {
		// A pod that could not be deleted ends at its deadline; what was read stands.
		if closing := session.Close(ctx); closing != nil {
			progress("the debug pod was not deleted: " + reason(closing))
		} else if err == nil {
			progress("read; debug pod deleted")
		}
	}()
	progress("reading kubelet, runtime, driver and kernel log")
	found, err = session.Diagnose(limited, node.Diagnose{})
	if limited.Err() != nil { // what was still found is not the truth about the node
		return nil, context.Cause(limited)
	}
	return found, err
}
