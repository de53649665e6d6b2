// Package experiment implements `kubectl gpu-fault run` and `watch`.
package experiment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// options holds the flags of `run`.
type options struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams
	// root returns a new root command, with which experiments run their faults.
	root func(genericiooptions.IOStreams) *cobra.Command
	// inherited returns the connection flags that the user has set.
	inherited func() []string

	file    string
	list    bool
	explain bool
	target  experiment.Target
	pick    string
	dryRun  dryrun.Mode
	yes     bool
	allow   fault.Allowances
	format  printer.Format
	files   files
	// simulate lists the steps of the simulated remediation.
	simulate []string
	// otlpFile is the file for the trace.
	otlpFile string
}

// NewRunCommand returns `run`.
func NewRunCommand(
	connection *kube.Connection, streams genericiooptions.IOStreams,
	root func(genericiooptions.IOStreams) *cobra.Command,
) *cobra.Command {
	o := &options{connection: connection, streams: streams, root: root}
	cmd := &cobra.Command{
		Use:   "run (NAME | -f FILE)",
		Short: "Run an experiment: inject faults, measure how the cluster reacts, revert the faults, and report",
		Long: `Run an experiment: inject faults, measure how the cluster reacts, revert the faults, and report.

An experiment is built in or comes from a file. All deadlines start when the last fault has been
verified. All faults are always reverted when the experiment ends. The exit code is 2 if an expectation was
not met.`,
		Example: `  # List the built-in experiments
  kubectl gpu-fault run --list

  # Does the cluster detect, cordon and drain a node whose GPU falls off the bus?
  kubectl gpu-fault run xid79-recovery --node gpu-1

  # Run an experiment from a file on a node that runs a pod of a Deployment, with a report for CI
  kubectl gpu-fault run -f experiment.yaml --pods-of deployment/vllm -n infer --yes -o junit

  # Print a report for CI, and write others for people and programs
  kubectl gpu-fault run xid-detection --node gpu-1 --yes -o junit \
      --html report.html --json report.json

  # Show the file of a built-in experiment, as a starting point for your own
  kubectl gpu-fault run xid79-recovery --explain`,
		Args: usage.MaxArgs(1, "the name of an experiment", "kubectl gpu-fault run xid79-recovery --node gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.inherited = func() []string { return inherited(cmd) }
			return o.run(cmd.Context(), args)
		},
		ValidArgsFunction: completeNames,
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "File of the experiment; - for stdin")
	flags.BoolVar(&o.list, "list", false, "List the built-in experiments")
	flags.BoolVar(&o.explain, "explain", false, "Print the experiment file")
	flags.StringVar(&o.target.Node, "node", "", "Node to run on instead of the experiment's target")
	flags.StringVarP(&o.target.Selector, "selector", "l", "",
		"Label selector for the nodes to use instead of the experiment's target")
	flags.StringVar(&o.target.PodsOf, "pods-of", "",
		"Use the nodes on which this workload's pods run (TYPE/NAME, in the namespace set with -n) instead of the experiment's target")
	flags.StringVar(&o.pick, "pick", "",
		"Number of nodes to use, a percentage such as 10%, or all (default 1)")
	flags.Int64Var(&o.target.Seed, "seed", 0, "Seed for picking nodes at random (default: the first nodes by name)")
	o.dryRun.AddFlag(cmd, dryrun.Usage, dryrun.Modes()...)
	flags.BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation")
	nodefault.AddAllowances(flags, &o.allow)
	o.format.AddFlags(cmd)
	flags.StringSliceVar(&o.simulate, "simulate-remediation", nil,
		"Simulate a remediator: cordon, drain, uncordon; if detect is first, start when a detector reports the fault")
	o.format.Also = expect.Formats()
	flags.Lookup("output").Usage = "Output format: json, yaml, name, wide, junit, prometheus or jsonpath=TEMPLATE"
	o.files.addFlags(flags)
	flags.StringVar(&o.otlpFile, "otlp-file", "", "Also write an OpenTelemetry trace to this file, as OTLP in JSON")
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	cmd.AddCommand(newCompareCommand(streams), newExportCommand(connection, streams))
	return cmd
}

// completeNames completes the names of built-in experiments.
func completeNames(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var all []cobra.Completion
	if known, err := experiment.Builtin(); err == nil && len(args) == 0 {
		for _, e := range known {
			all = append(all, cobra.CompletionWithDesc(e.Metadata.Name, e.Description))
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// inherited returns the persistent flags that were set, to pass them to commands that run inside this one.
func inherited(cmd *cobra.Command) []string {
	var words []string
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	return words
}

// load returns the experiment with the target specified on the command line.
func (o *options) load(args []string) (*experiment.Experiment, []byte, error) {
	var (
		data []byte
		err  error
		name string
	)
	switch {
	case o.file != "" && len(args) > 0:
		return nil, nil, errors.New("pass either the name of a built-in experiment or -f, not both")
	case o.file == "" && len(args) == 0:
		return nil, nil, errors.New(
			"pass the name of a built-in experiment or -f FILE; --list shows the built-in experiments")
	case o.file == "-":
		name = "stdin"
		data, err = limited(o.streams.In)
	case o.file != "":
		var file *os.File
		name = o.file
		if file, err = os.Open(name); err == nil {
			data, err = limited(file)
			_ = file.Close()
		}
	default:
		name = args[0] + ".yaml"
		data, err = experiment.Source(args[0])
	}
	if err != nil {
		return nil, nil, err
	}
	e, err := experiment.Parse(name, data)
	if err != nil {
		return nil, data, err
	}
	return e, data, o.retarget(e)
}

// limited reads a file up to a limit. Parse rejects a file that is too long.
func limited(from io.Reader) ([]byte, error) {
	const most = 1 << 20
	return io.ReadAll(io.LimitReader(from, most+1))
}

// retarget replaces the target in the file with the target specified on the command line.
func (o *options) retarget(e *experiment.Experiment) error {
	given := 0
	for _, text := range []string{o.target.Node, o.target.Selector, o.target.PodsOf} {
		if text != "" {
			given++
		}
	}
	if given > 1 {
		return errors.New("pass only one of --node, --selector and --pods-of")
	}
	if given == 1 {
		pick := e.Target.Pick
		if o.target.PodsOf == "" {
			pick = nil // the number of nodes in the file applies to its own workload only
		}
		e.Target = experiment.Target{
			Node: o.target.Node, Selector: o.target.Selector, PodsOf: o.target.PodsOf, Pick: pick,
			Namespace: e.Target.Namespace, Seed: e.Target.Seed,
		}
	}
	if o.pick != "" {
		e.Target.Pick = o.pick
	}
	if o.target.Seed != 0 {
		e.Target.Seed = o.target.Seed
	}
	if len(o.simulate) > 0 {
		e.SimulateRemediation = o.simulate
	}
	return e.Validate()
}

func (o *options) printList() error {
	all, err := experiment.Builtin()
	if err != nil {
		return err
	}
	if slices.Contains(o.format.Also, o.format.Output) {
		return fmt.Errorf("-o %s reports a result and cannot be used with --list", o.format.Output)
	}
	if !o.format.IsTable() {
		list := struct {
			APIVersion string                   `json:"apiVersion"`
			Kind       string                   `json:"kind"`
			Items      []*experiment.Experiment `json:"items"`
		}{"gpufault.dev/v1alpha1", experiment.Kind + "List", all}
		var names []string
		for _, e := range all {
			names = append(names, "experiment/"+e.Metadata.Name)
		}
		return o.format.Object(o.streams.Out, list, names...)
	}
	table := &printer.Table{Header: []string{"NAME", "DESCRIPTION"}, NoHeader: o.format.NoHeader}
	for _, e := range all {
		table.Add(e.Metadata.Name, e.Description)
	}
	return table.Write(o.streams.Out)
}

// lines joins command lines for display.
func lines(all [][]string) string {
	var shown []string
	for _, line := range all {
		shown = append(shown, "  kubectl gpu-fault "+strings.Join(line, " "))
	}
	return strings.Join(shown, "\n")
}
