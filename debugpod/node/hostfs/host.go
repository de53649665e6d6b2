// Package hostfs reads files on the node, whose root directory differs from the helper's.
package hostfs

// Host describes how the helper accesses the node.
type Host struct {
	// Root is the node's root directory. /proc/1/root shows the node's own mounts and needs no hostPath volume.
	Root string
	// Proc is the /proc directory of the node's PID namespace.
	Proc string
	// Kmsg is the device of the kernel log.
	Kmsg string
	// Enter continues the request in the node's own namespaces, which is required to change files. It returns only if
	// it fails. It is nil if the process is already in these namespaces.
	Enter func(request []byte) error
}
