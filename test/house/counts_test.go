package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// counted is a number with a noun in the plural, such as "%d pods": with 1 it reads "1 pods".
	counted = regexp.MustCompile(`(\S+ )?%[dv] (?:(?:more|other|debug|simulated|GPU) )?([A-Za-z]+s)\b`)
	// numbered are words whose number is a name and no count: "XID 79 leads to others".
	numbered = regexp.MustCompile(`(?i)\b(xid|code|process|port|line|seed) $`)
	verb     = regexp.MustCompile(`^(is|was|has|does|leads|lacks|bytes|times)$`)
)

// badCounts returns the parts of a format that are wrong when the number is 1. Numbers above a limit are never 1.
func badCounts(format string) []string {
	var bad []string
	for _, m := range counted.FindAllStringSubmatch(format, -1) {
		if !numbered.MatchString(m[1]) && !verb.MatchString(m[2]) && m[1] != "than " && m[1] != "most " &&
			!strings.Contains(format, "more than %d") &&
			!strings.Contains(format, "more than the %d") {
			bad = append(bad, m[0])
		}
	}
	return bad
}

// TestNumbersAgreeWithTheirNouns holds that no message says "1 pods": count.Of writes a number with its noun.
func TestNumbersAgreeWithTheirNouns(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if below(rel, "hack") || below(rel, "test") {
			continue
		}
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				if lit, is := n.(*ast.BasicLit); is && lit.Kind == token.STRING {
					for _, bad := range badCounts(lit.Value) {
						t.Errorf("%s: %q is wrong when the number is 1: use count.Of", set.Position(lit.Pos()), bad)
					}
				}
				return true
			})
		}
	}
}

func TestBadCounts(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]int{
		"%d pods with the shim": 1, "%s, %d steps, %s": 1, "%d of %d steps failed": 1, "and %d more nodes": 1,
		"at %v GPUs":      1,
		"%d of %s failed": 0, "XID %d leads to others": 0, "only process %d loads": 0,
		"too many files: %d, but the maximum is %d": 0,
		"more than %d files":                        0,
		"at most %d KiB":                            0, "%d bytes": 0,
	} {
		if got := badCounts(format); len(got) != want {
			t.Errorf("%q: %q", format, got)
		}
	}
}
