package fault

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Least drops permissions that are covered by another one: a permission for all namespaces covers the same permission
// for one namespace, and becomes required if the covered permission is.
func Least(permissions []Permission) []Permission {
	all := Permissions(permissions)
	return slices.DeleteFunc(all, func(p Permission) bool {
		wide := slices.IndexFunc(all, func(w Permission) bool {
			return w.Namespace == "" && w.Verb == p.Verb && w.Group == p.Group && w.Resource == p.Resource
		})
		if p.Namespace == "" || wide < 0 {
			return false
		}
		all[wide].Optional = all[wide].Optional && p.Optional
		return true
	})
}

// Roles returns the RBAC objects that grant the permissions, including optional ones, to the subjects: a ClusterRole
// for cluster-wide permissions, a Role for each namespace, and a binding for each role if there are any subjects. All
// objects have the same name. The namespaces must exist before the objects are applied; see ledger.NamespaceObject.
func Roles(name string, permissions []Permission, subjects []rbacv1.Subject) []runtime.Object {
	byNamespace := map[string][]Permission{}
	var namespaces []string
	for _, p := range Least(permissions) {
		if _, ok := byNamespace[p.Namespace]; !ok {
			namespaces = append(namespaces, p.Namespace)
		}
		byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p)
	}
	var objects []runtime.Object
	for _, namespace := range namespaces { // sorted, because permissions are sorted
		objects = append(objects, role(name, namespace, rules(byNamespace[namespace])))
		if len(subjects) > 0 {
			objects = append(objects, binding(name, namespace, subjects))
		}
	}
	return objects
}

func role(name, namespace string, rules []rbacv1.PolicyRule) runtime.Object {
	if namespace == "" {
		return &rbacv1.ClusterRole{TypeMeta: rbacType("ClusterRole"), ObjectMeta: objectMeta(name, ""), Rules: rules}
	}
	return &rbacv1.Role{TypeMeta: rbacType("Role"), ObjectMeta: objectMeta(name, namespace), Rules: rules}
}

func binding(name, namespace string, subjects []rbacv1.Subject) runtime.Object {
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	if namespace == "" {
		return &rbacv1.ClusterRoleBinding{
			TypeMeta: rbacType("ClusterRoleBinding"), ObjectMeta: objectMeta(name, ""), Subjects: subjects,
			RoleRef: ref,
		}
	}
	ref.Kind = "Role"
	return &rbacv1.RoleBinding{
		TypeMeta: rbacType("RoleBinding"), ObjectMeta: objectMeta(name, namespace), Subjects: subjects, RoleRef: ref,
	}
}

// rules converts permissions to a short list of rules: resources of the same group with the same verbs share a rule.
func rules(permissions []Permission) []rbacv1.PolicyRule {
	type resource struct{ group, name string }
	verbs := map[resource][]string{}
	var order []resource
	for _, p := range permissions {
		r := resource{p.Group, p.Resource}
		if _, ok := verbs[r]; !ok {
			order = append(order, r)
		}
		verbs[r] = append(verbs[r], p.Verb)
	}
	var rules []rbacv1.PolicyRule
	for _, r := range order {
		i := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool {
			return rule.APIGroups[0] == r.group && strings.Join(rule.Verbs, ",") == strings.Join(verbs[r], ",")
		})
		if i >= 0 {
			rules[i].Resources = append(rules[i].Resources, r.name)
			continue
		}
		rules = append(rules,
			rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.name}, Verbs: verbs[r]})
	}
	return rules
}

func rbacType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

func objectMeta(name, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy},
	}
}
