package reaction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

// TestPastOfManyNodes holds that the past of many nodes takes a few requests, not some for each node, that reactions
// are in the order of their times, and that what happened to other nodes or before the fault is omitted.
func TestPastOfManyNodes(t *testing.T) {
	t.Parallel()
	const many = 200
	var objects []runtime.Object
	var names []string
	for i := range many + 1 {
		name := fmt.Sprintf("gpu-%03d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		changed := start.Add(time.Duration(many-i) * time.Second)
		if i == 0 {
			changed = start.Add(-time.Hour)
		}
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: "GPUXid", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(changed), Reason: "XID79",
		}}
		objects = append(objects, node)
		if i < many {
			names = append(names, name)
		}
	}
	client := fake.NewClientset(objects...)
	found, err := Past(t.Context(), client, names, start)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != many-1 || found[0].Node != "gpu-199" || found[len(found)-1].Node != "gpu-001" {
		t.Errorf("found %d reactions: %+v", len(found), found)
	}
	if requests := len(client.Actions()); requests > 10 {
		t.Errorf("made %d requests for %d nodes", requests, many)
	}
	if _, err := Past(t.Context(), client, []string{"gpu-001", "gone"}, start); err == nil ||
		!strings.Contains(err.Error(), "node gone does not exist") {
		t.Errorf("%v", err)
	}
}
