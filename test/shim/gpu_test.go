//go:build shim

package shim

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProgramsOfTheGPUMachine runs the rows of test/gpu/fidelity.py that the fake driver can answer: nobody has a GPU
// when they change the state file or a profile.
func TestProgramsOfTheGPUMachine(t *testing.T) {
	if _, ok := os.LookupEnv(realDriver); ok {
		t.Skip("test/gpu/run runs all rows")
	}
	script, err := filepath.Abs(filepath.Join(root, "test", "gpu", "fidelity.py"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", script, "--at-once", "2", "--shim", x86.library(t),
		"--only", "driver: (XID (48|79|94)|driver-mismatch|memory|names)|NVML: XID (63|79)|unseen: 07-nvml-events, (31|79)")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+x86.bin(t), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n10 of 10 as wanted\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
