package experiment

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// formatChainsaw is the only export format.
const formatChainsaw = "chainsaw"

// newExportCommand returns `run export`.
func newExportCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	o := &options{connection: connection, streams: streams}
	format := formatChainsaw
	cmd := &cobra.Command{
		Use:   "export (NAME | -f FILE)",
		Short: "Print an experiment as a test for Kyverno Chainsaw",
		Long: `Print an experiment as a Kyverno Chainsaw test that runs this plugin.

The test passes or fails as the experiment does. If Chainsaw cannot express a step, the command returns an error that names
the step. No cluster is needed.`,
		Example: `  # Print a built-in experiment as a test
  kubectl gpu-fault run export gsp-119 --node gpu-1 > chainsaw-test.yaml`,
		Args: usage.MaxArgs(1, "the name of an experiment", "kubectl gpu-fault run export gsp-119 --node gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != formatChainsaw {
				return fmt.Errorf("invalid value %q for --format: must be %s", format, formatChainsaw)
			}
			var ledger []string
			if f := cmd.InheritedFlags().Lookup("ledger-namespace"); f != nil && f.Changed {
				ledger = []string{"--ledger-namespace=" + f.Value.String()}
			}
			return o.export(cmd.Context(), args, ledger)
		},
		ValidArgsFunction: completeNames,
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "File of the experiment; - for stdin")
	flags.StringVar(&o.target.Node, "node", "", "Node to run on instead of the experiment's target")
	flags.StringVar(&format, "format", format, "Format of the test: chainsaw")
	nodefault.AddAllowances(flags, &o.allow)
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{formatChainsaw}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// export prints the experiment. Each command in the test gets the ledger flags.
func (o *options) export(ctx context.Context, args, ledger []string) error {
	e, _, err := o.load(args)
	if err != nil {
		return err
	}
	if n := o.connection.Namespace; e.Target.Namespace == "" && n != nil {
		e.Target.Namespace = *n
	}
	test, err := e.Chainsaw(ctx, func(line []string) []string { return append(o.allowances(line), ledger...) })
	if err != nil {
		return fmt.Errorf("experiment %s: %w", e.Metadata.Name, err)
	}
	commands, err := e.Lines(ctx, []string{e.Target.Node})
	if err != nil {
		return err
	}
	if err := o.checkWords(commands); err != nil {
		return err
	}
	_, err = o.streams.Out.Write(test)
	return err
}
