package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestQueueOfKAI protects that a pod that KAI Scheduler leaves out without a reason is explained by its queue, as far
// as the queues of the cluster show it.
func TestQueueOfKAI(t *testing.T) {
	t.Parallel()
	queue := func(name, parent string) unstructured.Unstructured {
		u := unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "spec": map[string]any{"parentQueue": parent},
		}}
		u.SetName(name)
		return u
	}
	inQueue := func(p *corev1.Pod) {
		p.Labels = map[string]string{"kai.scheduler/queue": "train"}
		p.Status.Conditions[0].Message = "Unable to schedule pod"
	}
	for want, queues := range map[string][]unstructured.Unstructured{
		"kai-queue-not-a-leaf":     nil, // the queues were not read
		"kai-queue-missing":        {queue("other", "root"), queue("root", "")},
		"kai-queue-is-a-parent":    {queue("train", "root"), queue("root", ""), queue("small", "train")},
		"kai-queue-without-parent": {queue("train", ""), queue("other", "root"), queue("root", "")},
	} {
		b := newBench().node("n", 8).pod("p", "", 1, inQueue)
		b.Queues = queues
		if _, all := b.tell(t); !signed(all, want) {
			t.Errorf("want %s: %+v", want, all)
		}
	}
	b := newBench().node("n", 8).pod("p", "", 1, inQueue)
	b.Queues = []unstructured.Unstructured{queue("train", "root"), queue("root", "")}
	_, all := b.tell(t)
	for _, id := range []string{"kai-queue-missing", "kai-queue-is-a-parent", "kai-queue-without-parent"} {
		if signed(all, id) {
			t.Errorf("a sound queue is the cause, by %s: %+v", id, all)
		}
	}
}
