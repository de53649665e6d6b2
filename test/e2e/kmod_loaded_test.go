//go:build e2e && kmod

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// The tests of this file need nodes whose kernel loads modules: test/kmod/cluster-tests runs them in a virtual machine,
// which is slow.
const machinePatience = 5 * time.Minute

// machine returns a test's view of that cluster, and what the module is made of.
func machine(t *testing.T) (e *env, file string) {
	t.Helper()
	e = setup(t)
	e.limit = 15 * time.Minute
	file = os.Getenv("KMOD_FILE")
	if file == "" || os.Getenv("KMOD_TREE") == "" {
		t.Fatal("set KMOD_FILE to the built module, and KMOD_TREE to the packages of the kernel")
	}
	if e.loaded() {
		t.Fatal("the kernel module is loaded already")
	}
	return e, file
}

// loaded reports whether the kernel has the module. All nodes share it.
func (e *env) loaded() bool {
	e.t.Helper()
	return strings.Contains("\n"+e.worker.Sh(e.t, "cat", "/proc/modules"), "\n"+kmod.Name+" ")
}

// isTheKernels checks that the only record with the text is one of facility kern and of the driver's level. What
// journald and rsyslog make of it is held by test/kmod, where they run as on Debian.
func (e *env) isTheKernels(text string) {
	e.t.Helper()
	var lines []string
	for line := range strings.Lines(e.worker.Sh(e.t, "dmesg", "--decode")) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "kern  :warn  :") {
		e.t.Errorf("the kernel log has %q, wanted one line of the kernel's own, with its default level", lines)
	}
}

// nothingLeft checks that a run has left no module, pod or open record.
func (e *env) nothingLeft() {
	e.t.Helper()
	e.noPods()
	if e.loaded() {
		e.t.Error("the kernel module is still loaded")
	}
	for _, run := range e.runs() {
		if !run.Steps[0].Undo.IsPermanent() {
			e.t.Errorf("run %s has still something to undo: %+v", run.ID, run.Steps[0])
		}
	}
}

// The whole way with a module that is built already: it is loaded, the line is the kernel's own, real detectors see it,
// and it is unloaded.
func TestVMModuleThatIsBuilt(t *testing.T) {
	e, file := machine(t)
	e.worker.RestartNPD(t)
	out := e.inject("79", e.worker.Name, "--via", "kmod", "--ko", file, "--process", "4711,a-built-module", "--timeout",
		"5m")
	if out.Phase != ledger.Proven || len(out.Nodes[0].Records) != 1 {
		t.Fatalf("wanted one proven record: %+v", out)
	}
	gpu := e.worker.GPUs[0].PCI
	if text, want := out.Nodes[0].Records[0].Text, fmt.Sprintf(
		"NVRM: Xid (PCI:%s): 79, pid=4711, name=a-built-module, GPU has fallen off the bus.", gpu,
	); text != want {
		t.Errorf("the line is %q, wanted %q", text, want)
	}
	e.nothingLeft()
	e.isTheKernels("name=a-built-module")
	cluster.Eventually(t, machinePatience, "node-problem-detector sets GPUXid", func() (bool, string) {
		c := e.condition(e.worker.Name, "GPUXid")
		return c.Status == "True" && strings.Contains(c.Message, gpu), fmt.Sprintf("%s %s", c.Status, c.Message)
	})
	e.ok("revert", out.ID, "--yes")
	e.nothingLeft()
}

// The module is built in an image with a compiler, against headers that only the node has.
func TestVMModuleThatTheNodeBuilds(t *testing.T) {
	e, _ := machine(t)
	tree := os.Getenv("KMOD_TREE")
	kernel := strings.TrimSpace(e.worker.Sh(t, "uname", "-r"))
	args := []string{
		"xid", "79", e.worker.Name, "--via", "kmod", "--builder-image", "docker.io/gpu-fault/builder:1", "--process",
		"4711,built-on-node", "--timeout", "5m", "--yes",
	}
	e.refused(e.plugin(args...), "the headers for the node's kernel "+kernel, "--kmod-headers")
	e.nothingLeft()

	// As the packages of headers do, without their time: the node's root is the machine's, which does not have them.
	common := strings.TrimSuffix(kernel, "amd64") + "common"
	kbuild := filepath.Base(e.worker.Sh(t, "sh", "-c", "ls -d "+tree+"/usr/lib/linux-kbuild-*|tr -d '\\n'"))
	for _, dir := range []string{
		"/usr/src/linux-headers-" + kernel, "/usr/src/linux-headers-" + common, "/usr/lib/" + kbuild,
	} {
		e.worker.Sh(t, "mkdir", "-p", dir)
		e.worker.Sh(t, "mount", "--bind", "-o", "ro", tree+dir, dir)
		t.Cleanup(func() { e.worker.Sh(t, "umount", dir) })
	}
	var out injected
	e.decode(e.ok(append(args, "-o", "json")...).stdout, &out)
	if out.Phase != ledger.Proven {
		t.Errorf("wanted a proven record: %+v", out)
	}
	e.nothingLeft()
	e.isTheKernels("name=built-on-node")
}

// slowly begins a burst that takes minutes, and waits until its module is loaded.
func (e *env) slowly(file, process string) *started {
	e.t.Helper()
	s := &started{Cmd: e.command("xid", "63", e.worker.Name, "--via", "kmod", "--ko", file, "--process",
		"4711,"+process, "--yes", "--count", "600", "--interval", "1s")}
	s.Stdout, s.Stderr = &s.stdout, &s.stderr
	if err := s.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = s.Process.Kill(); _, _ = s.Process.Wait() })
	cluster.Eventually(e.t, machinePatience, "a line was written through the module", func() (bool, string) {
		if s.ProcessState != nil {
			return false, s.stderr.String()
		}
		return strings.Contains(e.worker.Sh(e.t, "dmesg"), "name="+process), "none"
	})
	if !e.loaded() {
		e.t.Fatalf("the line is there and the module is not:\n%s", s.stderr.String())
	}
	return s
}

// A client that is killed takes the module along: its helper notices. Revert then finds nothing to unload, and says so.
func TestVMModuleOfAClientThatIsKilled(t *testing.T) {
	e, file := machine(t)
	s := e.slowly(file, "killed-client")
	run := e.phase(ledger.Applying)
	if run.Steps[0].Undo.IsPermanent() {
		t.Errorf("the module is loaded, and the ledger has no undo: %+v", run.Steps[0])
	}
	_ = s.Process.Kill()
	_ = s.Wait()
	cluster.Eventually(t, machinePatience, "the helper has unloaded the module",
		func() (bool, string) { return !e.loaded(), "it is loaded" })
	r := e.ok("revert", run.ID, "--yes", "--force")
	if said := r.stdout + r.stderr; !strings.Contains(said, "the kernel module is not loaded") {
		t.Errorf("revert does not say what became of the module:\n%s", said)
	}
	e.nothingLeft()
}

// An interrupted client unloads the module before it ends.
func TestVMModuleIsUnloadedByCtrlC(t *testing.T) {
	e, file := machine(t)
	s := e.slowly(file, "ctrl-c-client")
	_ = s.Process.Signal(syscall.SIGINT)
	_ = s.Wait()
	if code := s.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d after Ctrl-C, wanted 130; stderr:\n%s", code, s.stderr.String())
	}
	e.nothingLeft()
}

// A helper that is killed leaves the module. Then leftovers shows it, no other run gets in its way, and revert unloads
// it.
func TestVMModuleOfAHelperThatIsKilled(t *testing.T) {
	e, file := machine(t)
	s := e.slowly(file, "killed-helper")
	run := e.phase(ledger.Applying)
	// The helper must not hear that its client is gone, which must not ask the cluster for another pod.
	e.worker.Sh(t, "pkill", "-STOP", "-f", "gpu-fault-node")
	_ = s.Process.Kill()
	e.worker.Sh(t, "pkill", "-KILL", "-f", "gpu-fault-node")
	_ = s.Wait()
	if !e.loaded() {
		t.Fatal("the helper has unloaded the module before it was killed, so this proves nothing")
	}

	// Until the run's deadline its client may be alive, for all that others know. When the record is lost, too, the
	// node tells.
	if r := e.ok("leftovers", "--node", e.worker.Name); !strings.Contains(
		r.stdout+r.stderr, "of active runs remain in place",
	) {
		t.Errorf("leftovers says nothing of a run in place:\n%s%s", r.stdout, r.stderr)
	}
	records := e.cluster.Client.CoreV1().ConfigMaps(e.ledger)
	record, err := records.Get(t.Context(), run.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Delete(t.Context(), run.ID, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r := e.plugin("leftovers", "--node", e.worker.Name)
	if want := "kernel-module/" + e.worker.Name + ":/sys/module/" + kmod.Name; r.code != 2 ||
		!strings.Contains(r.stdout, want) {
		t.Errorf("leftovers without the record: exit %d, wanted 2 and %s:\n%s%s", r.code, want, r.stdout, r.stderr)
	}
	record.ResourceVersion, record.UID = "", ""
	if _, err := records.Create(t.Context(), record, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	other := *e
	other.ledger = e.ledger + "-2" // which knows nothing of the run
	t.Cleanup(other.removeLedger)
	other.refused(other.plugin("xid", "79", e.worker.Name, "--via", "kmod", "--ko", file, "--yes", "--timeout", "5m"),
		"is already loaded by run "+run.ID, "kubectl gpu-fault revert "+run.ID)

	if r := e.ok("revert", run.ID, "--yes", "--force"); !strings.Contains(r.stdout+r.stderr, "has been unloaded") {
		t.Errorf("revert does not say that it unloaded the module:\n%s%s", r.stdout, r.stderr)
	}
	e.nothingLeft()
	if r := e.plugin("leftovers", "--node", e.worker.Name); strings.Contains(r.stdout, kmod.Name) {
		t.Errorf("after revert leftovers still shows the module:\n%s", r.stdout)
	}
}
