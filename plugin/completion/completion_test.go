package completion

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// krew puts a link on the PATH that each upgrade points to another file. The completion's link goes to krew's, so that
// it outlives upgrades; one that an earlier release of this plugin made to the file itself, and that dangles by now, is
// replaced.
func TestLinkOutlivesUpgrades(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(program, filepath.Join(bin, "kubectl-gpu_fault")); err != nil {
		t.Skipf("this system makes no links: %v", err)
	}
	link := filepath.Join(bin, linkName)
	if err := os.Symlink(filepath.Join(bin, "store", "v0.0.1", "kubectl-gpu_fault"), link); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(bin, "nothing")+string(filepath.ListSeparator)+bin)
	for _, want := range []string{"created", "already exists"} {
		streams, _, _, said := genericiooptions.NewTestIOStreams()
		if err := installLink(streams); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(said.String(), link+" "+want) {
			t.Errorf("it says %q, want %q", said, want)
		}
		if to, err := os.Readlink(link); err != nil || to != "kubectl-gpu_fault" {
			t.Errorf("the link goes to %q (%v)", to, err)
		}
	}
}

// Who runs the program by its path is told what to do, and nothing is made.
func TestLinkNeedsThePath(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	err := installLink(streams)
	if err == nil || !strings.Contains(err.Error(), "is not in a directory in PATH") ||
		!strings.Contains(err.Error(), "$KREW_ROOT/bin") {
		t.Errorf("the error is %v", err)
	}
	if left, _ := os.ReadDir(bin); len(left) != 0 {
		t.Errorf("made: %v", left)
	}
}

func TestProgramName(t *testing.T) {
	t.Parallel()
	names := map[string]string{
		"linux": "kubectl-gpu_fault", "darwin": "kubectl-gpu_fault", "windows": "kubectl-gpu_fault.exe",
	}
	for goos, want := range names {
		if got := programName(goos); got != want {
			t.Errorf("%s: %s", goos, got)
		}
	}
}
