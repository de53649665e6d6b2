//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// TestDeviceReset is the driver's own reset of a GPU that nobody uses. It is refused without its flag, and for a GPU
// that a pod holds, which the message names.
func TestDeviceReset(t *testing.T) {
	e := setup(t)
	reset := func(gpu string, more ...string) result {
		return e.plugin(append([]string{
			"device", "reset", e.worker.Name, "--gpu", gpu, "--yes", "--allow-last-gpu-node", "--allow-majority",
		}, more...)...)
	}
	e.mustSay(reset("1"), 1, "cannot be undone", "--allow-reset")
	e.mustSay(reset("9", "--allow-reset"), 1, "not found; the GPUs on the node are")
	names := []string{"reset-a", "reset-b"} // for both GPUs
	for _, name := range names {
		e.holdGPU(name)
	}
	e.mustSay(reset("1", "--allow-reset"), 1, "pod default/reset-", " holds GPU 1: delete the pod first")
	pods := e.cluster.Client.CoreV1().Pods("default")
	for _, name := range names {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.Eventually(t, patience, name+" is gone", func() (bool, string) {
			_, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
	}
	out := reset("1", "--allow-reset", "-o", "json")
	if out.code != 0 {
		t.Fatalf("exit %d:\n%s%s", out.code, out.stdout, out.stderr)
	}
	for _, part := range []string{"was successfully reset", e.worker.GPUs[1].UUID + " responds again"} {
		if !strings.Contains(out.stdout, part) {
			t.Errorf("it does not say %q:\n%s", part, out.stdout)
		}
	}
	runs := e.runs()
	if len(runs) != 1 {
		t.Fatalf("open runs: %+v", runs)
	}
	e.ok("revert", runs[0].ID, "--yes")
	e.noPods()
}
