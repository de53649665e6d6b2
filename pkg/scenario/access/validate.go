package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Validate returns an error for each part of the access that would allow reading the answer.
func Validate(a scenario.Access, ledgerNamespace string) error {
	var problems []error
	if a.Home() == "" {
		problems = append(problems,
			errors.New("access.namespaces: must have at least one namespace for the candidate"))
	}
	working := slices.Concat(a.Namespaces, a.Shared())
	for i, namespace := range slices.Concat(working, a.Read) {
		switch {
		case namespace == "":
			problems = append(problems, errors.New("access: namespace must not be empty"))
		case namespace == ledgerNamespace:
			problems = append(problems,
				fmt.Errorf("access: namespace %q contains the ledger with the answer: specify another namespace",
					namespace))
		case i < len(working) && slices.Contains([]string{"kube-system", "kube-public", "kube-node-lease"}, namespace):
			problems = append(problems, fmt.Errorf(
				"access.namespaces: an admin of namespace %q is an admin of the cluster: move the namespace to "+
					"access.read",
				namespace,
			))
		}
	}
	if w := a.Workload; w != nil &&
		(w.Kind != "Deployment" || !strings.HasPrefix(w.APIVersion, "apps/") || w.Namespace == "" || w.Name == "") {
		problems = append(problems,
			fmt.Errorf("access.workload: %s %s in namespace %q: must be a Deployment of apps/v1",
				w.Kind, w.Name, w.Namespace))
	}
	for i, rule := range a.Rules {
		if why := tooMuch(rule); why != "" {
			problems = append(problems, fmt.Errorf("access.rules[%d]: %s", i, why))
		}
	}
	return errors.Join(problems...)
}

// isKubernetesOwn reports whether a ClusterRole is one of Kubernetes' defaults, whose rules the scenario does not
// define.
func isKubernetesOwn(role string) bool {
	return slices.Contains([]string{"*", "cluster-admin", "admin", "edit", "view"}, role) ||
		strings.HasPrefix(role, "system:")
}

// tooMuch returns the reason why a cluster-wide rule also gives access to the ledger, or "".
func tooMuch(rule rbacv1.PolicyRule) string {
	has := func(list []string, any ...string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return s == "*" || slices.Contains(any, s) })
	}
	core := has(rule.APIGroups, "")
	// Access by name is allowed, because the names of records are not known in advance.
	reads := has(rule.Verbs, "get", "list", "watch") &&
		(len(rule.ResourceNames) == 0 || has(rule.Verbs, "list", "watch"))
	makes := has(rule.Verbs, "create", "update", "patch")
	// deletecollection also returns the deleted objects.
	changes := makes || has(rule.Verbs, "delete", "deletecollection")
	base := func(resource string) bool {
		return slices.ContainsFunc(rule.Resources, func(r string) bool {
			name, _, _ := strings.Cut(r, "/")
			return name == "*" || name == resource
		})
	}
	const instead = "add the namespace to access.namespaces or access.read, or create a Role in setup"
	switch {
	case has(rule.Verbs, "escalate", "impersonate"):
		return "escalate and impersonate allow privilege escalation: remove them"
	case has(rule.Verbs, "bind") &&
		(len(rule.ResourceNames) == 0 || slices.ContainsFunc(rule.ResourceNames, isKubernetesOwn)):
		return "bind allows the candidate to bind any role, including edit, which can read Secrets: set resourceNames to a ClusterRole from the scenario"
	case core && reads &&
		(base("secrets") || base("configmaps") || base("pods") || base("events") || base("replicationcontrollers")):
		return "the rule gives read access to the ledger's namespace: " + instead
	case reads &&
		(has(rule.APIGroups, "events.k8s.io", "coordination.k8s.io") || has(rule.APIGroups, "batch") && base("jobs")):
		return "the rule gives read access to the ledger's namespace: " + instead
	case core && changes && (base("secrets") || base("configmaps")):
		return "the rule allows changing or deleting the ledger: " + instead
	case core && makes && base("persistentvolumes"):
		return "a hostPath volume gives access to files on a node: remove it"
	case core && makes && base("pods"):
		return "the rule allows creating pods in the ledger's namespace: " + instead
	case core && makes && base("serviceaccounts") && has(rule.Resources, "serviceaccounts/token"):
		return "the rule allows creating a token for any service account: remove it"
	case has(rule.APIGroups, "apps", "batch") && makes:
		return "the rule allows creating workloads in the ledger's namespace: " + instead
	case core && (has(rule.Resources, "nodes/proxy", "*/*", "nodes/*")):
		return "nodes/proxy allows running commands in all pods: remove it, or set access.nodeShell"
	case core && changes && base("namespaces"):
		return "changing namespaces allows removing Pod Security labels: create the namespaces in setup"
	case has(rule.APIGroups, "certificates.k8s.io", "admissionregistration.k8s.io", "apiregistration.k8s.io") && makes:
		return "certificates, webhooks and API services give access to the whole cluster: remove them"
	}
	return ""
}
