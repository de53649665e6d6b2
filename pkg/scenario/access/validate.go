package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Validate returns what of the access cannot be given, because the answer could be read with it. It says all at once.
func Validate(a scenario.Access, ledgerNamespace string) error {
	var problems []error
	if a.Home() == "" {
		problems = append(problems,
			errors.New("access.namespaces: name at least one namespace, in which the candidate works"))
	}
	working := slices.Concat(a.Namespaces, a.Shared())
	for i, namespace := range slices.Concat(working, a.Read) {
		switch {
		case namespace == "":
			problems = append(problems, errors.New("access: an empty name of a namespace"))
		case namespace == ledgerNamespace:
			problems = append(problems,
				fmt.Errorf("access: namespace %s has the records, and the answer with them: take another one",
					namespace))
		case i < len(working) && slices.Contains([]string{"kube-system", "kube-public", "kube-node-lease"}, namespace):
			problems = append(problems, fmt.Errorf(
				"access.namespaces: who works in %s is admin of the cluster: put it into access.read", namespace,
			))
		}
	}
	if w := a.Workload; w != nil &&
		(w.Kind != "Deployment" || !strings.HasPrefix(w.APIVersion, "apps/") || w.Namespace == "" || w.Name == "") {
		problems = append(problems, fmt.Errorf("access.workload: %s %s in namespace %q: name a Deployment of apps/v1",
			w.Kind, w.Name, w.Namespace))
	}
	for i, rule := range a.Rules {
		if why := tooMuch(rule); why != "" {
			problems = append(problems, fmt.Errorf("access.rules[%d]: %s", i, why))
		}
	}
	return errors.Join(problems...)
}

// isKubernetesOwn reports whether a ClusterRole is one that clusters have anyway, whose rights are not the scenario's
// to know.
func isKubernetesOwn(role string) bool {
	return slices.Contains([]string{"*", "cluster-admin", "admin", "edit", "view"}, role) ||
		strings.HasPrefix(role, "system:")
}

// tooMuch returns why a rule for the whole cluster opens the ledger as well; empty when it does not.
func tooMuch(rule rbacv1.PolicyRule) string {
	has := func(list []string, any ...string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return s == "*" || slices.Contains(any, s) })
	}
	core := has(rule.APIGroups, "")
	// By name is fine: nobody knows the names of records beforehand.
	reads := has(rule.Verbs, "get", "list", "watch") &&
		(len(rule.ResourceNames) == 0 || has(rule.Verbs, "list", "watch"))
	makes := has(rule.Verbs, "create", "update", "patch")
	// deletecollection also answers with what it deleted
	changes := makes || has(rule.Verbs, "delete", "deletecollection")
	base := func(resource string) bool {
		return slices.ContainsFunc(rule.Resources, func(r string) bool {
			name, _, _ := strings.Cut(r, "/")
			return name == "*" || name == resource
		})
	}
	const instead = "put the namespace into access.namespaces or access.read, or make a Role in setup"
	switch {
	case has(rule.Verbs, "escalate", "impersonate"):
		return "with escalate or impersonate a candidate becomes anybody: leave them out"
	case has(rule.Verbs, "bind") &&
		(len(rule.ResourceNames) == 0 || slices.ContainsFunc(rule.ResourceNames, isKubernetesOwn)):
		return "with bind a candidate gives itself any role, and edit has Secrets: name in resourceNames a ClusterRole of the scenario's own"
	case core && reads &&
		(base("secrets") || base("configmaps") || base("pods") || base("events") || base("replicationcontrollers")):
		return "the ledger's namespace could be read with it: " + instead
	case reads &&
		(has(rule.APIGroups, "events.k8s.io", "coordination.k8s.io") || has(rule.APIGroups, "batch") && base("jobs")):
		return "the ledger's namespace could be read with it: " + instead
	case core && changes && (base("secrets") || base("configmaps")):
		return "the ledger could be forged or deleted with it: " + instead
	case core && makes && base("persistentvolumes"):
		return "a hostPath volume is the files of a node: leave it out"
	case core && makes && base("pods"):
		return "pods in the ledger's namespace could be made with it: " + instead
	case core && makes && base("serviceaccounts") && has(rule.Resources, "serviceaccounts/token"):
		return "a token of any service account could be made with it: leave it out"
	case has(rule.APIGroups, "apps", "batch") && makes:
		return "workloads in the ledger's namespace could be made with it: " + instead
	case core && (has(rule.Resources, "nodes/proxy", "*/*", "nodes/*")):
		return "with nodes/proxy a candidate runs commands in all pods: leave it out, or set access.nodeShell"
	case core && changes && base("namespaces"):
		return "who may change namespaces takes the limits of Pod Security away: let setup create them"
	case has(rule.APIGroups, "certificates.k8s.io", "admissionregistration.k8s.io", "apiregistration.k8s.io") && makes:
		return "certificates, webhooks and API services see or become everything: leave them out"
	}
	return ""
}
