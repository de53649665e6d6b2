package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// patience is for what nodes do by themselves, on a busy machine.
const patience = time.Minute

// Node is one node of the cluster.
type Node struct {
	Name         string
	ControlPlane bool
	GPUs         []GPU // in PCI order

	client        kubernetes.Interface
	script, state string
}

// TrySh runs a command on the node, as root in all of its namespaces, and returns what it wrote to stdout; the error
// has its stderr.
func (n Node) TrySh(ctx context.Context, args ...string) (string, error) {
	return n.run(ctx, append([]string{"sh", n.Name}, args...)...)
}

// Sh is TrySh for commands that must succeed, within two minutes. It may be called by a test's cleanup.
func (n Node) Sh(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // t.Context ends before the cleanup
	defer cancel()
	out, err := n.TrySh(ctx, args...)
	if err != nil {
		t.Fatalf("on %s, %q: %v", n.Name, args, err)
	}
	return out
}

// Kill ends the node at once, as a power failure would. It is started again when the test ends, if Start has not done
// so.
func (n Node) Kill(t testing.TB) {
	t.Helper()
	if _, err := n.run(t.Context(), "kill", n.Name); err != nil {
		t.Fatalf("kill %s: %v", n.Name, err)
	}
	t.Cleanup(func() {
		if _, err := n.TrySh(context.Background(), "true"); err != nil {
			n.Start(t)
		}
	})
}

// Start starts a killed node, with an empty disk, and waits until it is Ready with all its GPUs.
func (n Node) Start(t testing.TB) {
	t.Helper()
	started := time.Now().Truncate(time.Second)
	if _, err := n.run(context.Background(), "start", n.Name); err != nil {
		t.Fatalf("start %s: %v", n.Name, err)
	}
	Eventually(t, 2*patience, n.Name+" is Ready with its GPUs", func() (bool, string) {
		node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		ready, gpus := condition(node, corev1.NodeReady), node.Status.Allocatable["nvidia.com/gpu"]
		// Until its kubelet writes again the node may still look as before.
		fresh := !ready.LastHeartbeatTime.Time.Before(started)
		return fresh && ready.Status == corev1.ConditionTrue && gpus.Value() == int64(len(n.GPUs)),
			fmt.Sprintf("Ready=%s since %s, %s GPUs allocatable", ready.Status, ready.LastHeartbeatTime, &gpus)
	})
}

// runtimeLook is how often a kubelet looks at its container runtime (pkg/kubelet, updateRuntimeUp).
const runtimeLook = 5 * time.Second

// Settle waits until the node's kubelet has looked at its container runtime again, and says that the node is Ready. A
// kubelet whose runtime was away for half a minute says NotReady, even for some seconds after the runtime serves again.
func (n Node) Settle(t testing.TB) {
	t.Helper()
	looked := time.Now().Add(runtimeLook)
	Eventually(t, patience, n.Name+" is Ready after a look at its runtime", func() (bool, string) {
		node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		ready := condition(node, corev1.NodeReady)
		return ready.Status == corev1.ConditionTrue && ready.LastHeartbeatTime.After(looked),
			fmt.Sprintf("Ready=%s at %s: %s", ready.Status, ready.LastHeartbeatTime, ready.Message)
	})
}

// RestartNPD makes node-problem-detector forget: a permanent condition such as GPUXid stays until it starts anew. When
// this returns the condition is False, and lines written from then on count.
func (n Node) RestartNPD(t testing.TB) {
	t.Helper()
	var restarted time.Time
	restart := func() {
		n.Sh(t, "systemctl", "restart", "node-problem-detector")
		restarted = time.Now()
	}
	restart()
	Eventually(t, patience, "GPUXid of "+n.Name+" is False after node-problem-detector's restart",
		func() (bool, string) {
			node, err := n.client.CoreV1().Nodes().Get(context.Background(), n.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			c := condition(node, "GPUXid")
			state := fmt.Sprintf("%s %s at %s", c.Status, c.Reason, c.LastHeartbeatTime)
			// It knows the machine's boot time to the second only, so it may count a line from just before its start,
			// and drop one from just after.
			settled := time.Since(restarted) > 1100*time.Millisecond
			if settled && c.Status == corev1.ConditionTrue &&
				c.LastHeartbeatTime.After(restarted.Truncate(time.Second)) {
				restart()
				return false, state
			}
			return settled && c.Status == corev1.ConditionFalse &&
				!c.LastHeartbeatTime.Time.Before(restarted.Truncate(time.Second)), state
		})
}

// Condition returns the node's condition of the given type; the zero value where it has none.
func (n Node) Condition(t testing.TB, kind corev1.NodeConditionType) corev1.NodeCondition {
	t.Helper()
	node, err := n.client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s: %v", n.Name, err)
	}
	return condition(node, kind)
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// Command returns a command on the node, not started yet, for those that need more than TrySh: a stdin, or time.
// Killing it does not end what it has started on the node; the end of its stdin may.
func (n Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	return n.command(ctx, append([]string{"sh", n.Name}, args...)...)
}

func (n Node) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, n.script, args...)
	cmd.Env = append(os.Environ(), "STATE="+n.state)
	return cmd
}

func (n Node) run(ctx context.Context, args ...string) (string, error) {
	cmd := n.command(ctx, args...)
	// A service that the command starts may keep its streams open.
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(),
			fmt.Errorf("%w: %s%s", err, strings.TrimSpace(stderr.String()), lastLines(stdout.String()))
	}
	return stdout.String(), nil
}

// lastLines shows the end of what a failed command wrote to stdout.
func lastLines(out string) string {
	if out == "" {
		return ""
	}
	return "\nstdout: ..." + out[max(0, len(out)-500):]
}
