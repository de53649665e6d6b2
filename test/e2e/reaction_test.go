//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// TestNewsIsFast holds that what happens to a node is on the timeline within 250 ms after the API server has it.
func TestNewsIsFast(t *testing.T) {
	c := cluster.Require(t)
	const annotation = "example.com/news"
	name := c.Workers()[0].Name
	news := make(chan string, 1000)
	_, err := reaction.Watch(t.Context(), reaction.Options{
		Client: c.Client, Targets: []string{name}, Each: func(n reaction.News) {
			if n.Node != nil {
				news <- n.Node.Annotations[annotation]
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, value string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, annotation, value)
		_, err := c.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { set(context.Background(), "null") })
	var took []time.Duration
	for i := range 20 {
		value := fmt.Sprint(i)
		set(t.Context(), fmt.Sprintf("%q", value))
		begin := time.Now()
		for seen := ""; seen != value; {
			select {
			case seen = <-news:
			case <-time.After(10 * time.Second):
				t.Fatalf("the news of change %d did not arrive", i)
			}
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("from the API server's answer to the news: median %s, longest %s", took[10], took[19])
	if limit := time.Duration(float64(250*time.Millisecond) * cluster.Slowness()); took[19] > limit {
		t.Errorf("the longest of 20 took %s, more than %s", took[19], limit)
	}
}
