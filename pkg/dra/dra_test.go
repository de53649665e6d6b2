package dra

import (
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

const driver = "gpu.example.com"

func slice(name, node, of string, generation int64, devices ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: of, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: generation},
		},
	}
	for _, d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: d})
	}
	return s
}

func claim(name, device string, annotations map[string]string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", Annotations: annotations},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Driver: driver, Pool: "node-b", Device: device},
			}},
		}},
	}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: "uid-" + "1"})
	}
	return c
}

// Only the newest generation of a pool counts: a driver that publishes its devices again deletes the old slices later.
func TestDevicesOn(t *testing.T) {
	t.Parallel()
	// The fake client ignores field selectors, so all slices are of one node.
	client := fake.NewClientset(
		slice("old", "node-b", driver, 1, "gpu-0", "gpu-9"), slice("new", "node-b", driver, 2, "gpu-1", "gpu-0"),
		slice("other", "node-b", "net.example.com", 1, "nic-0"),
		claim("held", "gpu-0", nil, "trainer"),
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: "team"}},
	)
	devices, err := DevicesOn(t.Context(), client, "node-b")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range devices {
		got = append(got, fmt.Sprintf("%s/%s/%s%v", d.Driver, d.Pool, d.Name, d.Pods))
	}
	want := "gpu.example.com/node-b/gpu-0[team/trainer] gpu.example.com/node-b/gpu-1[] net.example.com/node-b/nic-0[]"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// A driver may name a GPU by its minor number: the UUID identifies it.
func TestString(t *testing.T) {
	t.Parallel()
	s := slice("s", "node-b", driver, 1, "gpu-0", "gpu-1")
	uuid := "GPU-85509d0a"
	s.Spec.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &uuid}}
	devices, err := PublishedOn(t.Context(), fake.NewClientset(s), "node-b")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(devices[0], ", ", devices[1]); got !=
		"gpu.example.com/node-b/gpu-0 (GPU-85509d0a), gpu.example.com/node-b/gpu-1" {
		t.Error(got)
	}
}

// A user is told which pods will be deleted: not those that tolerate the taint, nor those that Kubernetes does not
// evict.
func TestEvicted(t *testing.T) {
	t.Parallel()
	const exists = resourcev1.DeviceTolerationOpExists
	equal := resourcev1.DeviceToleration{
		Operator: resourcev1.DeviceTolerationOpEqual,
		Key:      "a",
		Value:    "1",
		Effect:   resourcev1.DeviceTaintEffectNoExecute,
	}
	tolerates := func(t resourcev1.DeviceToleration) Pod {
		return Pod{Tolerations: []resourcev1.DeviceToleration{t}}
	}
	const noExecute, noSchedule = resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule
	for name, test := range map[string]struct {
		pod     Pod
		effect  resourcev1.DeviceTaintEffect
		evicted bool
	}{
		"a pod":             {Pod{}, noExecute, true},
		"NoSchedule":        {Pod{}, noSchedule, false},
		"extended resource": {Pod{Extended: true}, noExecute, false},
		"tolerates all":     {tolerates(resourcev1.DeviceToleration{Operator: exists}), noExecute, false},
		"tolerates this":    {tolerates(equal), noExecute, false},
		"tolerates another": {tolerates(resourcev1.DeviceToleration{Operator: exists, Key: "b"}), noExecute, true},
		"tolerates NoSchedule": {
			tolerates(resourcev1.DeviceToleration{Operator: exists, Effect: noSchedule}), noExecute, true,
		},
	} {
		// It holds two of the devices
		r := Rules{
			Devices: []Device{{Name: "gpu-0", Pods: []Pod{test.pod}}, {Name: "gpu-1", Pods: []Pod{test.pod}}},
			Taint:   resourcev1.DeviceTaint{Key: "a", Value: "1", Effect: test.effect},
		}
		if got := len(r.Evicted()); got != map[bool]int{true: 1}[test.evicted] {
			t.Errorf("%s: %d pods are evicted", name, got)
		}
	}
}

// Devices of two pools may have the same name; each rule selects one device.
func TestManifests(t *testing.T) {
	t.Parallel()
	r := Rules{
		Version: "v1", Taint: resourcev1.DeviceTaint{Key: "a", Effect: resourcev1.DeviceTaintEffectNoSchedule},
		Devices: []Device{
			{Driver: driver, Pool: "pool-a", Name: "gpu-0"}, {Driver: driver, Pool: "pool-b", Name: "gpu-0"},
		},
	}
	all := r.Manifests(strings.Repeat("n", 200))
	if len(all) != 2 || all[0].GetName() == all[1].GetName() || len(all[0].GetName()) > 200 {
		t.Fatalf("%v", all)
	}
	var rule resourcev1.DeviceTaintRule
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(
		all[1].Object,
		&rule,
		true,
	); err != nil {
		t.Fatal(err)
	}
	s := rule.Spec.DeviceSelector
	if *s.Driver != driver || *s.Pool != "pool-b" || *s.Device != "gpu-0" || rule.Spec.Taint != r.Taint {
		t.Errorf("%+v", rule.Spec)
	}
}

// A report about an earlier generation of a rule proves nothing.
func TestReport(t *testing.T) {
	t.Parallel()
	rule := func(generation int64, kind string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
			"not an object",
			map[string]any{
				"type":               kind,
				"status":             "False",
				"reason":             "OtherEffect",
				"message":            "Eviction only happens for NoExecute.",
				"observedGeneration": int64(2),
			},
		}}}}
		u.SetGeneration(generation)
		return u
	}
	const condition = resourcev1.DeviceTaintConditionEvictionInProgress
	if got := report(
		rule(2, condition),
	); got != "EvictionInProgress=False (OtherEffect): Eviction only happens for NoExecute." {
		t.Errorf("got %q", got)
	}
	for _, other := range []*unstructured.Unstructured{rule(3, condition), rule(2, "Other"), {}} {
		if got := report(other); got != "" {
			t.Errorf("got %q of %v", got, other)
		}
	}
}
