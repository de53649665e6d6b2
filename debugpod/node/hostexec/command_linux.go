package hostexec

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Run runs a program on the node without the capabilities to load modules or create devices. At the timeout, it kills
// the program's process group. It returns even if the program cannot be killed because a broken GPU or an unavailable
// file system blocks it in the kernel.
func Run(ctx context.Context, c Command) (string, error) {
	type outcome struct {
		out string
		err error
	}
	limited, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	outcomes := make(chan outcome, 1)
	go func() {
		out, err := c.execute(limited)
		outcomes <- outcome{out, err}
	}()
	timer := time.NewTimer(c.Limit + 2*time.Second)
	defer timer.Stop()
	select {
	case o := <-outcomes:
		switch {
		case o.err != nil && ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
			return o.out, fmt.Errorf("%s was stopped: %w", c.Program, context.Cause(ctx))
		case o.err != nil && limited.Err() != nil:
			return o.out, fmt.Errorf("%s did not answer within %v", c.Program, c.Limit)
		}
		return o.out, o.err
	case <-timer.C:
		return "", fmt.Errorf("%s did not answer within %v and cannot be killed", c.Program, c.Limit)
	}
}

func (c Command) execute(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.Program, c.Args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.Root != "/" { // "/" requires no chroot, and therefore no privileges
		cmd.SysProcAttr.Chroot = string(c.Root)
	}
	cmd.Env = []string{"PATH=" + UsualPath, "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	if c.Libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+c.Libraries)
	}
	stdout, stderr := &kept{most: c.Most, last: c.Last}, &kept{most: api.MaxLineText, last: true}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// Kill the entire group, because the child of a wrapper script would otherwise continue to run and keep the pipe
	// open.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := RunWithheld(cmd)
	if errors.Is(err, exec.ErrWaitDelay) { // the program has exited; a child in its group still has the pipe open
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = nil
	}
	if err != nil {
		err = &ExitError{
			Program: c.Program, Err: err, Said: strings.ToValidUTF8(strings.TrimSpace(stderr.String()), "\uFFFD"),
		}
	}
	return stdout.String(), err
}
