package fault_test

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// No privileged pod is started where a RoleBinding lets others make pods or get into them; the roles that rbac print
// printed are the tool's own.
func TestCheckNamespaceAccess(t *testing.T) {
	t.Parallel()
	rule := func(group, resource, verb string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}}
	}
	for name, test := range map[string]struct {
		rule   rbacv1.PolicyRule
		kind   string
		labels map[string]string
		want   string // empty: allowed
	}{
		"exec":                 {rule("", "pods/exec", "create"), "Role", nil, "create pods/exec"},
		"exec over WebSockets": {rule("", "pods/exec", "get"), "Role", nil, "get pods/exec"},
		"all subresources":     {rule("", "*/exec", "create"), "Role", nil, "create pods/exec"},
		"pods":                 {rule("", "pods", "create"), "Role", nil, "create pods"},
		"ephemeral containers": {
			rule("", "pods/ephemeralcontainers", "patch"), "Role", nil, "patch pods/ephemeralcontainers",
		},
		"Jobs":                 {rule("batch", "jobs", "create"), "Role", nil, "create jobs"},
		"a template of theirs": {rule("apps", "deployments", "patch"), "Role", nil, "patch deployments"},
		"the image of a pod":   {rule("", "pods", "patch"), "Role", nil, "patch pods"},
		"a token of another": {
			rule("", "serviceaccounts/token", "create"), "Role", nil, "create serviceaccounts/token",
		},
		"in another's name": {
			rule("", "serviceaccounts", "impersonate"), "Role", nil, "impersonate serviceaccounts",
		},
		"any role": {
			rule("rbac.authorization.k8s.io", "clusterroles", "bind"), "Role", nil, "bind clusterroles",
		},
		"more in their role": {rule("rbac.authorization.k8s.io", "roles", "escalate"), "Role", nil, "escalate roles"},
		// No container of its template can be changed
		"a suspended Job":       {rule("batch", "jobs", "patch"), "Role", nil, ""},
		"deleting pods":         {rule("", "pods", "delete"), "Role", nil, ""},
		"everything":            {rule("*", "*", "*"), "ClusterRole", nil, "create pods"},
		"a ClusterRole":         {rule("", "pods/attach", "create"), "ClusterRole", nil, "create pods/attach"},
		"reading pods":          {rule("", "pods", "list"), "Role", nil, ""},
		"ConfigMaps":            {rule("", "configmaps", "*"), "Role", nil, ""},
		"pods of another group": {rule("metrics.k8s.io", "pods", "*"), "Role", nil, ""},
		"a role of rbac print": {
			rule("", "pods/exec", "create"), "Role", map[string]string{ledger.LabelManagedBy: ledger.ManagedBy}, "",
		},
		"a label of another tool": {
			rule("", "pods/exec", "create"), "Role", map[string]string{ledger.LabelManagedBy: "helm"},
			"create pods/exec",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meta := metav1.ObjectMeta{Name: "r", Namespace: "gpu-fault"}
			client := fake.NewClientset(
				&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{test.rule}},
				&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{test.rule}},
				&rbacv1.RoleBinding{
					ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "gpu-fault", Labels: test.labels},
					RoleRef:    rbacv1.RoleRef{Kind: test.kind, Name: "r"},
					Subjects:   []rbacv1.Subject{{Kind: "User", Name: "mallory"}},
				},
			)
			err := fault.CheckNamespaceAccess(t.Context(), client, "gpu-fault")
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), "user mallory to "+test.want)):
				t.Errorf("%v, wanted %q", err, test.want)
			}
		})
	}
}
