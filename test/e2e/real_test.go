//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// The address of the fake driver's GPU, which is none of the simulated ones.
const fakeAddress = "0000:17:00"

// real returns the arguments of an XID that the driver itself reports. The image has the fake driver.
func (c *cuda) real(code string) []string {
	return []string{
		"xid", code, c.worker.Name, "--real", "--real-image", strings.Replace(c.image, "/trainer:", "/cuda:", 1),
		"--allow-last-gpu-node", "--allow-majority", "--yes", "-n", c.namespace,
	}
}

// driverWrites writes the line that the driver would write, as soon as the program has ended.
func (c *cuda) driverWrites(code string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	c.t.Cleanup(cancel)
	line := "<4>kernel: NVRM: Xid (PCI:" + fakeAddress + "): " + code + ", pid=4711, name=gpufault-crash, Ch 00000008"
	go func() {
		if c.programEnds(ctx) == nil {
			_, _ = c.worker.TrySh(ctx, "sh", "-c", "echo '"+line+"' >/dev/kmsg") // without it, the command fails
		}
	}()
}

// programEnds waits until the program's pod, the only one of the namespace, has succeeded.
func (c *cuda) programEnds(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		pods, err := c.cluster.Client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
		// An API server that is busy answers the next time.
		return err == nil && len(pods.Items) == 1 && pods.Items[0].Status.Phase == corev1.PodSucceeded, nil
	})
}

// gone holds that neither the pod nor the ConfigMap of a program is left.
func (c *cuda) gone() {
	c.t.Helper()
	pods, err := c.cluster.Client.CoreV1().Pods(c.namespace).List(c.t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		c.t.Errorf("pods are left: %v, %v", pods.Items, err)
	}
	maps, err := c.cluster.Client.CoreV1().ConfigMaps(c.namespace).List(c.t.Context(), metav1.ListOptions{})
	if err != nil || len(maps.Items) > 1 { // kube-root-ca.crt
		c.t.Errorf("ConfigMaps are left: %v, %v", maps.Items, err)
	}
}

// A program in a namespace with Pod Security "restricted" makes an error on a GPU that the device plugin has allocated.
// CUDA's error and the driver's line prove it, and nothing is left but the line.
func TestRealXID(t *testing.T) {
	c := setupCUDA(t)
	c.driverWrites("31")
	var out injected
	c.decode(c.ok(append(c.real("31"), "-o", "json")...).stdout, &out)
	if out.Phase != ledger.Proven || len(out.Nodes) != 1 || len(out.Nodes[0].Records) != 1 {
		t.Fatalf("wanted one line of one node: %+v", out)
	}
	node := out.Nodes[0]
	if r := node.Records[0]; r.XID != "31" || r.GPU != fakeAddress || !strings.Contains(r.Text, "name=gpufault-crash") {
		t.Errorf("the line is %+v", r)
	}
	if node.CUDA.Code != 700 || !strings.HasPrefix(node.CUDA.GPU, "GPU-66616b65-") {
		t.Errorf("CUDA's error is %+v", node.CUDA)
	}
	c.gone()
	c.mustSay(c.plugin("revert", out.ID, "--yes"), 0, "the lines stay in the kernel log")
	c.noPods()
	c.stoppedReal()
}

// stoppedReal kills a client that waits for the driver's line, and reverts its run from another.
func (c *cuda) stoppedReal() {
	c.t.Helper()
	cmd := c.command(c.real("43")...)
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	ended := c.programEnds(ctx)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	if ended != nil {
		c.t.Fatalf("the program did not end: %v", ended)
	}
	runs := c.runs()
	if len(runs) != 1 || runs[0].Steps[0].Undo.Kind != "objects" {
		c.t.Fatalf("the ledger has %+v", runs)
	}
	c.ok("revert", runs[0].ID, "--yes")
	c.gone()
	c.noPods()
}

// What would harm others, or cannot work, is refused before anything is created.
func TestRealXIDIsRefused(t *testing.T) {
	c := setupCUDA(t)
	name := c.worker.Name
	nodes := c.cluster.Client.CoreV1().Nodes()
	label := func(value string) {
		t.Helper()
		patch := `{"metadata":{"labels":{"nvidia.com/gpu.sharing-strategy":"` + value + `"}}}`
		if _, err := nodes.Patch(
			context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { label("none") })
	label("time-slicing")
	c.mustSay(c.plugin(c.real("31")...), 1, "nothing was changed", "the GPUs are shared by pods", "time-slicing")
	label("none")

	d := c.deployment("train")
	d.Spec.Replicas = new(int32(2))
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name}
	d.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("1"),
	}
	c.create(d)
	c.healthy("train", 2)
	c.mustSay(c.plugin(c.real("13")...), 1, "nothing was changed", "none of the node's 2 GPUs is free",
		c.namespace+"/train-")
	if runs := c.runs("--all"); len(runs) > 0 {
		t.Errorf("runs: %+v", runs)
	}
}

func (r *rights) realWorks() {
	r.driverWrites("31")
	run := strings.TrimPrefix(strings.TrimSpace(r.does(append(r.real("31"), "-o", "name")...)), "run/")
	r.does("revert", run, "--yes")
	r.gone()
	r.noPods()
}

func (r *rights) realAsks(fault.Permission) [][]string {
	return [][]string{append(r.real("31"), "--dry-run=server")}
}
