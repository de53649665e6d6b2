package fault

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// A user who can create pods in the ledger namespace, or exec into pods there, is root on the nodes while a debug pod
// is running. Cluster-wide permissions are reserved for administrators, and permissions from the roles of `rbac print`
// are intentional. Any other such permission comes from a RoleBinding in the namespace.

// write lists the verbs that can change what an object runs.
var write = []string{"create", "update", "patch"}

// rootEquivalents are the permissions in the ledger namespace that make a user root on the nodes, by API group and
// resource.
var rootEquivalents = map[string]map[string][]string{
	"": {
		"pods":                     write, // an update may set the image of a privileged container
		"pods/exec":                {"create", "get"},
		"pods/attach":              {"create", "get"},
		"pods/ephemeralcontainers": {"update", "patch"},
		"replicationcontrollers":   write,
		// A service account in the namespace may be bound to a role from `rbac print`.
		"serviceaccounts":       {"impersonate"},
		"serviceaccounts/token": {"create"},
	},
	"apps":  {"deployments": write, "daemonsets": write, "statefulsets": write, "replicasets": write},
	"batch": {"jobs": {"create"}, "cronjobs": write}, // the containers of a Job's template cannot be updated
	// Without these verbs, users can grant only permissions that they have.
	rbacv1.GroupName: {"roles": {"bind", "escalate"}, "clusterroles": {"bind"}},
}

// CheckNamespaceAccess returns an error if a RoleBinding allows other subjects to enter a privileged pod in the
// namespace. It returns nil if the user is not allowed to read the RoleBindings.
func CheckNamespaceAccess(ctx context.Context, client kubernetes.Interface, namespace string) error {
	bindings, err := client.RbacV1().RoleBindings(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the RoleBindings in namespace %s: %w", namespace, err)
	}
	for _, binding := range bindings.Items {
		if binding.Labels[ledger.LabelManagedBy] == ledger.ManagedBy || len(binding.Subjects) == 0 {
			continue
		}
		rules, err := rulesOf(ctx, client, namespace, binding.RoleRef)
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			continue
		case err != nil:
			return fmt.Errorf("get %s %s of RoleBinding %s in namespace %s: %w", binding.RoleRef.Kind,
				binding.RoleRef.Name, binding.Name, namespace, err)
		}
		if right := firstRootEquivalent(rules); right != "" {
			return fmt.Errorf("RoleBinding %q in namespace %s allows %s to %s, which makes them root on the nodes while a debug pod is running: "+
				"delete the binding, or use another ledger namespace", binding.Name, namespace,
				subjects(binding.Subjects), right)
		}
	}
	return nil
}

// namespaceAccess caches a successful check, because a revert can enter hundreds of nodes.
type namespaceAccess struct {
	mu   sync.Mutex
	done bool
}

func (s *Session) checkNamespaceAccess(ctx context.Context) error {
	s.access.mu.Lock()
	defer s.access.mu.Unlock()
	if s.access.done {
		return nil
	}
	err := CheckNamespaceAccess(ctx, s.Client, s.Ledger.Namespace)
	s.access.done = err == nil
	return err
}

func rulesOf(
	ctx context.Context, client kubernetes.Interface, namespace string, ref rbacv1.RoleRef,
) ([]rbacv1.PolicyRule, error) {
	if ref.Kind == "ClusterRole" {
		role, err := client.RbacV1().ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	role, err := client.RbacV1().Roles(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return role.Rules, nil
}

// firstRootEquivalent returns the first of rootEquivalents that the rules grant, such as "create pods/exec", or "" if
// there is none.
func firstRootEquivalent(rules []rbacv1.PolicyRule) string {
	for _, group := range slices.Sorted(maps.Keys(rootEquivalents)) {
		for _, resource := range slices.Sorted(maps.Keys(rootEquivalents[group])) {
			for _, verb := range rootEquivalents[group][resource] {
				if slices.ContainsFunc(
					rules, func(rule rbacv1.PolicyRule) bool { return grants(rule, group, resource, verb) },
				) {
					return verb + " " + resource
				}
			}
		}
	}
	return ""
}

func grants(rule rbacv1.PolicyRule, group, resource, verb string) bool {
	has := func(list []string, wanted ...string) bool {
		return slices.ContainsFunc(wanted, func(w string) bool { return slices.Contains(list, w) })
	}
	_, subresource, isSub := strings.Cut(resource, "/")
	resources := []string{resource, "*"}
	if isSub {
		resources = append(resources, "*/"+subresource)
	}
	return has(rule.APIGroups, group, "*") && has(rule.Resources, resources...) && has(rule.Verbs, verb, "*")
}

func subjects(all []rbacv1.Subject) string {
	var names []string
	for _, s := range all {
		names = append(names, strings.ToLower(s.Kind)+" "+s.Name)
	}
	if len(names) > 3 {
		names = append(names[:3:3], fmt.Sprintf("and %s", count.Of(len(all)-3, "more subject")))
	}
	return strings.Join(names, ", ")
}
