//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nvidiaPod returns a pod of RuntimeClass nvidia on the node.
func nvidiaPod(n Node, name string) *corev1.Pod {
	pod := podOn(n, name, "echo alive")
	class := "nvidia"
	pod.Spec.RuntimeClassName = &class
	return pod
}

func TestPodOfRuntimeClassNvidiaRunsThroughTheSimulatedRuntime(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	for _, n := range c.Nodes() {
		pod := nvidiaPod(n, "nvidia")
		if out := runPod(t, c, ns, pod); out != "alive\n" {
			t.Errorf("%s: the pod said %q", n.Name, out)
		}
		ran, err := c.Client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id := strings.TrimPrefix(ran.Status.ContainerStatuses[0].ContainerID, "containerd://")
		if log := n.Sh(t, "cat", "/var/log/services/nvidia-container-runtime.log"); !strings.Contains(
			log, " create --bundle ",
		) || !strings.Contains(log, id) {
			t.Errorf(
				"%s: container %s was not made by the simulated nvidia-container-runtime; its log has %d lines without it",
				n.Name, id, strings.Count(log, "\n"),
			)
		}
	}
}

// The symptom that people see most, on purpose: containerd has no handler of the name in the RuntimeClass.
func TestPodOfRuntimeClassNvidiaFailsWithoutTheHandler(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	n := c.Workers()[0]
	const config = "/etc/containerd/config.toml"
	before := n.Sh(t, "cat", config)
	n.Sh(t, "cp", "-a", config, config+".before")
	restore := func() {
		n.Sh(t, "sh", "-c", "[ ! -e $1.before ] || { mv $1.before $1; systemctl restart containerd; }", "sh", config)
	}
	t.Cleanup(restore)
	n.Sh(t, "sed", "-i", "s/runtimes[.]nvidia/runtimes.other/", config)
	n.Sh(t, "systemctl", "restart", "containerd")

	pod := nvidiaPod(n, "refused")
	if _, err := c.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, time.Minute, "an event that there is no such handler", func() (bool, string) {
		events, err := c.Client.CoreV1().Events(ns).List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
		if err != nil {
			return false, err.Error()
		}
		var last string
		for _, e := range events.Items {
			last = e.Reason + ": " + e.Message
			if e.Reason == "FailedCreatePodSandBox" &&
				strings.HasSuffix(e.Message, `no runtime for "nvidia" is configured`) {
				return true, last
			}
		}
		return false, last
	})
	restore()
	if now := n.Sh(t, "cat", config); now != before {
		t.Errorf("the configuration is not what it was:\n%s", now)
	}
	Eventually(t, time.Minute, "the pod runs once the handler is back", func() (bool, string) {
		p, err := c.Client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return p.Status.Phase == corev1.PodSucceeded, string(p.Status.Phase)
	})
}

func TestKilledContainerdIsStartedAgain(t *testing.T) {
	c := Require(t)
	n := c.Workers()[0]
	show := func(property string) string {
		return strings.TrimSpace(n.Sh(t, "systemctl", "show", "-p", property, "--value", "containerd.service"))
	}
	pid := show("MainPID")
	n.Sh(t, "systemctl", "kill", "-s", "KILL", "containerd")
	Eventually(t, 30*time.Second, "another containerd serves", func() (bool, string) {
		state, now := show("ActiveState"), show("MainPID")
		return state == "active" && now != pid && now != "0", fmt.Sprintf("%s, PID %s after %s", state, now, pid)
	})
	// Tools ask for units that a node may not have; systemd says 0 then, and is content.
	if got := n.Sh(t, "systemctl", "show", "-p", "MainPID", "--value", "k3s.service"); got != "0\n" {
		t.Errorf("the PID of a unit that is not there: %q", got)
	}
}

func TestStoppedAPIServerComesBack(t *testing.T) {
	c := Require(t)
	start := c.ControlPlane().StopService(t, "kube-apiserver")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err == nil {
		t.Error("the API server answers while it is stopped")
	}
	var exit *exec.ExitError
	if out, err := c.ControlPlane().TrySh(
		t.Context(), "systemctl", "is-active", "kube-apiserver",
	); !errors.As(err, &exit) ||
		exit.ExitCode() != 3 {
		t.Errorf("is-active of the stopped API server: %q, %v; wanted exit 3", out, err)
	}
	start()
	if _, err := c.Client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("after its start: %v", err)
	}
}

// What tests of configurations build on: a drop-in that is loaded, a decoy that nothing runs with, and one file system.
func TestContainerdConfigurationIsAsInReadme(t *testing.T) {
	c := Require(t)
	for _, n := range c.Nodes() {
		if dump := n.Sh(t, "containerd", "config", "dump"); !strings.Contains(dump, "format = 'text'") {
			t.Errorf("%s: containerd does not load conf.d/10-debug.toml:\n%s", n.Name, dump)
		}
		_, err := n.TrySh(t.Context(), "test", "-e",
			"/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml")
		if there := err == nil; there == n.ControlPlane {
			t.Errorf("%s: it has the configuration of another containerd: %t", n.Name, there)
		}
		// mv copies where it cannot rename, and then the inode is another.
		moved := n.Sh(t, "sh", "-ec", `mkdir -p /var/lib/gpu-fault
			a=/var/lib/gpu-fault/probe b=/etc/containerd/probe
			echo probe >$a; stat -c %i $a; mv $a $b; stat -c %i $b; rm $b; rmdir /var/lib/gpu-fault 2>/dev/null || true`)
		if inodes := strings.Fields(moved); len(inodes) != 2 || inodes[0] != inodes[1] {
			t.Errorf("%s: a file cannot be renamed from /var/lib/gpu-fault to /etc/containerd: inodes %q", n.Name,
				inodes)
		}
	}
}
