package hostexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// runTimeout is the timeout for programs on the node that only print information.
const runTimeout = 10 * time.Second

// Output runs a program on the node with the given root directory and returns the program's output. A program name
// without a directory is searched for in UsualPath.
func Output(ctx context.Context, root hostfs.FS, program string, args ...string) (string, error) {
	if !path.IsAbs(program) {
		found := ""
		for dir := range strings.SplitSeq(UsualPath, ":") {
			if hostfs.Executable(root, path.Join(dir, program)) == "" {
				found = path.Join(dir, program)
				break
			}
		}
		if found == "" {
			return "", fmt.Errorf("%s was not found in %s", program, UsualPath)
		}
		program = found
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Args = args
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: string(root)}
	cmd.Env = []string{"PATH=" + UsualPath, "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := RunWithheld(cmd)
	if said := strings.TrimSpace(stderr.String()); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return stdout.String(), err
}

func IsExit(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}
