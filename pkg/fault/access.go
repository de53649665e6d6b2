package fault

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PermissionError says what the user may not do.
type PermissionError struct {
	Missing []Permission
	// Command prints the roles that allow it.
	Command string
}

func (e *PermissionError) Error() string {
	if len(e.Missing) == 1 {
		return fmt.Sprintf("you may not %s; whoever administers the cluster can allow it: %s | kubectl apply -f -", e.Missing[0], e.Command)
	}
	var text strings.Builder
	text.WriteString("you lack rights:")
	for _, line := range grouped(e.Missing) {
		text.WriteString("\n  " + line)
	}
	fmt.Fprintf(&text, "\nwhoever administers the cluster can allow them: %s | kubectl apply -f -", e.Command)
	return text.String()
}

// grouped is a line for each resource, with the verbs: create,get pods in namespace gpu-fault.
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
		lines[i] = Permission{Verb: strings.Join(verbs[key], ","), Group: key.Group, Resource: key.Resource, Namespace: key.Namespace}.String()
	}
	return lines
}

// String says the permission in words: create pods/exec in namespace gpu-fault.
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

// checkAccess asks the API server whether the user may do all that the plan needs. For those who may do everything that is one question.
func (s *Session) checkAccess(ctx context.Context, plan Plan) error {
	all, err := s.mayI(ctx, Permission{Verb: "*", Group: "*", Resource: "*"})
	if err != nil || all {
		return err
	}
	needs := PlanPermissions(plan, s.Ledger.Namespace)
	allowed := make([]bool, len(needs))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(s.parallel())
	for i, need := range needs {
		group.Go(func() (err error) {
			allowed[i], err = s.mayI(groupCtx, need)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var missing, optional []Permission
	for i, need := range needs {
		switch {
		case allowed[i]:
		case need.Optional:
			optional = append(optional, need)
		default:
			missing = append(missing, need)
		}
	}
	missing = s.withoutNamespaceCreation(ctx, missing)
	if len(missing) == 0 {
		for _, need := range optional {
			s.warn("you may not %s; the run goes on without", need)
		}
		return nil
	}
	command := []string{"rbac", plan.Fault}
	if user := s.whoami(ctx); user != "" {
		command = append(command, "--user", user)
	}
	for _, change := range plan.Changes { // all are in one namespace: a run has one workload
		if change.Target.Namespace != "" {
			command = append(command, "-n", change.Target.Namespace)
			break
		}
	}
	return &PermissionError{Missing: missing, Command: s.Ledger.Command(command...)}
}

// withoutNamespaceCreation drops what is needed only to create the ledger's namespace, if that exists.
func (s *Session) withoutNamespaceCreation(ctx context.Context, missing []Permission) []Permission {
	creation := namespaceCreation(s.Ledger.Namespace)
	isCreation := func(p Permission) bool { return slices.Contains(creation, p) }
	if !slices.ContainsFunc(missing, isCreation) {
		return missing
	}
	if _, err := s.Client.CoreV1().Namespaces().Get(ctx, s.Ledger.Namespace, metav1.GetOptions{}); err != nil {
		return missing
	}
	return slices.DeleteFunc(missing, isCreation)
}

func (s *Session) mayI(ctx context.Context, p Permission) (bool, error) {
	resource, subresource, _ := strings.Cut(p.Resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: p.Verb, Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace,
		},
	}}
	answer, err := s.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether you may %s: %w", p, err)
	}
	return answer.Status.Allowed, nil
}
