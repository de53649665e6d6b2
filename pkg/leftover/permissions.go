package leftover

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"

// Permissions returns the permissions that a Finder needs to search everywhere: to list objects in all namespaces, and
// to get the namespaces, to determine which are ledgers. If a permission is missing, the Finder reports what it did not
// search.
func Permissions() []fault.Permission {
	resources := listed()
	for _, k := range workloads() {
		resources = append(resources, k.resource)
	}
	var all []fault.Permission
	for _, resource := range resources {
		all = append(all, fault.Permission{Verb: "list", Group: resource.Group, Resource: resource.Resource})
	}
	all = append(all, fault.Permission{Verb: "get", Resource: "namespaces"}) // to determine which are ledgers
	return fault.Permissions(all)
}
