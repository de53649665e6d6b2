package printer

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// Tables must look like kubectl's: no lines, left-aligned, no trailing blanks.
func TestTableLooksLikeKubectls(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"NODE", "GPU", "XID", "LINE"}}
	table.Add("node-b", "0000:2f:00", "79", "NVRM: Xid (PCI:0000:2f:00): 79, GPU has fallen off the bus.")
	table.Add("a-node-with-a-longer-name", "", "154", "x")
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "table.golden", out.String())
	for line := range strings.Lines(out.String()) {
		if strings.TrimRight(line, " \n")+"\n" != line {
			t.Errorf("trailing blanks: %q", line)
		}
	}
}

// A kernel log line must not be able to move the cursor of the terminal that shows it.
func TestTableEscapesTerminalSequences(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"LINE"}}
	table.Add("\x1b[2Jgone")
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("an escape sequence reached the terminal: %q", out.String())
	}
}

func TestObjectFormats(t *testing.T) {
	t.Parallel()
	object := map[string]any{
		"apiVersion": "gpufault.dev/v1alpha1", "kind": "Run", "id": "xid-abc", "steps": []map[string]any{{"id": "1"}},
		"count": 1234567,
	}
	for format, want := range map[string]string{
		"json":                      "\"id\": \"xid-abc\"",
		"yaml":                      "id: xid-abc\n",
		"name":                      "run/xid-abc\n",
		"jsonpath={.steps[0].id}":   "1\n",
		"jsonpath={.kind}-{.id}.go": "Run-xid-abc.go\n",
		"jsonpath={.count}":         "1234567\n",
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			f := Format{Output: format}
			if err := f.Validate(); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := f.Object(&out, object, "run/xid-abc"); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("printed %q, which lacks %q", out.String(), want)
			}
		})
	}
	if err := (Format{Output: "xml"}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "supported values: json") {
		t.Errorf("-o xml: %v", err)
	}
}

// A key that is not there prints nothing, as with `kubectl get`; what is wrong with a template is said without the
// whole object.
func TestJSONPathThatFindsNothing(t *testing.T) {
	t.Parallel()
	object := map[string]any{"steps": []string{"secret-step"}}
	for template, want := range map[string]string{
		"{.code}":        "",
		"{.code.deeper}": "",
		"{.items[*].id}": "",
		"{.steps[5]}":    "-o jsonpath: template {.steps[5]}: array index out of bounds: index 5, length 1",
		"{.id":           "-o jsonpath: template {.id: unclosed action",
	} {
		t.Run(template, func(t *testing.T) {
			t.Parallel()
			f := Format{Output: "jsonpath=" + template}
			var out bytes.Buffer
			err := f.Validate()
			if err == nil {
				err = f.Object(&out, object)
			}
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != want || out.Len() > 0 {
				t.Errorf("error %q, wanted %q; printed %q", got, want, out.String())
			}
		})
	}
}

// Fit shortens the widest of the named columns first, in the middle, and no column that is not named.
func TestFit(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		100: "RUN       FAULT                       TARGETS\nxid-abc   XID 79 on GPU 0, 50 times   node-1.example.com\n",
		40:  "RUN       FAULT           TARGETS\nxid-abc   XID 7...times   node-1...e.com\n",
		5:   "RUN       FAULT    TARGETS\nxid-abc   XI...s   no...m\n",
	} {
		table := Table{Header: []string{"RUN", "FAULT", "TARGETS"}}
		table.Add("xid-abc", "XID 79 on GPU 0, 50 times", "node-1.example.com")
		table.Fit(width, "FAULT", "TARGETS")
		var out bytes.Buffer
		if err := table.Write(&out); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("width %d:\n%s\nwant\n%s", width, out.String(), want)
		}
	}
}
