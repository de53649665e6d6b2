//go:build linux

package guard

import "fmt"

// Error is why a request was not done, with a code for programs.
type Error struct {
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

// The codes of Error.
const (
	// CodeChanged: a file is not as the request says.
	CodeChanged = "changed"
	// CodeRefused: the request names a file, a unit or a socket that is not one of the kubelet's container runtime.
	CodeRefused = "refused"
	// CodeExists: the run has a record already.
	CodeExists = "record-exists"
	// CodeNoRecord: the run has no record.
	CodeNoRecord = "no-record"
	// CodeNotArmed: the dead man could not be started. Nothing is changed.
	CodeNotArmed = "not-armed"
	// CodeGone: the dead man is not there any more, and has not finished.
	CodeGone = "dead-man-gone"
	// CodeBusy: somebody else works on the record.
	CodeBusy = "busy"
	// CodeFile: a file could not be read, prepared or written.
	CodeFile = "file-failed"
	// CodeService: the service does not come back.
	CodeService = "service-failed"
)

func errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
