package nodefiles

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// maxShown bounds a piece of a file in a report, in lines.
const maxShown = 12

// maxDiff bounds a difference in a report, in lines.
const maxDiff = 40

// difference is what somebody else changed in a file as we left it, line by line, where the node still knows that.
func difference(f deadman.RestoredFile) string {
	if f.Ours == nil || f.Now == nil {
		return ""
	}
	lines := []string{f.Path + ": what somebody changed meanwhile:"}
	for line := range strings.Lines(udiff.Unified("as we left it", "as it is", string(f.Ours), string(f.Now))) {
		lines = append(lines, "  "+strings.TrimRight(line, "\r\n"))
	}
	if more := len(lines) - maxDiff; more > 1 {
		lines = append(lines[:maxDiff], fmt.Sprintf("  ... (%d more lines)", more))
	}
	return strings.Join(lines, "\n")
}

// report compares three states of a file that somebody else changed meanwhile: before, ours, theirs. The ledger has only the pieces
// that we changed, so it says of each whether it is there in theirs.
func report(ours deadman.File, now deadman.RestoredFile) string {
	if now.Deleted {
		return fmt.Sprintf("%s: somebody deleted it meanwhile; that was left", ours.Path)
	}
	lines := []string{fmt.Sprintf("%s: somebody changed it meanwhile (SHA-256 before %.12s, ours %.12s, now %.12s); theirs was left", ours.Path,
		sum(ours.Before), sum(ours.After), patch.Sum(now.Now))}
	if now.Now == nil {
		lines[0] = fmt.Sprintf("%s: somebody changed it meanwhile, and it is large; theirs was left", ours.Path)
	}
	for _, e := range ours.Edits {
		if len(e.Old) > 0 {
			lines = append(lines, "  we had taken out, and it is "+there(now.Now, e.Old)+":")
			lines = append(lines, shown("  - ", e.Old)...)
		}
		if len(e.New) > 0 {
			lines = append(lines, "  we had put in, and it is "+there(now.Now, e.New)+":")
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
		lines = append(lines[:maxShown], fmt.Sprintf("... (%d more lines)", more))
	}
	for i, line := range lines {
		lines[i] = prefix + strings.TrimRight(line, "\r")
	}
	return lines
}
