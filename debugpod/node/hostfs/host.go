// Package hostfs reads the files of the node, whose root directory is not that of the helper.
package hostfs

// Host is where the helper finds the node that it works on.
type Host struct {
	// Root is the node's root directory. Through /proc/1/root it is seen with the node's own mounts, and needs no
	// hostPath.
	Root string
	// Proc is /proc of the node's PID namespace.
	Proc string
	// Kmsg is the kernel log's device.
	Kmsg string
	// Enter continues with a request in the node's own namespaces, in which files are changed. It returns only when
	// that fails. Nil: this process is there already.
	Enter func(request []byte) error
}
