package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// prints reports whether one text of the program is the message, in which … stands for what varies.
func prints(all []string, message string) bool {
	var parts []string
	for part := range strings.SplitSeq(message, "…") {
		if part = strings.TrimSpace(part); strings.Trim(part, "():;,. ") != "" {
			parts = append(parts, part)
		}
	}
	return slices.ContainsFunc(all, func(text string) bool {
		for _, part := range parts {
			_, rest, ok := strings.Cut(text, part)
			if !ok {
				return false
			}
			text = rest
		}
		return len(parts) > 0
	})
}

// Whoever looks for a message finds the one that the program really prints: those of the page exist.
func TestMessagesExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := messagesPage(root)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(listed, "\n")
	_, messages, _ := strings.Cut(string(page), "\n## Messages\n")
	count := 0
	for line := range strings.Lines(messages) {
		cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !ok || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, message := range quoted.FindAllStringSubmatch(cell, -1) {
			count++
			if !prints(all, message[1]) {
				t.Errorf("the program does not say %q any more: change docs/troubleshooting.md", message[1])
			}
		}
	}
	if count < 50 {
		t.Errorf("found only %d messages on the page", count)
	}
}

// Whatever way an error is made in, its text is found; what is no message is not.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	const source = `package p

func f() error {
	const query = "not one of ours"
	hint := ""
	hint = "see kubectl get " + name + " -o wide"
	log.Printf("only talk of %s", name)
	_ = errorf(CodeX, "its own %s, at 100%%", name)
	_ = &StartError{Reason: "Deleted", Message: fmt.Sprintf("somebody deleted %q", name)}
	_ = &fs.PathError{Op: "not ours", Path: name}
	_ = cudaError{code, "name"}
	_ = fmt.Errorf("read %s: %w", name, err)
	return errors.New("two " +
		"words")
}

func (e *StartError) Error() string { return "it did not start: " + e.Message }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"see kubectl get … -o wide", "its own …, at 100%", "somebody deleted …", "two words", "it did not start: …",
	}
	if got := errorTexts(file); !slices.Equal(got, want) {
		t.Errorf("found %q, wanted %q", got, want)
	}
}
