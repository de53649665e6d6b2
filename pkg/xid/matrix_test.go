package xid

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// dressing is one way to write the line of every code.
type dressing struct {
	name string
	o    Options
	old  Address
}

var dressings = []dressing{
	{"no process", Options{Driver: R580}, AddressDriver},
	{"no process of R535", Options{Driver: R535}, AddressDriver},
	{"process", Options{Process: Process{PID: 1234, Name: "python"}}, AddressDriver},
	{"MIG", Options{MIG: MIG{On: true, GI: 5}}, AddressDriver},
	{"function", Options{}, AddressFunction},
	{"old address", Options{}, AddressOld},
}

func (d dressing) event(t *testing.T, c Code) Event {
	o := d.o
	o.PCI = gpu17
	if c.Template.NoProcess {
		o.Process = Process{}
	}
	e := mustNew(t, c.Number, o)
	e.Address = d.old
	if d.name == "no process" {
		e.Process = Process{} // also where the template blames one
	}
	return e
}

var forms = []Form{FormKernel, FormPlain, FormBracket, FormModule}

// TestPatterns applies every pattern to every line that the catalog can produce. The golden file lists which codes
// match: all that is not in it is a known miss.
func TestPatterns(t *testing.T) {
	t.Parallel()
	patterns := fixedPatterns()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(patterns)) {
		p := patterns[name]
		fmt.Fprintf(&b, "## %s\n", name)
		writeMatrix(&b, func(d dressing, f Form) string {
			var matched []int
			for _, c := range All() {
				k, err := Record(d.event(t, c), f)
				if err != nil {
					t.Fatal(err)
				}
				if p.re.MatchString(p.view.of(k)) {
					matched = append(matched, c.Number)
				}
			}
			return ranges(matched)
		})
	}
	golden.Compare(t, "patterns.golden", b.String())
}

// TestVerdicts has the verdict of every detector for every such line.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	all := All()
	for _, det := range Detectors() {
		fmt.Fprintf(&b, "## %s\n", det.ID)
		writeMatrix(&b, func(d dressing, f Form) string {
			seen := map[Sight][]int{}
			for _, c := range all {
				v := det.Judge(d.event(t, c), f)
				seen[v.Seen] = append(seen[v.Seen], c.Number)
				checkVerdict(t, c, v)
			}
			var out []string
			for _, s := range []Sight{Yes, Depends, No} {
				if len(seen[s]) > 0 {
					out = append(out, fmt.Sprintf("%s: %s", s, ranges(seen[s])))
				}
			}
			return strings.Join(out, ", ")
		})
	}
	golden.Compare(t, "verdicts.golden", b.String())
}

// writeMatrix writes a line per result, with the dressings and forms that have it.
func writeMatrix(b *strings.Builder, result func(dressing, Form) string) {
	type line struct{ forms, result string }
	var order []line
	dressed := map[line][]string{}
	for _, d := range dressings {
		byResult := map[string][]string{}
		for _, f := range forms {
			r := result(d, f)
			byResult[r] = append(byResult[r], string(f))
		}
		for _, r := range slices.Sorted(maps.Keys(byResult)) {
			l := line{strings.Join(byResult[r], " "), r}
			if dressed[l] == nil {
				order = append(order, l)
			}
			dressed[l] = append(dressed[l], d.name)
		}
	}
	for _, l := range order {
		fmt.Fprintf(b, "%s\n    in %s; with %s\n", l.result, l.forms, strings.Join(dressed[l], ", "))
	}
}

func checkVerdict(t *testing.T, c Code, v Verdict) {
	t.Helper()
	switch v.Seen {
	case No:
		if v.Why == "" || v.Reaction != "" || v.Fatal || v.MayReboot {
			t.Errorf("%s of %d: %+v", v.Detector, c.Number, v)
		}
	case Depends:
		if v.Why == "" || v.Reaction == "" {
			t.Errorf("%s of %d: %+v", v.Detector, c.Number, v)
		}
	case Yes:
		r, ok := c.Detectors[v.Detector]
		if v.Reaction == "" ||
			ok && r.Action != "FROM_MESSAGE" && !isNVLink5(c.Number) && (v.Fatal != r.Fatal || v.Action != r.Action) {
			t.Errorf("%s of %d: %+v, the catalog says %+v", v.Detector, c.Number, v, r)
		}
	default:
		t.Errorf("%s of %d: seen is %q", v.Detector, c.Number, v.Seen)
	}
}

// ranges writes 1 2 3 5 as "1-3 5".
func ranges(n []int) string {
	if len(n) == 0 {
		return "none"
	}
	var out []string
	for i := 0; i < len(n); {
		j := i
		for j+1 < len(n) && n[j+1] == n[j]+1 {
			j++
		}
		if i == j {
			out = append(out, strconv.Itoa(n[i]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", n[i], n[j]))
		}
		i = j + 1
	}
	return strings.Join(out, " ")
}
