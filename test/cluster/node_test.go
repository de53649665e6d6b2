//go:build e2e

package cluster

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDevicePluginAllocatesAndNoticesSickGPUs(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	n := c.Workers()[0]
	pod := podOn(n, "gpu", "echo visible=$NVIDIA_VISIBLE_DEVICES")
	// The scheduler counts GPUs
	pod.Spec.NodeName, pod.Spec.NodeSelector = "", map[string]string{"kubernetes.io/hostname": n.Name}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	if out := runPod(t, c, ns, pod); !strings.Contains(out, "visible="+n.GPUs[0].UUID) &&
		!strings.Contains(out, "visible="+n.GPUs[1].UUID) {
		t.Errorf("a pod with one GPU got %q, wanted one of %v", out, n.GPUs)
	}

	allocatable := func(want int64) func() (bool, string) {
		return func() (bool, string) {
			node, err := c.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			gpus := node.Status.Allocatable["nvidia.com/gpu"]
			return gpus.Value() == want, gpus.String()
		}
	}
	n.Sh(t, "sh", "-c", "echo "+n.GPUs[0].UUID+" >/run/simulated-gpus/unhealthy")
	t.Cleanup(func() { n.Sh(t, "rm", "-f", "/run/simulated-gpus/unhealthy") })
	Eventually(t, 30*time.Second, "one of two GPUs allocatable after one fell sick", allocatable(1))
	n.Sh(t, "rm", "/run/simulated-gpus/unhealthy")
	Eventually(t, 30*time.Second, "both GPUs allocatable again", allocatable(2))
}

func TestSystemctlRestartsContainerd(t *testing.T) {
	c := Require(t)
	n := c.Workers()[0]
	pid := func() string { return n.Sh(t, "systemctl", "show", "-p", "MainPID", "--value", "containerd") }
	before := pid()
	n.Sh(t, "systemctl", "restart", "containerd")
	if now := pid(); now == before {
		t.Errorf("containerd has the PID %s before and after its restart", strings.TrimSpace(now))
	}
	n.Sh(t, "ctr", "version") // it serves as soon as the restart returns

	const dropIn = "/etc/containerd/conf.d/99-broken.toml"
	n.Sh(t, "sh", "-c", "echo 'no [ toml' >"+dropIn)
	t.Cleanup(func() {
		n.Sh(t, "rm", "-f", dropIn)
		n.Sh(t, "systemctl", "restart", "containerd")
	})
	if out, err := n.TrySh(t.Context(), "systemctl", "restart", "containerd"); err == nil ||
		!strings.Contains(err.Error(), "Job for containerd.service failed") {
		t.Errorf("restart with a broken configuration: %v %s; wanted it to fail", err, out)
	}
	if out, err := n.TrySh(t.Context(), "systemctl", "is-active", "containerd"); err == nil {
		t.Errorf("containerd is %s with a broken configuration", strings.TrimSpace(out))
	}
}

func TestKilledNodeComesBack(t *testing.T) {
	c := Require(t)
	n := c.Workers()[0]
	n.Kill(t)
	if out, err := n.TrySh(t.Context(), "true"); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("a command on a killed node: %q, %v", out, err)
	}
	n.Start(t)
	out := runPod(t, c, c.Namespace(t), podOn(n, "after", "echo alive"))
	if out != "alive\n" {
		t.Errorf("a pod on the restarted node said %q", out)
	}
}

// podOn returns a pod on the node that runs the shell commands one after the other.
func podOn(n Node, name string, commands ...string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-" + n.Name},
		Spec: corev1.PodSpec{
			NodeName: n.Name, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{
				{Name: "c", Image: image, Command: []string{"sh", "-c", strings.Join(commands, "\n")}},
			},
		},
	}
}

// runPod runs a pod to its end and returns its log; it must succeed.
func runPod(t *testing.T, c *Cluster, ns string, pod *corev1.Pod) string {
	t.Helper()
	pods := c.Client.CoreV1().Pods(ns)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create pod %s: %v", pod.Name, err)
	}
	var phase corev1.PodPhase
	Eventually(t, 90*time.Second, "pod "+pod.Name+" has ended", func() (bool, string) {
		p, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		phase = p.Status.Phase
		return phase == corev1.PodSucceeded ||
			phase == corev1.PodFailed, fmt.Sprintf("%s %v", phase, p.Status.ContainerStatuses)
	})
	stream, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).Stream(t.Context())
	if err != nil {
		t.Fatalf("logs of %s: %v", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	var out bytes.Buffer
	if _, err := io.Copy(&out, stream); err != nil {
		t.Fatalf("logs of %s: %v", pod.Name, err)
	}
	if phase != corev1.PodSucceeded {
		t.Fatalf("pod %s: %s:\n%s", pod.Name, phase, out.String())
	}
	return out.String()
}
