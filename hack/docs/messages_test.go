package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// texts are all string literals of the program, with those that a + joins as one.
func texts(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, folder := range []string{"cmd", "cudafault", "debugpod", "kmod", "pkg", "plugin"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				e, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				text, whole := joined(e)
				if text != "" {
					all = append(all, text)
				}
				return !whole
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// joined is the text of a literal, or of several with + between them; other operands are left out. whole says that nothing was.
func joined(e ast.Expr) (text string, whole bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, all := joined(e.X)
			right, rest := joined(e.Y)
			return left + right, all && rest
		}
	}
	return "", false
}

var (
	verb   = regexp.MustCompile(`%(\[\d+\])?[-+#0-9.]*[a-zA-Z]`)
	quoted = regexp.MustCompile("`([^`]+)`")
)

// prints is whether one text of the program is the message, in which … stands for what varies.
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
	all := texts(t)
	for i, text := range all {
		all[i] = verb.ReplaceAllString(text, "…")
	}
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
