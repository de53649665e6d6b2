package reaction

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// TestSlimLosesNothing protects that what is dropped from pods to save memory changes no reaction: two trackers see the
// same random lives of pods, one of them after slim.
func TestSlimLosesNothing(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 2000 {
		whole, slimmed := NewTracker([]string{"a"}), NewTracker([]string{"a"})
		w := &watcher{}
		if r.IntN(2) == 0 {
			w.Selector = labels.SelectorFromSet(labels.Set{"app": "x"})
			matches := func(pod *corev1.Pod) bool { return w.Selector.Matches(labels.Set(pod.Labels)) }
			whole.Workload, slimmed.Workload = matches, matches
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{Unschedulable: r.IntN(2) == 0},
		}
		for step := range 12 {
			at := time.Unix(int64(1000+step), 0)
			pod := aPod(r, at)
			small, err := w.slim(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			var want, got []Reaction
			switch {
			case step == 0:
				whole.Node(node, at)
				slimmed.Node(node, at)
			case r.IntN(5) == 0:
				want, got = whole.PodGone(pod, at), slimmed.PodGone(small.(*corev1.Pod), at)
			default:
				want, got = whole.Pod(pod, step < 4, at), slimmed.Pod(small.(*corev1.Pod), step < 4, at)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("pod %+v:\n%+v, wanted\n%+v", pod, got, want)
			}
			found += len(want)
		}
	}
	if found < 2000 {
		t.Errorf("only %d reactions: the lives of these pods prove little", found)
	}
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
