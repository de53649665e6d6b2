package leftover

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"

// Permissions are what a Finder needs to look everywhere: to list, in all namespaces. Without one of them it says where it did not
// look.
func Permissions() []fault.Permission {
	resources := listed()
	for _, k := range workloads() {
		resources = append(resources, k.resource)
	}
	var all []fault.Permission
	for _, resource := range resources {
		all = append(all, fault.Permission{Verb: "list", Group: resource.Group, Resource: resource.Resource})
	}
	return fault.Permissions(all)
}
