package doctor

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestEventsOfPodAreNoHistory verifies that a pod's current state takes precedence over events about a step that it has
// since completed, or about an earlier pod with the same name.
func TestEventsOfPodAreNoHistory(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	event := func(reason string, uid types.UID, at time.Duration) corev1.Event {
		return corev1.Event{
			Reason: reason, LastTimestamp: metav1.NewTime(noon.Add(at)),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ml", Name: "train-0", UID: uid},
		}
	}
	is := func(condition corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: condition, Status: status, LastTransitionTime: metav1.NewTime(noon)}
	}
	s := &snapshot.Snapshot{Events: []corev1.Event{
		event("FailedScheduling", "new", -time.Minute), event("FailedMount", "new", -time.Second),
		event("FailedMount", "new", time.Second),
		event("FailedCreatePodSandBox", "", 0), event("Unhealthy", "new", -time.Hour),
		event("Killing", "old", time.Minute),
	}}
	for name, test := range map[string]struct {
		conditions []corev1.PodCondition
		mirror     bool
		want       []string
	}{
		"it waits for a node": {[]corev1.PodCondition{is(corev1.PodScheduled, corev1.ConditionFalse)}, false,
			[]string{"FailedCreatePodSandBox", "FailedMount", "FailedMount", "FailedScheduling", "Unhealthy"}},
		"it has a node": {[]corev1.PodCondition{is(corev1.PodScheduled, corev1.ConditionTrue)}, false,
			[]string{"FailedCreatePodSandBox", "FailedMount", "FailedMount", "Unhealthy"}},
		"it has a sandbox": {[]corev1.PodCondition{
			is(corev1.PodScheduled, corev1.ConditionTrue), is(corev1.PodReadyToStartContainers, corev1.ConditionTrue),
		}, false,
			[]string{"FailedMount", "Unhealthy"}},
		"a static pod, whose events have the kubelet's UID": {nil, true,
			[]string{
				"FailedCreatePodSandBox", "FailedMount", "FailedMount", "FailedScheduling", "Killing", "Unhealthy",
			}},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train-0", UID: "new"},
			Status:     corev1.PodStatus{Conditions: test.conditions},
		}
		if test.mirror {
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}
		var got []string
		for _, e := range facts.New(s).EventsOfPod(pod) {
			got = append(got, e.Reason)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
