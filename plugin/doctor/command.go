// Package doctor implements `kubectl gpu-fault doctor`: it gathers evidence from a cluster or a bundle, reports why GPU
// workloads do not run, and can apply the few fixes that are safe.
package doctor

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// NewCommand returns `doctor` with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "doctor [NODE...]",
		Short: "Find out why GPU workloads are not running: root cause, evidence and fix",
		Long: `Find out why GPU workloads are not running. Every finding quotes its evidence and the source of that evidence. Consequences are listed below their
cause, so that the top level shows the root causes, each with a fix that is specific to this cluster.

Nothing is changed. doctor queries the API. On GPU nodes that look unhealthy, it also starts a privileged pod that inspects the node and is then deleted. To
inspect other nodes, name them or use --all-gpu-nodes. To avoid starting pods, use --api-only. Anything that could not be checked is listed, and never counts as
healthy.

doctor inspects all namespaces. With -n NAMESPACE, it omits findings about workloads in other namespaces.

--ignore-file hides findings that are known and accepted; the report shows how many. Example file:

` + ignoreExample() + `

The exit code is 2 if there is a finding of the --fail-on severity or higher, 1 if doctor failed, and 0 otherwise. If --fail-on is specified,
the exit code is also 2 if a check could not run, for example without permission, unless --allow-unknown is set.`,
		Example: `  # Diagnose the cluster
  kubectl gpu-fault doctor

  # Also inspect nodes that look healthy
  kubectl gpu-fault doctor gpu-1 gpu-2

  # Diagnose without privileged pods, and write an HTML report
  kubectl gpu-fault doctor --api-only --html report.html

  # Save the evidence, and diagnose it elsewhere without a cluster
  kubectl gpu-fault doctor --bundle evidence.tar.gz
  kubectl gpu-fault doctor --from-bundle evidence.tar.gz -o wide

  # In CI, fail on warnings too, and report the failed checks as JUnit
  kubectl gpu-fault doctor --fail-on warning -o junit > doctor.xml

  # Check only the container runtime
  kubectl gpu-fault doctor --checks 'rt.*'

  # Explain what a check reads and what its findings mean
  kubectl gpu-fault doctor explain rt.wrong-instance

  # Apply a safe fix, after showing it and asking for confirmation
  kubectl gpu-fault doctor --fix rc.handler-mismatch`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.nodes = append(o.nodes, args...)
			if connection.Namespace != nil {
				o.namespace = *connection.Namespace
			}
			if err := o.complete(cmd.Flags().Changed); err != nil {
				return err
			}
			return (&examination{options: o, streams: streams, connection: connection}).run(cmd.Context())
		},
		ValidArgsFunction: completion.Nodes(connection),
	}
	o.addFlags(cmd, connection)
	cmd.AddCommand(newExplainCommand(streams), newChecksCommand(streams), newSignaturesCommand(streams))
	return cmd
}

// addFlags registers the flags of doctor.
func (o *options) addFlags(cmd *cobra.Command, connection *kube.Connection) {
	flags := cmd.Flags()
	flags.StringSliceVar(&o.nodes, "node", nil,
		"Nodes to inspect; starts a privileged pod on each without asking")
	flags.StringVarP(&o.selector, "selector", "l", "", "Label selector for the nodes to inspect")
	flags.BoolVar(&o.allGPUNodes, "all-gpu-nodes", false,
		"Inspect all GPU nodes, including those that look healthy; starts a privileged pod on each without asking")
	flags.BoolVar(&o.apiOnly, "api-only", false, "Use only the API; start no pods")
	flags.BoolVar(&o.noImages, "no-images", false, "Do not query registries for the platforms of images")
	flags.StringVar(&o.bundle, "bundle", "", "Also write the evidence to this file, as tar.gz without secrets")
	flags.StringVar(&o.fromBundle, "from-bundle", "",
		"Bundle or directory to read the evidence from instead of a cluster")
	flags.StringSliceVar(&o.checks, "checks", nil, "Checks to run: IDs, or patterns such as 'rt.*'")
	flags.StringVar(&o.minSeverity, "min-severity", o.minSeverity,
		"Lowest severity of findings to show: info, warning or error")
	flags.StringVar(&o.failOn, "fail-on", o.failOn,
		"Lowest severity that makes doctor exit with code 2: error, warning or never")
	flags.BoolVar(&o.allowUnknown, "allow-unknown", false,
		"With --fail-on: do not fail because of checks that could not run")
	flags.StringVar(&o.ignoreFile, "ignore-file", "",
		"YAML file that lists findings to hide")
	flags.StringVar(&o.signatureFile, "signatures", "",
		"YAML file with additional error messages that doctor should recognize; see: doctor signatures --help")
	flags.BoolVar(&o.ignoreInjected, "ignore-injected", false,
		"Diagnose as if the faults injected by this tool were unknown")
	flags.DurationVar(&o.since, "since", 0,
		"Maximum age of kernel log lines to inspect; 0 means since the node booted")
	flags.StringVar(&o.html, "html", "", "Also write the report to this file, as a self-contained page")
	flags.StringVar(&o.fix, "fix", "", "ID of a root cause with a safe fix: "+strings.Join(fixable(),
		", ")+"; ID=OBJECT if several root causes match")
	o.dryRun.AddFlag(cmd, "With --fix: none, client (show what would be done) or server (also run the server's checks); dry runs change nothing and start no pods", dryrun.Modes()...)
	flags.BoolVarP(&o.yes, "yes", "y", false, "With --fix: do not ask for confirmation")
	flags.IntVar(&o.parallel, "parallel", o.parallel, "Number of nodes to inspect in parallel")
	o.pods.AddFlags(cmd)
	flags.StringVarP(&o.output, "output", "o", "",
		"Output format: json, yaml, name, wide, junit, sarif or jsonpath=TEMPLATE")

	fixed := func(words ...string) cobra.CompletionFunc {
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"node":         completion.Nodes(connection),
		"checks":       completeChecks,
		"min-severity": fixed("info", "warning", "error"),
		"fail-on":      fixed("error", "warning", "never"),
		"fix":          fixed(fixable()...),
		"output": cobra.FixedCompletions(formats(),
			cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete)
	}
}

// completeChecks completes a comma-separated list of check IDs and patterns for whole families.
func completeChecks(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before, last := "", prefix
	if i := strings.LastIndex(prefix, ","); i >= 0 {
		before, last = prefix[:i+1], prefix[i+1:]
	}
	var words []cobra.Completion
	families := map[string]bool{}
	for _, c := range doctor.Checks() {
		family, _, _ := strings.Cut(c.ID, ".")
		if pattern := family + ".*"; !families[family] && strings.HasPrefix(pattern, last) {
			families[family] = true
			words = append(words, cobra.CompletionWithDesc(before+pattern, fmt.Sprintf("all checks of %s", family)))
		}
		if strings.HasPrefix(c.ID, last) {
			words = append(words, cobra.CompletionWithDesc(before+c.ID, c.Title))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
