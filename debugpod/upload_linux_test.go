package debugpod

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program stands for the helper: it says how it was called, and then what comes on standard input.
const program = "#!/bin/sh\necho \"$1 $(wc -c <\"$0\")\"\ncat\nexit 7\n"

// sh runs a command of ours with every shell that is here.
func sh(t *testing.T, command []string, in io.Reader, check func(t *testing.T, out string, code int)) {
	t.Helper()
	for _, shell := range [][]string{{"sh"}, {"busybox", "sh"}, {"bash"}} {
		path, err := exec.LookPath(shell[0])
		if err != nil {
			continue
		}
		t.Run(strings.Join(shell, " "), func(t *testing.T) {
			cmd := exec.Command(path, append(shell[1:], command[1:]...)...)
			if seeker, ok := in.(io.Seeker); ok {
				_, _ = seeker.Seek(0, io.SeekStart)
			}
			cmd.Stdin = in
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if stderr.Len() > 0 {
				t.Errorf("on standard error: %s", stderr.String())
			}
			check(t, string(out), cmd.ProcessState.ExitCode())
		})
	}
}

func TestUpload(t *testing.T) {
	dir := t.TempDir()
	sh(t, uploadCommand("/does/not/exist "+dir, len(program)), strings.NewReader(program+"the rest"),
		func(t *testing.T, out string, code int) {
			// head may have taken what lies behind: nothing is sent there.
			if first, _, _ := strings.Cut(out, "\n"); first != "attached "+strconv.Itoa(len(program)) || code != 7 {
				t.Errorf("got %q, %d", out, code)
			}
		})
	sh(t, runCommand("/does/not/exist "+dir), strings.NewReader("a request"), func(t *testing.T, out string, code int) {
		if out != "stdin "+strconv.Itoa(len(program))+"\na request" || code != 7 {
			t.Errorf("got %q, %d", out, code)
		}
	})
	sh(t, runCommand("/does/not/exist"), strings.NewReader(""), func(t *testing.T, out string, code int) {
		if !strings.Contains(out, `"code":"truncated"`) || code != 1 {
			t.Errorf("got %q, %d", out, code)
		}
	})
}

// TestUploadWithOpenInput holds that nothing waits for the input to end.
func TestUploadWithOpenInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	big := "#!/bin/sh\necho ran\nexit 0\n" + strings.Repeat("#", 3<<20) + "\n"
	go func() { _, _ = io.WriteString(w, big) }()
	command := uploadCommand(t.TempDir(), len(big))
	cmd := exec.Command("sh", command[1:]...)
	cmd.Stdin = r
	done := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer done.Stop()
	if out, err := cmd.Output(); err != nil || string(out) != "ran\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestUploadCut(t *testing.T) {
	sh(t, uploadCommand(t.TempDir(), len(program)+10), strings.NewReader(program),
		func(t *testing.T, out string, code int) {
			want := strconv.Itoa(len(program)) + " of " + strconv.Itoa(len(program)+10) + " bytes"
			if !strings.Contains(out, `"code":"truncated"`) || !strings.Contains(out, want) || code != 1 {
				t.Errorf("got %q, %d", out, code)
			}
		})
}

func TestUploadFindsNoPlace(t *testing.T) {
	sh(t, uploadCommand("/does/not/exist /proc", len(program)), strings.NewReader(program),
		func(t *testing.T, out string, code int) {
			a := &answers{}
			_, _ = a.Write([]byte(out))
			if final, broken := a.close(); broken != nil || final == nil || final.Error == nil ||
				final.Error.Code != "no-place-to-execute" || code != 1 {
				t.Errorf("got %q, %d, %v", out, code, broken)
			}
		})
}

func TestUploadPassesOverNoexec(t *testing.T) {
	noexec, dir := t.TempDir(), t.TempDir()
	if err := syscall.Mount("none", noexec, "tmpfs", syscall.MS_NOEXEC, "size=1m"); err != nil {
		t.Skipf("a mount with noexec needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(noexec, 0); err != nil {
			t.Error(err)
		}
	})
	sh(t, uploadCommand(noexec+" "+dir, len(program)), strings.NewReader(program),
		func(t *testing.T, out string, code int) {
			if !strings.HasPrefix(out, "attached") || code != 7 {
				t.Errorf("got %q, %d", out, code)
			}
			if left, _ := filepath.Glob(noexec + "/*"); len(left) > 0 {
				t.Errorf("left behind, and runCommand would take it: %v", left)
			}
		})
}
