//go:build e2e

package e2e

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod/kmodtest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// A node that cannot load the kernel module, or where it cannot be built, is told from others before anything is
// loaded: this kernel may have no modules, and an image without make builds none wherever these tests run. The error
// says what to do, and what works instead. The module itself is tried in virtual machines: see test/kmod.
func TestTheKernelModuleIsRefusedBeforeItIsLoaded(t *testing.T) {
	t.Parallel()
	e := setup(t)
	file := filepath.Join(t.TempDir(), "gpu_fault_xid.ko")
	if err := os.WriteFile(file, kmodtest.File(elf.EM_X86_64, "0.0.0-of-no-node"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"built on the node":          {"--builder-image", debugpod.DefaultImage},
		"built for another kernel":   {"--ko", file},
		"headers that are not there": {"--builder-image", debugpod.DefaultImage, "--kmod-headers", "/nonexistent"},
	} {
		t.Run(name, func(t *testing.T) {
			e := *e
			e.t = t
			before := e.lastSequence()
			r := e.plugin(append([]string{
				"xid", "79", e.worker.Name, "--via", "kmod", "--yes", "--message", "must not be written",
			}, args...)...)
			e.refused(r, "loads the kernel module gpu_fault_xid", "tainted", "--via kmsg")
			if text := e.since(before); strings.Contains(text, "must not be written") ||
				strings.Contains(text, "gpu_fault_xid") {
				t.Errorf("the kernel log was written, or a module loaded:\n%s", text)
			}
			if runs := e.runs(); len(runs) > 0 {
				t.Errorf("runs are open though nothing was changed: %+v", runs)
			}
		})
	}
	for _, run := range e.runs("--all") {
		if step := run.Steps[0]; run.Phase != ledger.Failed || step.Pending() || step.Detail != nil {
			t.Errorf("run %s says %s, step %+v: wanted a failed one with nothing to undo", run.ID, run.Phase, step)
		}
	}
}

// What can be known about the module without a node is said without one.
func TestAFileThatIsNoKernelModule(t *testing.T) {
	t.Parallel()
	e := setup(t)
	n := e.worker.Name
	e.refused(e.plugin("xid", "79", n, "--yes", "--via", "kmod", "--ko", "/nonexistent"), "/nonexistent")
	e.refused(e.plugin("xid", "79", n, "--yes", "--via", "kmod", "--ko", binary(t, "kubectl-gpu_fault")), "--ko")
	e.refused(e.plugin("xid", "79", n, "--yes", "--ko", "/nonexistent"), "--via kmod")
	e.refused(e.plugin("xid", "79", n, "--yes", "--via", "kmod", "--form", "kernel"), "remove --form kernel")
	e.untouched()
}
