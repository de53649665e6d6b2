package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// How much a page shows, so that one about thousands of nodes still opens.
const (
	maxRows    = 200
	maxObjects = 12
)

// htmlPage is what the page shows, in clean text; markup escapes it.
type htmlPage struct {
	Headline, LookedAt, Foot string
	State                    string // error, warning, good
	Errors, Warnings, Infos  []htmlFinding
	Graph                    *htmlGraph
	Matrix                   *htmlMatrix
	Allocation               *htmlAllocation
	Blinds                   []htmlBlind
	Unread                   string
	Layers                   []doctor.LayerResult
}

type htmlFinding struct {
	Anchor, ID, Title, Objects, Word, Confidence, Doc string
	Affected                                          string
	Severity                                          finding.Severity
	Layer                                             finding.Layer
	More                                              int // objects that are not named
	Fix                                               []string
	Values, Commands                                  string
	Evidence                                          []htmlEvidence
	Open                                              bool // the evidence is unfolded
	Consequences                                      []htmlFinding
}

type htmlEvidence struct{ Place, Text string }

type htmlBlind struct{ Why, Count, Checks, Objects string }

// HTML writes the report as one page that needs nothing else: no network, and a browser that runs no script shows it
// too.
func HTML(w io.Writer, r doctor.Report, version string) error {
	p := htmlPage{
		Headline: Headline(r), LookedAt: LookedAt(r), State: "good", Layers: r.Layers,
		Graph: newGraph(r), Matrix: newMatrix(r), Allocation: newHTMLAllocation(r.Allocation),
		Foot: fmt.Sprintf("Made by kubectl gpu-fault %s from a snapshot of %s.", version,
			r.Created.UTC().Format("2006-01-02 15:04:05 UTC")),
	}
	if worst := Roots(r, finding.Error); len(worst) > 0 {
		p.State = "error"
	} else if len(Roots(r, finding.Warning)) > 0 {
		p.State = "warning"
	}
	for _, i := range Roots(r, finding.Error) {
		p.Errors = append(p.Errors, htmlRoot(r, i))
	}
	for _, i := range Roots(r, finding.Warning) {
		p.Warnings = append(p.Warnings, htmlRoot(r, i))
	}
	for _, i := range Roots(r, finding.Info) {
		p.Infos = append(p.Infos, htmlFindingOf(r, i))
	}
	if len(p.Errors) == 1 && len(p.Errors[0].Evidence) <= 3 {
		p.Errors[0].Open = true
	}
	p.Unread = Unread(r)
	for _, b := range Blinds(failed(r)) {
		one := htmlBlind{
			Why: cut(clean(b.Why)), Count: count.Of(len(b.Checks), "check"), Checks: strings.Join(b.Checks, ", "),
		}
		if len(b.Objects) > 0 {
			one.Objects = some(b.Objects, maxObjects)
		}
		p.Blinds = append(p.Blinds, one)
	}
	_, err := io.WriteString(w, p.document())
	return err
}

func anchor(i int) string { return fmt.Sprintf("f%d", i) }

func htmlFindingOf(r doctor.Report, i int) htmlFinding {
	f := r.Items[i]
	all := objects(f)
	shown := all[:min(len(all), maxObjects)]
	one := htmlFinding{
		Anchor: anchor(i), ID: f.ID, Title: full(f.Title), Objects: some(shown, 0), More: len(all) - len(shown),
		Word: strings.ToUpper(string(f.Severity)), Severity: f.Severity, Layer: f.Layer,
	}
	if f.Confidence != finding.Certain {
		one.Confidence = string(f.Confidence)
	}
	return one
}

func htmlRoot(r doctor.Report, i int) htmlFinding {
	f := r.Items[i]
	one := htmlFindingOf(r, i)
	one.Fix, one.Values, one.Doc = instructions(f.Fix.Text), strings.Join(verbatim(f.Fix.Values), "\n"), f.Doc
	one.Affected = Affected(r, i, maxObjects)
	var commands []string
	for _, c := range f.Fix.Commands {
		commands = append(commands, verbatim(c)...)
	}
	one.Commands = strings.Join(commands, "\n")
	for _, e := range f.Evidence {
		place := clean(e.Source)
		if !e.Time.IsZero() {
			place += " (" + age(r.Created, e.Time) + ", " + e.Time.UTC().Format("2006-01-02 15:04:05 UTC") + ")"
		}
		one.Evidence = append(one.Evidence, htmlEvidence{place, strings.Join(quoted(e.Text), "\n")})
	}
	for _, c := range Consequences(r, i) {
		one.Consequences = append(one.Consequences, htmlFindingOf(r, c))
	}
	return one
}
