//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// device is an item of `device list`.
type device struct {
	ID, Health, Pod, Run string
	GPU                  int
}

func (e *env) devices() []device {
	e.t.Helper()
	var list struct{ Items []device }
	e.decode(e.ok("device", "list", e.worker.Name, "-o", "json").stdout, &list)
	return list.Items
}

// allocatable returns the worker's allocatable GPUs.
func (e *env) allocatable() int64 {
	e.t.Helper()
	node, err := e.cluster.Client.CoreV1().Nodes().Get(e.t.Context(), e.worker.Name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	q := node.Status.Allocatable["nvidia.com/gpu"]
	return q.Value()
}

// health returns the health of a pod's devices, as its status shows it.
func (e *env) health(pod string) string {
	e.t.Helper()
	p, err := e.cluster.Client.CoreV1().Pods("default").Get(e.t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return healthOf(p)
}

// healthOf returns the health of all devices of a pod.
func healthOf(p *corev1.Pod) string {
	var all []string
	for _, c := range p.Status.ContainerStatuses {
		for _, r := range c.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				all = append(all, string(d.Health))
			}
		}
	}
	return strings.Join(all, " ")
}

// holdGPU runs a pod that holds a GPU of the worker, and waits until it runs: the kubelet knows the health of its
// devices before.
func (e *env) holdGPU(name string) {
	e.t.Helper()
	pods := e.cluster.Client.CoreV1().Pods("default")
	_, err := pods.Create(e.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: e.worker.Name, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever,
				Command: []string{"sleep", "100000"},
				Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
				},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = pods.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	cluster.Eventually(e.t, patience, name+" runs", func() (bool, string) {
		pod, err := pods.Get(e.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return pod.Status.Phase == corev1.PodRunning, string(pod.Status.Phase)
	})
}

// statusFollowed returns how long after the kubelet had recorded the fault of a run the node's status showed it. This
// is the kubelet's own period (nodeStatusUpdateFrequency, 0.5 s here).
func (e *env) statusFollowed(run ledger.Run) time.Duration {
	e.t.Helper()
	at := map[string]time.Time{}
	for _, step := range run.Steps {
		for _, seen := range step.Evidence {
			if step.Undo.Kind == "device-health" {
				at[seen.Source] = seen.Time
			}
		}
	}
	recorded, shown := at["kubelet's device checkpoint"], at["node status"]
	if recorded.IsZero() || shown.Before(recorded) {
		e.t.Fatalf("the evidence of %s: %+v", run.ID, run.Steps)
	}
	return shown.Sub(recorded)
}

// The GPU of a running pod becomes unhealthy, for the node and for the pod, which goes on; after the revert both are as
// before, and nothing is left.
func TestAnUnhealthyGPUOfAPod(t *testing.T) {
	e := setup(t)
	t.Cleanup(func() { e.plugin("revert", "--all", "--yes") })
	e.holdGPU("holder")
	healthy := string(corev1.ResourceHealthStatusHealthy)
	cluster.Eventually(t, patience, "the pod's GPU is healthy", func() (bool, string) {
		now := e.health("holder")
		return now == healthy, now
	})
	before := e.devices()
	r := e.ok("device", "unhealthy", "--pod", "holder", "-n", "default", "--ttl", "10m", "--allow-majority", "--yes")
	for _, want := range []string{
		"kubelet's device checkpoint", "allocatable nvidia.com/gpu: 2 -> 1", "default/holder: nvidia.com/gpu GPU-",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is missing:\n%s", want, r.stdout)
		}
	}
	if now := e.allocatable(); now != 1 {
		t.Errorf("%d GPUs are allocatable", now)
	}
	if now := e.health("holder"); now != string(corev1.ResourceHealthStatusUnhealthy) {
		t.Errorf("the status of the pod says %q", now)
	}
	open := e.runs()[0]
	run := open.ID
	t.Logf("the node's status followed after %s", e.statusFollowed(open))
	for _, d := range e.devices() {
		if of := d.Pod == "default/holder"; of != (d.Run == run) || of != (d.Health != healthy) {
			t.Errorf("device list: %+v", d)
		}
	}
	e.mustSay(e.plugin("device", "unhealthy", e.worker.Name, "--gpu", "0", "--allow-majority", "--yes"), 1, run)
	e.ok("revert", run, "--yes")
	if now := e.allocatable(); now != 2 {
		t.Errorf("%d GPUs are allocatable after the revert", now)
	}
	cluster.Eventually(t, patience, "the pod's GPU is healthy again", func() (bool, string) {
		now := e.health("holder")
		return now == healthy, now
	})
	if after := e.devices(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the devices were %v, and are %v", before, after)
	}
	e.noPods()
}

// The time is up, and nobody reverts: the node ends it.
func TestUnhealthyUntilTheTTL(t *testing.T) {
	e := setup(t)
	t.Cleanup(func() { e.plugin("revert", "--all", "--yes") })
	e.ok("device", "unhealthy", e.worker.Name, "--gpu", "1", "--ttl", cluster.TTL(20*time.Second).String(),
		"--allow-majority", "--yes")
	cluster.Eventually(t, patience, "both GPUs are allocatable", func() (bool, string) {
		now := e.allocatable()
		return now == 2, fmt.Sprint(now)
	})
	r := e.ok("revert", "--all", "--yes")
	if !strings.Contains(r.stdout+r.stderr, "TTL") {
		t.Errorf("the revert does not say why it had ended:\n%s%s", r.stdout, r.stderr)
	}
}

// What cannot be done is refused, with what to do, before anything is changed.
func TestUnhealthyRefused(t *testing.T) {
	e := setup(t)
	for args, want := range map[string]string{
		"--gpu 7":                              "GPU 7 not found",
		"--device GPU-0":                       "the devices are: GPU-",
		"--gpu 0 --resource amd.com/gpu":       "it has: nvidia.com/gpu",
		"--gpu 0 --ttl 48h":                    "--ttl",
		"--device x --resource not-a-resource": "it has: nvidia.com/gpu",
	} {
		r := e.plugin(append([]string{"device", "unhealthy", e.worker.Name, "--allow-majority", "--yes"},
			strings.Fields(args)...)...)
		e.mustSay(r, 1, want)
	}
	e.mustSay(e.plugin("device", "unhealthy", e.control.Name, "--gpu", "0", "--yes"), 1, "--allow-control-plane")
	if now := e.allocatable(); now != 2 {
		t.Errorf("%d GPUs are allocatable", now)
	}
}

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
