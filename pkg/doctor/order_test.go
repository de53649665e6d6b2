package doctor

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestReportsOfTheSameSnapshotAreTheSame verifies that the same snapshot produces the same report, byte for byte,
// although Go randomizes the order of map keys: quotas, demands and claims with several resources.
func TestReportsOfTheSameSnapshotAreTheSame(t *testing.T) {
	t.Parallel()
	name := "gpu-1"
	many := corev1.ResourceList{}
	for _, mig := range []string{"gpu", "mig-1g.10gb", "mig-2g.20gb", "mig-3g.40gb", "mig-7g.80gb"} {
		many[corev1.ResourceName("nvidia.com/"+mig)] = resource.MustParse("4")
	}
	few := corev1.ResourceList{}
	for resourceName := range many {
		few[resourceName] = resource.MustParse("1")
	}
	s := &snapshot.Snapshot{
		Meta: snapshot.Meta{Created: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)},
		Nodes: []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.present": "true"}},
			Status: corev1.NodeStatus{
				Capacity: many, Allocatable: few,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "big"},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: many}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
			}}},
		}},
		ResourceQuotas: []corev1.ResourceQuota{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: many}},
		},
	}
	claim := resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"},
		Status:     resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}},
	}
	for i := range 5 {
		pool := fmt.Sprintf("pool-%d", i)
		s.ResourceSlices = append(s.ResourceSlices, resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: resourcev1.ResourceSliceSpec{
				NodeName: &name, Driver: "gpu.nvidia.com", Pool: resourcev1.ResourcePool{Name: pool},
				Devices: []resourcev1.Device{{Name: "gpu-0"}},
			},
		})
		for range i + 1 {
			claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
				resourcev1.DeviceRequestAllocationResult{Driver: "gpu.nvidia.com", Pool: pool, Device: "gpu-0"})
		}
	}
	s.ResourceClaims = []resourcev1.ResourceClaim{claim}
	first := ""
	for range 12 {
		report, err := json.Marshal(Examine(s, Options{}))
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(report)
		}
		if string(report) != first {
			t.Fatalf("two reports of one snapshot differ:\n%s\n%s", first, report)
		}
	}
}
