package faults

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// TestReadingNodesIsAnnounced: --node and --nodes print image, namespace and nodes before a pod is started, and neither
// asks: what only reads needs no --yes in a script.
func TestReadingNodesIsAnnounced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flags leftoversFlags
		want  string
	}{
		"--node":  {leftoversFlags{nodes: []string{"cpu-1"}}, "reading 1 node (cpu-1)"},
		"--nodes": {leftoversFlags{allNodes: true}, "reading 2 nodes (gpu-1, gpu-2)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			for _, node := range []string{"gpu-1", "gpu-2", "cpu-1"} {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
				if strings.HasPrefix(node, "gpu") {
					n.Labels = map[string]string{"nvidia.com/gpu.present": "true"}
				}
				if err := client.Tracker().Add(n); err != nil {
					t.Fatal(err)
				}
			}
			test.flags.pods = podflags.New()
			test.flags.pods.Image = "registry.example/debug:1"
			streams, _, _, stderr := genericiooptions.NewTestIOStreams()
			pods := &nodePods{
				leftoversFlags: &test.flags, cluster: &kube.Cluster{Client: client}, ledgerNamespace: "ledger",
				streams: streams,
			}
			if err := pods.choose(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				test.want, "image registry.example/debug:1", "namespace ledger", "privileged",
			} {
				if !bytes.Contains(stderr.Bytes(), []byte(want)) {
					t.Errorf("%q is missing:\n%s", want, stderr)
				}
			}
		})
	}
}
