package doctor

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkExamine examines a cluster with 200 GPU nodes, each with one running pod and one pod that is waiting for a
// GPU.
func BenchmarkExamine(b *testing.B) {
	cluster := newBench()
	for i := range 200 {
		node := fmt.Sprint("n", i)
		cluster.node(node, 8).pod(fmt.Sprint("h", i), node, 8).pod(fmt.Sprint("w", i), "", 8)
		cluster.Pods[len(cluster.Pods)-1].Status.Phase = corev1.PodPending
	}
	Examine(&cluster.Snapshot, Options{}) // reads the signatures, once
	b.ReportAllocs()
	for b.Loop() {
		if r := Examine(&cluster.Snapshot, Options{}); r.Summary.GPUNodes != 200 {
			b.Fatalf("%d GPU nodes", r.Summary.GPUNodes)
		}
	}
}
