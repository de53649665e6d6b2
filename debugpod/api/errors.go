package api

import (
	"fmt"
)

// Code is a machine-readable reason why a request failed. Codes are stable.
type Code string

// The codes for Error.
const (
	// CodeBadRequest means that the request is not JSON, has an unknown field, does not have exactly one operation, or
	// contains a value that is out of range.
	CodeBadRequest Code = "bad-request"
	// CodeProtocol means that the client and the helper use different protocol versions.
	CodeProtocol Code = "protocol-mismatch"
	// CodeTruncated means that the helper or its request arrived incomplete.
	CodeTruncated Code = "truncated"
	// CodeOtherHelper means that the image contains a helper that differs from the client's.
	CodeOtherHelper Code = "other-helper"
	// CodeNoPlace means that the container has no directory in which a file can be written and executed.
	CodeNoPlace Code = "no-place-to-execute"
	// CodeDevkmsgOff means that kernel.printk_devkmsg is off on the node, which disables writing to the kernel log.
	CodeDevkmsgOff Code = "printk-devkmsg-off"
	// CodeKmsg means that /dev/kmsg could not be opened, read or written.
	CodeKmsg Code = "kmsg-failed"
	// CodeNotProven means that a record was written but did not appear in the kernel log in time.
	CodeNotProven Code = "not-proven"
	// CodeOverrun means that a record was written but the kernel log overflowed before the record was read back.
	CodeOverrun Code = "kmsg-overrun"
	// CodeEnter means that the host namespaces could not be entered, so no file can be changed.
	CodeEnter Code = "enter-failed"
	// CodeChanged means that a file does not match the request, because it changed after it was read.
	CodeChanged Code = "changed"
	// CodeRefused means that the request specifies a file, a unit or a socket that does not belong to the kubelet's
	// container runtime.
	CodeRefused Code = "refused"
	// CodeExists means that the node already has a record or a firewall table for the run, or a conflicting one for
	// another run.
	CodeExists Code = "record-exists"
	// CodeNoRecord means that the node has no record of the run.
	CodeNoRecord Code = "no-record"
	// CodeNotArmed means that the dead man's switch could not be started. Nothing was changed.
	CodeNotArmed Code = "not-armed"
	// CodeGone means that the dead man's switch exited before the change was complete.
	CodeGone Code = "dead-man-gone"
	// CodeBusy means that another process keeps the record locked.
	CodeBusy Code = "busy"
	// CodeFile means that a file could not be read, prepared or written.
	CodeFile Code = "file-failed"
	// CodeService means that the files were restored but the service did not recover.
	CodeService Code = "service-failed"
	// CodeNoModules means that the node's kernel does not support loadable modules.
	CodeNoModules Code = "no-modules"
	// CodeLoaded means that another run or another program has already loaded the kernel module.
	CodeLoaded Code = "module-loaded"
	// CodeUntrusted means that the kernel accepts only modules with a trusted signature, and the module has none.
	CodeUntrusted Code = "module-untrusted"
	// CodeVermagic means that the module is for another kernel or architecture.
	CodeVermagic Code = "module-vermagic"
	// CodeNotLoaded means that the kernel rejected the module for another reason.
	CodeNotLoaded Code = "module-refused"
	// CodeNoHeaders means that the headers for the node's kernel are not installed.
	CodeNoHeaders Code = "no-headers"
	// CodeNoCompiler means that the debug pod's image cannot build a module.
	CodeNoCompiler Code = "no-compiler"
	// CodeBuild means that the module could not be built.
	CodeBuild Code = "build-failed"
	// CodeStays means that the kernel module could not be unloaded.
	CodeStays Code = "module-stays"
	// CodeNoFilter means that the node's kernel does not support nftables.
	CodeNoFilter Code = "no-nftables"
	// CodeFilter means that an nftables table could not be created, read or removed.
	CodeFilter Code = "nftables-failed"
	// CodeBypassed means that packets from a pod did not reach the rule that should drop them. The rule was removed.
	CodeBypassed Code = "netfilter-bypassed"
	// CodeNotRunning means that no process of a requested pod is running on the node. Nothing was changed.
	CodeNotRunning Code = "pod-not-running"
	// CodeInterrupted means that the client disconnected or the helper received a request to stop. Records that were
	// written before the interruption have already been reported.
	CodeInterrupted Code = "interrupted"
	// CodeUnsupported means that this build of the helper does not support the request, because it is not for Linux.
	CodeUnsupported Code = "unsupported"
	// CodeInternal means that the helper has a bug.
	CodeInternal Code = "internal"
)

// BeforeLoad reports whether the helper failed before it loaded the kernel module, so that the node is unchanged.
func (c Code) BeforeLoad() bool {
	switch c {
	case CodeBadRequest, CodeDevkmsgOff, CodeNoModules, CodeLoaded, CodeUntrusted, CodeVermagic, CodeNotLoaded,
		CodeNoHeaders, CodeNoCompiler, CodeBuild:
		return true
	}
	return false
}

func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
