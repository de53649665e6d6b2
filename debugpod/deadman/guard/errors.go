//go:build linux

package guard

import "fmt"

// Error is the reason why a request failed, with a machine-readable code.
type Error struct {
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

// The codes for Error.
const (
	// CodeChanged means that a file does not match the request.
	CodeChanged = "changed"
	// CodeRefused means that the request specifies a file, a unit or a socket that does not belong to the kubelet's
	// container runtime.
	CodeRefused = "refused"
	// CodeExists means that the run already has a record.
	CodeExists = "record-exists"
	// CodeNoRecord means that the run has no record.
	CodeNoRecord = "no-record"
	// CodeNotArmed means that the dead man's switch could not be started. Nothing is changed.
	CodeNotArmed = "not-armed"
	// CodeGone means that the dead man's switch exited before it finished.
	CodeGone = "dead-man-gone"
	// CodeBusy means that another process is working on the record.
	CodeBusy = "busy"
	// CodeFile means that a file could not be read, prepared or written.
	CodeFile = "file-failed"
	// CodeService means that the service did not recover.
	CodeService = "service-failed"
)

func errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
