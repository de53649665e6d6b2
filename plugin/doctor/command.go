// Package doctor is `kubectl gpu-fault doctor`: it gathers evidence from a cluster or a bundle, says why GPU workloads
// do not run, and offers to mend the little that can be mended safely.
package doctor

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// NewCommand returns `doctor` with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "doctor [NODE...]",
		Short: "Say why GPU workloads do not run: the root cause, its evidence, the fix",
		Long: `Say why GPU workloads do not run. Every finding quotes its evidence and where it stands; findings that another one explains are folded
below it, so that what is left on top is the root cause, with a fix that is written for this cluster.

Nothing is changed. It reads the API, and on GPU nodes that look wrong it starts a privileged pod that reads the node and is deleted again; name nodes, or
give --all-gpu-nodes, to have others read, and --api-only to start no pod. What could not be seen is listed as such, and never counts as healthy.

All namespaces are looked at. With -n NAMESPACE findings about workloads of other namespaces are left out.

--ignore-file hides findings that are known and accepted; the report counts them. Such a file looks like this:

` + ignoreExample() + `

The exit code is 0 when nothing is as bad as --fail-on, 2 when something is, and 1 when doctor could not do its work. Where --fail-on is given,
it is 2 also when a check could not see what it needs, such as without the right to read it, unless --allow-unknown accepts that.`,
		Example: `  # What is wrong here?
  kubectl gpu-fault doctor

  # Read these nodes too, though they look healthy
  kubectl gpu-fault doctor gpu-1 gpu-2

  # Without any privilege, and as a page to look at
  kubectl gpu-fault doctor --api-only --html report.html

  # Take the evidence along, and look at it elsewhere, without a cluster
  kubectl gpu-fault doctor --bundle evidence.tar.gz
  kubectl gpu-fault doctor --from-bundle evidence.tar.gz -o wide

  # In CI: fail on warnings too, and tell the CI system which checks failed
  kubectl gpu-fault doctor --fail-on warning -o junit > doctor.xml

  # What is wrong with the container runtime?
  kubectl gpu-fault doctor --checks 'rt.*'

  # What does a check look at, and what follows from what it finds?
  kubectl gpu-fault doctor explain rt.wrong-instance

  # Mend what can be mended safely; shows the change, and asks
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
	cmd.AddCommand(newExplainCommand(streams), newChecksCommand(streams))
	return cmd
}

// addFlags registers the flags.
func (o *options) addFlags(cmd *cobra.Command, connection *kube.Connection) {
	flags := cmd.Flags()
	flags.StringSliceVar(&o.nodes, "node", nil,
		"Nodes to read, as NODE, with a privileged pod on each, announced and not asked about")
	flags.StringVarP(&o.selector, "selector", "l", "", "Nodes to read, by their labels")
	flags.BoolVar(&o.allGPUNodes, "all-gpu-nodes", false,
		"Read all GPU nodes, including those that look healthy, with a privileged pod on each, announced and not asked about")
	flags.BoolVar(&o.apiOnly, "api-only", false, "Read the API only: start no pod, and need no right to do so")
	flags.BoolVar(&o.noImages, "no-images", false, "Do not ask registries for the platforms of images")
	flags.StringVar(&o.bundle, "bundle", "", "Also write the evidence to this file, as tar.gz, without secrets")
	flags.StringVar(&o.fromBundle, "from-bundle", "",
		"Take the evidence from this bundle or folder instead of a cluster")
	flags.StringSliceVar(&o.checks, "checks", nil, "Only these checks: IDs, or patterns such as 'rt.*'")
	flags.StringVar(&o.minSeverity, "min-severity", o.minSeverity,
		"Show findings from this severity on: info, warning or error")
	flags.StringVar(&o.failOn, "fail-on", o.failOn, "Exit with 2 from this severity on: error, warning or never")
	flags.BoolVar(&o.allowUnknown, "allow-unknown", false,
		"With --fail-on: do not fail because of what could not be checked")
	flags.StringVar(&o.ignoreFile, "ignore-file", "",
		"Hide the findings that this YAML file lists; no file is read unless it is named")
	flags.BoolVar(&o.ignoreInjected, "ignore-injected", false,
		"Look as if nobody knew of the faults that this tool injected")
	flags.DurationVar(&o.since, "since", 0,
		"Look only at kernel log lines that are not older than this; 0 is since the node's boot")
	flags.StringVar(&o.html, "html", "", "Also write the report to this file, as a page that needs nothing else")
	flags.StringVar(&o.fix, "fix", "", "Mend the root with this ID, where that is safe: "+strings.Join(fixable(),
		", ")+"; as ID=OBJECT where there are several")
	flags.StringVar(&o.dryRun, "dry-run", o.dryRun,
		"With --fix: none, client (say what would be done) or server (with all checks); change nothing, and start no pod")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	flags.BoolVarP(&o.yes, "yes", "y", false, "With --fix: do not ask")
	flags.IntVar(&o.parallel, "parallel", o.parallel, "How many nodes to read at a time")
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
		"dry-run":      fixed("none", "client", "server"),
		"output": cobra.FixedCompletions(formats(),
			cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete)
	}
}

// completeChecks completes IDs of checks and patterns for whole families, separated by commas.
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
