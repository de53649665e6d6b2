package reaction

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// TestPodStateLosesNothing holds that what is dropped from pods to save memory changes no reaction. The wanted
// reactions to the same random lives of pods were those of a tracker that kept whole pods; their hash includes all
// their fields.
func TestPodStateLosesNothing(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	got, hash := map[Name]int{}, fnv.New64a()
	for range 2000 {
		tracker := NewTracker([]string{"a"})
		if r.IntN(2) == 0 {
			selector := labels.SelectorFromSet(labels.Set{"app": "x"})
			tracker.Workload = func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{Unschedulable: r.IntN(2) == 0},
		}
		for step := range 12 {
			at := time.Unix(int64(1000+step), 0).UTC()
			pod := aPod(r, at)
			var found []Reaction
			switch {
			case step == 0:
				tracker.Node(node, at)
			case r.IntN(5) == 0:
				found = tracker.PodGone(pod, at)
			default:
				found = tracker.Pod(pod, step < 4, at)
			}
			for _, one := range found {
				got[one.Name]++
				fmt.Fprintf(hash, "%+v\n", one)
			}
		}
	}
	want := map[Name]int{
		DeviceUnhealthy: 2750, Drained: 43, Evicted: 1330, PodFailed: 5270, PodGone: 1099, Rescheduled: 9, Served: 1044,
	}
	if !maps.Equal(got, want) || hash.Sum64() != 2348616050357074647 {
		t.Errorf("got %v with hash %d, wanted %v with hash 2348616050357074647", got, hash.Sum64(), want)
	}
}

// TestOnlyReactionsLosesNothing holds that what is dropped from nodes changes no reaction: two trackers see the same
// random lives of a node, one of them after slim.
func TestOnlyReactionsLosesNothing(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	found := 0
	for range 500 {
		whole, slimmed := NewTracker([]string{"a"}), NewTracker([]string{"a"})
		w := &watcher{Options: Options{OnlyReactions: true}, tracker: slimmed}
		for step := range 12 {
			at := time.Unix(int64(1000+step), 0)
			node := aNode(r, at)
			small, err := w.slim(node.DeepCopy())
			if err == nil {
				small, err = w.slim(small)
			}
			if err != nil {
				t.Fatal(err)
			}
			want, got := whole.Node(node, at), slimmed.Node(small.(*corev1.Node), at)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("node %+v:\n%+v, wanted\n%+v", node, got, want)
			}
			found += len(want)
		}
	}
	if found < 5000 {
		t.Errorf("only %d reactions: the lives of these nodes prove little", found)
	}
}

// aNode returns a node in a random state, written by random managers.
func aNode(r *rand.Rand, at time.Time) *corev1.Node {
	one := func(all ...string) string { return all[r.IntN(len(all))] }
	half := func() bool { return r.IntN(2) == 0 }
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", UID: types.UID(one("1", "1", "1", "2")), Labels: map[string]string{"zone": "x"},
			Annotations: map[string]string{"other": "y"},
		},
		Spec: corev1.NodeSpec{Unschedulable: half()},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: one("", "1", "2"), KernelVersion: "6"},
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("8"), "nvidia.com/gpu": resource.MustParse("8")},
			Allocatable: corev1.ResourceList{
				"cpu": resource.MustParse(one("7", "8")), "nvidia.com/gpu": resource.MustParse(one("7", "8")),
			},
			Images: []corev1.ContainerImage{{Names: []string{"i"}}},
		},
	}
	if half() {
		node.Labels[stateLabel] = one("quarantined", "drain-succeeded", "remediating")
	}
	if half() {
		node.Annotations[decisionOnNode] = "x"
	}
	if half() {
		node.Spec.Taints = []corev1.Taint{{Key: one("gpu", "node.kubernetes.io/x"), Effect: "NoSchedule"}}
	}
	for _, c := range []string{"Ready", "MemoryPressure", "XID"} {
		if half() {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeConditionType(c), Status: corev1.ConditionStatus(one("True", "False")),
				Message: one("", "m", "n"), Reason: "r",
			})
		}
	}
	for _, fields := range []string{
		`{"f:spec":{"f:unschedulable":{}}}`, `{"f:spec":{"f:taints":{}}}`,
		`{"f:metadata":{"f:labels":{"f:` + stateLabel + `":{}},"f:annotations":{"f:` + decisionOnNode + `":{}}}}`,
		`{"f:status":{"f:conditions":{"k:{\"type\":\"XID\"}":{"f:status":{}}}}}`,
	} {
		entry := metav1.ManagedFieldsEntry{
			Manager:   one("kubectl-cordon", "fault-quarantine", "kubelet"),
			Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(fields),
			Time: &metav1.Time{Time: at.Add(-time.Duration(r.IntN(2)) * time.Second)},
		}
		if strings.HasPrefix(fields, `{"f:status`) {
			entry.Subresource = "status"
		}
		if half() {
			node.ManagedFields = append(node.ManagedFields, entry)
		}
	}
	return node
}

// aPod returns one of four pods in a random state.
func aPod(r *rand.Rand, at time.Time) *corev1.Pod {
	one := func(all ...string) string { return all[r.IntN(len(all))] }
	half := func() bool { return r.IntN(2) == 0 }
	isController := true
	name := one("p", "q", "r", "s")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: one("ml", "kube-system"), UID: types.UID(name), Generation: 3,
			Labels: map[string]string{"app": one("x", "y"), managedBy: one("", "kubectl-gpu-fault", "helm")},
		},
		Spec:   corev1.PodSpec{NodeName: one("a", "b", ""), Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPhase(one("Running", "Running", "Succeeded", "Failed", "Pending"))},
	}
	if half() {
		pod.OwnerReferences = []metav1.OwnerReference{
			{Kind: "Other", UID: "o"},
			{Kind: one("Job", "DaemonSet"), UID: types.UID(one("1", "2")), Controller: &isController},
		}
	}
	if r.IntN(6) == 0 {
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x", "other": "y"}
	}
	if r.IntN(3) == 0 {
		grace := int64(r.IntN(3))
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: at}, &grace
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady, corev1.DisruptionTarget} {
		if half() {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
				Type: c, Status: corev1.ConditionStatus(one("True", "False")), Message: "m",
				Reason: one("DeletionByTaintManager", "EvictionByEvictionAPI"),
			})
		}
	}
	ended := func() *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{
			ExitCode: []int32{0, 1, 137, 143}[r.IntN(4)], Reason: one("Error", "OOMKilled"),
			FinishedAt: metav1.NewTime(at.Add(-time.Duration(r.IntN(3)) * time.Second)),
		}
	}
	for _, statuses := range []*[]corev1.ContainerStatus{
		&pod.Status.InitContainerStatuses, &pod.Status.ContainerStatuses,
	} {
		s := corev1.ContainerStatus{Name: "c", RestartCount: int32(r.IntN(3)), Ready: half(), Image: "i"}
		if statuses == &pod.Status.InitContainerStatuses {
			s.Name = "init"
		}
		switch r.IntN(3) {
		case 0:
			s.State.Terminated = ended()
		case 1:
			s.State.Running = &corev1.ContainerStateRunning{}
		default:
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		}
		if s.RestartCount > 0 {
			s.LastTerminationState.Terminated = ended()
		}
		if half() {
			health := corev1.ResourceHealthStatus(one("Healthy", "Unhealthy"))
			s.AllocatedResourcesStatus = []corev1.ResourceStatus{
				{Name: "nvidia.com/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "GPU-1", Health: health}}},
			}
		}
		*statuses = append(*statuses, s)
	}
	return pod
}
