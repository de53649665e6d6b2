//go:build !unix

package exercise

import "os/exec"

// alone does nothing: this platform has no process groups.
func alone(*exec.Cmd) {}
