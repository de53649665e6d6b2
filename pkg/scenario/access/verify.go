package access

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Verify checks with the API server what the account may do after Objects are created, and returns an error if the
// account can read the ledger or escalate its privileges. The check includes other bindings, for example for all
// service accounts, and the other accounts in the candidate's namespaces, whose tokens an admin can get. The notes are
// for the trainer.
func Verify(
	ctx context.Context, client kubernetes.Interface, id, ledgerNamespace string, a scenario.Access,
) (notes []string, err error) {
	own, account := Account(id)
	subjects := []subject{{own, account}}
	// A user who can change pods in a namespace can run them as any service account in the namespace.
	for _, namespace := range slices.Concat(a.Namespaces, a.Shared()) {
		accounts, err := client.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list service accounts in the candidate's namespace %s: %w", namespace, err)
		}
		for _, one := range accounts.Items {
			subjects = append(subjects, subject{namespace, one.Name})
		}
	}
	for _, who := range subjects {
		may, err := allowed(ctx, client, who, forbiddenTo(id, ledgerNamespace, a))
		if err != nil {
			return nil, err
		}
		if len(may) > 0 {
			return nil,
				fmt.Errorf("the candidate can get the answer as %s, which may %s: remove the bindings for that account, system:serviceaccounts or "+
					"system:authenticated that allow this, or use another cluster",
					who.user(), strings.Join(may, ", "))
		}
	}
	return notesOn(ctx, client, a)
}

// subject is a service account that the candidate can use.
type subject struct{ namespace, name string }

func (s subject) user() string { return "system:serviceaccount:" + s.namespace + ":" + s.name }

// allowed describes the requests that the API server would allow although they should be forbidden.
func allowed(
	ctx context.Context, client kubernetes.Interface, who subject, questions []authorizationv1.ResourceAttributes,
) ([]string, error) {
	yes := make([]bool, len(questions))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i, question := range questions {
		group.Go(func() error {
			review, err := client.AuthorizationV1().SubjectAccessReviews().Create(asking, reviewOf(who, question),
				metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf(
					"review the candidate's access: %w; requires the permission to create subjectaccessreviews", err,
				)
			}
			yes[i] = review.Status.Allowed
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var may []string
	for i, question := range questions {
		if yes[i] {
			may = append(may, inWords(question))
		}
	}
	return may, nil
}

// forbiddenTo returns the requests that would give access to the ledger.
func forbiddenTo(id, ledgerNamespace string, a scenario.Access) []authorizationv1.ResourceAttributes {
	ask := func(namespace, group, verb string, resources ...string) []authorizationv1.ResourceAttributes {
		var all []authorizationv1.ResourceAttributes
		for _, resource := range resources {
			name, sub, _ := strings.Cut(resource, "/")
			all = append(all, authorizationv1.ResourceAttributes{
				Namespace: namespace, Group: group, Verb: verb, Resource: name, Subresource: sub,
			})
		}
		return all
	}
	own, _ := Account(id)
	all := slices.Concat(
		ask(ledgerNamespace, "", "get", "secrets", "configmaps", "pods", "pods/log", "pods/exec", "events"),
		ask(ledgerNamespace, "", "list", "secrets", "configmaps", "pods", "events"),
		ask(ledgerNamespace, "", "create", "pods", "pods/exec", "serviceaccounts/token"),
		ask(ledgerNamespace, "batch", "list", "jobs"),
		ask(ledgerNamespace, "batch", "create", "jobs"),
		ask(ledgerNamespace, "apps", "create", "deployments"),
		ask(ledgerNamespace, "coordination.k8s.io", "list", "leases"),
		ask(ledgerNamespace, "events.k8s.io", "list", "events"),
		ask(ledgerNamespace, rbacv1.GroupName, "create", "rolebindings"),
		ask("", "", "impersonate", "users", "groups"),
		ask("", "", "get", "nodes/proxy"),
		ask("", "", "create", "nodes/proxy"),
		ask("", "", "patch", "namespaces"),
		ask("", rbacv1.GroupName, "escalate", "clusterroles"),
		ask("", rbacv1.GroupName, "bind", "clusterroles"),
		ask("", "certificates.k8s.io", "approve", "certificatesigningrequests"),
	)
	for _, system := range []string{metav1.NamespaceSystem, own} {
		if !slices.Contains(a.Namespaces, system) {
			all = append(all, ask(system, "", "create", "pods", "serviceaccounts/token")...)
			all = append(all, ask(system, "", "get", "secrets")...)
		}
	}
	for _, namespace := range a.Read {
		if !slices.Contains(a.Namespaces, namespace) {
			all = append(all, ask(namespace, "", "list", "secrets")...)
		}
	}
	return all
}

func reviewOf(who subject, question authorizationv1.ResourceAttributes) *authorizationv1.SubjectAccessReview {
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.user(), ResourceAttributes: &question,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + who.namespace, "system:authenticated"},
	}}
}

func inWords(q authorizationv1.ResourceAttributes) string {
	text := q.Verb + " " + q.Resource
	if q.Subresource != "" {
		text += "/" + q.Subresource
	}
	if q.Namespace != "" {
		text += " in " + q.Namespace
	}
	return text
}

// notesOn checks which pods are admitted in the namespaces.
func notesOn(ctx context.Context, client kubernetes.Interface, a scenario.Access) ([]string, error) {
	var notes []string
	if a.NodeShell {
		notes = append(notes,
			"the candidate can become root on the nodes; this tool encrypts its files there, but not its memory")
	}
	for i, name := range slices.Concat(a.Namespaces, a.Shared()) {
		namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return notes, fmt.Errorf("get the candidate's namespace: %w", err)
		}
		level := namespace.Labels[enforce]
		if (i > 0 || !a.NodeShell) && level != baseline && level != restricted {
			notes = append(notes,
				fmt.Sprintf("namespace %s admits privileged pods, which give the candidate root on the nodes; to prevent this, run: "+
					"kubectl label namespace %s %s=%s", name, name, enforce, baseline))
		}
	}
	return notes, nil
}
