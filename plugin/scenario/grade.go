package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/outfile"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/scenario/report"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// grading contains the options of `scenario grade`.
type grading struct {
	common
	last       bool
	transcript string
	html       string
	output     string
	format     printer.Format
}

func (c *common) newGradeCommand() *cobra.Command {
	g := &grading{common: *c}
	cmd := &cobra.Command{
		Use:   "grade [ID]",
		Short: "Grade the candidate's work",
		Long: `Grade the candidate's work. The work passes if the workload recovers and remains healthy for a while, the fix is not just a workaround, and
nothing else in the cluster has changed. The diagnosis, the time and the hints also affect the score.

If the work would pass, a debug pod then runs on each node with pods of the exercise, and checks
whether these pods' processes were started by their own programs.

Grading can be repeated, because it does not end the exercise. The exit code is 0 if the work passes, and 2 if it does not.`,
		Example: `  # Grade the only open exercise
  kubectl gpu-fault scenario grade

  # Write a report for the interview notes, or for CI
  kubectl gpu-fault scenario grade --html report.html
  kubectl gpu-fault scenario grade -o junit > grade.xml

  # Include the candidate's requests, from scenario record
  kubectl gpu-fault scenario grade --transcript anna.jsonl

  # Show the latest grade again
  kubectl gpu-fault scenario grade --last`,
		Args: atMostOne("grade"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if g.format.Output = g.output; g.output == "junit" {
				g.format.Output = ""
			}
			if err := g.format.Validate(); err != nil {
				return err
			}
			return g.run(cmd.Context(), one(args))
		},
		ValidArgsFunction: c.completeExercises,
	}
	flags := cmd.Flags()
	flags.BoolVar(&g.last, "last", false, "Show the latest grade without grading again")
	flags.StringVar(&g.transcript, "transcript", "",
		"Transcript that scenario record wrote; the report then includes the times of the first request about the "+
			"root cause and of the first change")
	_ = cmd.MarkFlagFilename("transcript", "jsonl")
	flags.StringVar(&g.html, "html", "", "Also write the report to this file, as a self-contained HTML page")
	flags.StringVarP(&g.output, "output", "o", "", "Output format: json, yaml, name, junit or jsonpath=TEMPLATE")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"json", "yaml", "name", "junit", "jsonpath="},
			cobra.ShellCompDirectiveNoFileComp))
	g.pods.AddImageFlags(cmd)
	return cmd
}

func (g *grading) run(ctx context.Context, id string) error {
	var transcript *recorder.Transcript
	if g.transcript != "" {
		var err error
		if transcript, err = recorder.ReadFile(g.transcript); err != nil {
			return fmt.Errorf("--transcript: %w", err)
		}
	}
	lab, err := g.lab(ctx)
	if err != nil {
		return err
	}
	var reports []exercise.Report
	err = each(ctx, lab, id, false, func(id string) error {
		r, err := g.judge(ctx, lab, id, transcript)
		if err != nil {
			return kube.Explain(err)
		}
		if reports = append(reports, *r); !r.Passed {
			return &usage.Verdict{}
		}
		return nil
	})
	if len(reports) > 0 {
		if err := g.print(reports); err != nil {
			return err
		}
	}
	return err
}

func (g *grading) judge(
	ctx context.Context, lab *exercise.Lab, id string, transcript *recorder.Transcript,
) (*exercise.Report, error) {
	if !g.last {
		return lab.GradeRecorded(ctx, id, transcript)
	}
	e, err := lab.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if e.Last() == nil {
		return nil, fmt.Errorf("exercise %s has not been graded yet; to grade it, run the command without --last", e.ID)
	}
	if transcript != nil {
		err = lab.Retell(ctx, e.Last(), transcript)
	}
	return e.Last(), err
}

func (g *grading) print(reports []exercise.Report) (err error) {
	if len(reports) > 1 {
		return g.printAll(reports)
	}
	r := reports[0]
	if g.html != "" {
		err = outfile.Write(g.streams.ErrOut, "--html", g.html,
			func(w io.Writer) error { return report.HTML(w, r, build.Get().Version) })
	}
	switch {
	case g.output == "junit":
		return errors.Join(err, report.JUnit(g.streams.Out, r))
	case !g.format.IsTable():
		return errors.Join(err, g.format.Object(g.streams.Out, r, "report/"+r.ID))
	}
	return errors.Join(err, report.Text(g.streams.Out, r, printer.Width(g.streams.Out)))
}

// printAll prints the reports of exercises that were started together.
func (g *grading) printAll(reports []exercise.Report) error {
	if g.html != "" {
		return errors.New("--html supports only one report: specify the ID of an exercise; to show its latest grade, add --last")
	}
	if g.output == "junit" {
		return report.JUnit(g.streams.Out, reports...)
	}
	if !g.format.IsTable() {
		var names []string
		for _, r := range reports {
			names = append(names, "report/"+r.ID)
		}
		list := map[string]any{
			"apiVersion": exercise.APIVersion, "kind": exercise.KindReport + "List", "items": reports,
		}
		return g.format.Object(g.streams.Out, list, names...)
	}
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(g.streams.Out)
		}
		if err := report.Text(g.streams.Out, r, printer.Width(g.streams.Out)); err != nil {
			return err
		}
	}
	return nil
}
