//go:build unix

package exercise

import (
	"os/exec"
	"syscall"
)

// alone gives a program a process group of its own, which is stopped whole: an agent starts others.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
