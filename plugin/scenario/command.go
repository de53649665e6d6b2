// Package scenario implements `kubectl gpu-fault scenario`, which breaks a real cluster for people and agents to
// diagnose and fix, grades the result, and reverts the changes.
package scenario

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns the `scenario` command with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	c := &common{connection: connection, streams: streams, pods: podflags.New()}
	cmd := &cobra.Command{
		Use:   "scenario",
		Short: "Run graded troubleshooting exercises, for interviews and training",
		Long: `Run graded troubleshooting exercises. A scenario is a broken situation with a symptom and a hidden root cause. Starting a scenario creates an
exercise: a lab on this cluster, in its own namespaces. The candidate works in it with a separate kubeconfig, and everything is restored when
the exercise ends.

The trainer uses scenario start NAME, then status, hint, grade, reveal and end.

The candidate uses kubectl with the kubeconfig that start wrote, optionally through scenario record. The trainer submits the candidate's
diagnosis with scenario submit.

Everything that an exercise changes is one run in the ledger, like every other fault. kubectl gpu-fault revert therefore undoes it even if the
record of the exercise is lost.`,
		Example: `  # List the scenarios
  kubectl gpu-fault scenario list

  # Start an exercise, and write the candidate's kubeconfig
  kubectl gpu-fault scenario start gpu-resources --kubeconfig-out candidate.kubeconfig

  # Give a hint, grade, reveal the answer, restore everything
  kubectl gpu-fault scenario hint
  kubectl gpu-fault scenario grade
  kubectl gpu-fault scenario reveal
  kubectl gpu-fault scenario end`,
		// For a misspelled subcommand, report the subcommand, not the flags after it.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(
		c.newListCommand(), c.newShowCommand(), c.newStartCommand(), c.newStatusCommand(), c.newHintCommand(),
		c.newSubmitCommand(),
		c.newGradeCommand(), c.newRevealCommand(), c.newEndCommand(), c.newLintCommand(), c.newExportCommand(),
		c.newSelftestCommand(),
		c.newRunCommand(), c.newRecordCommand(),
	)
	return cmd
}

// common contains the fields that all subcommands share.
type common struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams
	pods       podflags.Flags // for node faults
}

// one returns the command's optional argument, or "" if it is not set.
func one(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// atMostOne returns the argument validation for commands on an exercise. The argument is optional if only one exercise
// is running.
func atMostOne(verb string) cobra.PositionalArgs {
	return usage.MaxArgs(1, "one exercise", "kubectl gpu-fault scenario "+verb+" scenario-x7k2mq")
}

// completeNames completes scenario names.
func completeNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	all, err := scenario.Listing()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var words []cobra.Completion
	for _, s := range all {
		words = append(words, cobra.CompletionWithDesc(s.Metadata.Name, s.Public.Title))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeExercises completes the IDs of running exercises.
func (c *common) completeExercises(
	cmd *cobra.Command, args []string, _ string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := c.exercises(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var words []cobra.Completion
	for _, e := range all {
		if e.Running() {
			words = append(words, cobra.CompletionWithDesc(e.ID, e.Scenario))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func (c *common) exercises(ctx context.Context) ([]exercise.Exercise, error) {
	lab, err := c.lab(ctx)
	if err != nil {
		return nil, err
	}
	return lab.List(ctx)
}
