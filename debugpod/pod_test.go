package debugpod

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func TestPod(t *testing.T) {
	for name, spec := range map[string]Spec{
		"default": {Run: "xid-abc123", Node: "gpu-1", Namespace: "gpu-fault", Arch: "amd64"},
		"full": {
			Run: "xid-abc123", Node: "ip-10-0-0-1.eu-central-1.compute.internal", Namespace: "other", Arch: "arm64",
			Image: "registry.example.com/gpu-fault-node:v1", PullPolicy: corev1.PullAlways,
			PullSecrets: []string{"mine"}, Deadline: 90*time.Second + 400*time.Millisecond,
			HasHelper: true,
			Owner: &metav1.OwnerReference{
				APIVersion: "v1", Kind: "ConfigMap", Name: "gpu-fault-run-xid-abc123", UID: "0123",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(Pod(spec))
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "pod-"+name+".yaml", string(got))
		})
	}
}

func TestPodName(t *testing.T) {
	long := PodName("xid-abc123", strings.Repeat("node.", 50))
	if len(long) > 63 || long == PodName("xid-abc123", "node") || long != strings.ToLower(long) {
		t.Errorf("%q", long)
	}
}
