package experiment

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
)

// podsOfNode returns a client with pods of each kind that a drain treats differently.
func podsOfNode() *fake.Clientset {
	pod := func(name, namespace, owner string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.PodSpec{NodeName: "a"},
		}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "x", Controller: new(true)}}
		}
		return p
	}
	ended := pod("ended", "team", "Job")
	ended.Status.Phase = corev1.PodSucceeded
	return fake.NewClientset(pod("served", "team", "ReplicaSet"), pod("protected", "team", "ReplicaSet"),
		pod("daemon", "team", "DaemonSet"), pod("dns", "kube-system", "ReplicaSet"), pod("lone", "team", ""), ended)
}

// A drain evicts what a controller creates again, waits for disruption budgets, and leaves everything else alone.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := podsOfNode()
		var evicted []string
		refusals := 2
		client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != "eviction" {
				return false, nil, nil
			}
			e := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
			if e.Name == "protected" && refusals > 0 {
				refusals--
				return true, nil, apierrors.NewTooManyRequests("a disruption budget protects it", 1)
			}
			evicted = append(evicted, e.Name)
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			return true, nil, client.Tracker().Delete(pods, e.Namespace, e.Name)
		})
		n := &NodeRemediator{Session: &fault.Session{Client: client}}
		stay, err := n.Drain(t.Context(), "a")
		if err != nil || !slices.Equal(stay, []string{"team/lone"}) ||
			!slices.Equal(evicted, []string{"served", "protected"}) {
			t.Errorf("%v, evicted %q, %q stay", err, evicted, stay)
		}
	})
}

// A drain that a disruption budget never allows ends with the experiment, and with its reason.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	client := podsOfNode()
	ctx, stop := context.WithCancelCause(t.Context())
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		stop(errors.New("the experiment is over"))
		return true, nil, apierrors.NewTooManyRequests("a disruption budget protects it", 1)
	})
	n := &NodeRemediator{Session: &fault.Session{Client: client}}
	if _, err := n.Drain(ctx, "a"); err == nil || err.Error() != "the experiment is over" {
		t.Errorf("%v", err)
	}
}
