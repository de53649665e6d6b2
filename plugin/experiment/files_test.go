package experiment

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
)

func aResult(text string) experiment.Result {
	return experiment.Result{
		Name: "xid79", Targets: []string{"gpu-1"}, Passed: true, Runs: []string{"xid-1"},
		Verdicts: []experiment.Verdict{
			{Name: "detected", State: experiment.StateOK, OK: true, After: 2.1, Limit: 60, By: "npd", Text: text},
		},
	}
}

// A CI job gets the page, the data and the summary of one run, each in its own file.
func TestFilesOfARun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := files{
		html: filepath.Join(dir, "a.html"), json: filepath.Join(dir, "a.json"), markdown: filepath.Join(dir, "a.md"),
	}
	if err := f.write(io.Discard, aResult("Xid 79")); err != nil {
		t.Fatal(err)
	}
	var got experiment.Result
	data, err := os.ReadFile(f.json)
	if err != nil || json.Unmarshal(data, &got) != nil || got.Verdicts[0].After != 2.1 {
		t.Errorf("%v\n%s", err, data)
	}
	for file, part := range map[string]string{
		f.html: "Passed: xid79", f.markdown: "| detected | ok | 2\\.1s | 1m0s | npd | Xid 79 |\n",
	} {
		if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), part) {
			t.Errorf("%s lacks %q: %v\n%s", file, part, err, data)
		}
	}
}

// A report that cannot be written is refused before a fault is injected.
func TestFilesAreCheckedFirst(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing", "a.json")
	if err := (files{json: missing}).check(); err == nil || !strings.Contains(err.Error(), "--json "+missing) {
		t.Errorf("%v", err)
	}
	if err := (files{}).check(); err != nil {
		t.Error(err)
	}
}

// What others wrote in the cluster is text in the summary: no link, image, mention, HTML, new row or new column.
func TestMarkdownOfOthersIsText(t *testing.T) {
	t.Parallel()
	got := Markdown(aResult("| x |\n# y\n<img src=x> ![a](https://b.c) @team `c` \x1b[2J\u202e"))
	if rows := strings.Count(got, "\n|"); rows != 3 {
		t.Errorf("%d rows\n%s", rows, got)
	}
	for _, part := range []string{"<img", "](", "https:", "@team", "`c`", "\x1b", "\u202e", "| x"} {
		if strings.Contains(got, part) {
			t.Errorf("%q became markup:\n%s", part, got)
		}
	}
}

// FuzzMarkdown protects the table: whatever a text is, it stays in its cell.
func FuzzMarkdown(f *testing.F) {
	for _, text := range []string{"a", "|", "\\|", "\r\n|", "<b>", "[a](b)", "\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := inMarkdown(text)
		if strings.ContainsAny(got, "|<>`@\r\n") || strings.ContainsFunc(got, unicode.IsControl) {
			t.Errorf("%q became %q", text, got)
		}
		if len(strings.Split(Markdown(aResult(text)), "\n")) != 9 {
			t.Errorf("%q is more than one row", text)
		}
	})
}
