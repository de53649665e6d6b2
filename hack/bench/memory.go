package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// highWater matches the maximum memory usage of a process, in KiB.
var highWater = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// memory compares the program's maximum memory usage with kubectl's.
func (b *bench) memory(ctx context.Context, what, against string, ours, theirs []string) (row, error) {
	measure := func(program string, args []string) (sample, error) {
		var all sample
		for range b.rounds {
			mib, err := resident(ctx, program, append([]string{"--kubeconfig", b.kubeconfig}, args...)...)
			if err != nil {
				return nil, err
			}
			all = append(all, mib)
		}
		return all, nil
	}
	mine, err := measure(b.plugin, ours)
	if err != nil {
		return row{}, err
	}
	other, err := measure(b.kubectl, theirs)
	if err != nil {
		return row{}, err
	}
	return compared(what, "MiB", mine, against, other).judged(), nil
}

// resident runs a program and returns its maximum memory usage, in MiB. It reads the value from the running process,
// because the system's value for a child that has exited includes the memory of this process.
func resident(ctx context.Context, program string, args ...string) (float64, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	status := fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)
	most := 0.0
	for {
		select {
		case err := <-ended:
			return most, err
		case <-time.After(2 * time.Millisecond):
		}
		text, err := os.ReadFile(status)
		if err != nil {
			continue // the process has exited
		}
		if found := highWater.FindSubmatch(text); found != nil {
			kib, _ := strconv.ParseFloat(string(found[1]), 64)
			most = max(most, kib/1024)
		}
	}
}
