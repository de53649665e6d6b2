package realxid

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// Codes returns the XIDs that the program can cause: an exception in a CUDA kernel (a misaligned store), a fault of the
// GPU's MMU (a store to an address that is not mapped), and a channel that stopped after a software error (a failed
// assertion).
func Codes() []int { return []int{13, 31, 43} }

// errorsOf returns the errors that CUDA may report to the program when it causes the given XID.
func errorsOf(code int) []int {
	switch code {
	case 13:
		return []int{716, 700} // CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS
	case 31:
		return []int{700}
	default:
		return []int{710, 719} // CUDA_ERROR_ASSERT, CUDA_ERROR_LAUNCH_FAILED
	}
}

// Outcome is the program's report after its CUDA kernel has run.
type Outcome struct {
	XID   int
	Error int      // CUDA error, such as 700
	GPU   xid.UUID // GPU-...
	PCI   xid.PCI
}

// CUDA formats the error, such as CUDA_ERROR_ILLEGAL_ADDRESS (700).
func (o Outcome) CUDA() string { return fmt.Sprintf("%s (%d)", cudafault.ErrorName(o.Error), o.Error) }

// ProgramError is the reason, reported by the program, why it caused no error on the GPU.
type ProgramError struct {
	Refused bool // the program launched nothing, because the error could affect others
	Text    string
}

func (e *ProgramError) Error() string {
	if e.Refused {
		return "the program refused to run: " + e.Text
	}
	return "the program failed: " + e.Text
}

// maxText is the maximum length of the program's text in an error, in bytes.
const maxText = 300

// clean sanitizes text from the container for messages. The text may contain anything, because the image and the
// driver's library are not part of this tool.
func clean(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"),
		func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

// prefix is the prefix of the program's line.
const prefix = "gpufault "

// ParseOutcome parses the termination message of the program that causes the given XID. It returns a *ProgramError if
// the message contains the reason why the program caused no error.
func ParseOutcome(message string, code int) (Outcome, error) {
	for line := range strings.Lines(message) {
		text, ours := strings.CutPrefix(strings.TrimSpace(line), prefix)
		if !ours {
			continue // such as a message from the driver
		}
		kind, text, _ := strings.Cut(text, " ")
		switch kind {
		case "refused", "failed":
			return Outcome{}, &ProgramError{Refused: kind == "refused", Text: clean(text)}
		case "result":
			o, err := parseResult(strings.Split(text, " "))
			if err == nil {
				err = o.check(code)
			}
			return o, err
		}
	}
	return Outcome{}, fmt.Errorf("the program did not report an outcome: %q", clean(message))
}

var errResult = errors.New("the program's result is malformed")

func parseResult(words []string) (Outcome, error) {
	if len(words) != 4 {
		return Outcome{}, errResult
	}
	code, err := strconv.ParseUint(words[0], 10, 16)
	if err != nil {
		return Outcome{}, errResult
	}
	cudaError, err := strconv.ParseUint(words[1], 10, 16)
	if err != nil {
		return Outcome{}, errResult
	}
	pci, err := xid.ParsePCI(words[2])
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", errResult, err)
	}
	gpu, err := xid.ParseUUID(words[3])
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", errResult, err)
	}
	if !strings.HasPrefix(string(gpu), "GPU-") {
		return Outcome{}, fmt.Errorf("%w: %s is not a whole GPU", errResult, gpu)
	}
	return Outcome{XID: int(code), Error: int(cudaError), GPU: gpu, PCI: pci}, nil
}

// check returns an error unless the outcome contains the given XID and a CUDA error that this XID can cause.
func (o Outcome) check(code int) error {
	switch {
	case o.XID != code:
		return fmt.Errorf("%w: it is for XID %d, not %d", errResult, o.XID, code)
	case !slices.Contains(errorsOf(code), o.Error):
		return fmt.Errorf("CUDA reported %s, which is not an error caused by XID %d", o.CUDA(), code)
	}
	return nil
}

// isIn reports whether a kernel log record is the driver's line about the outcome. If the record is another XID on the
// same GPU, other describes it.
func (o Outcome) isIn(text string) (line bool, other string) {
	event, _, err := xid.Parse(text)
	if err != nil || event.Kind != xid.KindXID || event.PCI.String() != o.PCI.String() {
		return false, ""
	}
	process := event.Process.Name
	switch {
	case event.Code != o.XID:
		return false, fmt.Sprintf("XID %d", event.Code)
	case process != "" && !event.Process.Unknown && process != programName:
		return false, fmt.Sprintf("XID %d from another process, %q", event.Code, process)
	}
	return true, ""
}
