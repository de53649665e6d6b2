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

// difference returns a line diff of what another client changed in a file after the fault, if the node still has the
// data for it.
func difference(f deadman.RestoredFile) string {
	if f.Ours == nil || f.Now == nil {
		return ""
	}
	lines := []string{f.Path + ": changed by another client since:"}
	for line := range strings.Lines(udiff.Unified("as we left it", "as it is", string(f.Ours), string(f.Now))) {
		lines = append(lines, "  "+strings.TrimRight(line, "\r\n"))
	}
	if more := len(lines) - maxDiff; more > 1 {
		lines = append(lines[:maxDiff], "  ... ("+count.Of(more, "more line")+")")
	}
	return strings.Join(lines, "\n")
}

// report compares three versions of a file that another client has changed after the fault: the original, the fault's,
// and the current one. For each part that the fault changed, which the node has recorded, it reports whether the
// current file still has the change.
func report(f deadman.RestoredFile) string {
	if f.Deleted {
		return fmt.Sprintf("%s: another client has deleted it since; not changed", f.Path)
	}
	lines :=
		[]string{fmt.Sprintf("%s: another client has changed it since (SHA-256 before %.12s, ours %.12s, now %.12s); theirs was not changed",
			f.Path,
			sum(f.Before), sum(f.After), patch.Sum(f.Now))}
	if f.Now == nil {
		lines[0] = fmt.Sprintf("%s: another client has changed it since, and it is large; theirs was not changed",
			f.Path)
	}
	for _, e := range f.Edits {
		if len(e.Old) > 0 {
			lines = append(lines, "  we had taken out, and it is "+there(f.Now, e.Old)+":")
			lines = append(lines, shown("  - ", e.Old)...)
		}
		if len(e.New) > 0 {
			lines = append(lines, "  we had put in, and it is "+there(f.Now, e.New)+":")
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
		return "in their file"
	}
	return "not in their file"
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
