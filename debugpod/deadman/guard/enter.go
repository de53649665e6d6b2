//go:build linux

package guard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Enter replaces this program with a copy of itself in the namespaces of the node's first process: its mounts, its
// network, its host name. The copy gets args, with the number of a file descriptor added, from which it reads request.
// It returns only with an error.
func Enter(proc string, args []string, request []byte) error {
	failed := make(chan error, 1)
	go func() {
		// Namespaces are a thread's. It is never unlocked, so nothing else ever runs on it.
		runtime.LockOSThread()
		failed <- enter(proc, args, request)
	}()
	return fmt.Errorf("enter the node: %w", <-failed)
}

func enter(proc string, args []string, request []byte) error {
	self, err := copySelf()
	if err != nil {
		return err
	}
	in, err := memory("request", 0)
	if err != nil {
		return err
	}
	if _, err := in.Write(request); err != nil {
		return err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return err
	}
	root, err := os.Open(filepath.Join(proc, "1/root"))
	if err != nil {
		return err
	}
	if err := join(proc); err != nil {
		return err
	}
	// PID 1's root may lie below that of its namespace.
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	args = append(append([]string(nil), args...), fmt.Sprint(in.Fd()))
	env := []string{searchPath, "LC_ALL=C"}
	err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), args, env)
	// Not even from memory: some kernels forbid that. The file in the container will do; the kernel keeps it while it
	// runs.
	if file, e := os.Open(filepath.Join(proc, "self/exe")); e == nil {
		err = errors.Join(err, unix.Exec(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), args, env))
	}
	return err
}

// join enters the namespaces of PID 1, the mounts last. Its own PID namespace is the pod's already.
func join(proc string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	for _, ns := range []string{"cgroup", "ipc", "uts", "net", "mnt"} {
		f, err := os.Open(filepath.Join(proc, "1/ns", ns))
		if errors.Is(err, fs.ErrNotExist) { // an older kernel's
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("enter namespace %s: %w", ns, err)
		}
		_ = f.Close()
	}
	return nil
}

// copySelf returns this program in memory, so that it needs no file of the pod or the node; or its file, where there is
// no memory for it.
func copySelf() (*os.File, error) {
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	const executable = 0x10 // MFD_EXEC, Linux 6.3
	mem, err := memory("gpu-fault-node", unix.MFD_CLOEXEC|executable)
	if errors.Is(err, unix.EINVAL) {
		mem, err = memory("gpu-fault-node", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return file, nil
	}
	if _, err := io.Copy(mem, file); err != nil {
		return file, nil
	}
	// A file that is open for writing cannot be executed.
	read, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", mem.Fd()))
	if err != nil {
		return file, nil
	}
	_ = mem.Close()
	return read, nil
}

func memory(name string, flags int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
