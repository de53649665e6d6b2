package doctor

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestGenerated verifies that a fix changes the object that the user created, not the object that an operator generates
// from it.
func TestGenerated(t *testing.T) {
	t.Parallel()
	as := func(kind string, labels map[string]string) podChange {
		return func(p *corev1.Pod) { owned(kind, "x-job")(p); p.Labels = labels }
	}
	nim := map[string]string{"app.kubernetes.io/managed-by": "k8s-nim-operator", "app.kubernetes.io/name": "x"}
	for want, change := range map[string]podChange{
		`patch nimcache x --type merge -p '{"spec":{"tolerations"`:               as("Job", nim),
		`patch nimservice x --type merge -p '{"spec":{"tolerations"`:             as("Deployment", nim),
		`patch statefulset x-job --type merge -p '{"spec":{"template":{"spec":{`: as("StatefulSet", nil),
		"patch pod p --type json": as("Job", nil),
		`patch inferenceservice x --type merge -p '{"spec":{"predictor":{"tolerations"`: as("ReplicaSet",
			map[string]string{"serving.kserve.io/inferenceservice": "x"}),
		`patch inferenceservice x --type merge -p '{"spec":{"transformer":{"tolerations"`: as("ReplicaSet",
			map[string]string{"serving.kserve.io/inferenceservice": "x", "component": "transformer"}),
		"edit llminferenceservice x": as("ReplicaSet", map[string]string{
			"app.kubernetes.io/part-of": "llminferenceservice", "app.kubernetes.io/name": "x",
		}),
		"edit leaderworkerset x": as("StatefulSet", map[string]string{"leaderworkerset.sigs.k8s.io/name": "x"}),
	} {
		_, all := newBench().node("n", 1, tainted("nvidia.com/gpu", "present")).pod("p", "", 1, change).tell(t)
		if len(all) != 1 || !strings.Contains(strings.Join(all[0].Fix.Commands, "\n"), want) {
			t.Errorf("want %s: %+v", want, all)
		}
	}
}
