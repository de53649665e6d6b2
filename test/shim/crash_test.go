//go:build shim

package shim

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/realxid"
)

// crash runs the program of cudafault/crash.
func (p *pod) crash(code string) (line string, exit int) {
	p.t.Helper()
	program, err := filepath.Abs(filepath.Join(root, "cudafault", "lib", p.on.arch, "crash"))
	if err != nil {
		p.t.Fatal(err)
	}
	r := p.runProgram(program, code)
	return r.stdout, r.code
}

// TestCrash holds that the program makes CUDA report the error of each XID. With a real driver, so does a real GPU.
func TestCrash(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			for text, code := range map[string]int{"13": 13, "31": 31, "43": 43} {
				p := newPodOn(t, on)
				line, exit := p.crash(text)
				o, err := realxid.ParseOutcome(line, code)
				if err != nil || exit != 0 {
					t.Errorf("XID %s: %v, exit code %d", text, err, exit)
					continue
				}
				t.Logf("XID %s: %s", text, o.CUDA())
			}
		})
	}
}

// TestCrashRefuses holds that nothing is launched if others could be harmed, or if the program was not called as it is
// meant to be.
func TestCrashRefuses(t *testing.T) {
	for name, test := range map[string]struct{ key, value, code, want string }{
		"MPS":     {"CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", "31", "refused an MPS server shares the GPU"},
		"MIG":     {"NVIDIA_VISIBLE_DEVICES", "MIG-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3", "31", "refused the device is"},
		"two":     {"FAKECUDA_DEVICES", "2", "31", "refused the container has 2 GPUs"},
		"XID 79":  {"A", "B", "79", "refused usage"},
		"no init": {"FAKECUDA_INIT", "999", "31", "failed cuInit returned 999"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.fake(test.key, test.value)
			if line, exit := p.crash(test.code); exit == 0 || !strings.HasPrefix(line, "gpufault "+test.want) {
				t.Errorf("exit code %d: %s", exit, line)
			}
		})
	}
}
