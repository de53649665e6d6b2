package doctor

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Who lacks a right that the pods take is told so before any is announced, and which role gives it.
func TestRightsAreAskedForBeforePodsAreMade(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{}, nil // which does not allow it
	})
	p := &podReader{&kube.Cluster{Client: client}, ledger.New(client, "gpu-fault"), podflags.New()}
	err := p.Admitted(t.Context(), "gpu-1")
	if err == nil || !strings.Contains(err.Error(), "you may not") || !strings.Contains(err.Error(), "kubectl gpu-fault rbac doctor") {
		t.Errorf("without any right: %v", err)
	}
	_, cluster, _, _, _ := fixing(t, "")
	p.cluster = cluster
	if err := p.Admitted(t.Context(), "gpu-1"); err != nil {
		t.Errorf("with all rights: %v", err)
	}
}
