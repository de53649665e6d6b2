package fault

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// PermissionError lists the permissions that the user lacks.
type PermissionError struct {
	Missing []Permission
	// Command is the command line that prints the required roles.
	Command string
}

func (e *PermissionError) Error() string {
	if len(e.Missing) == 1 {
		return fmt.Sprintf("you are not allowed to %s; a cluster administrator can grant access: %s | kubectl apply -f -",
			e.Missing[0], e.Command)
	}
	var text strings.Builder
	text.WriteString("you lack these permissions:")
	for _, line := range grouped(e.Missing) {
		text.WriteString("\n  " + line)
	}
	fmt.Fprintf(&text, "\na cluster administrator can grant them: %s | kubectl apply -f -", e.Command)
	return text.String()
}

// grouped returns one line per resource with its verbs, such as "create,get pods in namespace gpu-fault".
func grouped(missing []Permission) []string {
	verbs := map[Permission][]string{}
	var order []Permission
	for _, p := range missing {
		key := Permission{Group: p.Group, Resource: p.Resource, Namespace: p.Namespace}
		if _, known := verbs[key]; !known {
			order = append(order, key)
		}
		verbs[key] = append(verbs[key], p.Verb)
	}
	lines := make([]string, len(order))
	for i, key := range order {
		lines[i] = Permission{
			Verb: strings.Join(verbs[key], ","), Group: key.Group, Resource: key.Resource, Namespace: key.Namespace,
		}.String()
	}
	return lines
}

// String describes the permission, such as "create pods/exec in namespace gpu-fault".
func (p Permission) String() string {
	text := p.Verb + " " + p.Resource
	if p.Group != "" {
		text += "." + p.Group
	}
	if p.Namespace != "" {
		text += " in namespace " + p.Namespace
	}
	return text
}

// checkAccess checks with the API server that the user has all permissions that the plan needs.
func (s *Session) checkAccess(ctx context.Context, plan Plan) error {
	needs := PlanPermissions(plan, s.Ledger.Namespace)
	missing, optional, err := s.missing(ctx, needs)
	if err != nil {
		return err
	}
	missing = s.withoutNamespaceCreation(ctx, missing)
	if len(missing) == 0 {
		for _, need := range optional {
			s.warn("you are not allowed to %s; the run continues without doing so", need)
		}
		return nil
	}
	namespace := ""
	for _, change := range plan.Changes { // all changes are in one namespace, because a run has only one workload
		if namespace = change.Target.Namespace; namespace != "" {
			break
		}
	}
	features := s.Features
	if len(features) == 0 {
		features = []string{plan.Fault}
	}
	return s.refusal(ctx, missing, features, namespace)
}

// Needer is an Undoer that needs permissions in addition to RevertPermissions.
type Needer interface {
	// Needs returns the permissions that Undo needs for the step in the given ledger namespace.
	Needs(step ledger.Step, ledgerNamespace string) []Permission
	// Feature is the value of `rbac print --for` that grants these permissions. If it is empty, the fault of the run is
	// used as the value.
	Feature() string
}

// checkRevertAccess checks, before any step is undone, that the user has the permissions to undo all steps of the run.
func (s *Session) checkRevertAccess(ctx context.Context, run ledger.Run) error {
	needs, features, namespace := RevertPermissions(s.Ledger.Namespace), []string{"revert"}, ""
	for _, step := range run.Steps {
		undoer, ok := s.Undoers[step.Undo.Kind].(Needer)
		if !ok || !step.InPlace() {
			continue
		}
		if more := undoer.Needs(step, s.Ledger.Namespace); len(more) > 0 {
			needs = append(needs, more...)
			namespace = cmp.Or(namespace, step.Target.Namespace)
			if feature := cmp.Or(undoer.Feature(), run.Fault); !slices.Contains(features, feature) {
				features = append(features, feature)
			}
		}
	}
	missing, optional, err := s.missing(ctx, Permissions(needs))
	if err != nil || len(missing) == 0 {
		for _, need := range optional {
			s.warn("you are not allowed to %s; the revert continues without doing so", need)
		}
		return err
	}
	return fmt.Errorf("revert %s: nothing was changed: %w", run.ID,
		s.refusal(ctx, missing, features, namespace))
}

func (s *Session) refusal(ctx context.Context, missing []Permission, features []string, namespace string) error {
	return &PermissionError{
		Missing: missing, Command: s.Ledger.Command(RolesFor(features, s.Whoami(ctx), namespace)...),
	}
}

// RolesFor returns the arguments of the `rbac print` command for the roles that features require, bound to a user and
// limited to the workloads in a namespace. user and namespace may be empty.
func RolesFor(features []string, user, namespace string) []string {
	words := []string{"rbac", "print", "--for", strings.Join(features, ",")}
	account, isAccount := strings.CutPrefix(user, "system:serviceaccount:")
	_, name, _ := strings.Cut(account, ":")
	switch {
	case isAccount && name == ledger.FleetAccount:
		words = append(words, "--in-cluster")
	case isAccount:
		words = append(words, "--serviceaccount", account)
	case strings.ContainsFunc(user, func(c rune) bool { return !strings.ContainsRune(inWords, c) }):
		words = append(words, "--user", "'"+strings.ReplaceAll(user, "'", `'\''`)+"'")
	case user != "":
		words = append(words, "--user", user)
	}
	if namespace != "" {
		words = append(words, "-n", namespace)
	}
	return words
}

// inWords are the characters that do not require quoting in a shell.
const inWords = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@+"

// withoutNamespaceCreation drops the permissions that are needed only to create the ledger namespace, unless the
// namespace is known not to exist.
func (s *Session) withoutNamespaceCreation(ctx context.Context, missing []Permission) []Permission {
	creation := namespaceCreation(s.Ledger.Namespace)
	isCreation := func(p Permission) bool { return slices.Contains(creation, p) }
	if !slices.ContainsFunc(missing, isCreation) {
		return missing
	}
	if _, err := s.Client.CoreV1().Namespaces().Get(
		ctx, s.Ledger.Namespace, metav1.GetOptions{},
	); apierrors.IsNotFound(err) {
		return missing
	}
	return slices.DeleteFunc(missing, isCreation)
}

func (s *Session) missing(ctx context.Context, needs []Permission) (required, optional []Permission, err error) {
	return Missing(ctx, s.Client, needs, DefaultParallel)
}

// Missing returns the permissions that the user lacks according to the API server. It sends several access reviews in
// parallel, or only one if the user is allowed everything.
func Missing(
	ctx context.Context, client kubernetes.Interface, needs []Permission, parallel int,
) (required, optional []Permission, err error) {
	all, err := mayI(ctx, client, Permission{Verb: "*", Group: "*", Resource: "*"})
	if err != nil || all {
		return nil, nil, err
	}
	allowed := make([]bool, len(needs))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, need := range needs {
		group.Go(func() (err error) {
			allowed[i], err = mayI(groupCtx, client, need)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	for i, need := range needs {
		switch {
		case allowed[i]:
		case need.Optional:
			optional = append(optional, need)
		default:
			required = append(required, need)
		}
	}
	return required, optional, nil
}

func mayI(ctx context.Context, client kubernetes.Interface, p Permission) (bool, error) {
	resource, subresource, _ := strings.Cut(p.Resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: p.Verb, Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace,
		},
	}}
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("check whether you may %s: %w", p, err)
	}
	return answer.Status.Allowed, nil
}
