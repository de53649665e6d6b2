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

// mountNode mounts all of the node's file systems at a directory of the debug pod, to be read. Below /proc/1/root they
// are seen, too, but they belong to another mount namespace there, in which no program can tell in which directory it
// is: the build system of a kernel asks for that. The returned function takes the mount away again.
func mountNode(host hostfs.Host, at string) (unmount func() error, err error) {
	if err := hostexec.OnOwnThread(func() error { return mountHere(host, at) }); err != nil {
		return nil, err
	}
	// The copies are the peers of the node's mounts as long as they are shared: to take them away would take away
	// those. What the node unmounts is to go here, too, or it would stay busy. Before Linux 5.12 this is the first time
	// that it is said; to say it again does no harm. When it fails nothing is unmounted: the end of the pod's namespace
	// does not reach the node.
	if err := unix.Mount("", at, "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("part the mounts from the node's: %w", err)
	}
	return func() error { return unix.Unmount(at, unix.MNT_DETACH) }, nil
}

func mountHere(host hostfs.Host, at string) error {
	const directory = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	root, err := unix.Open(host.Root, directory, 0)
	if err != nil {
		return fmt.Errorf("open the node's root: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	target, err := unix.Open(at, directory, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(target) }()
	err = mountTree(host, root, target, unix.AT_RECURSIVE)
	if errors.Is(err, unix.ELOOP) {
		// A file of a mount namespace that is older than ours is mounted there (snapd does that), and may not come
		// along.
		err = mountTree(host, root, target, 0)
	}
	if err != nil {
		return fmt.Errorf("mount the node's root: %w", err)
	}
	return nil
}

// mountTree mounts a copy of root at target, with the mounts below it when recursive is AT_RECURSIVE.
func mountTree(host hostfs.Host, root, target int, recursive uint) error {
	tree, err := cloneTree(filepath.Join(host.Proc, "1/ns/mnt"), root, recursive)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }()
	attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_SLAVE}
	// Before Linux 5.12
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|recursive, attributes); err != nil &&
		!errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("part it from the node's, to be read: %w", err)
	}
	return unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// cloneTree copies the mount of root, which only somebody in its namespace may; it comes back from there.
func cloneTree(namespace string, root int, recursive uint) (int, error) {
	theirs, err := os.Open(namespace)
	if errors.Is(err, fs.ErrNotExist) { // then it is ours
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
	// A thread that shares its root with others may not change namespaces
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return -1, fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNS); err != nil {
		return -1, fmt.Errorf("enter its namespace: %w", err)
	}
	tree, failed := openTree(root, recursive)
	if err := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNS); err != nil {
		if failed == nil {
			_ = unix.Close(tree)
		}
		return -1, errors.Join(failed, fmt.Errorf("leave its namespace: %w", err))
	}
	return tree, failed
}

func openTree(root int, recursive uint) (int, error) {
	return unix.OpenTree(root, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|recursive)
}
