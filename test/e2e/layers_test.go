//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// oneFault is what `xid --layers -o json` prints.
type oneFault struct {
	ID    string
	Nodes []struct {
		Records []struct{ XID, GPU, Text string }
	}
	Layers []struct {
		Layer, Target, State string
		Evidence             []string
	}
}

// TestOneFaultInEveryLayer is one XID as every reader sees it: the kernel log, the node's allocatable GPUs, the status
// of the pod, device list, and the program. All of them tell of the same GPU, the one that the program's pod holds; the
// whole is undone as one run. LAYERS_ROUNDS repeats it (make test-layers: ten times for each XID).
func TestOneFaultInEveryLayer(t *testing.T) {
	c := setupCUDA(t)
	rounds := 1
	if text := os.Getenv("LAYERS_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	idle := c.deployment("idle")
	idle.Spec.Replicas = new(int32(0))
	c.create(idle)
	c.mustSay(c.plugin("xid", "79", c.worker.Name, "--layers", "kernel,cuda", "--workload", "deployment/idle", "-n",
		c.namespace, "--allow-last-gpu-node", "--allow-majority", "--yes"), 1, "deployment/idle requests no GPU")
	d := c.deployment("train")
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: c.worker.Name}
	d.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("1"),
	}
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())
	coherent, all := 0, 0
	for _, fault := range []struct{ code, running, starting string }{
		{"79", "unknown error (999)", "no CUDA-capable device is detected (100)"},
		{"48", "uncorrectable ECC error encountered (214)", ""},
	} {
		for range rounds {
			all++
			began := time.Now()
			var got oneFault
			c.decode(c.ok("xid", fault.code, c.worker.Name, "--layers", "kernel,device,cuda", "--workload",
				"deployment/train", "-n", c.namespace, "--allow-last-gpu-node", "--allow-majority", "--yes", "-o",
				"json").stdout, &got)
			took := time.Since(began)
			wrong := c.incoherent(got, fault.code, fault.running, fault.starting)
			began = time.Now()
			c.reverted(got.ID, before, train)
			t.Logf("XID %s: injected and proven in %.1f s, undone in %.1f s", fault.code, took.Seconds(),
				time.Since(began).Seconds())
			cluster.Eventually(t, patience, "both GPUs are allocatable", func() (bool, string) {
				n := c.allocatable()
				return n == 2, fmt.Sprint(n)
			})
			c.healthy("train", 1)
			c.noPods()
			for _, text := range wrong {
				t.Errorf("XID %s: %s", fault.code, text)
			}
			if len(wrong) == 0 {
				coherent++
			}
		}
	}
	fmt.Printf("layers coherent %d of %d\n", coherent, all)
}

// incoherent returns what a reader does not see, or sees of another GPU.
func (c *cuda) incoherent(got oneFault, code, running, starting string) (wrong []string) {
	c.t.Helper()
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i, layer := range []string{"cuda", "device", "kernel"} {
		if i >= len(got.Layers) || got.Layers[i].Layer != layer || got.Layers[i].State != "proven" {
			add("the layers are %+v", got.Layers)
			return wrong
		}
	}
	pod := c.pods("train")[0]
	name := c.namespace + "/" + pod.Name
	gpu := -1
	for _, d := range c.devices() {
		switch {
		case d.Run == got.ID && (d.Pod != name || d.Health == "Healthy"):
			add("device list: %+v, want that of pod %s", d, name)
		case d.Run == got.ID:
			gpu = d.GPU
		case d.Health != "Healthy":
			add("device list: %+v was not asked for", d)
		}
	}
	if gpu < 0 {
		add("device list does not show the run")
		return wrong
	}
	if address := c.worker.GPUs[gpu].PCI; len(got.Nodes) != 1 || len(got.Nodes[0].Records) != 1 ||
		got.Nodes[0].Records[0].XID != code ||
		!strings.Contains(got.Nodes[0].Records[0].Text, "(PCI:"+address+"): "+code+",") {
		add("the kernel log has %+v, want XID %s of %s", got.Nodes, code, address)
	}
	if n := c.allocatable(); n != 1 {
		add("%d GPUs are allocatable", n)
	}
	if health := healthOf(&pod); health != string(corev1.ResourceHealthStatusUnhealthy) {
		add("the status of the pod says %q", health)
	}
	// The running program has ended with the error; a new one may have started since.
	cluster.Eventually(c.t, soon, "the program's error", func() (bool, string) {
		text := c.log(pod, 0) + c.logBefore(pod)
		return strings.Contains(text, running) || starting != "" && strings.Contains(text, starting), text
	})
	return wrong
}

// logBefore returns what the container said before it was restarted.
func (c *cuda) logBefore(pod corev1.Pod) string {
	options := &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name, Previous: true}
	text, err := c.cluster.Client.CoreV1().Pods(c.namespace).GetLogs(pod.Name, options).DoRaw(c.t.Context())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestOneGPUOfTwoInEveryLayer holds that a fault of one of the GPUs of a pod is in every layer that of this GPU: a
// program that uses the other one goes on.
func TestOneGPUOfTwoInEveryLayer(t *testing.T) {
	c := setupCUDA(t)
	d := c.deployment("train")
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: c.worker.Name}
	d.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("2"),
	}
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
		MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1)),
	}
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())
	inject := func(gpu string) result {
		return c.plugin("xid", "79", c.worker.Name, "--gpu", gpu, "--layers", "kernel,device,cuda", "--workload",
			"deployment/train", "-n", c.namespace, "--allow-last-gpu-node", "--allow-majority", "--yes", "-o", "json")
	}
	c.mustSay(inject("2"), 1, "nothing was changed", "has 2 GPUs, with the indexes from 0 to 1")
	r := inject("1")
	if r.code != 0 {
		t.Fatalf("exit %d\n%s", r.code, r.stderr)
	}
	var got oneFault
	c.decode(r.stdout, &got)
	for _, device := range c.devices() {
		if (device.GPU == 1) != (device.Run == got.ID) {
			t.Errorf("device list: %+v", device)
		}
	}
	text, address := got.Nodes[0].Records[0].Text, c.worker.GPUs[1].PCI
	if !strings.Contains(text, "(PCI:"+address+")") {
		t.Errorf("the kernel log has %q, want %s", text, address)
	}
	c.healthy("train", 1)
	c.reverted(got.ID, before, train)
}
