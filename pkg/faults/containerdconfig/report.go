package containerdconfig

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// maxShown is the maximum number of lines of a file excerpt in a report.
const maxShown = 12

// maxDiff is the maximum number of lines of a diff in a report.
const maxDiff = 40

// difference returns a line diff of the changes that another client made to a file after the fault, if the node still
// has the data for the diff.
func difference(f deadman.RestoredFile) string {
	if f.Ours == nil || f.Now == nil {
		return ""
	}
	lines := []string{f.Path + ": changed by another client since the fault:"}
	for line := range strings.Lines(udiff.Unified("after the fault", "current", string(f.Ours), string(f.Now))) {
		lines = append(lines, "  "+strings.TrimRight(line, "\r\n"))
	}
	if more := len(lines) - maxDiff; more > 1 {
		lines = append(lines[:maxDiff], "  ... ("+count.Of(more, "more line")+")")
	}
	return strings.Join(lines, "\n")
}

// report compares three versions of a file that another client changed after the fault: the original version, the
// fault's version, and the current one. For each part that the fault changed and the node recorded, it reports whether
// the change is still in the current file.
func report(f deadman.RestoredFile) string {
	if f.Deleted {
		return fmt.Sprintf("%s: not restored, because another client has deleted the file since the fault", f.Path)
	}
	lines :=
		[]string{fmt.Sprintf("%s: not restored, because another client has changed the file since the fault (SHA-256 before the fault %.12s, after it %.12s, now %.12s)",
			f.Path,
			sum(f.Before), sum(f.After), patch.Sum(f.Now))}
	if f.Now == nil {
		lines[0] = fmt.Sprintf("%s: not restored, because another client has changed the file since the fault; the "+
			"file is too large to compare",
			f.Path)
	}
	for _, e := range f.Edits {
		if len(e.Old) > 0 {
			lines = append(lines, "  removed by the fault, and now "+there(f.Now, e.Old)+":")
			lines = append(lines, shown("  - ", e.Old)...)
		}
		if len(e.New) > 0 {
			lines = append(lines, "  added by the fault, and now "+there(f.Now, e.New)+":")
			lines = append(lines, shown("  + ", e.New)...)
		}
	}
	return strings.Join(lines, "\n")
}

func sum(s string) string {
	if s == deadman.Absent {
		return "absent"
	}
	return s
}

func there(data, piece []byte) string {
	if bytes.Contains(data, bytes.TrimSpace(piece)) {
		return "in the file"
	}
	return "not in the file"
}

func shown(prefix string, piece []byte) []string {
	lines := strings.Split(strings.TrimRight(string(piece), "\r\n"), "\n")
	more := len(lines) - maxShown
	if more > 1 {
		lines = append(lines[:maxShown], "... ("+count.Of(more, "more line")+")")
	}
	for i, line := range lines {
		lines[i] = prefix + strings.TrimRight(line, "\r")
	}
	return lines
}
