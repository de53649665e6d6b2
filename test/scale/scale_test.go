//go:build e2e

// Package scale measures what many nodes at once cost, on fake nodes (kwok) beside the real API server. The pods of
// fake nodes execute the real helper on a real node. Starting that many containers would measure the machine instead.
package scale

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// Eight times the nodes take at most nine times as long: each node gets its pod, its helper, its line in the kernel
// log, its lock and its part of the record, and nothing costs more because there are others. The memory stays below
// 200 MiB.
func TestInjectingGrowsLinearly(t *testing.T) {
	c := cluster.Require(t)
	folder := t.TempDir()
	program, err := helper.For(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "helper")
	if err := os.WriteFile(file, program, 0o600); err != nil {
		t.Fatal(err)
	}
	plugin := build(t)
	t.Setenv("HELPER", file)
	kwok(t, "start", "40", "8")
	t.Cleanup(func() { kwok(t, "stop") })

	memory := int64(0)
	ours := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), plugin, append(args, "--yes", "--kubeconfig", c.Kubeconfig)...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, said.String())
		}
		memory = max(memory, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss<<10)
		return out.String()
	}
	inject := func(nodes int) time.Duration {
		args := []string{"xid", "63"}
		for i := range nodes {
			args = append(args, fmt.Sprintf("fake-%05d", i))
		}
		start := time.Now()
		out := ours(append(args, "--allow-majority")...)
		took := time.Since(start)
		sequences := map[string]bool{}
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); strings.Contains(line, "NVRM: Xid") {
				sequences[fields[3]] = true // NODE GPU XID SEQUENCE
			}
		}
		if len(sequences) != nodes {
			t.Fatalf("%d different lines were verified on %d nodes:\n%s", len(sequences), nodes, out)
		}
		ours("revert", "--all")
		return took
	}

	inject(1) // creates the namespace
	// The best of some rounds: whatever else the machine does only adds.
	few, many := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range 3 {
		few, many = min(few, inject(5)), min(many, inject(40))
		if many <= 9*few {
			break
		}
	}
	t.Logf("5 nodes took %s, 40 nodes %s, %.1f times as long; at most %d MiB", few, many, many.Seconds()/few.Seconds(),
		memory>>20)
	if many > 9*few {
		t.Errorf("40 nodes take %.1f times as long as 5 (%s, %s), wanted at most 9", many.Seconds()/few.Seconds(), many,
			few)
	}
	if memory > 200<<20 {
		t.Errorf("%d MiB, wanted at most 200", memory>>20)
	}
}

// build builds the plugin with its helpers, and returns its path.
func build(t *testing.T) string {
	t.Helper()
	plugin := filepath.Join(t.TempDir(), "kubectl-gpu_fault")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, "../../cmd/kubectl-gpu_fault")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	return plugin
}

func kwok(t *testing.T, args ...string) {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("..", "cluster", "kwok"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(script, args...).CombinedOutput(); err != nil {
		t.Fatalf("kwok %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
