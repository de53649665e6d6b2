package experiment

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
)

// BenchmarkTimeline passes 1,000 pods on a node, and their end, through the tracker of reactions to the timeline.
func BenchmarkTimeline(b *testing.B) {
	var pods []*corev1.Pod
	for i := range 1000 {
		name := fmt.Sprintf("train-%d", i)
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: "gpu-1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b.ReportAllocs()
	for b.Loop() {
		tracker := reaction.NewTracker([]string{"gpu-1"})
		o := NewObserver([]string{"gpu-1"})
		for _, pod := range pods {
			o.News(reaction.News{Reactions: tracker.Pod(pod, true, start)})
		}
		for i, pod := range pods {
			o.News(reaction.News{Reactions: tracker.PodGone(pod, start.Add(time.Duration(i)*time.Second))})
		}
		if len(o.entries) < 1000 {
			b.Fatalf("%d entries", len(o.entries))
		}
	}
}
