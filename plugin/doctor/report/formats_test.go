package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// someChecks returns the checks of twoContainerds, and one that passed.
func someChecks() []engine.Check {
	var all []engine.Check
	seen := map[string]bool{}
	for _, f := range twoContainerds().Items {
		if !seen[f.ID] {
			all = append(all, engine.Check{
				ID: f.ID, Layer: f.Layer, Title: f.Title, Reads: "what it reads", Why: "why it is so", Doc: f.Doc,
				Sources: []string{"gpu-operator#1323"},
			})
		}
		seen[f.ID] = true
	}
	return append(all,
		engine.Check{
			ID: "rt.unparsable", Layer: finding.LayerRuntime, Title: "containerd's configuration does not parse",
		},
		engine.Check{ID: "rt.binary-missing", Layer: finding.LayerRuntime, Title: "the runtime's binary is not there"})
}

// What explains a headline, or says that nothing does, is in every format.
func TestCauseIsInEveryFormat(t *testing.T) {
	t.Parallel()
	const cause = "Envoy closes <connections> of ranks."
	r := twoContainerds()
	r.Items[0].Cause = cause
	if !r.Items[0].Root {
		t.Fatal("the first finding must be a root")
	}
	var text, junit, sarif, html bytes.Buffer
	for name, one := range map[string]struct {
		out   *bytes.Buffer
		write func(io.Writer) error
	}{
		"text":  {&text, func(w io.Writer) error { return Text{Width: 1000}.Write(w, r) }},
		"junit": {&junit, func(w io.Writer) error { return JUnit(w, r, someChecks(), Gate{FailOn: finding.Error}) }},
		"sarif": {&sarif, func(w io.Writer) error { return SARIF(w, r, someChecks(), Gate{}, "v1.0.0") }},
		"html":  {&html, func(w io.Writer) error { return HTML(w, r, "v1.0.0") }},
	} {
		if err := one.write(one.out); err != nil {
			t.Fatal(err)
		}
		escaped := strings.NewReplacer("&lt;", "<", "&gt;", ">", `\u003c`, "<", `\u003e`, ">").Replace(one.out.String())
		if !strings.Contains(escaped, cause) {
			t.Errorf("%s does not have the cause", name)
		}
	}
}

// CI systems count failures and skipped tests: a root is a failure, a consequence is none, and what was not seen is
// skipped, never passed.
func TestJUnit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := JUnit(&out, twoContainerds(), someChecks(), Gate{FailOn: finding.Error}); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "junit.golden", out.String())
	for failOn, want := range map[finding.Severity]int{finding.Error: 2, finding.Warning: 3} {
		out.Reset()
		if err := JUnit(&out, twoContainerds(), someChecks(), Gate{FailOn: failOn}); err != nil {
			t.Fatal(err)
		}
		var all struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Skipped  int `xml:"skipped,attr"`
		}
		if err := xml.Unmarshal(out.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		if all.Failures != want || all.Skipped != 1 || all.Tests != len(someChecks()) {
			t.Errorf("from %s on: %d failures, %d skipped of %d; wanted %d, 1 of %d", failOn, all.Failures, all.Skipped,
				all.Tests, want, len(someChecks()))
		}
	}
}

// SARIF's rules that readers rely on: results point at their rules, levels are SARIF's words, and locations are there.
func TestSARIF(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := SARIF(&out, twoContainerds(), someChecks(), Gate{FailOn: finding.Error}, "v0.3.0"); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "sarif.golden.json", out.String())
	var log sarifLog
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&log); err != nil {
		t.Fatal(err)
	}
	run := log.Runs[0]
	if log.Version != "2.1.0" || len(run.Results) != 4 || len(run.Invocations[0].Notifications) != 2 {
		t.Errorf("version %s with %d results and %d notifications; wanted 2.1.0, the 4 roots and 2 reasons",
			log.Version, len(run.Results), len(run.Invocations[0].Notifications))
	}
	for _, r := range run.Results {
		if run.Tool.Driver.Rules[r.RuleIndex].ID != r.RuleID {
			t.Errorf("result %s points at rule %s", r.RuleID, run.Tool.Driver.Rules[r.RuleIndex].ID)
		}
		if !strings.Contains("error warning note", r.Level) || len(r.Locations) == 0 || r.Message.Text == "" {
			t.Errorf("result %s: level %q, %d locations, message %q", r.RuleID, r.Level, len(r.Locations),
				r.Message.Text)
		}
	}
}

// TestStrictGateFailsClosed: with --fail-on, a check that could not see what it needs is an error for CI systems and an
// open result in SARIF, unless nobody asked for it.
func TestStrictGateFailsClosed(t *testing.T) {
	t.Parallel()
	check := engine.Check{
		ID: "rt.unparsable", Layer: finding.LayerRuntime, Title: "containerd's configuration does not parse",
	}
	r := doctor.Report{Items: []finding.Finding{}, Layers: []doctor.LayerResult{{Layer: finding.LayerRuntime}}}
	unknown := engine.Unknown{Check: check.ID, Layer: check.Layer, Object: finding.Object{Kind: "Node", Name: "gpu-1"}}
	for why, want := range map[string]bool{
		"the pod did not start":                           true,
		engine.NotAsked + ": it looks healthy by the API": false,
	} {
		unknown.Why = why
		r.Unknown = []engine.Unknown{unknown}
		for _, strict := range []bool{true, false} {
			gate := Gate{FailOn: finding.Error, Strict: strict}
			fails, says := gate.Fails(r)
			if fails != (want && strict) || fails != (says != "") {
				t.Errorf("%q, strict %t: fails %t, says %q", why, strict, fails, says)
			}
			var junit, sarif bytes.Buffer
			if err := errors.Join(
				JUnit(&junit, r, []engine.Check{check}, gate), SARIF(&sarif, r, []engine.Check{check}, gate, "v1"),
			); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(junit.String(), `<error message="not checked: `+why); got != fails {
				t.Errorf("%q, strict %t: JUnit has an error: %t\n%s", why, strict, got, junit.String())
			}
			if got := strings.Contains(sarif.String(), `"kind": "open"`); got != fails {
				t.Errorf("%q, strict %t: SARIF has an open result: %t", why, strict, got)
			}
		}
	}
}

func pageOf(t *testing.T, r doctor.Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := HTML(&out, r, "v0.3.0"); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The page's body; its style and script are files of their own.
func TestHTML(t *testing.T) {
	t.Parallel()
	_, body, _ := strings.Cut(pageOf(t, twoContainerds()), "<body>")
	body, _, _ = strings.Cut(body, "<script>")
	golden.Compare(t, "page.golden.html", body)
}

// The page loads nothing from elsewhere, and its policy would not let it, but lets it have its own style and script;
// its links within the page lead somewhere; all its elements are closed; and nothing that anyone wrote becomes an
// element or an attribute.
func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"problems": pageOf(t, twoContainerds()), "healthy": pageOf(t, healthy()), "hostile": pageOf(t, hostileReport()),
		"nothing": pageOf(t, doctor.Report{}), "all hostile": pageOf(t, poisoned()),
	} {
		ids, links, policy := map[string]bool{}, []string{}, ""
		d := xml.NewDecoder(strings.NewReader(text)) // it fails where an element is not closed
		d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "br"}, xml.HTMLEntity
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			start, ok := token.(xml.StartElement)
			if !ok {
				continue
			}
			if strings.Contains(" link img iframe object embed base form ", " "+start.Name.Local+" ") {
				t.Errorf("%s: an element %s", name, start.Name.Local)
			}
			values := map[string]string{}
			for _, a := range start.Attr {
				values[a.Name.Local] = a.Value
				switch key := a.Name.Local; {
				case key == "id":
					if ids[a.Value] {
						t.Errorf("%s: the id %s is there twice", name, a.Value)
					}
					ids[a.Value] = true
				case key == "href" && strings.HasPrefix(a.Value, "#"):
					links = append(links, a.Value[1:])
				case key == "src" || key == "style" || strings.HasPrefix(key, "on") ||
					key == "href" && !strings.HasPrefix(a.Value, "https://"):
					t.Errorf("%s: an attribute %s=%q", name, key, a.Value)
				}
			}
			if values["http-equiv"] == "Content-Security-Policy" {
				policy = values["content"]
			}
		}
		for _, link := range links {
			if !ids[link] {
				t.Errorf("%s: a link to #%s, which is not there", name, link)
			}
		}
		if want := markup.Policy(markup.Style); policy != want {
			t.Errorf("%s: the policy is %q, wanted %q", name, policy, want)
		}
		if !strings.Contains(text, "<style>"+markup.Style+"</style>") ||
			!strings.Contains(text, "<script>"+markup.Script+"</script>") || strings.Count(text, "<script") != 1 ||
			strings.Count(text, "<style") != 1 {
			t.Errorf("%s: not our one style and one script, as they are", name)
		}
	}
}

// Of thousands of nodes only those have a row that are not fine, and the others are counted.
func TestMatrixOfManyNodes(t *testing.T) {
	t.Parallel()
	r := healthy()
	r.Nodes = nil
	for i := range 5000 {
		n := doctor.NodeResult{
			Node: fmt.Sprintf("gpu-%d", i), Layers: map[finding.Layer]doctor.State{finding.LayerDriver: doctor.Good},
		}
		if i%1000 == 7 {
			n.Layers[finding.LayerDriver] = doctor.Broken
		}
		r.Nodes = append(r.Nodes, n)
	}
	m := newMatrix(r)
	if len(m.Rows) != 5 || m.Left != "Not shown: 4995 more nodes without problems." {
		t.Errorf("%d rows, and: %s", len(m.Rows), m.Left)
	}
	for i := range r.Nodes {
		r.Nodes[i].Layers[finding.LayerDriver] = doctor.Broken
	}
	if m := newMatrix(r); len(m.Rows) != maxRows || m.Left != "Not shown: 4800 more nodes with problems." {
		t.Errorf("%d rows, and: %s", len(m.Rows), m.Left)
	}
}

// Every cause is to the left of what follows from it, nothing overlaps, and an arrow that repeats a longer way is left
// out.
func TestGraphIsLayered(t *testing.T) {
	t.Parallel()
	g := newGraph(twoContainerds())
	for _, d := range []htmlDrawing{g.Wide, g.Tree} {
		if len(d.Boxes) != 8 {
			t.Errorf("%s: %d boxes, wanted 8: the root and its 7 consequences", d.Class, len(d.Boxes))
		}
		for i, a := range d.Boxes {
			if a.X < 0 || a.Y < 0 || a.X+d.BoxWidth > d.Width || a.Y+d.BoxHeight > d.Height {
				t.Errorf("%s: box %s is outside", d.Class, a.ID)
			}
			for _, b := range d.Boxes[:i] {
				if a.X < b.X+d.BoxWidth && b.X < a.X+d.BoxWidth && a.Y < b.Y+d.BoxHeight && b.Y < a.Y+d.BoxHeight {
					t.Errorf("%s: boxes %s and %s overlap", d.Class, a.ID, b.ID)
				}
			}
		}
	}
	if len(g.Wide.Edges) != 7 {
		t.Errorf("%d arrows, wanted 7: two of the nine repeat longer ways", len(g.Wide.Edges))
	}
	if g.Wide.Width > pageWidth || g.Tree.Width > 390 {
		t.Errorf("the graph is %d wide, and as a tree %d", g.Wide.Width, g.Tree.Width)
	}
	ring := twoContainerds()
	ring.Edges = append(ring.Edges, finding.Edge{From: 8, To: 4})
	if newGraph(ring) == nil || newGraph(healthy()) != nil {
		t.Error("a ring is drawn, and nothing is drawn where nothing follows from anything")
	}
}
