package experiment

import (
	"errors"
	"io"

	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/outfile"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// files are the reports that `run` writes in addition to its output. A CI system may need several reports from one run.
type files struct {
	html, json, markdown string
}

func (f *files) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.html, "html", "", "Also write the report with the timeline to this HTML file")
	flags.StringVar(&f.json, "json", "", "Also write the result with the timeline to this JSON file")
	flags.StringVar(&f.markdown, "markdown", "", "Also write the verdicts as a table to this Markdown file")
}

// report is one of the report files.
type report struct {
	flag, file string
	write      func(io.Writer, experiment.Result) error
}

// given returns the reports that the user requested.
func (f files) given() []report {
	text := func(of func(experiment.Result) string) func(io.Writer, experiment.Result) error {
		return func(w io.Writer, r experiment.Result) error {
			_, err := io.WriteString(w, of(r))
			return err
		}
	}
	var all []report
	for _, one := range []report{
		{"--html", f.html, text(HTML)},
		{"--json", f.json, func(w io.Writer, r experiment.Result) error {
			return printer.Format{Output: "json"}.Object(w, r)
		}},
		{"--markdown", f.markdown, text(Markdown)},
	} {
		if one.file != "" {
			all = append(all, one)
		}
	}
	return all
}

// check returns an error if a report cannot be written.
func (f files) check() error {
	var errs []error
	for _, one := range f.given() {
		errs = append(errs, outfile.Check(one.flag, one.file))
	}
	return errors.Join(errs...)
}

// write writes all reports of a result.
func (f files) write(talk io.Writer, r experiment.Result) error {
	var errs []error
	for _, one := range f.given() {
		errs = append(errs, outfile.Write(talk, one.flag, one.file, func(w io.Writer) error { return one.write(w, r) }))
	}
	return errors.Join(errs...)
}
