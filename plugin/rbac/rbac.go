// Package rbac is `kubectl gpu-fault rbac`: the roles that a fault needs, ready to apply.
package rbac

import (
	"fmt"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	runtimefault "github.com/gpu-fault/kubectl-gpu-fault/plugin/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// list is what kubectl apply takes.
type list struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Items      []runtime.Object `json:"items"`
}

// NewCommand returns `rbac`.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	var (
		users, groups []string
		apiOnly       bool
		format        = printer.Format{Output: "yaml"}
	)
	cmd := &cobra.Command{
		Use:   "rbac (FAULT | doctor)",
		Short: "Print the roles that a fault, or doctor, needs",
		Long: `Print the ClusterRole and the Roles that a fault or doctor needs, with bindings for --user and --group, to apply with kubectl.

The bindings hold exactly the users and groups given: name all of them each time. With -n NAMESPACE there is also a Role to read that
namespace's pods, which --pod needs. The roles of cuda are for the workloads of that namespace; without -n NAMESPACE for those of all.

Whoever may create privileged pods in the ledger namespace is root on every node: give these roles to few. Those of cuda give no rights on pods there; they
let one change workloads and exec into their pods, which is root on nodes only where a namespace's Pod Security admits privileged workloads. Those of
doctor only read, but for the pods that read nodes; with --api-only they only read. They give no right on secrets, so that doctor cannot tell with which
values a Helm release was installed.

The list holds the ledger namespace too: who pipes it into kubectl delete deletes that, with all records that undo faults.`,
		Example: `  # Let the group gpu-sre inject XIDs
  kubectl gpu-fault rbac xid --group gpu-sre | kubectl apply -f -

  # Also at the GPUs of pods in namespace research
  kubectl gpu-fault rbac xid --group gpu-sre -n research | kubectl apply -f -

  # Let bob make CUDA calls fail in namespace staging, and nowhere else
  kubectl gpu-fault rbac cuda --user bob -n staging | kubectl apply -f -

  # Let the group on-call run doctor, without pods on nodes
  kubectl gpu-fault rbac doctor --api-only --group on-call | kubectl apply -f -`,
		Args:      cobra.MatchAll(usage.ExactArgs(1, "one fault", "kubectl gpu-fault rbac xid"), usage.Known("roles")),
		ValidArgs: []string{"xid", "cuda", "runtime", "doctor"},
		RunE: func(_ *cobra.Command, args []string) error {
			if format.IsTable() || format.Output == "name" {
				return fmt.Errorf("-o %s: roles are printed as yaml or json", format.Output)
			}
			if err := format.Validate(); err != nil {
				return err
			}
			if apiOnly && args[0] != "doctor" {
				return fmt.Errorf("--api-only is for doctor: %s changes things", args[0])
			}
			needs := needsOf(args[0], connection, apiOnly)
			items := fault.Roles("gpu-fault-"+args[0], needs, subjects(users, groups))
			if !apiOnly { // Roles need it
				items = append([]runtime.Object{ledger.NamespaceObject(connection.LedgerNamespace)}, items...)
			}
			return format.Object(streams.Out, list{APIVersion: "v1", Kind: "List", Items: items})
		},
	}
	cmd.Flags().StringSliceVar(&users, "user", nil, "Bind the roles to this user (here not the kubeconfig's user)")
	cmd.Flags().StringSliceVar(&groups, "group", nil, "Bind the roles to this group")
	cmd.Flags().BoolVar(&apiOnly, "api-only", false, "For doctor: leave out the pods that read nodes")
	format.AddFlags(cmd)
	return cmd
}

// needsOf is all that a fault or doctor needs.
func needsOf(what string, connection *kube.Connection, apiOnly bool) []fault.Permission {
	namespace := connection.LedgerNamespace
	if what == "doctor" {
		return doctor.Permissions(namespace, apiOnly)
	}
	of := map[string]func(string) []fault.Permission{
		"xid": xid.Permissions, "runtime": runtimefault.Permissions,
		"cuda": func(string) []fault.Permission { return cuda.Permissions(namespaceOf(connection)) },
	}[what]
	return fault.Permissions(fault.BasePermissions(namespace), of(namespace), podsOf(connection))
}

func subjects(users, groups []string) []rbacv1.Subject {
	var all []rbacv1.Subject
	for _, user := range users {
		all = append(all, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	for _, group := range groups {
		all = append(all, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group})
	}
	return all
}

// podsOf is what --pod needs in the namespace of -n.
func podsOf(connection *kube.Connection) []fault.Permission {
	if namespaceOf(connection) == "" {
		return nil
	}
	return []fault.Permission{{Verb: "get", Resource: "pods", Namespace: namespaceOf(connection)}}
}

// namespaceOf is the namespace of -n, if that is given: a context's is not meant.
func namespaceOf(connection *kube.Connection) string {
	if connection.Namespace == nil {
		return ""
	}
	return *connection.Namespace
}
