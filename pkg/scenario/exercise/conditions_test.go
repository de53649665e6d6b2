package exercise

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A condition that a detector keeps after the exercise is found; those that nodes had before, and healthy ones, are
// not.
func TestConditions(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			{Type: "GPUXid", Status: corev1.ConditionFalse},
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasDiskPressure"},
		},
	}}
	client := fake.NewClientset(node)
	lab := &Lab{Client: client}
	before, err := lab.conditions(t.Context())
	if err != nil || len(before) != 1 || before[0].Type != "DiskPressure" {
		t.Fatalf("%+v, %v", before, err)
	}
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	node.Status.Conditions[1] = corev1.NodeCondition{Type: "GPUXid", Status: corev1.ConditionTrue, Reason: "XID79"}
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	now, err := lab.conditions(t.Context())
	left := newConditions(before, now)
	if err != nil || len(left) != 2 || left[0].Type != "Ready" ||
		left[1].String() != "condition GPUXid on node gpu-1 is True (XID79)" {
		t.Errorf("%+v, %v", left, err)
	}
}
