package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/collect"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor/report"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/outfile"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// examination is one run of doctor.
type examination struct {
	*options
	streams    genericiooptions.IOStreams
	connection *kube.Connection
}

func (e *examination) run(ctx context.Context) error {
	if e.fromBundle != "" {
		s, err := snapshot.Open(e.fromBundle)
		if err != nil {
			return fmt.Errorf("--from-bundle %s: %w", e.fromBundle, err)
		}
		if err := namespaceExists(s, e.namespace); err != nil {
			return err
		}
		return e.conclude(s)
	}
	if e.fix != "" {
		e.connection.Features = append(e.connection.Features, "fix")
	}
	if e.apiOnly {
		e.connection.RoleFlags = []string{"--api-only"}
	}
	cluster, err := e.connection.Cluster()
	if err != nil {
		return err
	}
	defer collect.LimitMemory()()
	show := progress.New(e.streams.ErrOut)
	g := &gathering{
		options: e.options, source: &clusterSource{e.options, cluster, e.connection.LedgerNamespace, show},
		reader: newPodReader(cluster, e.connection, e.pods), show: show,
		namespace: e.connection.LedgerNamespace,
	}
	if text := e.unreadable(ctx, cluster); text != "" {
		show.Note(text)
	}
	s, err := g.gather(ctx)
	if err != nil {
		return kube.Explain(err)
	}
	if e.fix != "" {
		return e.fixRoot(ctx, cluster, s)
	}
	return errors.Join(e.writeBundle(s), e.conclude(s))
}

// unreadable returns a warning about API resources that the user may not read, or "" if there are none.
func (e *examination) unreadable(ctx context.Context, cluster *kube.Cluster) string {
	_, missing, err := fault.Missing(ctx, cluster.Client, Permissions(e.connection.LedgerNamespace, true),
		fault.DefaultParallel)
	if err != nil || len(missing) == 0 { // if the access review failed, try anyway
		return ""
	}
	var words []string
	for _, need := range missing {
		words = append(words, need.String())
	}
	return fmt.Sprintf("Warning: you are not allowed to %s; checks that need this permission report unknown; %s",
		strings.Join(words, ", "), e.connection.Grant(""))
}

// conclude examines a snapshot and prints the findings.
func (e *examination) conclude(s *snapshot.Snapshot) error {
	r := e.examine(s)
	err := e.print(r)
	if e.html != "" {
		err = errors.Join(err, outfile.Write(e.streams.ErrOut, "--html", e.html, func(w io.Writer) error {
			return report.HTML(w, r, build.Get().Version)
		}))
	}
	if err != nil || e.failOn == never {
		return err
	}
	if fails, why := e.gate().Fails(r); fails {
		return &usage.Verdict{Message: why} // the report contains the details
	}
	return nil
}

// gate returns the condition for the report to fail. If --fail-on is specified, the report also fails if a check could
// not run.
func (e *examination) gate() report.Gate {
	if e.failOn == never {
		return report.Gate{FailOn: finding.Error}
	}
	return report.Gate{FailOn: finding.Severity(e.failOn), Strict: e.gated && !e.allowUnknown}
}

func (e *examination) examine(s *snapshot.Snapshot) doctor.Report {
	r := doctor.Examine(s,
		doctor.Options{Checks: e.checks, IgnoreInjected: e.ignoreInjected, Ignore: e.ignore, Since: e.since,
			Signatures: e.known})
	return report.Filter{Min: finding.Severity(e.minSeverity), Namespace: e.namespace}.Apply(r)
}

// print writes the report to stdout in the requested format.
func (e *examination) print(r doctor.Report) error {
	out := e.streams.Out
	switch e.output {
	case "", "wide":
		text := report.Text{
			Width: report.WidthFor(printer.Width(out)), Color: printers.AllowsColorOutput(printer.Raw(out)),
			Wide: e.output == "wide",
		}
		return text.Write(printer.Raw(out), r) // Write already sanitizes untrusted strings
	case "junit":
		return report.JUnit(out, r, e.chosen(), e.gate())
	case "sarif":
		return report.SARIF(out, r, e.chosen(), e.gate(), build.Get().Version)
	case "json":
		return e.format().Object(printer.Escaping(out), r)
	}
	return e.format().Object(out, r, report.Names(r)...)
}

func (e *examination) writeBundle(s *snapshot.Snapshot) error {
	if e.bundle == "" {
		return nil
	}
	err := outfile.Write(e.streams.ErrOut, "--bundle", e.bundle,
		func(w io.Writer) error { return snapshot.Write(w, s) })
	if err == nil {
		fmt.Fprintln(e.streams.ErrOut, removed(s.Meta.Redacted))
	}
	return err
}

// removed describes how many secrets were removed from the bundle, by location.
func removed(places map[string]int) string {
	all := slices.SortedFunc(maps.Keys(places), func(a, b string) int {
		return cmp.Or(cmp.Compare(places[b], places[a]), cmp.Compare(a, b))
	})
	total, texts := 0, []string{}
	for _, place := range all {
		total += places[place]
		texts = append(texts, fmt.Sprintf("%s %d", place, places[place]))
	}
	if total == 0 {
		return "The bundle contains no values that look like secrets."
	}
	return fmt.Sprintf("Removed %s that may be secret: %s.", count.Of(total, "value"), strings.Join(texts, ", "))
}
