package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
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
		Short: "Judge what the candidate did: does it work, by fair means, and without damage elsewhere",
		Long: `Judge what the candidate did. It passes when the workload does again what it shall, stays so for a while, was not made to look so by a
workaround, and nothing else in the cluster was changed. Points are also for the diagnosis, the time and the hints.

It may be repeated: the exercise goes on until it ends. The exit code is 0 when it passes, and 2 when it does not.`,
		Example: `  kubectl gpu-fault scenario grade

  # For the interview's minutes, and for CI
  kubectl gpu-fault scenario grade --html report.html
  kubectl gpu-fault scenario grade -o junit > grade.xml

  # With what the candidate asked the API server, which scenario record wrote
  kubectl gpu-fault scenario grade --transcript anna.jsonl

  # Show the latest judgment again
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
	flags.BoolVar(&g.last, "last", false, "Show the latest judgment again, and judge nothing")
	flags.StringVar(&g.transcript, "transcript", "",
		"Also tell of this transcript of scenario record: how long until the first look at the cause, and until a change")
	_ = cmd.MarkFlagFilename("transcript", "jsonl")
	flags.StringVar(&g.html, "html", "", "File to also write the report to, as a self-contained page")
	flags.StringVarP(&g.output, "output", "o", "", "Output format: json, yaml, name, junit or jsonpath=TEMPLATE")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"json", "yaml", "name", "junit", "jsonpath="},
			cobra.ShellCompDirectiveNoFileComp))
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
	r, err := g.judge(ctx, lab, id, transcript)
	if err != nil {
		return kube.Explain(err)
	}
	if err := g.print(*r); err != nil {
		return err
	}
	if !r.Passed {
		return &usage.Verdict{}
	}
	return nil
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
		return nil, fmt.Errorf("exercise %s was not graded yet: leave out --last", e.ID)
	}
	if transcript != nil {
		err = lab.Retell(ctx, e.Last(), transcript)
	}
	return e.Last(), err
}

func (g *grading) print(r exercise.Report) (err error) {
	if g.html != "" {
		f, createErr := os.Create(g.html)
		if createErr != nil {
			return fmt.Errorf("--html: %w", createErr)
		}
		err = errors.Join(report.HTML(f, r, build.Get().Version), f.Close())
	}
	switch {
	case g.output == "junit":
		return errors.Join(err, report.JUnit(g.streams.Out, r))
	case !g.format.IsTable():
		return errors.Join(err, g.format.Object(g.streams.Out, r, "report/"+r.ID))
	}
	return errors.Join(err, report.Text(g.streams.Out, r, printer.Width(g.streams.Out)))
}
