//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// npu is the resource of another vendor.
const npu = "example.com/npu"

// pluginOfAnotherVendor runs a device plugin with two devices on the worker until the test ends.
func (e *env) pluginOfAnotherVendor() {
	e.t.Helper()
	program := filepath.Join(e.t.TempDir(), "vendorplugin")
	build := exec.Command("go", "build", "-o", program, "./vendorplugin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		e.t.Fatalf("build the device plugin: %v\n%s", err, out)
	}
	file, err := os.Open(program)
	if err != nil {
		e.t.Fatal(err)
	}
	defer file.Close()
	put := e.worker.Command(e.t.Context(), "sh", "-c", "cat >/run/vendorplugin && chmod +x /run/vendorplugin")
	put.Stdin = file
	if out, err := put.CombinedOutput(); err != nil {
		e.t.Fatalf("copy the device plugin: %v\n%s", err, out)
	}
	plugin := e.worker.Command(context.Background(), "/run/vendorplugin", npu, "vendor.sock", "npu-a", "npu-b")
	stdin, err := plugin.StdinPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := plugin.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = stdin.Close(); _ = plugin.Wait() })
}

// of returns how many devices of a resource are allocatable on the worker.
func (e *env) of(resource corev1.ResourceName) int64 {
	e.t.Helper()
	node, err := e.cluster.Client.CoreV1().Nodes().Get(e.t.Context(), e.worker.Name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	q := node.Status.Allocatable[resource]
	return q.Value()
}

// TestTheDeviceOfAnotherVendor: a fault of the devices of one resource leaves those of the other as they are, whoever
// made the device plugin, and each is as before after its revert.
func TestTheDeviceOfAnotherVendor(t *testing.T) {
	e := setup(t)
	t.Cleanup(func() { e.plugin("revert", "--all", "--yes") })
	e.pluginOfAnotherVendor()
	both := func(when string, npus, gpus int64) {
		t.Helper()
		cluster.Eventually(t, patience, when, func() (bool, string) {
			n, g := e.of(npu), e.allocatable()
			return n == npus && g == gpus, fmt.Sprintf("%d of %s and %d GPUs are allocatable", n, npu, g)
		})
	}
	both("before", 2, 2)
	e.mustSay(e.plugin("device", "unhealthy", e.worker.Name, "--resource", npu, "--device", "npu-z", "--yes",
		"--allow-majority"), 1, "npu-a")
	unhealthy := func(args ...string) string {
		e.ok(append([]string{
			"device", "unhealthy", e.worker.Name, "--ttl", "10m", "--allow-majority", "--yes",
		}, args...)...)
		return e.runs()[0].ID
	}
	run := unhealthy("--resource", npu, "--device", "npu-b")
	both("a device of the other vendor is unhealthy", 1, 2)
	for _, d := range e.devices() {
		if of := d.ID == "npu-b"; of != (d.Run == run) || of != (d.Health != "Healthy") {
			t.Errorf("device list: %+v", d)
		}
	}
	e.ok("revert", run, "--yes")
	both("after its revert", 2, 2)
	run = unhealthy("--gpu", "0")
	both("a GPU is unhealthy", 2, 1)
	e.ok("revert", run, "--yes")
	both("after both", 2, 2)
	e.noPods()
}
