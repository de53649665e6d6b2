package doctor

import (
	"testing"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// TestRuntimeWithoutInotify verifies that a node whose runtime has no inotify instance has one root cause, with a fix
// that raises the limit.
func TestRuntimeWithoutInotify(t *testing.T) {
	t.Parallel()
	report := Examine(withoutRuntime(withoutWatcher(t, "11:55:01", instanceOf(kubeadmConfig(t), nil))), Options{})
	if got := runtimeRoots(report); got != "rt.no-inotify" {
		t.Errorf("the roots are %q, want rt.no-inotify:\n%s", got, reportLines(report))
	}
}

// TestRuntimeNotRead verifies that a node that could not be read is not reported as healthy, and that a node whose
// runtime is down has one root cause, with commands to inspect it.
func TestRuntimeNotRead(t *testing.T) {
	t.Parallel()
	report := Examine(withoutRuntime(gpuCluster(api.Runtime{})), Options{})
	if got := runtimeRoots(report); got != "node.not-ready" {
		t.Errorf("the roots are %q, want node.not-ready:\n%s", got, reportLines(report))
	}
	unknown := map[string]bool{}
	for _, u := range report.Unknown {
		unknown[u.Check] = true
	}
	for _, id := range []string{
		"rt.wrong-instance", "rt.unparsable", "rt.dropin-shadow", "rt.edited-not-restarted", "rt.option-misplaced",
		"rt.cpumanager", "rt.restart-loop",
	} {
		if !unknown[id] {
			t.Errorf("%s says nothing of a node that was not read", id)
		}
	}
}

// TestUnusedHandler verifies that the handler of an unused RuntimeClass may be missing.
func TestUnusedHandler(t *testing.T) {
	t.Parallel()
	s := kubeadmNode(t)
	s.RuntimeClasses = append(s.RuntimeClasses,
		nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata"})
	if report := Examine(s, Options{}); runtimeRoots(report) != "" {
		t.Errorf("the roots are %q:\n%s", runtimeRoots(report), reportLines(report))
	}
}
