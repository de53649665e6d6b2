package xid

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// burst is n records, which say the same in turns of `distinct`.
func burst(n, distinct int) []record {
	all := make([]record, n)
	for i := range all {
		all[i] = record{
			XID: "79", GPU: "0000:17:00", Sequence: uint64(70788 + i),
			Time: time.Date(2026, 5, 4, 12, 0, 0, i*1e6, time.Local),
			Text: fmt.Sprintf("kernel: NVRM: Xid (PCI:0000:17:00): 79, line %d", i%distinct),
		}
	}
	return all
}

func TestManyRecordsAreFewRows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wide  bool
		nodes []written
	}{
		"one": {false, []written{{Node: "node-b", Records: burst(1, 1)}}},
		"distinct": {
			false,
			[]written{{Node: "node-a", Records: burst(2, 2)}, {Node: "node-b", Records: burst(2, 2)}, {Node: "node-c"}},
		},
		"hundred-alike": {false, []written{{Node: "node-b", Records: burst(100, 1)}}},
		"two-in-turns": {
			false, []written{{Node: "node-b", Records: burst(100, 2)}, {Node: "node-c", Records: burst(1, 1)}},
		},
		"wide-alike":      {true, []written{{Node: "node-b", Records: burst(4, 1)}}},
		"seven-distinct":  {false, []written{{Node: "node-b", Records: burst(7, 7)}}},
		"twenty-distinct": {false, []written{{Node: "node-b", Records: burst(20, 20)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			format := printer.Format{}
			if test.wide {
				format.Output = "wide"
			}
			var out bytes.Buffer
			if err := (injection{Nodes: test.nodes}).table(format).Write(&out); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "result-"+name+".golden", out.String())
		})
	}
}

func TestClosingSaysWhatIsNext(t *testing.T) {
	t.Parallel()
	out := injection{ID: "xid-2hb5gn", Nodes: []written{{Node: "a", Records: burst(1, 1)}, {Node: "b"}}}
	want := "1 record written and read back on 1 node; close the run with: kubectl gpu-fault revert xid-2hb5gn"
	if got := out.closing(1, "kubectl gpu-fault revert xid-2hb5gn"); got != want {
		t.Errorf("got %q, wanted %q", got, want)
	}
}

// WORD finds what the table shows: numbers, names, descriptions, classes, and the errors of NVSwitches.
func TestListFindsWords(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]struct{ first, some string }{
		"79":        {"xid/79", "xid/79"},
		"memory":    {"xid/48", "xid/63"},
		"MEMORY":    {"xid/48", "xid/63"},
		"sxid":      {"sxid/12028", "sxid/20034"},
		"2003":      {"sxid/20034", "sxid/20034"},
		"non-fatal": {"sxid/12028", "sxid/28006"},
		"ltssm":     {"sxid/20034", "sxid/20034"},
		"nosuch":    {"", ""},
	} {
		names := catalog{Items: search(word), SXids: searchSXids(word)}.names()
		if want.first == "" {
			if len(names) > 0 {
				t.Errorf("%s found %v", word, names)
			}
			continue
		}
		if len(names) == 0 || names[0] != want.first || !strings.Contains(strings.Join(names, " ")+" ", want.some+" ") {
			t.Errorf("%s found %v, wanted %s first and %s", word, names, want.first, want.some)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"79", "sxid:20034", "fallen-off-bus"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			selectors, err := parseKnown([]string{code})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := explain(&out, selectors[0]); err != nil {
				t.Fatal(err)
			}
			// What the detectors do is tested where it is known.
			about, _, _ := strings.Cut(out.String(), "\nWritten to ")
			golden.Compare(t, "explain-"+strings.ReplaceAll(code, ":", "-")+".golden", about)
		})
	}
}

func TestExplainSeveral(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ args, want []string }{
		"one":         {[]string{"79"}, []string{`"kind": "Xid"`, `"number": 79`}},
		"two":         {[]string{"79", "31"}, []string{`"kind": "XidList"`, `"number": 79`, `"number": 31`}},
		"with commas": {[]string{"79,31"}, []string{`"number": 79`, `"number": 31`}},
		"a switch's":  {[]string{"sxid:20034"}, []string{`"items": []`, `"number": 20034`}},
	} {
		selectors, err := parseKnown(test.args)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var out bytes.Buffer
		if err := explainObject(&out, printer.Format{Output: "json"}, selectors); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, part := range test.want {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%s lacks %s", name, part)
			}
		}
	}
	for code, want := range map[string]string{
		"999": "XID 999 is not in the catalog", "sxid:1": "SXid 1 is not in the catalog", "bus": `invalid XID "bus"`,
	} {
		if _, err := parseKnown([]string{"79", code}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted %q", code, err, want)
		}
	}
}
