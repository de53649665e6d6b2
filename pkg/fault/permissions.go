package fault

import (
	"cmp"
	"slices"
)

// BasePermissions returns what a Session itself needs to run a plan and to revert it, whatever the fault, in a ledger
// namespace that exists.
func BasePermissions(ledgerNamespace string) []Permission {
	base := []Permission{
		{Verb: "list", Resource: "nodes"},
		{Verb: "create", Resource: "configmaps", Namespace: ledgerNamespace},
		{Verb: "delete", Resource: "configmaps", Namespace: ledgerNamespace, Optional: true}, // to forget old records
	}
	for _, verb := range []string{"create", "update"} {
		base = append(base, Permission{Verb: verb, Group: groupLeases, Resource: "leases", Namespace: ledgerNamespace})
	}
	return Permissions(base, RevertPermissions(ledgerNamespace))
}

// RevertPermissions returns what Revert needs of every run, whatever its fault: to take it over, to delete what a dead
// client left, to free the locks, and to close the record. What an undo needs besides is its Undoer's to say: see
// Needer.
func RevertPermissions(ledgerNamespace string) []Permission {
	all := []Permission{
		{Verb: "get", Resource: "nodes"},      // is it still the same node?
		{Verb: "get", Resource: "namespaces"}, // is the namespace marked as a ledger?
		// That would end the run's time
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

// ReadPermissions returns what it takes to read the ledger; an empty namespace means those of all.
func ReadPermissions(ledgerNamespace string) []Permission {
	return []Permission{
		{Verb: "get", Resource: "configmaps", Namespace: ledgerNamespace},
		{Verb: "list", Resource: "configmaps", Namespace: ledgerNamespace},
	}
}

const groupLeases = "coordination.k8s.io"

// DebugPodPermissions returns what a fault needs that works on nodes through debug pods. Exec over WebSockets is a GET.
// Who has them is root on the nodes, by such a pod or by the Job that owns it.
func DebugPodPermissions(namespace string) []Permission {
	// tell why a pod does not start
	all := []Permission{{Verb: "list", Resource: "events", Namespace: namespace, Optional: true}}
	for _, verb := range []string{"create", "get", "list", "watch", "delete"} {
		all = append(all, Permission{Verb: verb, Resource: "pods", Namespace: namespace})
	}
	for _, verb := range []string{"create", "get"} {
		all = append(all, Permission{Verb: verb, Resource: "pods/exec", Namespace: namespace})
	}
	// So that what belongs to the run goes away when its time is up
	for _, verb := range []string{"create", "delete", "patch"} {
		all = append(all,
			Permission{Verb: verb, Group: "batch", Resource: "jobs", Namespace: namespace, Optional: true})
	}
	return all
}

// namespaceCreation returns what the very first run in a cluster needs. `rbac print` leaves it out: its list holds the
// namespace.
func namespaceCreation(ledgerNamespace string) []Permission {
	return []Permission{
		{Verb: "create", Resource: "namespaces"},
		{Verb: "get", Resource: "serviceaccounts", Namespace: ledgerNamespace},
	}
}

// PlanPermissions returns what a plan needs in all.
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

// Permissions joins lists into one that is sorted and has no duplicates. What one list requires is not optional.
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
	slices.SortFunc(all, func(a, b Permission) int {
		return cmp.Or(
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource),
			cmp.Compare(a.Verb, b.Verb),
		)
	})
	return all
}
