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

// Enter replaces this program with a copy of itself in the host namespaces, which are the namespaces of PID 1. The copy
// receives args and the number of a file descriptor from which it reads request. Enter returns only if it fails.
func Enter(proc string, args []string, request []byte) error {
	failed := make(chan error, 1)
	go func() {
		// Namespaces belong to a thread. The thread is never unlocked, so no other goroutine runs on it.
		runtime.LockOSThread()
		failed <- enter(proc, args, request)
	}()
	return fmt.Errorf("enter the node's namespaces: %w", <-failed)
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
	// The root directory of PID 1 may be below the root of its namespace.
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
	// Some kernels forbid executing a memory file. Use the file in the container instead; the kernel keeps the file of
	// a running program.
	if file, e := os.Open(filepath.Join(proc, "self/exe")); e == nil {
		err = errors.Join(err, unix.Exec(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), args, env))
	}
	return err
}

// join enters the namespaces of PID 1, the mount namespace last. It keeps the PID namespace, because the pod shares the
// node's PID namespace.
func join(proc string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	for _, ns := range []string{"cgroup", "ipc", "uts", "net", "mnt"} {
		f, err := os.Open(filepath.Join(proc, "1/ns", ns))
		if errors.Is(err, fs.ErrNotExist) { // an older kernel without this namespace
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

// copySelf returns a copy of this program in a memory file, so that the copy needs no file from the pod or the node. If
// no memory file can be created, copySelf returns the program's own file.
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
