package hostexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	// Another process writes it: a program that a parallel test starts may inherit a descriptor of this one, and then
	// the script is "text file busy" (https://go.dev/issue/22315).
	write := exec.Command("install", "-m", "755", "/dev/stdin", name)
	write.Stdin = strings.NewReader("#!/bin/sh\n" + text)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
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
	out, err := Run(t.Context(), Command{Root: "/", Program: program, Limit: 500 * time.Millisecond, Most: 100})
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
	out, err := Run(t.Context(), Command{Root: "/", Program: program, Limit: 20 * time.Second, Most: 100})
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
	ended := strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z")
	return syscall.Kill(pid, 0) == nil && !ended
}

func TestCommandFails(t *testing.T) {
	t.Parallel()
	out, err := Run(t.Context(),
		Command{Root: "/", Program: script(t, "echo out; echo why >&2; exit 9"), Limit: 20 * time.Second, Most: 100})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Said != "why" || out != "out\n" ||
		!strings.Contains(err.Error(), "exit status 9: why") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := Run(
		t.Context(), Command{Root: "/", Program: "/no/such/program", Limit: time.Second, Most: 100},
	); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client is gone"))
	if _, err := Run(
		ctx, Command{Root: "/", Program: script(t, "sleep 600"), Limit: 20 * time.Second, Most: 100},
	); err == nil || !strings.Contains(err.Error(), "the client is gone") {
		t.Errorf("got %v", err)
	}
}

// TestCommandFloods holds that output without end is bounded in memory and in time.
func TestCommandFloods(t *testing.T) {
	t.Parallel()
	flood := script(t, "while :; do echo 0123456789; done")
	for _, last := range []bool{false, true} {
		out, err := Run(t.Context(),
			Command{Root: "/", Program: flood, Limit: 300 * time.Millisecond, Most: 1000, Last: last})
		if err == nil || len(out) != 1000 {
			t.Errorf("last %v: %d bytes, %v", last, len(out), err)
		}
	}
}
