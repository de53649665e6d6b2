package scenario

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// problemList is the output of `lint -o json`.
type problemList struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Items      []scenario.Problem `json:"items"`
}

func (c *common) newLintCommand() *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check scenario files, without a cluster",
		Long: `Check scenario files for unknown fields and wrong types (with line numbers), invalid expressions, words from the answer in the candidate's texts, and
too few variants, solutions or wrong fixes. To check the behavior on a cluster, use selftest.

The exit code is 0 if there are no errors, and 2 if there are.`,
		Example: `  # Check a scenario
  kubectl gpu-fault scenario lint my-scenario.yaml`,
		Args: usage.MinArgs(1, "at least one file", "kubectl gpu-fault scenario lint my-scenario.yaml"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			found := problemList{APIVersion: scenario.APIVersion, Kind: "ProblemList", Items: []scenario.Problem{}}
			for _, file := range args {
				problems, err := lint(file)
				if err != nil {
					return err
				}
				found.Items = append(found.Items, problems...)
			}
			return c.printProblems(found, len(args), format)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// lint returns the problems in a scenario file. It returns an error if the file cannot be read.
func lint(file string) ([]scenario.Problem, error) {
	s, err := scenario.Load(file)
	var problems scenario.Problems
	switch {
	case errors.As(err, &problems):
		var found []scenario.Problem
		for _, p := range problems {
			found = append(found, *p)
		}
		return found, nil
	case err != nil:
		return nil, err
	}
	found := s.Lint()
	for i := range found {
		found[i].File = file
	}
	return found, nil
}

func (c *common) printProblems(found problemList, files int, format printer.Format) error {
	errs := 0
	for _, p := range found.Items {
		if !p.Warning {
			errs++
		}
	}
	if !format.IsTable() {
		if err := format.Object(c.streams.Out, found); err != nil {
			return err
		}
	} else {
		for _, p := range found.Items {
			text := p.Error()
			if p.Warning {
				text = "warning: " + text
			}
			if _, err := fmt.Fprintln(c.streams.Out, printer.Escape(text)); err != nil {
				return err
			}
		}
		printer.Talk(c.streams.ErrOut, "%d file(s), %d error(s), %d warning(s)", files, errs, len(found.Items)-errs)
	}
	if errs > 0 {
		return &usage.Verdict{}
	}
	return nil
}
