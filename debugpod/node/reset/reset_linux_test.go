package reset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

const (
	address = "0000:17:00.0"
	uuid    = "GPU-75c4ee16-a840-6f6c-9a7b-5ed8f41598b8"
)

// node has processes made of files.
type node struct {
	t    *testing.T
	root string
}

func (n *node) write(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

// process makes a process with an open file.
func (n *node) process(pid, name, file string) {
	n.t.Helper()
	n.write("proc/"+pid+"/comm", name+"\n")
	dir := filepath.Join(n.root, "proc", pid, "fd")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(dir, "5")); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) proc() string { return filepath.Join(n.root, "proc") }

func (n *node) holders() string {
	return strings.Join(holders(os.DirFS(n.proc()), n.proc(), 1), ", ")
}

// TestHolders: a GPU that a program has open is never reset, and the message names the program. nvidia-smi itself stops
// the persistence daemon.
func TestHolders(t *testing.T) {
	t.Parallel()
	n := &node{t, t.TempDir()}
	n.process("10", "nvidia-persiste", "/dev/nvidia1")
	n.process("11", "python3", "/dev/nvidia0")
	n.process("12", "python3", "/dev/nvidia10")
	n.process("13", "cat", "/dev/nvidiactl")
	if got := n.holders(); got != "" {
		t.Errorf("held by %s, though nothing has GPU 1 open", got)
	}
	n.process("4711", "nv-hostengine", "/dev/nvidia1")
	if got := n.holders(); got != "4711 (nv-hostengine)" {
		t.Errorf("held by %q", got)
	}
	n.process("4712", "n", "/dev/nvidia1") // a name that the daemon's begins with
	if got := n.holders(); !strings.Contains(got, "4712 (n)") {
		t.Errorf("held by %q", got)
	}
	for i := range 20 {
		n.process("5"+string(rune('0'+i/10))+string(rune('0'+i%10)), "x", "/dev/nvidia1")
	}
	if got := n.holders(); !strings.HasSuffix(got, "and possibly more") {
		t.Errorf("held by %q", got)
	}
}

// TestSucceeded protects the reading of nvidia-smi's answers. The failures are from NVIDIA's manual and from public
// reports (NVIDIA/gpu-operator#634, NVIDIA/DCGM#229, forums.developer.nvidia.com).
func TestSucceeded(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"GPU 00000000:3B:00.0 was successfully reset.\nAll done.\n": true,
		"The following GPUs could not be reset:\n  GPU 00000000:01:00.0: In use by another client\n\n1 device is currently " +
			"being used by one or more other processes": false,
		"Resetting GPU 00000000:01:00.0 is not supported.\n":                                     false,
		"GPU Reset couldn't run because GPU 00000000:01:00.0 is the primary GPU.\n":              false,
		"Unable to reset this GPU because it's being used by some other process (e.g. CUDA app)": false,
		"x GPU 00000000:3B:00.0 was successfully reset.":                                         false,
		"": false,
	} {
		if got := succeeded.MatchString(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	if got := oneLine("a\n b\t" + strings.Repeat("é", 500)); len(got) > 410 || !strings.HasPrefix(got, "a b ") {
		t.Errorf("one line: %q", got)
	}
}

// TestReset: what is refused was never reset, and a GPU that does not answer afterwards is an error.
func TestReset(t *testing.T) {
	t.Parallel()
	const well = "GPU 00000000:17:00.0 was successfully reset.\nAll done.\n"
	for name, test := range map[string]struct {
		reset, mig, uuid string
		held             bool
		want             string // of the error
		ran              bool
	}{
		"well":          {well, "Disabled\n", uuid + "\n", false, "", true},
		"MIG":           {well, "Enabled\n", uuid, false, "is in MIG mode", false},
		"held":          {well, "Disabled\n", uuid, true, "is open in 4711 (python3)", false},
		"refused":       {"GPU is the primary GPU", "", uuid, false, "did not reset", true},
		"another GPU":   {well, "", "GPU-other", false, "reboot the node", true},
		"does not wake": {well, "[N/A]", "No devices were found", false, "reboot the node", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &node{t, t.TempDir()}
			if test.held {
				n.process("4711", "python3", "/dev/nvidia1")
			}
			ran := false
			done, failure := reset(api.GPU{PCI: address, UUID: uuid, Minor: 1}, n.proc(),
				func(_ time.Duration, args ...string) (string, error) {
					switch args[0] {
					case "--gpu-reset":
						ran = true
						return test.reset, nil
					case "--query-gpu=uuid":
						return test.uuid, nil
					}
					return test.mig, nil
				})
			said := ""
			if failure != nil {
				said = failure.Message
			}
			refused := test.want != ""
			if (said != "") != refused || !strings.Contains(said, test.want) || (done == nil) != refused {
				t.Errorf("%v, %q, want %q", done, said, test.want)
			}
			if ran != test.ran {
				t.Errorf("nvidia-smi reset it: %t", ran)
			}
		})
	}
	known := []api.GPU{{PCI: address}}
	_, failure := GPU(t.Context(), api.ResetGPU{PCI: "0000:99:00.0"}, known, hostfs.Host{Root: t.TempDir()})
	if failure == nil || !strings.Contains(failure.Message, "has no GPU at") {
		t.Errorf("%v", failure)
	}
	_, failure = GPU(t.Context(), api.ResetGPU{PCI: address}, known, hostfs.Host{Root: t.TempDir()})
	if failure == nil || !strings.Contains(failure.Message, "nvidia-smi was not found") {
		t.Errorf("%v", failure)
	}
	for at, ok := range map[string]bool{address: true, "00000000:17:00.0": true, "0": false, "-r": false, "": false} {
		if err := (api.ResetGPU{PCI: at}).Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", at, err)
		}
	}
}
