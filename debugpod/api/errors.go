package api

import (
	"fmt"
)

// Code says for programs why a request failed. Codes are stable.
type Code string

// The codes of Error.
const (
	// CodeBadRequest: the request is not JSON, has an unknown field, not exactly one operation, or values out of range.
	CodeBadRequest Code = "bad-request"
	// CodeProtocol: client and helper do not speak the same version.
	CodeProtocol Code = "protocol-mismatch"
	// CodeTruncated: the helper or its request did not arrive whole.
	CodeTruncated Code = "truncated"
	// CodeOtherHelper: the image has a helper inside, and it is not the client's.
	CodeOtherHelper Code = "other-helper"
	// CodeNoPlace: no directory of the container takes a file and lets it be executed.
	CodeNoPlace Code = "no-place-to-execute"
	// CodeDevkmsgOff: the node's kernel.printk_devkmsg is off, so nobody may write to the kernel log.
	CodeDevkmsgOff Code = "printk-devkmsg-off"
	// CodeKmsg: /dev/kmsg could not be opened, read or written.
	CodeKmsg Code = "kmsg-failed"
	// CodeNotProven: a record was written and did not appear in the kernel log in time.
	CodeNotProven Code = "not-proven"
	// CodeOverrun: a record was written, and the kernel log overflowed before it was read back.
	CodeOverrun Code = "kmsg-overrun"
	// CodeEnter: the node's own namespaces could not be entered, so no file can be changed.
	CodeEnter Code = "enter-failed"
	// CodeChanged: a file is not as the request says: config changed between read and write.
	CodeChanged Code = "changed"
	// CodeRefused: the request names a file, a unit or a socket that is not one of the kubelet's container runtime.
	CodeRefused Code = "refused"
	// CodeExists: the node has a record of the run already, or a firewall's table, or either is another run's.
	CodeExists Code = "record-exists"
	// CodeNoRecord: the node has no record of the run.
	CodeNoRecord Code = "no-record"
	// CodeNotArmed: the dead man could not be started. Nothing was changed.
	CodeNotArmed Code = "not-armed"
	// CodeGone: the dead man ended before the change was whole.
	CodeGone Code = "dead-man-gone"
	// CodeBusy: somebody else works on the record for too long.
	CodeBusy Code = "busy"
	// CodeFile: a file could not be read, prepared or written.
	CodeFile Code = "file-failed"
	// CodeService: the files are put back, and the service does not come back.
	CodeService Code = "service-failed"
	// CodeNoModules: the node's kernel loads no modules at all.
	CodeNoModules Code = "no-modules"
	// CodeLoaded: the kernel module is loaded already, by another run or by somebody.
	CodeLoaded Code = "module-loaded"
	// CodeUntrusted: the kernel takes only modules with a signature that it trusts, and this one has none.
	CodeUntrusted Code = "module-untrusted"
	// CodeVermagic: the module is for another kernel or processor.
	CodeVermagic Code = "module-vermagic"
	// CodeNotLoaded: the kernel refused the module for another reason.
	CodeNotLoaded Code = "module-refused"
	// CodeNoHeaders: the node has no headers of its kernel.
	CodeNoHeaders Code = "no-headers"
	// CodeNoCompiler: the debug pod's image cannot build a module.
	CodeNoCompiler Code = "no-compiler"
	// CodeBuild: the module could not be built.
	CodeBuild Code = "build-failed"
	// CodeStays: the kernel module could not be unloaded.
	CodeStays Code = "module-stays"
	// CodeNoFilter: the node's kernel has no nftables.
	CodeNoFilter Code = "no-nftables"
	// CodeFilter: a table of nftables could not be made, read or removed.
	CodeFilter Code = "nftables-failed"
	// CodeInterrupted: the client went away, or the helper was told to end. What was written before has been answered.
	CodeInterrupted Code = "interrupted"
	// CodeUnsupported: this build of the helper cannot do that, as it is not for Linux.
	CodeUnsupported Code = "unsupported"
	// CodeInternal: a bug in the helper.
	CodeInternal Code = "internal"
)

// BeforeLoad reports whether the helper refused before it loaded the kernel module, so that nothing has changed on the
// node.
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
