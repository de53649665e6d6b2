package experiment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// newCompareCommand returns `run compare`.
func newCompareCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	var slower string
	const example = "kubectl gpu-fault run compare before.json after.json"
	cmd := &cobra.Command{
		Use:   "compare BEFORE AFTER",
		Short: "Compare two results of an experiment: which expectations are no longer met, and which reactions are slower",
		Long: `Compare two results of an experiment, written by run -o json: which expectations are no longer met, and which reactions are slower.

If an experiment was repeated, the median times are compared. The exit code is 2 if AFTER is worse: an
expectation that was met is no longer met, or is missing; one that was met late is not met at all; or the
experiment no longer passes. How slow is too slow depends on the cluster, so times count only with
--slower.`,
		Example: `  # Compare the results of two versions of a remediator
  kubectl gpu-fault run compare before.json after.json

  # Fail if a reaction takes more than 20% longer
  kubectl gpu-fault run compare before.json after.json --slower 20%

  # Run an experiment, and compare its result with an earlier one
  kubectl gpu-fault run gsp-119 --node gpu-1 -y -o json | kubectl gpu-fault run compare old.json -`,
		Args: usage.ExactArgs(2, "two files with results", example),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			var most experiment.Slower
			if slower != "" {
				var err error
				if most, err = experiment.ParseSlower(slower); err != nil {
					return fmt.Errorf("--slower %w", err)
				}
			}
			return compare(streams, args, most, format)
		},
		ValidArgsFunction: func(
			_ *cobra.Command, args []string, _ string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) >= 2 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []cobra.Completion{"json"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	cmd.Flags().StringVar(&slower, "slower", "",
		"How much longer a reaction may take: a percentage such as 20%, or a time such as 5s (default any)")
	format.AddFlags(cmd)
	return cmd
}

func compare(
	streams genericiooptions.IOStreams, files []string, slower experiment.Slower, format printer.Format,
) error {
	if files[0] == "-" && files[1] == "-" {
		return errors.New("only one of the results can be stdin")
	}
	var results [2]experiment.Result
	for i, file := range files {
		var err error
		if results[i], err = readResult(streams.In, file); err != nil {
			return err
		}
	}
	before, after := results[0], results[1]
	c, err := experiment.Compare(before, after, slower)
	if err != nil {
		return err
	}
	if before.Name != after.Name {
		printer.Talk(streams.ErrOut, "Warning: the results are from two different experiments, %q and %q", before.Name, after.Name)
	}
	if err := printComparison(streams.Out, c, format); err != nil {
		return err
	}
	if c.Worse {
		return &usage.Verdict{Message: worse(c)}
	}
	printer.Talk(streams.ErrOut, "no worse than before")
	return nil
}

func readResult(stdin io.Reader, file string) (experiment.Result, error) {
	if file == "-" {
		return experiment.ReadResult("stdin", stdin)
	}
	f, err := os.Open(file)
	if err != nil {
		return experiment.Result{}, err
	}
	defer f.Close()
	return experiment.ReadResult(file, f)
}

func printComparison(out io.Writer, c experiment.Comparison, format printer.Format) error {
	if !format.IsTable() {
		var names []string
		for _, i := range c.Items {
			if i.Worse || i.Slower {
				names = append(names, "expectation/"+i.Name)
			}
		}
		return format.Object(out, c, names...)
	}
	table := &printer.Table{
		Header: []string{"EXPECTED", "BEFORE", "AFTER", "CHANGE", "RESULT"}, NoHeader: format.NoHeader,
	}
	for _, i := range c.Items {
		table.Add(i.Name, median(i.Before), median(i.After), difference(i), development(i))
	}
	return table.Write(out)
}

// median returns the median time of an outcome, or "" if there is none.
func median(o *experiment.Outcome) string {
	if o == nil || o.Median == nil {
		return printer.None
	}
	return expect.Seconds(*o.Median)
}

func difference(c experiment.Change) string {
	if c.Seconds == nil {
		return printer.None
	}
	sign := "+"
	if *c.Seconds < 0 {
		sign = "-"
	}
	text := sign + expect.Seconds(math.Abs(*c.Seconds))
	if c.Factor != nil {
		text += fmt.Sprintf(", %.1fx", *c.Factor)
	}
	return text
}

// development returns the outcomes before and after the change, or only one of them if they are the same.
func development(c experiment.Change) string {
	before, after := outcome(c.Before), outcome(c.After)
	text := before + " -> " + after
	if before == after {
		text = after
	}
	if c.Slower {
		text += ", SLOWER"
	}
	return text
}

func outcome(o *experiment.Outcome) string {
	switch {
	case o == nil:
		return printer.None
	case o.Rounds > 1 && o.Met == o.Rounds:
		return fmt.Sprintf("ok %d/%d", o.Met, o.Rounds)
	case o.Rounds > 1:
		return fmt.Sprintf("%s %d/%d", strings.ToUpper(string(o.State)), o.Met, o.Rounds)
	}
	return expect.Word(experiment.Verdict{OK: o.State == experiment.StateOK, State: o.State})
}

// worse returns a sentence that describes why the second result is worse.
func worse(c experiment.Comparison) string {
	var lost, missing, slower []string
	for _, i := range c.Items {
		switch {
		case i.Worse && i.Before.Met == 0: // late before
			missing = append(missing, i.Name)
		case i.Worse:
			lost = append(lost, i.Name)
		}
		if i.Slower {
			slower = append(slower, i.Name)
		}
	}
	var why []string
	if len(lost) > 0 {
		why = append(why, "met less often: "+strings.Join(lost, ", "))
	}
	if len(missing) > 0 {
		why = append(why, "was met late, and is no longer met at all: "+strings.Join(missing, ", "))
	}
	if len(slower) > 0 {
		why = append(why, "slower: "+strings.Join(slower, ", "))
	}
	if c.Before.Passed && !c.After.Passed {
		why = append(why, "no longer passes")
	}
	text := "WORSE: " + strings.Join(why, "; ")
	if c.After.Error != "" {
		text += ": " + c.After.Error
	}
	return text
}
