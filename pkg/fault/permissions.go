package fault

import (
	"cmp"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// BasePermissions returns the permissions that a Session needs to run and revert any plan if the ledger namespace
// exists.
func BasePermissions(ledgerNamespace string) []Permission {
	base := []Permission{
		{Verb: "list", Resource: "nodes"},
		{Verb: "create", Resource: "configmaps", Namespace: ledgerNamespace},
		{Verb: "delete", Resource: "configmaps", Namespace: ledgerNamespace, Optional: true}, // to prune old records
	}
	for _, verb := range []string{"create", "update"} {
		base = append(base, Permission{Verb: verb, Group: groupLeases, Resource: "leases", Namespace: ledgerNamespace})
	}
	return Permissions(base, RevertPermissions(ledgerNamespace))
}

// RevertPermissions returns the permissions that Revert needs for every run: to take over the run, delete leftover
// debug pods, release the locks, and close the record. An Undoer that needs more permissions implements Needer.
func RevertPermissions(ledgerNamespace string) []Permission {
	all := []Permission{
		{Verb: "get", Resource: "nodes"},      // to check that the node is still the same
		{Verb: "get", Resource: "namespaces"}, // to check that the namespace is marked as a ledger
		// The Job deletes the run's resources when its TTL expires.
		{Verb: "get", Group: "batch", Resource: "jobs", Namespace: ledgerNamespace, Optional: true},
		{Verb: "delete", Group: "batch", Resource: "jobs", Namespace: ledgerNamespace, Optional: true},
		{Verb: "create", Resource: "events", Namespace: nodeEvents, Optional: true},
	}
	for _, verb := range []string{"list", "delete"} {
		all = append(all, Permission{Verb: verb, Resource: "pods", Namespace: ledgerNamespace})
	}
	for _, verb := range []string{"get", "list", "delete"} {
		all = append(all, Permission{Verb: verb, Group: groupLeases, Resource: "leases", Namespace: ledgerNamespace})
	}
	return Permissions(all, []Permission{{Verb: "update", Resource: "configmaps", Namespace: ledgerNamespace}},
		ReadPermissions(ledgerNamespace))
}

// ReadPermissions returns the permissions for reading the ledger. An empty namespace means the ledgers in all
// namespaces.
func ReadPermissions(ledgerNamespace string) []Permission {
	return []Permission{
		{Verb: "get", Resource: "configmaps", Namespace: ledgerNamespace},
		{Verb: "list", Resource: "configmaps", Namespace: ledgerNamespace},
	}
}

const groupLeases = "coordination.k8s.io"

// DebugPodPermissions returns the permissions that a fault needs to work on nodes through debug pods. Exec over
// WebSockets is a GET request. A user with these permissions is root on the nodes, either through a pod or through the
// Job that owns the pod.
func DebugPodPermissions(namespace string) []Permission {
	// Events show why a pod does not start.
	all := []Permission{{Verb: "list", Resource: "events", Namespace: namespace, Optional: true}}
	for _, verb := range []string{"create", "get", "list", "watch", "delete"} {
		all = append(all, Permission{Verb: verb, Resource: "pods", Namespace: namespace})
	}
	for _, verb := range []string{"create", "get"} {
		all = append(all, Permission{Verb: verb, Resource: "pods/exec", Namespace: namespace})
	}
	// The Job deletes the run's resources when its TTL expires.
	for _, verb := range []string{"create", "delete", "patch"} {
		all = append(all,
			Permission{Verb: verb, Group: "batch", Resource: "jobs", Namespace: namespace, Optional: true})
	}
	return all
}

// namespaceCreation returns the additional permissions for the first run in a cluster. `rbac print` omits them because
// its manifest includes the namespace.
func namespaceCreation(ledgerNamespace string) []Permission {
	return []Permission{
		{Verb: "create", Resource: "namespaces"},
		{Verb: "get", Resource: "serviceaccounts", Namespace: ledgerNamespace},
	}
}

// PlanPermissions returns all permissions that a plan needs.
func PlanPermissions(plan Plan, ledgerNamespace string) []Permission {
	var events []Permission
	for _, change := range plan.Changes {
		if namespace := change.Target.Namespace; namespace != "" && !plan.Quiet {
			events = append(events,
				Permission{Verb: "create", Resource: "events", Namespace: namespace, Optional: true})
		}
	}
	return Permissions(BasePermissions(ledgerNamespace), namespaceCreation(ledgerNamespace), plan.Needs, events)
}

// Permissions merges lists into one sorted list without duplicates. A permission is optional only if it is optional in
// all lists.
func Permissions(lists ...[]Permission) []Permission {
	required := map[Permission]bool{}
	for _, p := range slices.Concat(lists...) {
		key := p
		key.Optional = false
		required[key] = required[key] || !p.Optional
	}
	var all []Permission
	for p, isRequired := range required {
		p.Optional = !isRequired
		all = append(all, p)
	}
	sorting.Func(all, func(a, b Permission) int {
		return cmp.Or(
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource),
			cmp.Compare(a.Verb, b.Verb),
		)
	})
	return all
}
