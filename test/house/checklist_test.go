package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The tests below say which step of a recipe in docs/development.md is missing, for each thing that somebody adds.
// What the steps themselves must be like, the tests of their packages say.

// TestChecklistOfFaults protects the recipe "Add a fault": what no list knows, nobody can undo or find.
func TestChecklistOfFaults(t *testing.T) {
	session := read(t, "plugin/session/session.go")
	undoers, build, found := strings.Cut(session, "\nfunc New(")
	if !found {
		t.Fatal("plugin/session/session.go has no func New")
	}
	pages := read(t, "docs/development.md")
	for _, dir := range folders(t, "pkg/faults/*") {
		name := filepath.Base(dir)
		source := read(t, dir+"/*.go")
		if !strings.Contains(source, "UndoKind") {
			continue // it makes objects of another fault
		}
		missing(t, dir, map[string]bool{
			"a unit test":                                 len(files(t, dir+"/*_test.go")) > 0,
			"its Undoer in Undoers (plugin/session)":      strings.Contains(undoers, name+"."),
			"its Undoer in New (plugin/session)":          strings.Contains(build, name+".") || permanent(source),
			"its place in the map of docs/development.md": regexp.MustCompile(`\b` + name + `\b`).MatchString(pages),
		})
	}
}

// permanent reports whether the faults of a package are never undone, such as a reset.
func permanent(source string) bool { return strings.Contains(source, "Permanent: true") }

// TestChecklistOfScenarios protects the recipe "Add a scenario".
func TestChecklistOfScenarios(t *testing.T) {
	doctor := read(t, "test/e2e/doctor_scenarios_test.go")
	page := read(t, "docs/scenarios.md")
	for _, file := range files(t, "pkg/scenario/packs/*.yaml") {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		missing(t, file, map[string]bool{
			"test/cheats/" + name + ".yaml":               len(files(t, "test/cheats/"+name+".yaml")) == 1,
			"docs/scenarios/" + name + ".md":              len(files(t, "docs/scenarios/"+name+".md")) == 1,
			"a line in docs/scenarios.md":                 strings.Contains(page, name),
			"a test in test/e2e/doctor_scenarios_test.go": strings.Contains(doctor, `findsWhatBreaks(t, "`+name+`"`),
		})
	}
}

// TestChecklistOfChecks protects the recipe "Add a check to doctor": of each check there is a cluster in which it finds
// something, or a test that names it.
func TestChecklistOfChecks(t *testing.T) {
	id := regexp.MustCompile(`\b[a-z]+\.[a-z][a-z0-9-]*`)
	tried := map[string]bool{}
	for _, pattern := range []string{
		"pkg/doctor/testdata/positive/*.txtar", "pkg/doctor/testdata/field/*.txtar", "pkg/doctor/*_test.go",
		"pkg/doctor/*/*_test.go", "pkg/doctor/checks/*/*_test.go", "plugin/doctor/*_test.go", "pkg/collect/*_test.go",
	} {
		for _, file := range files(t, pattern) {
			text, _, _ := strings.Cut(read(t, file), "\n-- ") // of a cluster, its verdict
			for _, found := range id.FindAllString(text, -1) {
				tried[found] = true
			}
		}
	}
	declared := regexp.MustCompile(`\bID:\s+"(` + id.String() + `)"`)
	known := map[string]bool{}
	for _, file := range files(t, "pkg/doctor/checks/*/*.go") {
		if !strings.HasSuffix(file, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(read(t, file), -1) {
				known[m[1]] = true
			}
		}
	}
	if len(known) < 100 {
		t.Fatalf("only %d checks found: %v", len(known), known)
	}
	for id := range known {
		missing(t, "the check "+id, map[string]bool{
			"a cluster in pkg/doctor/testdata/positive or field, or a test that names it": tried[id],
		})
	}
}

// root of the repository.
const root = "../.."

// missing reports each step that was not done.
func missing(t *testing.T, what string, steps map[string]bool) {
	t.Helper()
	for step, done := range steps {
		if !done {
			t.Errorf("%s lacks %s: see the recipe in docs/development.md", what, step)
		}
	}
}

// read returns the files that match a pattern below the root of the repository, one after the other.
func read(t *testing.T, pattern string) string {
	t.Helper()
	var all strings.Builder
	for _, file := range files(t, pattern) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// files returns the paths that match, below the root of the repository.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range found {
		found[i], _ = filepath.Rel(root, path)
	}
	return found
}

func folders(t *testing.T, pattern string) []string {
	t.Helper()
	return slices.DeleteFunc(files(t, pattern), func(path string) bool {
		info, err := os.Stat(filepath.Join(root, path))
		return err != nil || !info.IsDir()
	})
}
