package rbac

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// printing is a command line of `rbac print`.
type printing struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams

	features                []string
	users, groups, accounts []string
	apiOnly                 bool
	format                  printer.Format
}

func newPrinting(connection *kube.Connection, streams genericiooptions.IOStreams) *printing {
	return &printing{connection: connection, streams: streams, format: printer.Format{Output: "yaml"}}
}

func newPrintCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	p := newPrinting(connection, streams)
	cmd := &cobra.Command{
		Use:   "print --for FEATURE[,FEATURE]",
		Short: "Print the roles of features, with bindings, to apply with kubectl",
		Long: `Print a ClusterRole and Roles for each feature, with bindings for --user, --group and --serviceaccount, to apply with kubectl.

The bindings hold exactly the subjects given: name all of them each time. The roles of cuda require -n NAMESPACE, and are for the workloads
of that namespace and no others. With -n NAMESPACE those of xid let one read its pods, which --pod needs.

The list holds the ledger namespace too, where a role is in it: who pipes the list into kubectl delete deletes that, with all records that undo faults.`,
		Example: `  # Let the group gpu-sre inject XIDs, also at the GPUs of pods in namespace research
  kubectl gpu-fault rbac print --for xid --group gpu-sre -n research | kubectl apply -f -

  # Let bob make CUDA calls fail in namespace staging, and nowhere else
  kubectl gpu-fault rbac print --for cuda --user bob -n staging | kubectl apply -f -

  # Let a CI job do the same
  kubectl gpu-fault rbac print --for cuda --serviceaccount ci:runner -n staging \
      | kubectl apply -f -

  # Let the group on-call run doctor without pods on nodes, see what is broken, and undo it
  kubectl gpu-fault rbac print --for doctor,list,revert --api-only --group on-call \
      | kubectl apply -f -`,
		Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error { return p.print() },
	}
	cmd.Flags().StringSliceVar(&p.features, "for", nil, "The features: "+strings.Join(names(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("for", completeFeatures)
	p.addFlags(cmd)
	return cmd
}

func (p *printing) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&p.users, "user", nil, "Bind the roles to this user (here not the kubeconfig's user)")
	flags.StringArrayVar(&p.groups, "group", nil, "Bind the roles to this group")
	flags.StringArrayVar(&p.accounts, "serviceaccount", nil,
		"Bind the roles to this service account, as NAMESPACE:NAME")
	flags.BoolVar(&p.apiOnly, "api-only", false, "For doctor: leave out the pods that read nodes")
	p.format.AddFlags(cmd)
}

// empty reports whether nothing was asked for.
func (p *printing) empty(flags *pflag.FlagSet) bool {
	return !slices.ContainsFunc([]string{"user", "group", "serviceaccount", "api-only", "output"}, flags.Changed)
}

// completeFeatures completes the last of several, and offers none twice.
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
	if p.connection.Namespace != nil { // if it is given: a context's is not meant
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
	items, err := roles(chosen, scope, subjects)
	if err != nil {
		return err
	}
	table, names, err := summary(items)
	if err != nil {
		return err
	}
	for _, f := range chosen {
		printer.Talk(p.streams.ErrOut, "Note: whoever has the role of %s: %s", f.Name, f.Reaches)
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

// summary returns a row of a table for each object, and its name as kubectl has it.
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

// choose returns the features that were asked for, in the order of the table.
func (p *printing) choose() ([]Feature, error) {
	all := names()
	if len(p.features) == 0 {
		return nil, fmt.Errorf("say for what, as in: kubectl gpu-fault rbac print --for xid,doctor; there are: %s",
			strings.Join(all, ", "))
	}
	for _, name := range p.features {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("no roles for %q; there are: %s", name, strings.Join(all, ", "))
		}
	}
	if p.apiOnly && !slices.Contains(p.features, "doctor") {
		return nil,
			fmt.Errorf("--api-only is for doctor: %s has no part that does without", strings.Join(p.features, ", "))
	}
	return slices.DeleteFunc(Features(), func(f Feature) bool { return !slices.Contains(p.features, f.Name) }), nil
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
			return nil, fmt.Errorf("--serviceaccount %q: give NAMESPACE:NAME, such as ci:runner", account)
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

// split splits the values of --user, --group and --serviceaccount at commas. Unlike a CSV reader it keeps every other
// character.
func split(values []string) (all []string) {
	for _, value := range values {
		all = append(all, strings.Split(value, ",")...)
	}
	return all
}

// list is what kubectl apply takes.
type list struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Items      []runtime.Object `json:"items"`
}

// roles returns the objects that grant the features to the subjects, behind the ledger's namespace where a role is in
// it.
func roles(features []Feature, scope Scope, subjects []rbacv1.Subject) ([]runtime.Object, error) {
	var items []runtime.Object
	inLedger := false
	for _, f := range features {
		needs, err := f.Permissions(scope)
		if err != nil {
			return nil, err
		}
		items = append(items, fault.Roles("gpu-fault-"+f.Name, needs, subjects)...)
		inLedger = inLedger ||
			slices.ContainsFunc(needs, func(need fault.Permission) bool { return need.Namespace == scope.Ledger })
	}
	if inLedger {
		items = slices.Insert(items, 0, runtime.Object(ledger.NamespaceObject(scope.Ledger)))
	}
	return items, nil
}
