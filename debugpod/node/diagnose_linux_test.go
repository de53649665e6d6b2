package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script returns an executable of this machine.
func script(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestCommandHangs holds that a program that hangs is killed with its children, also where one of them holds its
// output.
func TestCommandHangs(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	program := script(t, fmt.Sprintf("sleep 600 & echo $! > %[1]s\necho $$ >> %[1]s\necho started\nwait\n", pids))
	start := time.Now()
	out, err := runCommand(t.Context(), command{root: "/", program: program, limit: 500 * time.Millisecond, most: 100})
	if err == nil || !strings.Contains(err.Error(), "did not answer within 500ms") || out != "started\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if took := time.Since(start); took > time.Minute { // its child sleeps for ten
		t.Errorf("it took %v", took)
	}
	untilDead(t, pids)
}

// TestCommandLeavesChild holds that a child in the background neither holds us up nor stays.
func TestCommandLeavesChild(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	program := script(t, fmt.Sprintf("sleep 600 & echo $! > %s\necho done\n", pids))
	out, err := runCommand(t.Context(), command{root: "/", program: program, limit: 20 * time.Second, most: 100})
	if err != nil || out != "done\n" {
		t.Errorf("got %q, %v", out, err)
	}
	untilDead(t, pids)
}

func untilDead(t *testing.T, pids string) {
	t.Helper()
	raw, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(raw)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		for giveUp := time.Now().Add(5 * time.Second); alive(pid); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(giveUp) {
				t.Fatalf("process %d still runs", pid)
			}
		}
	}
}

// alive reports whether a process runs: not one that has ended, and waits for its parent.
func alive(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := cutLast(string(stat), ") ")
	return syscall.Kill(pid, 0) == nil && !strings.HasPrefix(after, "Z")
}

func TestCommandFails(t *testing.T) {
	t.Parallel()
	out, err := runCommand(t.Context(),
		command{root: "/", program: script(t, "echo out; echo why >&2; exit 9"), limit: 20 * time.Second, most: 100})
	var exit *exitError
	if !errors.As(err, &exit) || exit.said != "why" || out != "out\n" ||
		!strings.Contains(err.Error(), "exit status 9: why") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := runCommand(
		t.Context(), command{root: "/", program: "/no/such/program", limit: time.Second, most: 100},
	); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client is gone"))
	if _, err := runCommand(
		ctx, command{root: "/", program: script(t, "sleep 600"), limit: 20 * time.Second, most: 100},
	); err == nil || !strings.Contains(err.Error(), "the client is gone") {
		t.Errorf("got %v", err)
	}
}

// TestCommandFloods holds that output without end is bounded in memory and in time.
func TestCommandFloods(t *testing.T) {
	t.Parallel()
	flood := script(t, "while :; do echo 0123456789; done")
	for _, last := range []bool{false, true} {
		out, err := runCommand(t.Context(),
			command{root: "/", program: flood, limit: 300 * time.Millisecond, most: 1000, last: last})
		if err == nil || len(out) != 1000 {
			t.Errorf("last %v: %d bytes, %v", last, len(out), err)
		}
	}
}

func TestOpenBacklog(t *testing.T) {
	t.Parallel()
	if _, err := openBacklog(filepath.Join(t.TempDir(), "kmsg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the device: %v", err)
	}
	plain := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(plain, []byte("6,1,5,-;NVRM: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := openBacklog(plain)
	if err != nil {
		t.Fatal(err)
	}
	records, err := readBacklog(t.Context(), log, testClock())
	if err != nil || len(records) != 1 || log.Close() != nil {
		t.Errorf("%+v, %v", records, err)
	}
}

// TestRealBacklog holds that what was written to this machine's kernel log is found there, with its time.
func TestRealBacklog(t *testing.T) {
	host := realHost(t)
	text := fmt.Sprintf("gpu-fault-test: NVRM: backlog %d", time.Now().UnixNano())
	if err := (kmsgDevice{host.Kmsg}).write("<4>" + text + "\n"); err != nil {
		t.Fatal(err)
	}
	wrote := time.Now()
	d := &diagnosing{host: host, clock: readClock(host.Proc), kernelLog: openBacklog}
	put, err := d.kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found Diagnosis
	put(&found)
	last := found.KernelLog[len(found.KernelLog)-1]
	for _, r := range found.KernelLog {
		if r.Text == text {
			last = r
		}
	}
	if last.Text != text || last.Priority != 1<<3|4 || last.Time.Sub(wrote).Abs() > time.Second {
		t.Errorf("wrote %q at %v, found %+v", text, wrote, last)
	}
}

func TestListens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.Listen("unix", dir+"/a.sock")
	if err != nil {
		t.Fatal(err)
	}
	if got := listens(dir + "/a.sock"); got == nil || !*got {
		t.Error("one that listens is not seen")
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if got := listens(dir + "/a.sock"); got == nil || *got {
		t.Error("one at which nobody listens any more is taken for a live one")
	}
	if listens(dir+"/none.sock") != nil || listens(dir+"/none/none.sock") != nil {
		t.Error("of a socket that is not there something is known")
	}
}

// TestDevicePlugins holds that only sockets count, also those of a kubelet with a root directory of its own.
func TestDevicePlugins(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.process(100, 1, "/usr/bin/kubelet", "/usr/bin/kubelet", "--root-dir=/data/kubelet")
	n.file("/data/kubelet/device-plugins/kubelet_internal_checkpoint", "{}")
	n.file("/data/kubelet/plugins_registry/x", "")
	address := n.host.Root + "/data/kubelet/device-plugins/nvidia-gpu.sock"
	if len(address) > 107 { // of a socket's address; t.TempDir has the test's name in it
		t.Chdir(filepath.Dir(address))
		address = "nvidia-gpu.sock"
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	kubelet, problem := findKubelet(programs(n.host.Proc), n.host)
	if problem != "" {
		t.Fatal(problem)
	}
	put, err := n.diagnosis(noProgram).devicePlugins(n.diagnosis(noProgram).kubeletDir(kubelet))
	var found Diagnosis
	put(&found)
	sockets := found.Probe.DevicePlugins
	if err != nil || len(sockets) != 1 || sockets[0].Path != "/data/kubelet/device-plugins/nvidia-gpu.sock" ||
		sockets[0].Listening == nil || !*sockets[0].Listening || sockets[0].Modified.IsZero() {
		t.Errorf("%+v, %v", sockets, err)
	}
}

// TestPipesAreNotRead holds that a pipe in the place of a file does not hold us up.
func TestPipesAreNotRead(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.file("/etc/cdi/good.json", `{"kind":"nvidia.com/gpu"}`)
	for _, name := range []string{"/etc/os-release", "/etc/cdi/bad.yaml"} {
		n.file(name+".x", "") // makes the folder
		if err := syscall.Mkfifo(n.host.Root+name, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rootFS(n.host.Root).text("/etc/os-release", 10); err == nil {
		t.Error("a pipe was read")
	}
	if spec := readCDI(rootFS(n.host.Root), "/etc/cdi/bad.yaml"); !strings.Contains(spec.Error, "not a file") {
		t.Errorf("%+v", spec)
	}
}
