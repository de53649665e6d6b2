package check

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// can checks with an access review whether a user may do something.
func (c *Checker) can(ctx context.Context, question scenario.Can) (view, error) {
	resource, subresource, _ := strings.Cut(question.Resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: question.User, Groups: groups(question.User),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: question.Verb, Group: question.Group, Resource: resource, Subresource: subresource,
			Namespace: question.Namespace, Name: question.Name,
		},
	}}
	answer, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return view{}, fmt.Errorf("review the access of %s: %w", question.User, err)
	}
	reason := answer.Status.Reason
	if answer.Status.EvaluationError != "" {
		reason = strings.TrimPrefix(reason+"; "+answer.Status.EvaluationError, "; ")
	}
	evidence := "no"
	if answer.Status.Allowed {
		evidence = "yes"
	}
	if reason != "" {
		evidence += ": " + reason
	}
	return view{vars: expr.Vars{"allowed": answer.Status.Allowed, "reason": reason}, evidence: evidence}, nil
}

// groups returns the groups that the API server assigns to a user. A SubjectAccessReview must list them.
func groups(user string) []string {
	all := []string{"system:authenticated"}
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		namespace, _, _ := strings.Cut(account, ":")
		all = append(all, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	if user == "system:anonymous" {
		return []string{"system:unauthenticated"}
	}
	return all
}
