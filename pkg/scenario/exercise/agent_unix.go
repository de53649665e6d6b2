//go:build unix

package exercise

import (
	"os/exec"
	"syscall"
)

// alone runs a program in its own process group, so that stopping it also stops the processes that it started.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
