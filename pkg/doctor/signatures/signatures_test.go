package signatures

import (
	"cmp"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// The knowledge is data: a row that cannot be read would be lost without a word.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	all, err := builtin()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 500 {
		t.Errorf("only %d signatures", len(all))
	}
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.ID] {
			t.Errorf("signature %s exists twice", s.ID)
		}
		seen[s.ID] = true
	}
}

// TestJSON holds that the released program, which embeds the signatures as JSON, knows the same as the YAML files say.
func TestJSON(t *testing.T) {
	t.Parallel()
	want, err := builtin() // not Builtin: other tests compile its patterns, which are compared here
	if err != nil {
		t.Fatal(err)
	}
	data, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := fromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d signatures, want %d", len(got), len(want))
	}
	for i := range want {
		for _, s := range []*Signature{got[i], want[i]} {
			for _, p := range []*pattern{s.match, s.also, s.unless} {
				if p != nil {
					p.compiled()
				}
			}
		}
		without := *want[i]
		without.Example = ""
		if !reflect.DeepEqual(got[i], &without) {
			t.Errorf("signature %s differs: %+v", want[i].ID, got[i])
		}
	}
	if _, err := fromJSON([]byte(`{"signatures": [{"id": "a"}]}`)); err == nil {
		t.Error("a signature without its literals was read")
	}
}

// Each row is tested with its own example, among all others: the most specific one must win.
func TestExamples(t *testing.T) {
	t.Parallel()
	all := Builtin()
	set := NewSet(all)
	sets := map[bool]*Set{false: set, true: set.Running()}
	for _, s := range all {
		if s.Also != "" {
			continue // the example is one of several lines
		}
		lines := []Line{{Place: s.In[0], Evidence: finding.Evidence{Text: s.Example}}}
		if s.Defect != nil {
			image := s.Defect.Images[0] + ":" + cmp.Or(s.Defect.Since, "v0.0.1")
			lines = append(lines, Line{Place: Spec, Evidence: finding.Evidence{Text: Program(image)}})
		}
		if got := idOf(sets[s.Runs].Best(lines)); got != s.ID {
			t.Errorf("the example of %s is taken by %q: %s", s.ID, got, s.Example)
		}
	}
}

// idOf returns the ID of the best match, or "".
func idOf(matches []Match) string {
	if len(matches) == 0 {
		return ""
	}
	return matches[0].ID
}

// People paste the commands, and read the sentences.
func TestSentences(t *testing.T) {
	t.Parallel()
	expanded := regexp.MustCompile("[$`]")
	for _, s := range Builtin() {
		if strings.HasSuffix(s.Title, ".") || strings.TrimSpace(s.Title) != s.Title {
			t.Errorf("%s: the title ends with a period or is padded: %q", s.ID, s.Title)
		}
		fixes := []Fix{{s.Fix, s.Commands}}
		for _, fix := range s.Platforms {
			fixes = append(fixes, fix)
		}
		for _, fix := range fixes {
			if !strings.HasSuffix(strings.TrimRight(fix.Fix, `)"'`), ".") {
				t.Errorf("%s: the fix is not a sentence: %q", s.ID, fix.Fix)
			}
			for _, command := range fix.Commands {
				outside := ""
				for i, part := range strings.Split(command, "'") {
					if i%2 == 0 {
						outside += part
					}
				}
				if expanded.MatchString(outside) ||
					strings.Contains(command, "<") && !strings.Contains(command, "<<") ||
					strings.Contains(command, "--force") ||
					strings.Contains(command, "rm -rf") {
					t.Errorf("%s: the command cannot be pasted, or is dangerous: %s", s.ID, command)
				}
			}
		}
		if len(s.Sources) == 0 {
			t.Errorf("%s: no source", s.ID)
		}
	}
}

// Healthy programs print such lines.
func TestHarmlessLines(t *testing.T) {
	t.Parallel()
	set := NewSet(Builtin())
	for _, text := range []string{
		"INFO: Started server process [1]", "200 OK", "NCCL INFO Bootstrap: Using eth0:10.0.0.4<0>",
		"Running with 8 GPUs",
		"step 100 loss 2.31 lr 0.0003", "error rate: 0.00%", "0 errors, 0 warnings", "Successfully loaded model",
		"TF-TRT Warning: Could not find TensorRT", "Unable to register cuDNN factory: one is already registered",
		"A matching Triton is not available. Error caught was: No module named 'triton'",
		"successful NUMA node read from SysFS had negative value (-1), but there must be at least one NUMA node",
		"shutdown() failed (107: Transport endpoint is not connected)", "exit code 0", "resolved api.example.com in 2 ms",
		"W0101 12:00:00.000000 1 main.go:10] retrying in 1s", "Xid monitoring started", "Waiting for the rendezvous",
	} {
		for _, place := range []Place{Event, Status, Log, Kernel, Unit} {
			line := Line{Place: place, Evidence: finding.Evidence{Text: text}}
			for _, match := range set.Best([]Line{line}) {
				t.Errorf("%s matches a harmless line: %s", match.ID, text)
			}
		}
	}
}

// A user's own file has mistakes: each is named with its line.
func TestParseNamesTheMistake(t *testing.T) {
	t.Parallel()
	const good = "signatures:\n- id: a\n  match: 'x(y)'\n  layer: workload\n  title: t\n  cause: c.\n  fix: f.\n  example: xy\n"
	if _, err := Parse("f.yaml", []byte(good)); err != nil {
		t.Fatalf("a good file: %v", err)
	}
	for name, test := range map[string]struct{ text, want string }{
		"empty":             {"", "f.yaml: "},
		"no list":           {"signatures: []\n", "no signatures"},
		"unknown field":     {good + "  titel: x\n", "line 9: field titel is unknown"},
		"no ID":             {strings.Replace(good, "id: a", "id: ''", 1), `f.yaml:2: signature "": id: missing field`},
		"bad ID":            {strings.Replace(good, "id: a", "id: A b", 1), "invalid ID"},
		"bad expression":    {strings.Replace(good, "x(y)", "x(y", 1), "invalid regular expression"},
		"matches all":       {strings.Replace(good, "x(y)", "x*", 1), "matches every line"},
		"other example":     {strings.Replace(good, "example: xy", "example: z", 1), "does not match the example"},
		"unknown layer":     {strings.Replace(good, "layer: workload", "layer: moon", 1), "supported values"},
		"unknown place":     {good + "  in: [sky]\n", "invalid place"},
		"unknown value":     {strings.Replace(good, "title: t", "title: t {2}", 1), "unknown placeholder {2}"},
		"quoted value":      {good + "  commands: [\"echo '{1}'\"]\n", "in quotes"},
		"twice":             {good + strings.TrimPrefix(good, "signatures:\n"), "duplicate ID"},
		"surely":            {good + "  confidence: certain\n", "invalid confidence"},
		"not YAML":          {"signatures: [", "f.yaml: "},
		"another structure": {"signatures: 3\n", "f.yaml: "},
	} {
		if _, err := Parse("f.yaml", []byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), "signatures.") {
			t.Errorf("%s: the error is %v, want a part %q", name, err, test.want)
		}
	}
}

// If the evidence fits two causes and is proof of none, both are told.
func TestSecondBest(t *testing.T) {
	t.Parallel()
	all, err := Parse("f.yaml", []byte(`signatures:
- {id: disk, match: disk, layer: workload, title: t, cause: c., fix: f., example: disk}
- {id: net, match: net, layer: network, title: t, cause: c., fix: f., example: net}
- {id: sure, match: sure, confidence: likely, layer: workload, title: t, cause: c., fix: f., example: sure}
`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"disk": "disk", "disk net disk": "disk net", "net disk sure net": "sure", "fine": "",
	} {
		var lines []Line
		for word := range strings.FieldsSeq(text) {
			lines = append(lines, Line{Place: Log, Evidence: finding.Evidence{Text: word}})
		}
		var got []string
		for _, m := range NewSet(all).Best(lines) {
			got = append(got, m.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q matches %q, want %q", text, got, want)
		}
	}
}

// A likely row beats a possible one, and other lines decide between rows of one message.
func TestBest(t *testing.T) {
	t.Parallel()
	all, err := Parse("f.yaml", []byte(`signatures:
- {id: vague, match: failed, layer: workload, title: t, cause: c., fix: f., example: failed}
- {id: also, match: 'failed: (\w+)', also: disk, confidence: likely, layer: workload, title: t, cause: c., fix: f.,
   example: 'failed: a'}
- {id: unless, match: 'failed: (\w+)', unless: disk, confidence: likely, layer: workload, title: t, cause: c., fix: f.,
   example: 'failed: a'}
- {id: kernel, match: oops, in: [kernel], layer: driver, title: t, cause: c., fix: f., example: oops}
`))
	if err != nil {
		t.Fatal(err)
	}
	lines := func(texts ...string) []Line {
		var all []Line
		for _, text := range texts {
			all = append(all, Line{Place: Log, Evidence: finding.Evidence{Text: text}})
		}
		return all
	}
	for want, texts := range map[string][]string{
		"vague": {"it failed"}, "also": {"it failed", "failed: b", "disk full"},
		"unless": {"failed: b"}, "": {"oops", "fine"},
	} {
		if got := idOf(NewSet(all).Best(lines(texts...))); got != want {
			t.Errorf("%q is %q, want %q", texts, got, want)
		}
	}
}

// Files and lines are of strangers.
func FuzzParse(f *testing.F) {
	f.Add(
		[]byte("signatures:\n- {id: a, match: x, layer: workload, title: t, cause: c, fix: f, example: x}\n"),
		"x failed",
	)
	f.Fuzz(func(_ *testing.T, data []byte, line string) {
		all, err := Parse("f.yaml", data)
		if err == nil {
			NewSet(all).Best([]Line{{Place: Log, Evidence: finding.Evidence{Text: line}}})
		}
	})
}
