// Package rbac implements `kubectl gpu-fault rbac`, which prints the roles that each feature needs.
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
		Short: "Print the minimal roles for a feature",
		Long: `Print the minimal roles for a feature. Features, and what each allows:

` + table() + `
Before a command changes anything, it checks with the API server that you have all required permissions. These are the permissions in the printed roles.

A user who can create privileged pods in the ledger namespace is root on every node, so grant these roles to few users. The roles for cuda do not
allow this. They allow changing workloads and executing commands in their pods, which gives root access to nodes only if Pod Security admits privileged
workloads in the namespace. The roles for scenario are for trainers. They allow creating and deleting namespaces, workloads and roles everywhere,
making a candidate the admin of a namespace, and reading the entire cluster including Secrets, to determine what a candidate has changed.`,
		Example: `  # Allow the group gpu-sre to inject XIDs and run doctor
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
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = true }) // the flags belong to print
	cmd.AddCommand(newPrintCommand(connection, streams))
	return cmd
}

// table returns a table of the features and of what each one allows.
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
