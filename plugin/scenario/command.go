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
		Short: "Break a cluster for somebody to mend: interview and training exercises, graded, and put back",
		Long: `Break a cluster for somebody to mend. A scenario is a broken situation with a symptom, a hidden root cause and a fair way to judge what
was done about it. Started, it is an exercise: a lab on this cluster, in namespaces of its own, which a candidate works in with a kubeconfig of
their own, and which is put back when it ends.

The trainer uses: scenario start NAME, then status, hint, grade, reveal and end.

The candidate uses kubectl with the kubeconfig that start wrote, through scenario record where that is wanted. The trainer hands in the
candidate's diagnosis with scenario submit.

Everything that a scenario changes is one run in the ledger, as with every other fault: kubectl gpu-fault revert undoes it even where
nothing else of the exercise is left.`,
		Example: `  # What is there
  kubectl gpu-fault scenario list

  # Start one, and write the kubeconfig that the candidate gets
  kubectl gpu-fault scenario start gpu-resources --kubeconfig-out candidate.kubeconfig

  # Help, for points; judge; tell the answer; put everything back
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
	all, err := scenario.Builtin()
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
