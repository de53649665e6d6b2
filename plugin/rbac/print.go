package rbac

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// printing holds the flags of `rbac print`.
type printing struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams

	features                []string
	users, groups, accounts []string
	apiOnly                 bool
	inCluster               bool
	format                  printer.Format
}

func newPrinting(connection *kube.Connection, streams genericiooptions.IOStreams) *printing {
	return &printing{connection: connection, streams: streams, format: printer.Format{Output: "yaml"}}
}

func newPrintCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	p := newPrinting(connection, streams)
	cmd := &cobra.Command{
		Use:   "print --for FEATURE[,FEATURE]",
		Short: "Print roles and bindings for features, to apply with kubectl",
		Long: `Print a ClusterRole and Roles for each feature, with bindings for --user, --group and --serviceaccount, to apply with kubectl.

The bindings contain exactly the specified subjects, so specify all of them each time. The roles for cuda require -n NAMESPACE and cover only
the workloads in that namespace. With -n NAMESPACE, the roles for xid also allow reading its pods, which --pod requires.

If a role is in the ledger namespace, the list also contains that namespace. Do not pipe the list into kubectl delete: this deletes the
namespace, including all records for undoing faults.`,
		Example: `  # Allow the group gpu-sre to inject XIDs, including for the GPUs of pods in the research namespace
  kubectl gpu-fault rbac print --for xid --group gpu-sre -n research | kubectl apply -f -

  # Allow bob to make CUDA calls fail, only in the staging namespace
  kubectl gpu-fault rbac print --for cuda --user bob -n staging | kubectl apply -f -

  # Allow the service account of a CI job to do the same
  kubectl gpu-fault rbac print --for cuda --serviceaccount ci:runner -n staging \
      | kubectl apply -f -

  # Allow the pods of xid --in-cluster to inject XIDs
  kubectl gpu-fault rbac print --for xid --in-cluster | kubectl apply -f -

  # Allow the group on-call to run doctor without pods on nodes, and to list and revert runs
  kubectl gpu-fault rbac print --for doctor,list,revert --api-only --group on-call \
      | kubectl apply -f -`,
		Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error { return p.print() },
	}
	cmd.Flags().StringSliceVar(&p.features, "for", nil, "Features: "+strings.Join(names(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("for", completeFeatures)
	p.addFlags(cmd)
	return cmd
}

func (p *printing) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&p.users, "user", nil, "User to bind the roles to (not the kubeconfig user)")
	flags.StringArrayVar(&p.groups, "group", nil, "Group to bind the roles to")
	flags.StringArrayVar(&p.accounts, "serviceaccount", nil,
		"Service account to bind the roles to, as NAMESPACE:NAME")
	flags.BoolVar(&p.apiOnly, "api-only", false, "For doctor, exclude the permission to start pods on nodes")
	flags.BoolVar(&p.inCluster, "in-cluster", false,
		"Bind the roles to the service account of --in-cluster pods, and also print the account; only for "+
			strings.Join(inCluster, ", "))
	p.format.AddFlags(cmd)
}

// empty reports whether none of the flags is set.
func (p *printing) empty(flags *pflag.FlagSet) bool {
	all := []string{"user", "group", "serviceaccount", "api-only", "in-cluster", "output"}
	return !slices.ContainsFunc(all, flags.Changed)
}

// completeFeatures completes the last feature of a list, excluding those already in the list.
func completeFeatures(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var all []cobra.Completion
	for _, f := range Features() {
		if !slices.Contains(strings.Split(before, ","), f.Name) {
			all = append(all, cobra.CompletionWithDesc(before+f.Name, f.Allows))
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (p *printing) print() error {
	chosen, err := p.choose()
	if err != nil {
		return err
	}
	if err := p.format.Validate(); err != nil {
		return err
	}
	subjects, err := p.subjects()
	if err != nil {
		return err
	}
	scope := Scope{Ledger: p.connection.LedgerNamespace, APIOnly: p.apiOnly}
	if p.connection.Namespace != nil { // only if -n is specified, ignoring the context's namespace
		scope.Workloads = *p.connection.Namespace
	}
	if problems := validation.IsDNS1123Label(scope.Workloads); scope.Workloads != "" && len(problems) > 0 {
		return fmt.Errorf("invalid namespace %q: %s", scope.Workloads, problems[0])
	}
	if problems := validation.IsDNS1123Label(scope.Ledger); len(problems) > 0 {
		return fmt.Errorf("invalid --ledger-namespace %q: %s", scope.Ledger, problems[0])
	}
	if err := scope.check(chosen); err != nil {
		return err
	}
	items, err := p.roles(chosen, scope, subjects)
	if err != nil {
		return err
	}
	table, names, err := summary(items)
	if err != nil {
		return err
	}
	for _, f := range chosen {
		printer.Talk(p.streams.ErrOut, "Note about users with the roles for %s: %s", f.Name, f.Reaches)
	}
	if p.format.IsTable() {
		table.NoHeader = p.format.NoHeader
		return table.Write(p.streams.Out)
	}
	if p.format.Output == "yaml" { // kubectl apply skips comments
		for _, f := range chosen {
			fmt.Fprintf(p.streams.Out, "# %s: %s\n", f.Name, f.Reaches)
		}
	}
	return p.format.Object(p.streams.Out, list{APIVersion: "v1", Kind: "List", Items: items}, names...)
}

// summary returns a table with a row for each object, and the objects' names in kubectl's format.
func summary(items []runtime.Object) (table *printer.Table, names []string, err error) {
	table = &printer.Table{Header: []string{"KIND", "NAMESPACE", "NAME"}}
	for _, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			return nil, nil, fmt.Errorf("list the roles: %w", err)
		}
		kind := item.GetObjectKind().GroupVersionKind()
		table.Add(kind.Kind, object.GetNamespace(), object.GetName())
		name := strings.ToLower(kind.Kind)
		if kind.Group != "" {
			name += "." + kind.Group
		}
		names = append(names, name+"/"+object.GetName())
	}
	return table, names, nil
}

// choose returns the requested features, in the order of Features.
func (p *printing) choose() ([]Feature, error) {
	all := names()
	if len(p.features) == 0 {
		return nil,
			fmt.Errorf("specify features, as in: kubectl gpu-fault rbac print --for xid,doctor; supported values: %s",
				strings.Join(all, ", "))
	}
	for _, name := range p.features {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("unknown feature %q: supported values: %s", name, strings.Join(all, ", "))
		}
	}
	if p.apiOnly && !slices.Contains(p.features, "doctor") {
		return nil,
			fmt.Errorf("--api-only requires --for doctor: it has no effect on %s", strings.Join(p.features, ", "))
	}
	if p.inCluster {
		if err := p.checkInCluster(); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(Features(), func(f Feature) bool { return !slices.Contains(p.features, f.Name) }), nil
}

// inCluster lists the features whose commands have the --in-cluster flag.
var inCluster = []string{"xid", "runtime", "device"}

func (p *printing) checkInCluster() error {
	for _, name := range p.features {
		if !slices.Contains(inCluster, name) {
			return fmt.Errorf("--in-cluster cannot be used with --for %s: supported values: %s", name,
				strings.Join(inCluster, ", "))
		}
	}
	if len(p.users)+len(p.groups)+len(p.accounts) > 0 {
		return fmt.Errorf("--in-cluster binds the roles to service account %q only: omit --user, --group and "+
			"--serviceaccount", ledger.FleetAccount)
	}
	return nil
}

// roles returns the objects that grant the features. With --in-cluster, the roles have different names, so that
// applying them does not remove the features' roles from users.
func (p *printing) roles(chosen []Feature, scope Scope, subjects []rbacv1.Subject) ([]runtime.Object, error) {
	if !p.inCluster {
		return roles(chosen, scope, subjects, "")
	}
	items, err := roles(chosen, scope, []rbacv1.Subject{
		{Kind: rbacv1.ServiceAccountKind, Namespace: scope.Ledger, Name: ledger.FleetAccount},
	}, "-in-cluster")
	if err != nil {
		return nil, err
	}
	return slices.Insert(items, 1, runtime.Object(&corev1.ServiceAccount{ // after the namespace
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ledger.FleetAccount, Namespace: scope.Ledger,
			Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy},
		},
	})), nil
}

func (p *printing) subjects() ([]rbacv1.Subject, error) {
	var all []rbacv1.Subject
	for _, user := range split(p.users) {
		all = append(all, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	for _, group := range split(p.groups) {
		all = append(all, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group})
	}
	for _, account := range split(p.accounts) {
		namespace, name, _ := strings.Cut(account, ":")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil,
				fmt.Errorf("invalid value %q for --serviceaccount: must be NAMESPACE:NAME, such as ci:runner", account)
		}
		all = append(all, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name})
	}
	for _, subject := range all {
		kind := strings.ToLower(subject.Kind)
		switch {
		case strings.TrimSpace(subject.Name) == "":
			return nil, fmt.Errorf("the name of a %s is empty: is a variable unset?", kind)
		case !utf8.ValidString(subject.Name) || strings.ContainsFunc(subject.Name, printer.IsDangerous):
			return nil, fmt.Errorf("invalid %s %q: must be UTF-8 without control characters", kind, subject.Name)
		}
	}
	return all, nil
}

// split splits the values of --user, --group and --serviceaccount at commas. Unlike a CSV reader, it keeps all other
// characters.
func split(values []string) (all []string) {
	for _, value := range values {
		all = append(all, strings.Split(value, ",")...)
	}
	return all
}

// list is a List for kubectl apply.
type list struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Items      []runtime.Object `json:"items"`
}

// roles returns the objects that grant the features to the subjects. If an object is in the ledger namespace, that
// namespace comes first. The names of the objects end with suffix.
func roles(features []Feature, scope Scope, subjects []rbacv1.Subject, suffix string) ([]runtime.Object, error) {
	var items []runtime.Object
	inLedger := false
	for _, f := range features {
		needs, err := f.Permissions(scope)
		if err != nil {
			return nil, err
		}
		items = append(items, fault.Roles("gpu-fault-"+f.Name+suffix, needs, subjects)...)
		inLedger = inLedger ||
			slices.ContainsFunc(needs, func(need fault.Permission) bool { return need.Namespace == scope.Ledger })
	}
	if inLedger {
		items = slices.Insert(items, 0, runtime.Object(ledger.NamespaceObject(scope.Ledger)))
	}
	return items, nil
}
