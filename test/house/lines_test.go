package house

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	// maxLines is the maximum length of a file that is not a test: a longer one does more than one thing.
	maxLines   = 500
	maxColumns = 120
	tabWidth   = 4
	// longString is the length, in columns, from which on a string excuses its line: a shorter one fits if the line is
	// broken before it, and a longer one is not broken, so that people find it when they search for what they read.
	longString = 55
)

// padding is what gofmt aligns entries with.
var padding = regexp.MustCompile(`(\S) {2,}`)

// phrases are what comments of Go do not say, with what they say instead.
var phrases = []struct {
	bad  *regexp.Regexp
	good string
}{
	{regexp.MustCompile(`\b(is|are|says|tells) whether\b`), "reports whether"},
}

// TestLinesAndPhrases verifies that no line and no file of Go is too long, and that comments say things as Go's own do.
func TestLinesAndPhrases(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	read := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			t.Errorf("%s: %d lines, more than %d: split it by meaning", path, n, maxLines)
		}
		for _, p := range lineProblems(text) {
			t.Errorf("%s:%d: %s", path, p.line, p.text)
		}
		for _, heavy := range []string{"slices.SortFunc(", "slices.SortStableFunc("} {
			rel := filepath.ToSlash(path)
			ours := strings.HasPrefix(rel, "../../pkg/") || strings.HasPrefix(rel, "../../plugin/")
			if ours && !strings.HasSuffix(path, "_test.go") && bytes.Contains(text, []byte(heavy)) {
				t.Errorf("%s: %s makes 15 KB for each type: use pkg/sorting", path, heavy)
			}
		}
		return nil
	})
	if err != nil || read < 1000 {
		t.Errorf("%d files read: %v", read, err)
	}
}

func TestLineProblems(t *testing.T) {
	long := strings.Repeat("x", longString)
	for text, want := range map[string][]lineProblem{
		"package p\n\nvar a = `\n" + strings.Repeat("y", 200) + "\n`\n":                   nil,
		"package p\n\nvar a, b = \"" + long + "\", \"" + strings.Repeat("a", 80) + "\"\n": nil,
		"package p\n\nvar a = \"is whether\" // reports whether\n":                        nil,
		"package p\n\n// f is whether it\n// says\nfunc f() {}\n": {
			{3, "reports whether"},
		},
		"package p\n\n// " + strings.Repeat("a ", 60) +
			"\n": {{3, "columns"}},
		"package p\n\nfunc f() {\n\t" + strings.Repeat("\t", 28) + "g()\n\t" + strings.Repeat("a(), ", 25) +
			"\n": {{5, "columns"}},
	} {
		got := lineProblems([]byte(text))
		if !slices.EqualFunc(
			got, want, func(g, w lineProblem) bool { return g.line == w.line && strings.Contains(g.text, w.text) },
		) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

type lineProblem struct {
	line int // counted from 1
	text string
}

// lineProblems returns what is wrong with the lines of a Go file.
func lineProblems(text []byte) []lineProblem {
	var problems []lineProblem
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	excused := map[int]bool{}
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			break
		}
		first := file.Line(pos)
		last := first + strings.Count(literal, "\n")
		switch kind {
		case token.STRING:
			for line := first; line <= last; line++ {
				excused[line] = excused[line] || last > first || utf8.RuneCountInString(literal) >= longString
			}
		case token.COMMENT:
			excused[first] = excused[first] || strings.HasPrefix(literal, "//go:")
			for _, phrase := range phrases {
				if found := phrase.bad.FindString(literal); found != "" {
					problems = append(problems, lineProblem{first, "write " + phrase.good + " instead of " + found})
				}
			}
		}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = padding.ReplaceAll(line, []byte("$1 "))
		columns := utf8.RuneCount(line) + (tabWidth-1)*bytes.Count(line, []byte("\t"))
		if columns > maxColumns && !excused[i+1] {
			problems = append(problems, lineProblem{i + 1, "more than 120 columns"})
		}
	}
	slices.SortFunc(problems, func(a, b lineProblem) int { return a.line - b.line })
	return problems
}

// TestReadmeIsShort holds that the README stays an introduction: details belong in docs.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const most = 900
	if words := len(strings.Fields(string(text))); words > most {
		t.Errorf("README.md has %d words, more than %d", words, most)
	}
}
