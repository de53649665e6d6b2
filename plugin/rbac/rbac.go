// Package rbac is `kubectl gpu-fault rbac`: the roles that each feature needs, ready to apply.
package rbac

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// NewCommand returns `rbac`.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	p := newPrinting(connection, streams)
	cmd := &cobra.Command{
		Use:   "rbac",
		Short: "Print the roles that a feature needs, and no more",
		Long: `Print the roles that a feature needs, and no more. The features, and what each allows:

` + table() + `
Before a command changes anything it asks the API server whether you may do all that it takes; what it asks for and what is printed here is the same.

Whoever may create privileged pods in the ledger namespace is root on every node: give those roles to few. Those of cuda give no rights on pods
there; they let one change workloads and exec into their pods, which is root on nodes only where a namespace's Pod Security admits privileged
workloads. Those of scenario are for trainers: they make and delete namespaces, workloads and rights everywhere, give a candidate admin of
a namespace, and read the whole cluster, Secrets too, to find what a candidate has changed.`,
		Example: `  # Let the group gpu-sre inject XIDs and run doctor
  kubectl gpu-fault rbac print --for xid,doctor --group gpu-sre | kubectl apply -f -`,
		ValidArgs: names(),
		Args:      cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && p.empty(cmd.Flags()) {
				return cmd.Help()
			}
			p.features = append(p.features, args...) // `rbac xid` is short for `rbac print --for xid`
			return p.print()
		},
	}
	p.addFlags(cmd)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = true }) // they are print's
	cmd.AddCommand(newPrintCommand(connection, streams))
	return cmd
}

// table lists the features, and what each allows.
func table() string {
	var text strings.Builder
	for _, f := range Features() {
		fmt.Fprintf(&text, "  %-10s %s\n", f.Name, f.Allows)
	}
	return text.String()
}

func names() []string {
	var all []string
	for _, f := range Features() {
		all = append(all, f.Name)
	}
	return all
}
