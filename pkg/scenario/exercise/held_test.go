package exercise

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

// A Lease or an Event with a finalizer keeps its namespace from being deleted, although nobody compares such objects.
func TestObjectsThatComeAndGoAreHeld(t *testing.T) {
	t.Parallel()
	meta := func(namespace, name string, finalizers ...string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: finalizers}
	}
	lab := &Lab{Dynamic: fake.NewSimpleDynamicClient(scheme.Scheme,
		&coordinationv1.Lease{ObjectMeta: meta("team", "left", "example.com/hold")},
		&coordinationv1.Lease{ObjectMeta: meta("team", "leader")},
		&coordinationv1.Lease{ObjectMeta: meta("other", "left", "example.com/hold")},
		&corev1.Event{ObjectMeta: meta("team", "event", "example.com/hold")},
	)}
	found, err := lab.held(t.Context(), []string{"team"})
	if err != nil || len(found) != 2 ||
		found[0].String() != "Lease team/left: the finalizer example.com/hold prevents its deletion" ||
		found[1].Ref.Kind != "Event" {
		t.Fatalf("%v, %v", found, err)
	}
	// Without the patch, kubectl delete would wait forever.
	const lease = "Lease.v1.coordination.k8s.io left -n team"
	if got, want := byHand(found[0]), "kubectl patch "+lease+` --type=merge -p '{"metadata":{"finalizers":null}}' && `+
		"kubectl delete "+lease; got != want {
		t.Errorf("to remove it: %s, want %s", got, want)
	}
}
