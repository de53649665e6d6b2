//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/rbac"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// applyPrinted applies what `rbac print` prints for the user, with kubectl, under names of the test's own: others apply
// the same roles.
func (r *rights) applyPrinted() {
	r.t.Helper()
	features := strings.Join(append([]string{r.feature.Name}, r.others...), ",")
	printed := r.ok("rbac", "print", "--for", features, "--user", r.user, "-n", r.namespace, "-o", "json").stdout
	roles := strings.ReplaceAll(printed, `"name": "gpu-fault-`, `"name": "`+r.user+"-")
	r.kubectlWith(roles, "apply", "-f", "-")
	var list struct {
		Items []unstructured.Unstructured `json:"items"`
	}
	r.decode(roles, &list)
	list.Items = slices.DeleteFunc(list.Items,
		func(o unstructured.Unstructured) bool { return o.GetKind() == "Namespace" })
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": list.Items})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.kubectlWith(string(text), "delete", "--wait=false", "--ignore-not-found", "-f", "-") })
	r.inForce(r.user, r.rules()[len(r.rules())-1])
}

func (e *env) kubectlWith(input string, args ...string) {
	e.t.Helper()
	cmd := exec.Command(binary(e.t, "kubectl"), append([]string{"--kubeconfig", e.cluster.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("kubectl %v: %v\n%s\n%s", args, err, out, input)
	}
}

// inForce waits until the authorizer knows that the user may.
func (e *env) inForce(user string, may fault.Permission) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, user+" may "+may.String(), func() (bool, string) {
		resource, subresource, _ := strings.Cut(may.Resource, "/")
		review, err := e.cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(e.t.Context(),
			&authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Verb: may.Verb, Group: may.Group, Resource: resource, Subresource: subresource,
						Namespace: may.Namespace,
					}},
			}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, "not yet"
	})
}

// grantWithoutEach makes a user for each rule, who has all rules but that one. They have them in all namespaces, but
// where one is about to be missing in a namespace only: so a ledger that does not exist yet can be told from a right
// that is missing.
func (r *rights) grantWithoutEach(rules []fault.Permission) {
	r.t.Helper()
	var others []fault.Permission
	for _, feature := range rbac.Features() {
		if slices.Contains(r.others, feature.Name) {
			more, err := feature.Permissions(rbac.Scope{Ledger: r.ledger, Workloads: r.namespace})
			if err != nil {
				r.t.Fatal(err)
			}
			others = append(others, more...)
		}
	}
	var group errgroup.Group
	group.SetLimit(16)
	for i, missing := range rules {
		var has []fault.Permission
		for _, rule := range slices.Concat(r.rules(), others) {
			if rule == missing {
				continue
			}
			if rule.Verb != missing.Verb || rule.Group != missing.Group || rule.Resource != missing.Resource {
				rule.Namespace = ""
			} else if rule.Namespace == missing.Namespace || rule.Namespace == "" {
				continue
			}
			has = append(has, rule)
		}
		user := r.without(i)
		for _, object := range fault.Roles(
			user, has, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		) {
			group.Go(func() error { return r.make(object) })
		}
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
	for i := range rules { // another rule of theirs
		if len(rules) > 1 {
			other := rules[(i+1)%len(rules)]
			r.inForce(r.without(i), other)
		}
	}
}

// make creates a role or a binding, and deletes it when the test ends.
func (e *env) make(object runtime.Object) error {
	client, ctx := e.cluster.Client.RbacV1(), e.t.Context()
	var err error
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		_, err = client.ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
		e.t.Cleanup(func() { e.drop(client.ClusterRoles(), o.Name) })
	case *rbacv1.ClusterRoleBinding:
		_, err = client.ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
		e.t.Cleanup(func() { e.drop(client.ClusterRoleBindings(), o.Name) })
	case *rbacv1.Role: // these go with their namespaces, but for the one of Events on nodes
		_, err = client.Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		e.t.Cleanup(func() { e.drop(client.Roles(o.Namespace), o.Name) })
	case *rbacv1.RoleBinding:
		_, err = client.RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		e.t.Cleanup(func() { e.drop(client.RoleBindings(o.Namespace), o.Name) })
	}
	return err
}

// served reports whether the API server has the resource of a rule.
func (r *rights) served(rule fault.Permission) bool {
	resource, _, _ := strings.Cut(rule.Resource, "/")
	lists, err := r.resources()
	if err != nil {
		r.t.Error(err)
		return true
	}
	return slices.ContainsFunc(lists, func(list *metav1.APIResourceList) bool {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		return (group == rule.Group || !found && rule.Group == "") &&
			slices.ContainsFunc(list.APIResources, func(one metav1.APIResource) bool { return one.Name == resource })
	})
}

// kubectlFails runs kubectl, which must fail, and returns what it says.
func (e *env) kubectlFails(input string, args ...string) string {
	e.t.Helper()
	cmd := exec.Command(binary(e.t, "kubectl"), append([]string{"--kubeconfig", e.cluster.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err == nil {
		e.t.Errorf("kubectl %v worked:\n%s", args, out)
	}
	return string(out)
}
