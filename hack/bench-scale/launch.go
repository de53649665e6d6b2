package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// launcher is the first argument of the process that starts the commands to measure. This must be a separate process,
// because the kernel counts the parent's maximum size as the child's, and this program keeps lists of all pods in
// memory.
const launcher = "launch"

// used is the resource usage of a process.
type used struct {
	Code   int
	Wall   float64 // seconds
	CPU    float64 // seconds
	Memory int64   // bytes
}

// launch runs a program in the launcher.
func launch(ctx context.Context, program string, args []string, out *os.File, said io.Writer) (u used, err error) {
	self, err := os.Executable()
	if err != nil {
		return u, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{launcher, out.Name(), program}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var answer bytes.Buffer
	cmd.Stdout, cmd.Stderr = &answer, said
	if err := cmd.Run(); err != nil {
		return u, err
	}
	return u, json.Unmarshal(answer.Bytes(), &u)
}

// launched is the launcher's main function: it runs a program, writes its output to a file, and prints its resource
// usage.
func launched(file, program string, args []string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it can clean up
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	start := time.Now()
	err = cmd.Run()
	if state := cmd.ProcessState; state != nil {
		return errors.Join(out.Close(), json.NewEncoder(os.Stdout).Encode(used{
			Code: state.ExitCode(), Wall: time.Since(start).Seconds(),
			CPU:    (state.UserTime() + state.SystemTime()).Seconds(),
			Memory: state.SysUsage().(*syscall.Rusage).Maxrss << 10,
		}))
	}
	return fmt.Errorf("start %s: %w", program, err)
}
