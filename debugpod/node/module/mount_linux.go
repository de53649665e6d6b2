package module

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// mountNode mounts all file systems on the node read-only at a directory in the debug pod. The file systems are also
// visible below /proc/1/root. However, they are in another mount namespace, so a program cannot determine its working
// directory there, which the kernel's build system needs to do. The returned function unmounts the directory.
func mountNode(host hostfs.Host, at string) (unmount func() error, err error) {
	if err := hostexec.OnOwnThread(func() error { return mountHere(host, at) }); err != nil {
		return nil, err
	}
	// While the copies are shared, they are peers of the node's mounts, so unmounting the copies would also unmount the
	// node's mounts. As slaves, the copies still receive the node's unmounts, which avoids keeping the node's mounts
	// busy. Before Linux 5.12, the copies become slaves only now; in later versions, this call has no effect. If it
	// fails, nothing is unmounted: deleting the pod's mount namespace does not affect the node.
	if err := unix.Mount("", at, "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("separate the mounts from the node's mounts: %w", err)
	}
	return func() error { return unix.Unmount(at, unix.MNT_DETACH) }, nil
}

func mountHere(host hostfs.Host, at string) error {
	const directory = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	root, err := unix.Open(host.Root, directory, 0)
	if err != nil {
		return fmt.Errorf("open the node's root directory: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	target, err := unix.Open(at, directory, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(target) }()
	err = mountTree(host, root, target, unix.AT_RECURSIVE)
	if errors.Is(err, unix.ELOOP) {
		// The tree may contain the file of a mount namespace that is older than this one (snapd mounts such files),
		// which cannot be copied. Mount the tree without submounts.
		err = mountTree(host, root, target, 0)
	}
	if err != nil {
		return fmt.Errorf("mount the node's root directory: %w", err)
	}
	return nil
}

// mountTree mounts a copy of root at target. If recursive is AT_RECURSIVE, it includes submounts.
func mountTree(host hostfs.Host, root, target int, recursive uint) error {
	tree, err := cloneTree(filepath.Join(host.Proc, "1/ns/mnt"), root, recursive)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }()
	attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_SLAVE}
	// Linux before 5.12 does not support mount_setattr.
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|recursive, attributes); err != nil &&
		!errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("separate the mount from the node's mounts and make it read-only: %w", err)
	}
	return unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// cloneTree copies the mount of root. Only a process in root's mount namespace may copy it, so a thread enters that
// namespace and returns the copy.
func cloneTree(namespace string, root int, recursive uint) (int, error) {
	theirs, err := os.Open(namespace)
	if errors.Is(err, fs.ErrNotExist) { // the mount is in this process's namespace
		return openTree(root, recursive)
	}
	if err != nil {
		return -1, err
	}
	defer func() { _ = theirs.Close() }()
	ours, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return -1, err
	}
	defer func() { _ = ours.Close() }()
	// A thread that shares its root directory with others may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return -1, fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNS); err != nil {
		return -1, fmt.Errorf("enter the mount namespace: %w", err)
	}
	tree, failed := openTree(root, recursive)
	if err := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNS); err != nil {
		if failed == nil {
			_ = unix.Close(tree)
		}
		return -1, errors.Join(failed, fmt.Errorf("leave the mount namespace: %w", err))
	}
	return tree, failed
}

func openTree(root int, recursive uint) (int, error) {
	return unix.OpenTree(root, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|recursive)
}
