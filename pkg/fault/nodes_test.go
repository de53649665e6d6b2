package fault

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Thousands of nodes are read page by page, and what the preflight keeps of them is without the names of their images,
// or the client would need more memory than a CI job has.
func TestNodesAreReadInPagesAndKeptSmall(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options := action.(clienttesting.ListActionImpl).ListOptions
		if options.Limit == 0 {
			t.Error("a list without a limit")
		}
		page := &corev1.NodeList{}
		page.Items = []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu-" + options.Continue, Labels: map[string]string{"a": "b"}},
			Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"large"}}}},
		}}
		if options.Continue == "" {
			page.Continue = "2"
		}
		return true, page, nil
	})
	nodes, err := (&Session{Client: client}).nodes(context.Background())
	if err != nil || len(nodes) != 2 || nodes[0].Name != "gpu-" || nodes[1].Name != "gpu-2" {
		t.Fatalf("got %v, %v", nodes, err)
	}
	for _, node := range nodes {
		if len(node.Status.Images) > 0 || node.Labels["a"] != "b" {
			t.Errorf("kept %v", node)
		}
	}
}
