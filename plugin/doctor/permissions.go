package doctor

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"

// Permissions returns what doctor needs to see all: to list, to read logs, and to get the ConfigMaps that pods mount
// and the Services that they ask for in vain; and unless apiOnly to have pods read nodes. It can do without each of
// those that read the API, and says then what it could not see. The right to read secrets, in which Helm keeps its
// releases, is left out on purpose.
func Permissions(ledgerNamespace string, apiOnly bool) []fault.Permission {
	all := []fault.Permission{
		{Verb: "get", Resource: "pods/log", Optional: true},
		{Verb: "get", Resource: "services", Optional: true},
		{Verb: "get", Resource: "configmaps", Optional: true},
	}
	for group, resources := range map[string][]string{
		"": {
			"nodes", "namespaces", "pods", "events", "configmaps", "resourcequotas", "limitranges",
		},
		"apps":                  {"daemonsets"},
		"networking.k8s.io":     {"networkpolicies"},
		"node.k8s.io":           {"runtimeclasses"},
		"resource.k8s.io":       {"resourceslices", "resourceclaims", "deviceclasses"},
		"nvidia.com":            {"clusterpolicies", "nvidiadrivers"},
		"resource.nvidia.com":   {"computedomains"},
		"monitoring.coreos.com": {"servicemonitors", "prometheuses"},
	} {
		for _, resource := range resources {
			all = append(all, fault.Permission{Verb: "list", Group: group, Resource: resource, Optional: true})
		}
	}
	if apiOnly {
		return fault.Permissions(all)
	}
	return fault.Permissions(all, podPermissions(ledgerNamespace))
}

// podPermissions returns what the pods take that read nodes, in a ledger namespace that exists.
func podPermissions(namespace string) []fault.Permission {
	all := []fault.Permission{{Verb: "get", Resource: "nodes"}, {Verb: "get", Resource: "namespaces"}}
	for _, p := range fault.DebugPodPermissions(namespace) {
		if p.Group != "batch" { // doctor's pods belong to no run
			all = append(all, p)
		}
	}
	return all
}
