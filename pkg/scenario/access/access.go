// Package access creates the candidate's access: a ServiceAccount with the permissions that the exercise needs, and a
// kubeconfig whose token expires with the time box. The account cannot read the ledger, which contains the answer;
// Validate rejects access that could, and Verify checks the result with the API server.
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
	// enforce is the label that determines which pods a namespace admits.
	// https://kubernetes.io/docs/concepts/security/pod-security-admission/
	enforce    = "pod-security.kubernetes.io/enforce"
	baseline   = "baseline"
	restricted = "restricted"
	privileged = "privileged"
)

// Account returns the namespace and the name of the service account for an exercise. They do not reveal the scenario.
func Account(id string) (namespace, name string) {
	return "accounts-" + suffix(id), accountName
}

func suffix(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:4])
}

// User returns the user name of the account according to the API server.
func User(id string) string {
	namespace, name := Account(id)
	return "system:serviceaccount:" + namespace + ":" + name
}

// IsUser reports whether name is the user name of an exercise's account.
func IsUser(name string) bool {
	rest, is := strings.CutPrefix(name, "system:serviceaccount:accounts-")
	return is && strings.HasSuffix(rest, ":"+accountName)
}

// Objects returns the candidate's namespace and service account, roles and bindings, in the order of creation. The
// namespaces that the access lists must exist before the bindings in them are created. Objects never returns an object
// in the ledger's namespace; see Validate.
func Objects(id, ledgerNamespace string, a scenario.Access) []*unstructured.Unstructured {
	namespace, account := Account(id)
	name := "engineers-" + suffix(id) // unique, so that cluster-wide objects of exercises do not conflict
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
		bind(namespace, name, clusterRole("view")) // excludes Secrets
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

// everywhere returns rules for reading cluster-scoped objects that contain no secrets. The rules exclude nodes/proxy,
// which allows running commands in all pods.
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

// besidesAdmin returns the rules for `kubectl debug POD` and `kubectl top pods`, which the admin of a namespace lacks.
func besidesAdmin() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{
			APIGroups: []string{""}, Resources: []string{"pods/ephemeralcontainers"},
			Verbs: []string{"get", "patch", "update"},
		},
		{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
	}
}

// ofWorkload returns rules for changing one Deployment and nothing else in its namespace: no pods, no exec, no Secrets.
// (A pod template can still mount Secrets; the trainer gets a warning about this.)
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

// unstructuredOf converts objects for pkg/faults/objects. It cannot fail for the API types used here.
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

// Secure adds the Pod Security label to namespaces in which the candidate is admin. Without the label, a user who may
// create pods can become root on the nodes. The first namespace gets the privileged level if the access has NodeShell;
// stricter labels on the other namespaces are preserved.
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

// Permissions returns the permissions that the trainer needs to create Objects and Kubeconfig. A trainer who is not a
// cluster administrator also needs bind and escalate, unless the trainer already has all the permissions that the
// objects grant, because the API server prevents privilege escalation.
func Permissions(id string, a scenario.Access) []fault.Permission {
	namespace, _ := Account(id)
	all := []fault.Permission{
		{Verb: "create", Resource: "namespaces"}, {Verb: "create", Resource: "serviceaccounts", Namespace: namespace},
		{Verb: "create", Resource: "serviceaccounts/token", Namespace: namespace},
	}
	working := slices.Concat(a.Namespaces, a.Shared())
	for _, namespace := range working { // Verify checks the accounts in each of them
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
