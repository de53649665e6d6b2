//go:build shim

package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// harm runs a way of cudafault/probe/harm.c under the shim and what is preloaded behind it.
func (p *pod) harm(behind string, args ...string) result {
	p.t.Helper()
	p.env["LD_PRELOAD"] = p.on.library(p.t)
	if behind != "" {
		p.env["LD_PRELOAD"] += ":" + p.program(behind)
	}
	return p.runProgram(p.program("harm"), args...)
}

// TestEnvironmentChanges protects programs that call setenv in one thread while another calls CUDA or NVML: the shim
// must not read the environment while libc moves it.
func TestEnvironmentChanges(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{MemLimit: 12 << 30, Devices: []int{0}, NVMLError: 15, Classes: cudafault.ClassIPC}))
	for range 3 {
		if got, want := p.harm("", "environ"), (result{0, "start 0\n", ""}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestJumpOutOfAHang holds that a thread that leaves a hanging call by siglongjmp is hit by its next call too, also
// from a deeper frame.
func TestJumpOutOfAHang(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			p.arm(all(cudafault.State{
				HangClasses: cudafault.ClassSync, Classes: cudafault.ClassSync, Flags: cudafault.FlagQuiet,
			}))
			if got, want := p.harm("", "jump"), (result{0, "start 0 first -1 then -1\n", ""}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// TestCorruptionTouchesNothingElse verifies that a flip never changes memory after the call has returned: an
// asynchronous copy into pageable memory is complete then, and the program may reuse or unmap the memory.
func TestCorruptionTouchesNothingElse(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{Corrupt: 1, Seed: 3, Classes: cudafault.ClassCopy, Flags: cudafault.FlagQuiet}))
	if got, want := p.harm("", "pageable", "400"), (result{0, "code 0 touched 0\n", ""}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := p.processes(); len(got.List) != 1 || got.List[0].Trips != 400 {
		t.Errorf("%+v, want 400 trips", got)
	}
}

// TestManyCopiesInFlight holds that each copy is hit however many wait in the stream, and that as many trips are
// counted as bits are wrong.
func TestManyCopiesInFlight(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{Corrupt: 1, Seed: 5, Classes: cudafault.ClassCopy, Flags: cudafault.FlagQuiet}))
	a := p.actor()
	a.want("start", "0")
	a.want("order 400", "0 copies 400 late 0 bits 400")
	if got := p.process(a.pid).Trips; got != 400 {
		t.Errorf("%d trips, want 400", got)
	}
}

// TestStartOfManyThreads holds that an interposer behind the shim gets every call of threads that start together.
func TestStartOfManyThreads(t *testing.T) {
	p := newPod(t)
	for range 60 {
		if got, want := p.harm("neighbor.so", "starts"), (result{0, "seen 16\n", ""}); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
}

// TestRunFileOfOthers protects files that are not the shim's: whatever GPU_FAULT_RUN leads to, content and mode stay as
// they are, and the program and its fault go on.
func TestRunFileOfOthers(t *testing.T) {
	secret := append([]byte("root's own, and longer than what the shim writes: "),
		make([]byte, 2*cudafault.ProcessesSize)...)
	itself := func(file string) (string, error) { return file, nil }
	linked := func(file string) (string, error) { return file + ".link", os.Symlink(file, file+".link") }
	for _, test := range []struct {
		name    string
		content []byte
		path    func(file string) (string, error)
	}{
		{"symbolic link", secret, linked},
		{"symbolic link to an empty file", nil, linked},
		{"hard link", secret, func(file string) (string, error) { return file + ".link", os.Link(file, file+".link") }},
		{"another file", secret, itself},
		{"an empty file", nil, itself},
		{"a short file", []byte("short"), itself},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			file := filepath.Join(folder(t), "file")
			if err := os.WriteFile(file, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			path, err := test.path(file)
			if err != nil {
				t.Fatal(err)
			}
			p.env["GPU_FAULT_RUN"] = path
			p.arm(sticky999())
			a := p.actor()
			a.want("start", "0")
			a.want("launch 3", "999*3")
			a.end()
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 || string(data) != string(test.content) {
				t.Errorf("mode %v and %d bytes, want 0600 and the %d bytes that were there", info.Mode(), len(data),
					len(test.content))
			}
		})
	}
}

// TestRunFileTruncated protects processes from those who share their file: emptied under them, it neither kills them
// nor stays empty.
func TestRunFileTruncated(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{Error: 719, Classes: launches, Flags: cudafault.FlagQuiet, Every: 2}))
	a := p.actor()
	a.want("start", "0")
	a.want("launch 2", "719*1 0*1")
	if err := os.Truncate(p.run, 0); err != nil {
		t.Fatal(err)
	}
	a.want("launch 2", "719*1 0*1")
	if got := p.process(a.pid); got.Trips != 2 {
		t.Errorf("%+v, want 2 trips", got)
	}
	if err := os.Remove(p.run); err != nil {
		t.Fatal(err)
	}
	a.want("launch 2", "719*1 0*1")
	eventually(t, "the file is there again", 5*time.Second, func() bool {
		a.ask("launch")
		_, err := os.Stat(p.run)
		return err == nil
	})
	if got, want := fmt.Sprint(p.process(a.pid).PID), fmt.Sprint(a.pid); got != want {
		t.Errorf("process %s, want %s", got, want)
	}
}
