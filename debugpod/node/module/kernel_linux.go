package module

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// linuxKernel is the kernel on which this process runs.
type linuxKernel struct{}

func thisKernel() moduleKernel { return linuxKernel{} }

// load loads a module from memory, because the module is received over the network and is not a file.
func (linuxKernel) load(module []byte, parameters string) error {
	err := unix.InitModule(module, parameters)
	switch {
	case errors.Is(err, unix.ENOKEY), errors.Is(err, unix.EKEYREJECTED), errors.Is(err, unix.EKEYEXPIRED),
		errors.Is(err, unix.EKEYREVOKED), errors.Is(err, unix.EBADMSG):
		return fmt.Errorf("%w: %w", errUntrusted, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w: rejected by lockdown, or by the policy of a security module (IMA, LoadPin)", errUntrusted, err)
	}
	return err
}

// inUse is the time to wait for the last user of the module to close it.
const inUse = 3 * time.Second

func (linuxKernel) unload(name string) error {
	for until := time.Now().Add(inUse); ; time.Sleep(20 * time.Millisecond) {
		err := unix.DeleteModule(name, unix.O_NONBLOCK)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(until):
			return errModuleInUse
		}
	}
}

// open creates its own device node. The kernel's device node is in the node's /dev, not in the pod's, and is missing on
// nodes without devtmpfs.
func (linuxKernel) open(number string) (moduleDevice, error) {
	var major, minor uint32
	if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("invalid device number %q: %w", number, err)
	}
	dir, err := os.MkdirTemp("/dev", "gpu-fault-") // other file systems may be mounted with nodev
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, kmod.Name)
	if err := unix.Mknod(path, unix.S_IFCHR|0o200, int(unix.Mkdev(major, minor))); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return deviceFile(fd), nil
}

// deviceFile is an open device.
type deviceFile int

func (f deviceFile) Write(p []byte) (int, error) {
	n, err := unix.Write(int(f), p)
	if errors.Is(err, unix.EAGAIN) {
		err = errTooFast
	}
	return n, err
}

func (f deviceFile) Close() error { return unix.Close(int(f)) }

// Left returns the module if a run has left it loaded. If clean is set, it unloads the module, unless it belongs to a
// run in keep.
func Left(host hostfs.Host, clean bool, keep []string) []deadman.Leftover {
	run, loaded := loadedModule(host)
	if !loaded || run == "" {
		return nil
	}
	left := deadman.Leftover{Kind: deadman.LeftoverModule, Path: "/sys/module/" + kmod.Name, Run: run}
	if clean && !slices.Contains(keep, run) {
		if _, failure := removeModule(run, host, thisKernel()); failure != nil {
			left.Problem = failure.Message
		} else {
			left.Removed = true
		}
	}
	return []deadman.Leftover{left}
}
