//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// TestAttackNarrowRoles: who has the printed roles of a feature that is not root on the nodes does not become it, and
// reaches no other namespace. The API server is asked about each thing, as that user.
func TestAttackNarrowRoles(t *testing.T) {
	e := setup(t)
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	own := e.cluster.Namespace(t)
	everywhere := []fault.Permission{
		{Verb: "get", Resource: "secrets"}, {Verb: "list", Resource: "secrets"}, {Verb: "create", Resource: "pods"},
		{Verb: "create", Resource: "pods/exec"}, {Verb: "get", Resource: "pods/exec"},
		{Verb: "create", Resource: "pods/attach"}, {Verb: "patch", Resource: "pods/ephemeralcontainers"},
		{Verb: "create", Resource: "serviceaccounts/token"}, {Verb: "impersonate", Resource: "users"},
		{Verb: "create", Resource: "namespaces"}, {Verb: "patch", Resource: "namespaces"},
		{Verb: "delete", Resource: "namespaces"}, {Verb: "patch", Resource: "nodes"},
		{Verb: "patch", Resource: "nodes/status"},
		{Verb: "delete", Resource: "nodes"}, {Verb: "get", Resource: "nodes/proxy"},
		{Verb: "create", Resource: "nodes/proxy"},
		{Verb: "create", Group: "apps", Resource: "deployments"},
		{Verb: "patch", Group: "apps", Resource: "deployments"},
		{Verb: "patch", Group: "apps", Resource: "daemonsets"}, {Verb: "create", Group: "batch", Resource: "jobs"},
		{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
		{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
		{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Verb: "create", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
		{Verb: "approve", Group: "certificates.k8s.io", Resource: "signers"},
	}
	type place struct {
		namespace string
		but       []string // verb and resource, which the feature is for
	}
	inOwn := []string{"create pods/exec", "get pods/exec", "patch deployments", "patch daemonsets", "create jobs"}
	for feature, places := range map[string][]place{
		"list":              {{e.ledger, nil}, {"kube-system", nil}, {own, nil}},
		"revert":            {{e.ledger, nil}, {"kube-system", nil}, {own, nil}},
		"leftovers":         {{e.ledger, nil}, {"kube-system", nil}, {own, nil}},
		"doctor --api-only": {{e.ledger, nil}, {"kube-system", nil}, {own, nil}},
		"fix":               {{e.ledger, nil}, {"kube-system", nil}, {own, nil}},
		"taint":             {{e.ledger, nil}, {"kube-system", nil}, {own, nil}},
		"cuda":              {{e.ledger, nil}, {"kube-system", nil}, {"default", nil}, {own, inOwn}},
	} {
		name, _, apiOnly := strings.Cut(feature, " ")
		args := []string{"rbac", "print", "--for", name, "--user", name + "-" + own, "-o", "json"}
		if name == "cuda" {
			args = append(args, "-n", own)
		}
		if apiOnly {
			args = append(args, "--api-only")
		}
		roles := strings.ReplaceAll(e.ok(args...).stdout, `"name": "gpu-fault-`, `"name": "`+own+"-")
		e.kubectlWith(roles, "apply", "-f", "-")
		t.Cleanup(func() {
			e.kubectlWith("", "delete", "clusterrole,clusterrolebinding", own+"-"+name, "--ignore-not-found")
		})
		e.inForce(name+"-"+own, fault.Permission{
			Verb: "list", Resource: map[bool]string{true: "nodes", false: "configmaps"}[apiOnly],
			Namespace: map[bool]string{false: e.ledger}[apiOnly],
		})
		for _, p := range places {
			t.Run(feature+" in "+strings.NewReplacer(own, "the own namespace", e.ledger,
				"the ledger").Replace(p.namespace), func(t *testing.T) {
				for _, thing := range everywhere {
					if e.may(name+"-"+own, thing, p.namespace) && !contains(p.but, thing.Verb+" "+thing.Resource) {
						t.Errorf("may %s in namespace %s", thing, p.namespace)
					}
				}
			})
		}
	}
	t.Run("cuda, with a record about another namespace", func(t *testing.T) {
		victim := e.cluster.Namespace(t)
		user := "cuda-" + own
		r := e.plugin("cuda", "inject", "deployment/any", "-n", victim, "--xid", "79", "--yes", "--as", user)
		r.says(t, 1, "is forbidden")
	})
	t.Run("cuda, with a record that an administrator reverts", func(t *testing.T) {
		w := &writer{env: e, user: "cuda-" + own, client: e.as("cuda-" + own)}
		v := newVictims(w)
		id := w.forge(ledger.Run{ID: "cuda-444444", Fault: "cuda",
			Steps: []ledger.Step{step(v.objects["Deployment"].target(), cudashim.UndoKind,
				v.workloadUndo("cuda-444444",
					`[{"path":["spec","template","spec","hostPID"],"was":true,"ours":false}]`))}})
		defer w.forget(id)
		v.holds(t, v.see, "revert", id, "--yes")
	})
	t.Run("cuda, for the namespaces of the system", func(t *testing.T) {
		for _, namespace := range []string{"kube-system", "gpu-operator", e.ledger, "gpu-fault"} {
			e.plugin("rbac", "print", "--for", "cuda", "--user", "mallory", "-n", namespace).says(t, 1, "protected")
		}
		e.plugin("rbac", "print", "--for", "cuda", "--user", "mallory").says(t, 1, "-n NAMESPACE")
	})
	t.Run("names that are YAML", func(t *testing.T) {
		out := e.plugin("rbac", "print", "--for", "list", "--user", "a\n- kind: Group\n  name: system:authenticated")
		if strings.Contains(out.stdout, "\n- kind: Group") {
			t.Errorf("the name has become a subject:\n%s", out.stdout)
		}
	})
}

// may reports whether a user may do something in a namespace.
func (e *env) may(user string, p fault.Permission, namespace string) bool {
	e.t.Helper()
	resource, subresource, _ := strings.Cut(p.Resource, "/")
	review, err := e.cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(e.t.Context(),
		&authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: p.Verb, Group: p.Group, Resource: resource, Subresource: subresource, Namespace: namespace,
				}},
		}, metav1.CreateOptions{})
	if err != nil {
		e.t.Fatal(fmt.Errorf("ask what %s may do: %w", user, err))
	}
	return review.Status.Allowed
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}
