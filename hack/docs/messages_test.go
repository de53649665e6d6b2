package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// programErrors returns the texts of all errors of what users run, with … for what varies.
func programErrors() ([]string, error) {
	var all []string
	for _, folder := range []string{"cmd", "cudafault", "debugpod", "kmod", "pkg", "plugin"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.Name() == "testdata" {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			all = append(all, errorTexts(file)...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

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
	all, err := programErrors()
	if err != nil {
		t.Fatal(err)
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

// Whatever way an error is made in, its text is found; what is no message is not.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	const source = `package p

func f() error {
	const query = "not one of ours"
	hint := ""
	hint = "see kubectl get " + name + " -o wide"
	log.Printf("only talk of %s", name)
	_ = api.Errorf(CodeX, "its own %s, at 100%%", name)
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

// makers are the functions that make an error of a format.
var makers = regexp.MustCompile(`^(errors\.New|fmt\.Errorf|errorf|api\.Errorf|because|(\w+\.)?(fail|wrong|at))$`)

// ours are the types of errors that are not of the standard library.
var ours = regexp.MustCompile(`^(\w*|[a-z]*[a-rt-z]\.\w*)Error$`)

// errorTexts returns the texts of errors in a file: what makers are given, what types named ...Error hold, and what
// their Error methods and hints add.
func errorTexts(file *ast.File) []string {
	var all []string
	collect := func(n ast.Node) {
		for _, text := range sentences(n) {
			if says(text) {
				all = append(all, text)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if makers.MatchString(types.ExprString(n.Fun)) {
				for _, arg := range n.Args {
					if text, _ := phrase(arg); says(text) {
						all = append(all, text)
						break // the others are what the format holds
					}
				}
			}
		case *ast.CompositeLit:
			if n.Type != nil && ours.MatchString(types.ExprString(n.Type)) {
				collect(n)
				return false
			}
		case *ast.AssignStmt:
			if name, is := n.Lhs[0].(*ast.Ident); is && name.Name == "hint" {
				collect(n.Rhs[0])
			}
		case *ast.FuncDecl:
			if n.Name.Name == "Error" && n.Recv != nil {
				collect(n)
				return false
			}
		}
		return true
	})
	return all
}

// sentences returns the phrases below a node.
func sentences(n ast.Node) []string {
	var all []string
	ast.Inspect(n, func(n ast.Node) bool {
		e, is := n.(ast.Expr)
		if !is {
			return true
		}
		text, found := phrase(e)
		if found {
			all = append(all, text)
		}
		return !found
	})
	return all
}

var verb = regexp.MustCompile(`%(\[\d+\])?[-+#0-9.]*[a-zA-Z]`)

// phrase returns a text literal, or several with + between them, with … for all that varies.
func phrase(e ast.Expr) (text string, found bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return strings.ReplaceAll(verb.ReplaceAllString(text, "…"), "%%", "%"), err == nil
		}
	case *ast.CallExpr:
		if types.ExprString(e.Fun) == "fmt.Sprintf" {
			return phrase(e.Args[0])
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, one := phrase(e.X)
			right, other := phrase(e.Y)
			if !one {
				left = "…"
			}
			if !other {
				right = "…"
			}
			return left + right, one || other
		}
	}
	return "", false
}

var word = regexp.MustCompile(`\pL{2,}`)

// says reports whether a text can be looked for: one word is that of a key, or what was done when another message came.
func says(text string) bool {
	return len(word.FindAllString(text, 2)) == 2 && strings.Contains(text, " ")
}
