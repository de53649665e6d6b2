package doctor

import (
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Who lacks a right that the pods take is told so before any is announced, and which role gives it.
func TestRightsAreAskedForBeforePodsAreMade(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			return true, &authorizationv1.SelfSubjectAccessReview{}, nil // which does not allow it
		})
	p := &podReader{&kube.Cluster{Client: client}, ledger.New(client, "gpu-fault"), podflags.New()}
	err := p.Admitted(t.Context(), "gpu-1")
	if err == nil || !strings.Contains(err.Error(), "create,get pods/exec in namespace gpu-fault") ||
		!strings.Contains(err.Error(), "kubectl gpu-fault rbac print --for doctor") {
		t.Errorf("without any right: %v", err)
	}
	_, cluster, _, _, _ := fixing(t, "")
	p.cluster = cluster
	if err := p.Admitted(t.Context(), "gpu-1"); err != nil {
		t.Errorf("with all rights: %v", err)
	}
}

// An OOM kill in the pod that reads a node would be in its kernel log, and the next doctor would find it there.
func TestThePodThatReadsHasMemory(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	p := &podReader{&kube.Cluster{Client: client}, ledger.New(client, "gpu-fault"), podflags.New()}
	limit := debugpod.Pod(p.spec("doctor-x", "gpu-1")).Spec.Containers[0].Resources.Limits.Memory()
	if limit.Value() < 256<<20 {
		t.Errorf("nvidia-smi, journalctl and the helper share %s", limit)
	}
}

// When the pod does not start in time, what it waited for is the reason, and not only that time was up: the report
// quotes it.
func TestAPodThatDoesNotStartIsEvidence(t *testing.T) {
	t.Parallel()
	n := gpuNode("gpu-1", corev1.ConditionTrue)
	n.Status.NodeInfo.Architecture = "amd64"
	client := fake.NewClientset(&n)
	p := &podReader{&kube.Cluster{Client: client}, ledger.New(client, "gpu-fault"), podflags.New()}
	p.pods.Timeout = 50 * time.Millisecond
	_, err := p.Read(t.Context(), "gpu-1", func(string) {})
	if !strings.Contains(notStarted(err), "the kubelet has not processed the pod yet") {
		t.Errorf("a pod that never starts ends with %v", err)
	}
}
