package doctor

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestNoCheckCrashesOverDamagedSnapshots verifies that no check panics on pods without containers or statuses, or on
// incomplete objects. Bundles may come from untrusted users.
func TestNoCheckCrashesOverDamagedSnapshots(t *testing.T) {
	t.Parallel()
	damages := map[string]func(*snapshot.Snapshot){
		"pods without containers": func(s *snapshot.Snapshot) {
			for i := range s.Pods {
				s.Pods[i].Spec.Containers = nil
			}
		},
		"pods without containers and their statuses": func(s *snapshot.Snapshot) {
			for i := range s.Pods {
				s.Pods[i].Spec = corev1.PodSpec{NodeName: s.Pods[i].Spec.NodeName}
				s.Pods[i].Status.ContainerStatuses = nil
			}
		},
		"pods without a status": func(s *snapshot.Snapshot) {
			for i := range s.Pods {
				s.Pods[i].Status = corev1.PodStatus{}
			}
		},
		"no nodes":  func(s *snapshot.Snapshot) { s.Nodes = nil },
		"no pods":   func(s *snapshot.Snapshot) { s.Pods = nil },
		"no events": func(s *snapshot.Snapshot) { s.Events = nil },
		"no runtime": func(s *snapshot.Snapshot) {
			for _, h := range s.Hosts {
				h.Runtime.Instance = nil
			}
		},
	}
	for number, name := range slices.Sorted(maps.Keys(damages)) {
		damage := damages[name]
		for _, sample := range sampled(append(readCorpus(t, "positive"), readCorpus(t, "negative")...), number) {
			damage(sample.snapshot)
			for _, u := range Examine(sample.snapshot, Options{}).Unknown {
				if strings.Contains(u.Why, "this check failed") {
					t.Errorf("%s, %s: %s: %s", sample.name, name, u.Check, u.Why)
				}
			}
		}
	}
}
