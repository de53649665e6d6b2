//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// kubectl runs the real kubectl and returns its stdout.
func (e *env) kubectl(args ...string) string {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), binary(e.t, "kubectl"),
		append([]string{"--kubeconfig", e.cluster.Kubeconfig}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		e.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Bad input is refused before anything is touched: no record, no pod, no line.
func TestBadInputTouchesNothing(t *testing.T) {
	t.Parallel()
	e := setup(t)
	n, gpu := e.worker.Name, e.worker.GPUs[0].PCI
	for name, test := range map[string]struct {
		args  []string
		parts []string
	}{
		"code 0":               {[]string{"0", n}, []string{"0"}},
		"negative code":        {[]string{"--", "-1", n}, []string{"-1"}},
		"not a number":         {[]string{"seventy-nine", n}, []string{"seventy-nine"}},
		"unknown code":         {[]string{"999", n}, []string{"999", "--message"}},
		"unknown switch code":  {[]string{"sxid:99999", n, "--gpu", gpu}, []string{"99999", "--message"}},
		"no node":              {[]string{"79"}, []string{"no target"}},
		"unknown node":         {[]string{"79", "node-bb"}, []string{"node-bb", "node-b"}},
		"two ways to choose":   {[]string{"79", n, "-l", "a=b"}, []string{"specify only one of"}},
		"labels of no node":    {[]string{"79", "-l", "no=such"}, []string{"no node matches the selector"}},
		"control plane":        {[]string{"79", e.control.Name}, []string{e.control.Name, "--allow-control-plane"}},
		"malformed PCI":        {[]string{"79", n, "--gpu", "0000:zz:00"}, []string{"0000:zz:00"}},
		"malformed UUID":       {[]string{"79", n, "--gpu", "GPU-1234"}, []string{"GPU-1234"}},
		"malformed index":      {[]string{"79", n, "--gpu", "first"}, []string{"first", "index"}},
		"message with newline": {[]string{"79", n, "--message", "a\nb"}, []string{"--message"}},
		"message with escape":  {[]string{"79", n, "--message", "a\x1b[2J"}, []string{"--message"}},
		"message too long":     {[]string{"79", n, "--message", strings.Repeat("x", 1000)}, []string{"976"}},
		"malformed process":    {[]string{"79", n, "--process", "python"}, []string{"--process", "PID,NAME"}},
		"count of zero":        {[]string{"79", n, "--count", "0"}, []string{"--count"}},
		"form":                 {[]string{"79", n, "--form", "xml"}, []string{"--form", "bracket"}},
		"output":               {[]string{"79", n, "-o", "xml"}, []string{"xml"}},
		"dry run":              {[]string{"79", n, "--dry-run=maybe"}, []string{"client", "server"}},
		"flag":                 {[]string{"79", n, "--nosuch"}, []string{"--nosuch"}},
		"namespace of no pod":  {[]string{"79", "--pod", "nobody"}, []string{"nobody", "-n"}},
		"replay of no file":    {[]string{"replay", "/nonexistent", n}, []string{"/nonexistent"}},
		"replay of a binary":   {[]string{"replay", binary(t, "kubectl-gpu_fault"), n}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"xid", "--yes"}, test.args...)
			e := *e
			e.t = t
			e.refused(e.plugin(args...), test.parts...)
		})
	}
	e.untouched()
}

func TestNoTerminalNeedsYes(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.refused(e.plugin("xid", "79", e.worker.Name), "--yes", "nothing was changed")
	e.untouched()
}

// An index that does not exist can only be known on the node: the kernel log stays untouched, the answer lists what is
// there.
func TestAGPUThatDoesNotExist(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for _, choice := range []string{"7", "0000:ff:00", "GPU-00000000-0000-0000-0000-000000000000"} {
		before := e.lastSequence()
		e.refused(e.plugin("xid", "79", e.worker.Name, "--yes", "--gpu", choice), choice, e.worker.GPUs[0].UUID,
			e.worker.GPUs[1].PCI)
		if text := e.since(before); strings.Contains(text, "ff:00") {
			t.Errorf("the kernel log was written though the GPU does not exist:\n%s", text)
		}
	}
}

// lastSequence returns the number of the newest record in the kernel log.
func (e *env) lastSequence() string {
	e.t.Helper()
	lines := strings.Split(strings.TrimSpace(e.worker.Sh(e.t, "dmesg")), "\n")
	return lines[len(lines)-1]
}

// since returns the kernel log after the given line.
func (e *env) since(line string) string {
	e.t.Helper()
	_, after, _ := strings.Cut(e.worker.Sh(e.t, "dmesg"), line)
	return after
}

func TestNodesThatCannotRunIt(t *testing.T) {
	t.Parallel()
	e := setup(t)
	nodes := e.cluster.Client.CoreV1().Nodes()
	for name, labels := range map[string]map[string]string{
		"e2e-windows": {"kubernetes.io/os": "windows"},
		"e2e-dead":    {"kubernetes.io/os": "linux"},
	} {
		_ = nodes.Delete(t.Context(), name, metav1.DeleteOptions{})
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	e.refused(e.plugin("xid", "79", "e2e-windows", "--yes", "--gpu", "0000:17:00"), "e2e-windows runs windows")
	e.refused(e.plugin("xid", "79", "e2e-dead", "--yes", "--gpu", "0000:17:00"), "e2e-dead is not Ready")
	e.untouched()
}

func TestConnectionTroubleIsExplained(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.refused(e.pluginWith([]string{"KUBECONFIG=/nonexistent"}, "xid", "79", "x", "--yes"), "no kubeconfig found")
	e.refused(e.plugin("xid", "79", "x", "--yes", "--server", "https://127.0.0.1:1"), "127.0.0.1:1",
		"cannot reach the API server")
	e.refused(e.plugin("xid", "79", "x", "--yes", "--context", "nowhere"), "nowhere", "get-contexts")
	for _, namespace := range []string{"", "kube-system", "Bad_Name"} {
		e.refused(e.plugin("list", "--ledger-namespace", namespace), "--ledger-namespace")
	}
	e.refused(e.plugin("list", "--as", "nobody"), "cannot get resource \"namespaces\"",
		"kubectl gpu-fault rbac print --for list")
}

func (e *env) makeLedger(labels map[string]string) {
	e.t.Helper()
	labels[ledger.LabelLedger] = "true"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.ledger, Labels: labels}}
	if _, err := e.cluster.Client.CoreV1().Namespaces().Create(e.t.Context(), ns, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	cluster.Eventually(e.t, patience, "the default service account exists", func() (bool, string) {
		_, err := e.cluster.Client.CoreV1().ServiceAccounts(e.ledger).Get(e.t.Context(), "default", metav1.GetOptions{})
		return err == nil, "not yet"
	})
}

func TestPodSecurityRefusal(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	e.refused(e.plugin("xid", "79", e.worker.Name, "--yes"),
		"kubectl label --overwrite namespace "+e.ledger, "pod-security.kubernetes.io/enforce=privileged")
	e.untouched()
}

func TestQuotaRefusal(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: quantity("0")}},
	}
	if _, err := e.cluster.Client.CoreV1().ResourceQuotas(e.ledger).Create(
		t.Context(), quota, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the quota is in force", func() (bool, string) {
		q, err := e.cluster.Client.CoreV1().ResourceQuotas(e.ledger).Get(t.Context(), "none", metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) > 0, "no status yet"
	})
	e.refused(e.plugin("xid", "79", e.worker.Name, "--yes"), "quota", e.ledger)
	e.untouched()
}

func TestAnImageThatCannotBePulled(t *testing.T) {
	t.Parallel()
	e := setup(t)
	r := e.plugin("xid", "79", e.worker.Name, "--yes", "--image", "registry.invalid/none:1", "--timeout", "60s")
	e.refused(r, "registry.invalid/none:1", "--image")
	if runs := e.runs("--all"); len(runs) != 1 || runs[0].Closed.IsZero() {
		t.Errorf("the failed run is not closed in the ledger: %+v", runs)
	}
}

// The sysctl is the machine's: this test runs alone.
func TestPrintkDevkmsgOff(t *testing.T) {
	e := setup(t)
	const file = "/proc/sys/kernel/printk_devkmsg"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("off\n"), 0o644); err != nil {
		t.Fatalf("switch %s off: %v", file, err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, old, 0o644); err != nil {
			t.Errorf("put %s back to %s: %v", file, old, err)
		}
		// Detectors lost their open log while it was off.
		e.worker.RestartNPD(t)
		e.control.RestartNPD(t)
	})
	e.refused(e.plugin("xid", "79", e.worker.Name, "--yes"), "printk_devkmsg", "sysctl -w kernel.printk_devkmsg=")
}
