package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// smiTimeout is how long nvidia-smi may take. It needs seconds without persistence mode, and hangs where a GPU is broken.
const smiTimeout = 8 * time.Second

// nvidiaSMI asks the node's nvidia-smi for every GPU's PCI address and UUID.
func nvidiaSMI(ctx context.Context, root string) (string, error) {
	node := rootFS(root)
	for _, place := range []struct{ root, program, libraries string }{
		{"/", "/usr/bin/nvidia-smi", ""},
		{"/run/nvidia/driver", "/usr/bin/nvidia-smi", ""},                                        // GPU operator: the driver's container
		{"/", "/home/kubernetes/bin/nvidia/bin/nvidia-smi", "/home/kubernetes/bin/nvidia/lib64"}, // GKE
		{"/", "/usr/local/nvidia/bin/nvidia-smi", "/usr/local/nvidia/lib64"},
		{"/", "/usr/local/bin/nvidia-smi", ""},
	} {
		program, err := node.resolve(path.Join(place.root, place.program)[1:])
		if err != nil {
			continue
		}
		if info, err := os.Stat(program); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		return runIn(ctx, node.below(place.root), place.program, place.libraries)
	}
	return "", errors.New("it is in none of the places where it could be")
}

// runIn runs nvidia-smi with its root directory. It returns at the timeout even where a broken GPU keeps the process in the
// kernel, and cannot be killed.
func runIn(ctx context.Context, root, program, libraries string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	cmd := exec.CommandContext(ctx, program, "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	if libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries)
	}
	cmd.WaitDelay = time.Second
	type result struct {
		out string
		err error
	}
	results := make(chan result, 1)
	go func() {
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if said := strings.TrimSpace(stderr.String()); err != nil && said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		results <- result{stdout.String(), err}
	}()
	defer cancel()
	select {
	case r := <-results:
		if r.err != nil && ctx.Err() != nil {
			return "", fmt.Errorf("%s did not answer within %v", program, smiTimeout)
		}
		if r.err != nil {
			return "", fmt.Errorf("%s: %w", program, r.err)
		}
		return r.out, nil
	case <-time.After(smiTimeout + 2*time.Second):
		return "", fmt.Errorf("%s did not answer within %v and cannot be killed", program, smiTimeout)
	}
}

// hostname is the host name of a UTS namespace, given by its file in /proc.
func hostname(namespace string) (string, error) {
	type result struct {
		name string
		err  error
	}
	results := make(chan result, 1)
	go func() {
		// Never unlocked: the thread stays in the other namespace, so it must end with this goroutine.
		runtime.LockOSThread()
		name, err := hostnameHere(namespace)
		results <- result{name, err}
	}()
	r := <-results
	return r.name, r.err
}

func hostnameHere(namespace string) (string, error) {
	f, err := os.Open(namespace)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWUTS); err != nil {
		return "", err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(uts.Nodename[:]), nil
}
