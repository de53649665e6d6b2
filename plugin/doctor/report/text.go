package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Text is the report format for people.
type Text struct {
	Width int // in columns; 0 means unlimited
	Color bool
	// Wide shows all objects, consequences and evidence, and the pods that hold the GPUs.
	Wide bool
}

// widest is the maximum width of text, and the width to use without a terminal. Longer lines are hard to read.
const widest = 100

// WidthFor returns the text width for a terminal with the given number of columns. 0 means that there is no terminal.
func WidthFor(columns int) int {
	if columns <= 0 {
		return widest
	}
	return min(columns, widest)
}

// Limits without Wide.
const (
	someConsequences = 5
	someObjects      = 3
	someEvidence     = 5
	someAffected     = 5
	manyAffected     = 50 // with Wide
	someBlinds       = 6
	someInfos        = 10
)

// Write prints the report.
func (t Text) Write(w io.Writer, r doctor.Report) error {
	p := &page{Text: t, report: r, paint: paint{t.Color}}
	p.head()
	p.overview()
	for _, i := range Roots(r, finding.Error) {
		p.root(i)
	}
	p.warnings()
	p.infos()
	p.blinds()
	p.unread()
	p.layers()
	if t.Wide && r.Allocation != nil {
		if err := p.allocation(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

// page is a report in progress.
type page struct {
	Text
	report doctor.Report
	paint  paint
	b      strings.Builder
}

// put writes a line and wraps it. The string hanging is the indentation of continuation lines.
func (p *page) put(indent, hanging, text string) {
	for _, line := range printer.WrapHanging(indent+text, p.Width, hanging) {
		p.b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

func (p *page) gap() { p.b.WriteByte('\n') }

func (p *page) title(text string) {
	p.gap()
	p.b.WriteString(p.paint.in(bold, text) + "\n")
}

func (p *page) head() {
	line := Headline(p.report)
	for _, part := range printer.WrapHanging(line, p.Width, "  ") {
		switch {
		case p.report.Summary.Errors > 0:
			part = p.paint.in(red, part)
		case p.report.Summary.Warnings > 0:
			part = p.paint.in(yellow, part)
		default:
			part = p.paint.in(green, part)
		}
		p.b.WriteString(part + "\n")
	}
	p.put("", "", LookedAt(p.report))
}

// mark returns the first line of a finding.
func (p *page) mark(f finding.Finding) string {
	word := fmt.Sprintf("%-7s", strings.ToUpper(string(f.Severity)))
	text := p.paint.severity(f.Severity, word) + "  " + p.paint.in(bold, f.ID)
	if f.Confidence != finding.Certain && f.Confidence != "" {
		text += p.paint.in(faint, "  ("+string(f.Confidence)+")")
	}
	return text
}

func (p *page) objects(f finding.Finding) string {
	n := someObjects
	if p.Wide {
		n = 0
	}
	return some(objects(f), n)
}

func (p *page) root(i int) {
	f := p.report.Items[i]
	p.gap()
	p.b.WriteString(p.mark(f) + "\n")
	p.put("  ", "  ", full(f.Title))
	if f.Cause != "" {
		p.put("  ", "  ", clean(f.Cause))
	}
	p.put("  on ", "     ", p.objects(f))
	p.affected(i)
	p.evidence(f)
	p.consequences(i)
	p.fix(f)
	if f.Doc != "" {
		p.gap()
		p.b.WriteString("  " + p.paint.in(faint, "See "+clean(f.Doc)) + "\n")
	}
}

// someProblems is the maximum number of lines in the overview.
const someProblems = 20

// overview lists several problems, one per line, in the order of their descriptions below.
func (p *page) overview() {
	all := slices.Concat(Roots(p.report, finding.Error), Roots(p.report, finding.Warning))
	if len(all) < 2 {
		return
	}
	p.gap()
	id := 0
	for _, i := range all {
		id = max(id, len(p.report.Items[i].ID))
	}
	for _, i := range all[:min(len(all), someProblems)] {
		f := p.report.Items[i]
		word, name := fmt.Sprintf("%-7s", strings.ToUpper(string(f.Severity))), fmt.Sprintf("%-*s", min(id, 30), f.ID)
		title, where := full(f.Title), "("+clean(f.Object.String())+")"
		if n := len(objects(f)) - 1; n > 0 {
			where = fmt.Sprintf("(%s and %d more)", clean(f.Object.String()), n)
		}
		if p.Width > 0 {
			title = shorten(title, max(p.Width-len("  "+word+"  "+name+"  ")-len([]rune(where))-1, 20))
		}
		p.b.WriteString("  " + p.paint.severity(f.Severity, word) + "  " + name + "  " + title + " " + where + "\n")
	}
	if rest := len(all) - someProblems; rest > 0 {
		p.put("  ", "  ", fmt.Sprintf("and %d more", rest))
	}
}

// affected writes the pods affected by a root cause.
func (p *page) affected(root int) {
	n := someAffected
	if p.Wide {
		n = manyAffected
	}
	if text := Affected(p.report, root, n); text != "" {
		p.put("  ", "  ", text)
	}
}

// full returns a title as a full sentence.
func full(title string) string {
	text := capital(clean(title))
	if strings.HasSuffix(text, ".") || text == "" {
		return text
	}
	return text + "."
}

// capital capitalizes the first letter of a text, unless its first word is the name of a flag, command or file.
func capital(text string) string {
	first, _, _ := strings.Cut(text, " ")
	for _, r := range first {
		if r < 'a' || r > 'z' {
			return text
		}
	}
	if first == "" ||
		slices.Contains([]string{"kubectl", "helm", "systemctl", "containerd", "kubelet", "modprobe", "dcgm"}, first) {
		return text
	}
	return strings.ToUpper(first[:1]) + text[1:]
}

// instructions returns the text of a fix as lines.
func instructions(text string) []string {
	lines := quoted(text)
	if len(lines) > 0 {
		lines[0] = capital(lines[0])
	}
	return lines
}

func (p *page) evidence(f finding.Finding) {
	shown := f.Evidence
	if !p.Wide && len(shown) > someEvidence+1 {
		shown = shown[:someEvidence]
	}
	for i, e := range shown {
		if i == 0 {
			p.gap()
			p.b.WriteString("  Evidence:\n")
		}
		p.quote(e)
	}
	if rest := len(f.Evidence) - len(shown); rest > 0 {
		p.put("    ", "    ", fmt.Sprintf("and %d more", rest))
	}
}

func (p *page) quote(e finding.Evidence) {
	place := clean(e.Source)
	if !e.Time.IsZero() {
		place += " (" + age(p.report.Created, e.Time) + ")"
	}
	p.put("    ", "    ", place+":")
	const bar = "      | "
	for _, line := range quoted(e.Text) {
		width := 0
		if p.Width > 0 {
			width = max(p.Width-len(bar), 1)
		}
		for part := range strings.SplitSeq(printer.Wrap(line, width), "\n") {
			p.b.WriteString(strings.TrimRight(bar+part, " ") + "\n")
		}
	}
}

// age returns the time from an event to the snapshot, such as "3m ago".
func age(now, then time.Time) string {
	switch d := now.Sub(then); {
	case d < -time.Minute: // the node's clock is ahead of the client's
		return "in " + duration.HumanDuration(-d)
	case d < time.Second:
		return "just now"
	default:
		return duration.HumanDuration(d) + " ago"
	}
}

func (p *page) consequences(root int) {
	all := Consequences(p.report, root)
	if len(all) == 0 {
		return
	}
	p.gap()
	p.b.WriteString("  Consequences:\n")
	shown := all
	if !p.Wide && len(all) > someConsequences+1 {
		shown = all[:someConsequences]
	}
	for _, i := range shown {
		f := p.report.Items[i]
		p.put("    ", "      ", fmt.Sprintf("%s: %s (%s)", f.ID, sentence(f.Title), some(objects(f), 1)))
	}
	if rest := len(all) - len(shown); rest > 0 {
		p.put("    ", "    ", fmt.Sprintf("and %d more (-o wide shows all)", rest))
	}
}

func (p *page) fix(f finding.Finding) {
	if f.Fix.Text == "" && len(f.Fix.Commands) == 0 && f.Fix.Values == "" {
		return
	}
	p.gap()
	p.b.WriteString("  Fix:\n")
	for _, line := range instructions(f.Fix.Text) {
		p.put("    ", "    ", line)
	}
	if f.Fix.Values != "" {
		for _, line := range verbatim(f.Fix.Values) {
			p.b.WriteString(strings.TrimRight("      "+line, " ") + "\n")
		}
	}
	for _, command := range f.Fix.Commands { // unwrapped, so that the command can be copied
		for _, line := range verbatim(command) {
			p.b.WriteString("      " + p.paint.in(bold, line) + "\n")
		}
	}
}

// verbatim returns lines to copy. They are sanitized, but never shortened.
func verbatim(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, clean(strings.TrimRight(line, "\r\n")))
	}
	return lines
}

// warnings writes the warnings in short form: title, objects, first quotation and fix.
func (p *page) warnings() {
	for _, i := range Roots(p.report, finding.Warning) {
		if p.Wide {
			p.root(i)
			continue
		}
		f := p.report.Items[i]
		p.gap()
		p.b.WriteString(p.mark(f) + "\n")
		p.put("  ", "  ", full(f.Title))
		p.put("  on ", "     ", p.objects(f))
		p.affected(i)
		if len(f.Evidence) > 0 {
			p.quote(f.Evidence[0])
		}
		for i, line := range instructions(f.Fix.Text) {
			p.put([]string{"  Fix: ", "       "}[min(i, 1)], "       ", line)
		}
		for _, command := range f.Fix.Commands {
			for _, line := range verbatim(command) {
				p.b.WriteString("      " + p.paint.in(bold, line) + "\n")
			}
		}
		p.explained(i)
	}
}

// explained lists the findings that a warning explains.
func (p *page) explained(root int) {
	var ids []string
	for _, i := range Consequences(p.report, root) {
		if id := p.report.Items[i].ID; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	text := strings.Join(ids[:min(len(ids), someConsequences)], ", ")
	if rest := len(ids) - someConsequences; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	p.put("  ", "  ", "Consequences: "+text+" (-o wide shows them)")
}

func (p *page) infos() {
	all := Roots(p.report, finding.Info)
	if len(all) == 0 {
		return
	}
	p.title("Worth knowing:")
	shown := all
	if !p.Wide && len(all) > someInfos+1 {
		shown = all[:someInfos]
	}
	for _, i := range shown {
		f := p.report.Items[i]
		p.put("  ", "    ", fmt.Sprintf("%s: %s (%s)", f.ID, sentence(f.Title), p.objects(f)))
	}
	if rest := len(all) - len(shown); rest > 0 {
		p.put("  ", "  ", fmt.Sprintf("and %d more (-o wide shows all)", rest))
	}
}

func (p *page) blinds() {
	all := Blinds(failed(p.report))
	if len(all) == 0 {
		return
	}
	p.title("Could not check:")
	shown := all
	if !p.Wide && len(all) > someBlinds+1 {
		shown = all[:someBlinds]
	}
	for _, b := range shown {
		what := count.Of(len(b.Checks), "check")
		if len(b.Checks) <= 2 || p.Wide {
			what = strings.Join(b.Checks, ", ")
		}
		if len(b.Objects) > 0 {
			what += " on " + some(b.Objects, someObjects)
		}
		p.put("  ", "    ", cut(clean(b.Why))+": "+what)
	}
	if rest := len(all) - len(shown); rest > 0 {
		p.put("  ", "  ", "and "+count.Of(rest, "more reason")+" (-o wide shows all)")
	}
}

// unread writes which nodes were not read because reading them was not requested. This is not a failure.
func (p *page) unread() {
	if text := Unread(p.report); text != "" {
		p.gap()
		p.put("", "", text)
	}
}

func (p *page) layers() {
	if len(p.report.Layers) == 0 {
		return
	}
	p.gap()
	name, checks, passed := 0, 0, 0
	for _, l := range p.report.Layers {
		name = max(name, len(l.Layer))
		checks, passed = max(checks, len(count.Of(l.Checks, "check"))), max(passed, len(fmt.Sprint(l.Passed)))
	}
	for _, l := range p.report.Layers {
		if l.Checks == 0 {
			continue // the findings of the layer's checks are in other layers
		}
		begin := fmt.Sprintf("%-*s  %-*s  ", name, l.Layer, checks, count.Of(l.Checks, "check"))
		if l.NotRead == l.Checks {
			p.b.WriteString(begin + "not checked\n")
			continue
		}
		parts := []string{begin + fmt.Sprintf("%*d passed", passed, l.Passed)}
		if l.Errors > 0 {
			parts = append(parts, p.paint.in(red, count.Of(l.Errors, "error")))
		}
		if l.Warnings > 0 {
			parts = append(parts, p.paint.in(yellow, count.Of(l.Warnings, "warning")))
		}
		if l.Infos > 0 {
			parts = append(parts, fmt.Sprintf("%d info", l.Infos))
		}
		if l.NotRead > 0 {
			parts = append(parts, fmt.Sprintf("%d not checked", l.NotRead))
		}
		if l.Unknown > 0 {
			parts = append(parts, fmt.Sprintf("%d unknown", l.Unknown))
		}
		p.b.WriteString(strings.Join(parts, "  ") + "\n")
	}
}

// Names returns the output of -o name: each root cause once, by the ID of its check.
func Names(r doctor.Report) []string {
	var names []string
	for _, f := range r.Items {
		if name := "finding/" + f.ID; f.Root && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
