// Package access makes what a candidate works with: a service account with as many rights as the exercise needs, and a
// kubeconfig whose token ends with the time box. Neither can read the ledger, where the answer is; Validate refuses
// what could, and Verify asks the API server whether it is so.
package access

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

const (
	accountName = "engineer"
	// enforce is the label by which a namespace says what pods it admits.
	// https://kubernetes.io/docs/concepts/security/pod-security-admission/
	enforce    = "pod-security.kubernetes.io/enforce"
	baseline   = "baseline"
	restricted = "restricted"
	privileged = "privileged"
)

// Account returns the namespace and the name of the service account of an exercise. They tell nothing of it.
func Account(id string) (namespace, name string) {
	return "accounts-" + suffix(id), accountName
}

func suffix(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:4])
}

// User returns the account as the API server names it.
func User(id string) string {
	namespace, name := Account(id)
	return "system:serviceaccount:" + namespace + ":" + name
}

// IsUser reports whether the API server names the account of an exercise so.
func IsUser(name string) bool {
	rest, is := strings.CutPrefix(name, "system:serviceaccount:accounts-")
	return is && strings.HasSuffix(rest, ":"+accountName)
}

// Objects returns a namespace with the candidate's service account, its roles and their bindings, in the order in which
// they are created. The namespaces of the access must exist before the bindings in them are created. Of the ledger's
// namespace there is never one; see Validate.
func Objects(id, ledgerNamespace string, a scenario.Access) []*unstructured.Unstructured {
	namespace, account := Account(id)
	name := "engineers-" + suffix(id) // one for all: what is cluster-wide must not meet another exercise's
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}}
	all := []runtime.Object{
		&corev1.Namespace{
			TypeMeta:   kind("v1", "Namespace"),
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{enforce: restricted}},
		},
		&corev1.ServiceAccount{
			TypeMeta: kind("v1", "ServiceAccount"), ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace},
		},
		&rbacv1.ClusterRole{
			TypeMeta: kind(rbac, "ClusterRole"), ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: append(everywhere(), a.Rules...),
		},
		&rbacv1.ClusterRoleBinding{
			TypeMeta: kind(rbac, "ClusterRoleBinding"), ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
			RoleRef: clusterRole(name),
		},
	}
	bind := func(namespace, name string, role rbacv1.RoleRef) {
		all = append(all, &rbacv1.RoleBinding{
			TypeMeta: kind(rbac, "RoleBinding"), ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Subjects: subjects, RoleRef: role,
		})
	}
	for i, namespace := range a.Namespaces {
		if namespace == ledgerNamespace || slices.Contains(a.Namespaces[:i], namespace) {
			continue
		}
		bind(namespace, name, clusterRole("admin"))
		all = append(all, &rbacv1.Role{
			TypeMeta: kind(rbac, "Role"), ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Rules: besidesAdmin(),
		})
		bind(namespace, name+"-debug", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name})
	}
	for _, namespace := range a.Shared() {
		if namespace == ledgerNamespace {
			continue
		}
		bind(namespace, name, clusterRole("view")) // which has no Secrets
		all = append(all, &rbacv1.Role{
			TypeMeta: kind(rbac, "Role"), ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Rules: ofWorkload(a.Workload.Name),
		})
		bind(namespace, name+"-workload", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name})
	}
	for i, namespace := range a.Read {
		if namespace != ledgerNamespace && !slices.Contains(a.Read[:i], namespace) &&
			!slices.Contains(a.Namespaces, namespace) && !slices.Contains(a.Shared(), namespace) {
			bind(namespace, name, clusterRole("view"))
		}
	}
	return unstructuredOf(all)
}

const rbac = "rbac.authorization.k8s.io/v1"

func kind(api, name string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: api, Kind: name} }

func clusterRole(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}

// everywhere returns what may be read in the whole cluster: what has no namespace and no secrets. nodes/proxy is not
// among it: who may use it runs commands in all pods.
func everywhere() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "namespaces", "persistentvolumes"}, Verbs: read},
		{
			APIGroups: []string{"storage.k8s.io"},
			Resources: []string{"storageclasses", "csidrivers", "csinodes", "volumeattachments"}, Verbs: read,
		},
		{APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"}, Verbs: read},
		{APIGroups: []string{"scheduling.k8s.io"}, Resources: []string{"priorityclasses"}, Verbs: read},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"ingressclasses"}, Verbs: read},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"deviceclasses", "resourceslices"}, Verbs: read},
		{
			APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles", "clusterrolebindings"},
			Verbs: read,
		},
		{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: read},
		{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
	}
}

// besidesAdmin returns what the admin of a namespace lacks and needs: `kubectl debug POD` and `kubectl top pods`.
func besidesAdmin() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{
			APIGroups: []string{""}, Resources: []string{"pods/ephemeralcontainers"},
			Verbs: []string{"get", "patch", "update"},
		},
		{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
	}
}

// ofWorkload returns what changes one Deployment, and nothing else of its namespace: no pods, no exec, no Secrets. (Who
// changes a pod template can mount Secrets in it all the same, and is told so before.)
func ofWorkload(name string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{
			APIGroups: []string{"apps"}, Resources: []string{"deployments"}, ResourceNames: []string{name},
			Verbs: []string{"patch", "update"},
		},
		{
			APIGroups: []string{"apps"}, Resources: []string{"deployments/scale"}, ResourceNames: []string{name},
			Verbs: []string{"get", "patch", "update"},
		},
	}
}

// unstructuredOf turns objects into what pkg/faults/objects creates. It cannot fail for those of the API, which are all
// that is given.
func unstructuredOf(all []runtime.Object) []*unstructured.Unstructured {
	var converted []*unstructured.Unstructured
	for _, object := range all {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			continue
		}
		delete(fields, "status")
		unstructured.RemoveNestedField(fields, "spec")
		unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
		converted = append(converted, &unstructured.Unstructured{Object: fields})
	}
	return converted
}

// Secure adds the label of Pod Security to those namespaces among the objects in which the candidate is admin: without
// it who may create pods is root on the nodes. The first gets privileged when the access has NodeShell; of the others
// those that are stricter stay as they are.
func Secure(objects []*unstructured.Unstructured, a scenario.Access) {
	for _, o := range objects {
		at := slices.Index(a.Namespaces, o.GetName())
		if o.GetKind() != "Namespace" || o.GetAPIVersion() != "v1" || at < 0 {
			continue
		}
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		switch {
		case a.NodeShell && at == 0:
			labels[enforce] = privileged
		case labels[enforce] != restricted:
			labels[enforce] = baseline
		}
		o.SetLabels(labels)
	}
}

// Permissions returns those the trainer needs to make Objects and Kubeconfig. Who is not the cluster's administrator
// needs bind and escalate as well, unless they have all that is given: the API server lets nobody give what they do not
// have.
func Permissions(id string, a scenario.Access) []fault.Permission {
	namespace, _ := Account(id)
	all := []fault.Permission{
		{Verb: "create", Resource: "namespaces"}, {Verb: "create", Resource: "serviceaccounts", Namespace: namespace},
		{Verb: "create", Resource: "serviceaccounts/token", Namespace: namespace},
	}
	working := slices.Concat(a.Namespaces, a.Shared())
	for _, namespace := range working { // Verify asks for each of their accounts
		all = append(all, fault.Permission{Verb: "list", Resource: "serviceaccounts", Namespace: namespace})
	}
	for _, verb := range []string{"create", "delete"} {
		for _, resource := range []string{"clusterroles", "clusterrolebindings"} {
			all = append(all, fault.Permission{Verb: verb, Group: rbacv1.GroupName, Resource: resource})
		}
		for _, namespace := range working {
			all = append(all,
				fault.Permission{Verb: verb, Group: rbacv1.GroupName, Resource: "roles", Namespace: namespace})
		}
		for _, namespace := range slices.Concat(working, a.Read) {
			all = append(all,
				fault.Permission{Verb: verb, Group: rbacv1.GroupName, Resource: "rolebindings", Namespace: namespace})
		}
	}
	for _, namespace := range working {
		for _, verb := range []string{"bind", "escalate"} {
			all = append(all, fault.Permission{
				Verb: verb, Group: rbacv1.GroupName, Resource: "roles", Namespace: namespace, Optional: true,
			})
		}
	}
	return append(all,
		fault.Permission{Verb: "bind", Group: rbacv1.GroupName, Resource: "clusterroles", Optional: true},
		fault.Permission{Verb: "escalate", Group: rbacv1.GroupName, Resource: "clusterroles", Optional: true})
}
