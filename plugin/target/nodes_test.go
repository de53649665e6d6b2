package target

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestExactlyOneWayToPickNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		nodes Nodes
		ok    bool
	}{
		{Nodes{}, false},
		{Nodes{Names: []string{"a"}}, true},
		{Nodes{Names: []string{""}}, false},            // an unset variable
		{Nodes{Names: []string{"a", "client"}}, false}, // --dry-run client
		{Nodes{Selector: "x=y"}, true},
		{Nodes{Pod: "p"}, true},
		{Nodes{Names: []string{"a"}, Selector: "x=y"}, false},
		{Nodes{Names: []string{"a"}, Pod: "p"}, false},
	} {
		if err := test.nodes.Validate(); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test.nodes, err)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"gpu": "yes"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"gpu": "yes"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "runs", Namespace: "n"}, Spec: corev1.PodSpec{NodeName: "c"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "waits", Namespace: "n"},
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		},
	)
	for name, test := range map[string]struct {
		nodes   Nodes
		want    []string
		failure string
	}{
		"names are sorted, each once":  {Nodes{Names: []string{"b", "node/a", "b"}}, []string{"a", "b"}, ""},
		"selector":                     {Nodes{Selector: "gpu=yes"}, []string{"a", "b"}, ""},
		"selector that matches nobody": {Nodes{Selector: "gpu=no"}, nil, "no node matches the selector"},
		"a pod's node":                 {Nodes{Pod: "pod/runs"}, []string{"c"}, ""},
		"a pod that waits":             {Nodes{Pod: "waits"}, nil, "not been scheduled to a node yet"},
		"a pod that is not there":      {Nodes{Pod: "nobody"}, nil, "specify its namespace with -n"},
		"no such pod in that of -n":    {Nodes{Pod: "nobody", NamespaceGiven: true}, nil, "see kubectl get pods -n n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _, err := test.nodes.Resolve(t.Context(), client, "n")
			if test.failure != "" {
				if err == nil || !strings.Contains(err.Error(), test.failure) {
					t.Fatalf("error %v, wanted %q", err, test.failure)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
