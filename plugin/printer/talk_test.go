package printer

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func TestWrap(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text  string
		width int
		want  []string
	}{
		"fits":          {"0123456789", 10, []string{"0123456789"}},
		"pipe":          {strings.Repeat("word ", 40), 0, []string{strings.Repeat("word ", 40)}},
		"between words": {"one two three", 8, []string{"one two", "three"}},
		"long word":     {"a 0123456789 b", 5, []string{"a", "0123456789", "b"}},
		"indented":      {"  one two three", 9, []string{"  one two", "  three"}},
		"label":         {"Line:     one two", 13, []string{"Line:     one", "two"}},
		"list": {
			"see kubectl gpu-fault xid A[,B...], and more", 32,
			[]string{"see", "kubectl gpu-fault xid A[,B...],", "and more"},
		},
		"several lines": {"one two\nthree", 5, []string{"one", "two", "three"}},
		"wide letters":  {"節点 節点", 6, []string{"節点", "節点"}},
		"a command": {
			"undo it with: kubectl gpu-fault revert a", 32, []string{"undo it with:", "kubectl gpu-fault revert a"},
		},
		"command in it": {
			"see `kubectl gpu-fault list`; then go on", 30, []string{"see `kubectl gpu-fault list`;", "then go on"},
		},
		"command too long": {"run kubectl gpu-fault list now", 12, []string{"run kubectl", "gpu-fault", "list now"}},
		"nothing":          {"", 10, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, strings.Split(Wrap(test.text, test.width), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTalkOnAPipeIsOneLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	Talk(&out, "%s", strings.Repeat("word ", 60)+"\x1b[31m")
	if got := out.String(); strings.Count(got, "\n") != 1 || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if width := Width(file); width != 0 {
		t.Errorf("a file is taken for a terminal of %d columns", width)
	}
}

// On a terminal of 80 columns the last column goes on below itself; where it would get too narrow, below the others;
// and where these do not fit, the terminal may break the lines.
func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	long := Table{Header: []string{"NODE", "GPU", "XID", "LINE"}}
	long.Add("node-b", "0000:2f:00", "79",
		"NVRM: Xid (PCI:0000:2f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
	long.Add("node-b", "0000:2f:00", "154", "short")
	for file, width := range map[string]int{
		"table-pipe.golden": 0, "table-80.golden": 80, "table-52.golden": 52, "table-46-below.golden": 46,
		"table-20-left-alone.golden": 20,
		"table-200-fits.golden":      200,
	} {
		var out bytes.Buffer
		if err := long.write(&out, width); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, file, out.String())
	}
	bare := long
	bare.NoHeader = true
	var out bytes.Buffer
	if err := bare.write(&out, 46); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "table-46-no-header.golden", out.String())
}

// Where the longest text is not in the last column, that one is wrapped.
func TestTableWrapsTheWidestColumn(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"RUN", "PHASE", "FAULT", "TARGETS", "BY", "AGE"}}
	table.Add("xid-vcv6c7", "Proven", "XIDs 63, 79 on GPU 0, 50 times", "node-b", "kubernetes-admin", "14s")
	var out bytes.Buffer
	if err := table.write(&out, 80); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "table-80-middle.golden", out.String())
}

// However wide the terminal is, each row is there, and nothing is lost.
func TestTableOfOneColumnAndLineBreaks(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"LINE"}}
	table.Add("one two three four five six seven eight\nnine")
	for width := range 60 {
		var out bytes.Buffer
		if err := table.write(&out, width); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(
			strings.Fields(out.String()), " ",
		); got != `LINE one two three four five six seven eight\nnine` {
			t.Errorf("width %d: %q", width, out.String())
		}
	}
}
