//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const image = "busybox:1.35"

// mark makes a kernel line of this run of the test unlike those of others.
func mark() string { return fmt.Sprintf("%d", time.Now().UnixNano()%1e9) }

// kernelLine writes a line from the node the way the plugin does: with "kernel: " in front, one open and one write.
func kernelLine(t *testing.T, n Node, line string) {
	t.Helper()
	n.Sh(t, "sh", "-c", `printf '<4>kernel: %s\n' "$1" >/dev/kmsg`, "sh", line)
}

func TestNodesAreReadyAndLookLikeGPUNodes(t *testing.T) {
	c := Require(t)
	for _, n := range c.Nodes() {
		node, err := c.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ready := condition(node, corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			t.Errorf("%s: Ready=%s: %s", n.Name, ready.Status, ready.Message)
		}
		for label, want := range map[string]string{
			"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "NVIDIA-H200",
			"nvidia.com/gpu.memory": "143771", "nvidia.com/cuda.driver-version.full": "590.48.01",
		} {
			if got := node.Labels[label]; got != want {
				t.Errorf("%s: label %s=%q, wanted %q", n.Name, label, got, want)
			}
		}
		if _, is := node.Labels["node-role.kubernetes.io/control-plane"]; is != n.ControlPlane {
			t.Errorf("%s: control-plane label: %t, wanted %t", n.Name, is, n.ControlPlane)
		}
		Eventually(t, 30*time.Second, n.Name+" has no taint that keeps pods away", func() (bool, string) {
			now, err := c.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return len(now.Spec.Taints) == 0, fmt.Sprint(now.Spec.Taints)
		})
		if gpus := node.Status.Allocatable["nvidia.com/gpu"]; gpus.Value() != int64(len(n.GPUs)) {
			t.Errorf("%s: %s nvidia.com/gpu allocatable, wanted %d", n.Name, &gpus, len(n.GPUs))
		}
	}
}

// Two nodes take 22 of a user's inotify instances, of which the kernel gives 128: with five clusters, a containerd that
// was started again ran on without its CRI plugin, and its node was NotReady for ever.
func TestManyClustersFit(t *testing.T) {
	Require(t)
	const file = "/proc/sys/fs/inotify/max_user_instances"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := strconv.Atoi(strings.TrimSpace(string(raw))); err != nil || got < 1024 {
		t.Errorf("%s is %q while a cluster runs: `up` sets 8192", file, raw)
	}
}

func TestDebugPodSeesTheNodesDriver(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	for _, n := range c.Nodes() {
		pod := podOn(n, "debug",
			"cat /proc/1/root/proc/driver/nvidia/version /proc/1/root/proc/driver/nvidia/gpus/*/information",
			"ls -l /proc/1/root/dev/", "nsenter -t 1 -m -- nvidia-smi -L")
		pod.Spec.HostPID = true
		privileged := true
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
		out := runPod(t, c, ns, pod)
		wants := []string{
			"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01 ", "195, 255", "1,  11", "nvidia-uvm",
		}
		for _, g := range n.GPUs {
			wants = append(wants, "Bus Location: \t "+g.PCI+".0\nDevice Minor: \t "+fmt.Sprint(g.Minor)+"\n",
				"GPU UUID: \t "+g.UUID,
				fmt.Sprintf("GPU %d: NVIDIA H200 (UUID: %s)", g.Index, g.UUID), fmt.Sprintf("nvidia%d\n", g.Minor))
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: a debug pod does not see %q in:\n%s", n.Name, want, out)
			}
		}
	}
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		return // this machine has GPUs of its own
	}
	if _, err := os.Stat("/dev/nvidia0"); err == nil {
		t.Error("/dev/nvidia0 was made in the machine's own /dev")
	}
}

func TestNvidiaSMI(t *testing.T) {
	c := Require(t)
	for _, n := range c.Nodes() {
		var want strings.Builder
		for _, g := range n.GPUs {
			fmt.Fprintf(&want, "%d, NVIDIA H200, %s, 0000%s.0, 143771\n", g.Index, g.UUID, strings.ToUpper(g.PCI))
		}
		got := n.Sh(t, "nvidia-smi", "--query-gpu=index,gpu_name,uuid,pci.bus_id,memory.total",
			"--format=csv,noheader,nounits")
		if got != want.String() {
			t.Errorf("%s: nvidia-smi says\n%swanted\n%s", n.Name, got, want.String())
		}
		for _, g := range n.GPUs {
			xml := n.Sh(t, "nvidia-smi", "-q", "-x", "-i", g.UUID)
			for _, part := range []string{"<minor_number>" + fmt.Sprint(g.Minor) + "<", "<uuid>" + g.UUID + "<"} {
				if !strings.Contains(xml, part) {
					t.Errorf("%s: nvidia-smi -q -x -i %s lacks %s", n.Name, g.UUID, part)
				}
			}
		}
	}
	var exit *exec.ExitError
	if out, err := c.ControlPlane().TrySh(
		t.Context(), "nvidia-smi", "--query-gpu=nonsense", "--format=csv",
	); !errors.As(err, &exit) ||
		exit.ExitCode() != 2 || !strings.Contains(out, `Field "nonsense" is not a valid field to query.`) {
		t.Errorf("an unknown field: %q, %v; wanted exit 2", out, err)
	}
}

func TestXidConditionIsOnlyOnItsOwnNode(t *testing.T) {
	c := Require(t)
	a, b := c.ControlPlane(), c.Workers()[0]
	a.RestartNPD(t)
	b.RestartNPD(t)
	t.Cleanup(func() { a.RestartNPD(t) })
	m := mark()
	// Both lines are written on node a; node-problem-detector of b reads them in this order, so once it has reported
	// the second it has passed over the first.
	kernelLine(t, a,
		fmt.Sprintf("NVRM: Xid (PCI:%s): 79, pid=%s, name=python3, GPU has fallen off the bus.", a.GPUs[1].PCI, m))
	kernelLine(t, a, fmt.Sprintf("NVRM: Xid (PCI:%s): 31, pid=%s, name=python3, MMU Fault", b.GPUs[1].PCI, m))
	Eventually(t, 20*time.Second, "condition GPUXid on "+a.Name, func() (bool, string) {
		k := a.Condition(t, "GPUXid")
		return k.Status == corev1.ConditionTrue && k.Reason == "Xid79" && strings.Contains(k.Message, m), fmt.Sprint(k)
	})
	Eventually(t, 20*time.Second, "event Xid on "+b.Name, func() (bool, string) {
		events, err := c.Client.CoreV1().Events("").List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + b.Name})
		if err != nil {
			return false, err.Error()
		}
		for _, e := range events.Items {
			if e.Reason == "Xid" && strings.Contains(e.Message, m) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d events, none of it", len(events.Items))
	})
	if k := b.Condition(t, "GPUXid"); k.Status != corev1.ConditionFalse {
		t.Errorf("%s has the condition for a GPU of %s: %v", b.Name, a.Name, k)
	}
}

func TestJournalHasTheLineAsTheKernels(t *testing.T) {
	c := Require(t)
	m := mark()
	a, b := c.ControlPlane(), c.Workers()[0]
	kernelLine(t, b, fmt.Sprintf("NVRM: Xid (PCI:%s): 13, pid=%s, name=python3, Graphics Exception", b.GPUs[0].PCI, m))
	for _, n := range []Node{a, b} { // one kernel, one kernel log: both journals have it
		var line string
		Eventually(t, 20*time.Second, "the line in the journal of "+n.Name, func() (bool, string) {
			// Without a match it exits with 1
			out := n.Sh(t, "sh", "-c", "journalctl -k -o json --no-pager --grep 'pid="+m+",' || true")
			line = regexp.MustCompile(`(?m)^.*pid=` + m + `,.*$`).FindString(out)
			return line != "", fmt.Sprintf("%d lines without it", strings.Count(out, "\n"))
		})
		for _, want := range []string{
			`"MESSAGE":"NVRM: Xid (PCI:`, `"SYSLOG_IDENTIFIER":"kernel"`, `"_TRANSPORT":"kernel"`,
			`"_HOSTNAME":"` + n.Name + `"`,
		} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: the journal's entry lacks %s: %s", n.Name, want, line)
			}
		}
	}
}

// What programs on a node log with syslog() is in its journal, under their name: detectors read such lines too.
func TestLoggerReachesTheJournal(t *testing.T) {
	c := Require(t)
	n, m := c.Workers()[0], mark()
	n.Sh(t, "logger", "-t", "gpu-reset", "mark "+m)
	Eventually(t, 20*time.Second, "the line in the journal", func() (bool, string) {
		out := n.Sh(t, "sh", "-c", "journalctl -t gpu-reset -o cat --no-pager || true")
		return strings.Contains(out, "mark "+m), out
	})
}

func TestServiceAndDNSAcrossNodes(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	server := podOn(c.ControlPlane(), "server", "mkdir /w", "echo served >/w/index.html",
		"exec busybox httpd -f -p 8080 -h /w")
	server.Labels = map[string]string{"app": "server"}
	if _, err := c.Client.CoreV1().Pods(ns).Create(t.Context(), server, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: server.Labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := podOn(c.Workers()[0], "client",
		"for i in $(seq 60); do get http://web."+ns+".svc.cluster.local/ && exit 0; sleep 0.5; done; exit 1")
	if out := runPod(t, c, ns, client); !strings.Contains(out, "served") {
		t.Errorf("a pod on %s did not reach a Service on %s by name:\n%s", c.Workers()[0].Name, c.ControlPlane().Name,
			out)
	}
}

func TestPodSecurityIsEnforced(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	labels := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if _, err := c.Client.CoreV1().Namespaces().Patch(
		t.Context(), ns, "application/merge-patch+json", labels, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	pod := podOn(c.Workers()[0], "refused", "true")
	pod.Spec.HostPID = true
	_, err := c.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
		t.Errorf("a pod with hostPID in a restricted namespace: %v; wanted it forbidden", err)
	}
}

// All clusters of a machine share its kernel log: what one cluster's tests write must not be about another one's GPUs.
func TestGPUsAreInThePCIDomainOfTheCluster(t *testing.T) {
	c := Require(t)
	settings, err := os.ReadFile(filepath.Join(filepath.Dir(c.Kubeconfig), "settings"))
	if err != nil {
		t.Fatal(err)
	}
	subnet := regexp.MustCompile(`(?m)^SUBNET=\d+\.(\d+)\.(\d+)$`).FindStringSubmatch(string(settings))
	if subnet == nil {
		t.Fatalf("the cluster's settings have no SUBNET:\n%s", settings)
	}
	second, _ := strconv.Atoi(subnet[1])
	third, _ := strconv.Atoi(subnet[2])
	domain := fmt.Sprintf("%02x%02x", second, third)
	if subnet[0] == "SUBNET=10.99.0" {
		domain = "0000" // the default cluster is as the documentation shows it
	}
	for _, n := range c.Nodes() {
		out := n.Sh(t, "sh", "-c",
			"ls /proc/driver/nvidia/gpus; nvidia-smi --query-gpu=pci.domain --format=csv,noheader")
		for _, g := range n.GPUs {
			if !strings.HasPrefix(g.PCI, domain+":") || !strings.Contains(out, g.PCI+".0\n") ||
				!strings.Contains(out, "0x"+strings.ToUpper(domain)+"\n") {
				t.Errorf("%s: GPU %s is not in domain %s as the driver and nvidia-smi see it:\n%s", n.Name, g.PCI,
					domain, out)
			}
		}
	}
}
