package doctor

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"

// Permissions returns the permissions that doctor needs for all its checks: to list objects, to read logs, and to get
// the ConfigMaps that pods mount, CoreDNS's ConfigMap, the Services that pods fail to reach and the volumes that keep
// pods from being scheduled. Unless apiOnly is set, it includes the permissions to read nodes through pods. Permissions
// to read the API are optional; doctor reports what it could not read. Permission to read Secrets, in which Helm stores
// releases, is omitted on purpose.
func Permissions(ledgerNamespace string, apiOnly bool) []fault.Permission {
	all := []fault.Permission{
		{Verb: "get", Resource: "pods/log", Optional: true},
		{Verb: "get", Resource: "services", Optional: true},
		{Verb: "get", Resource: "configmaps", Optional: true},
		{Verb: "get", Resource: "persistentvolumeclaims", Optional: true},
		{Verb: "get", Resource: "persistentvolumes", Optional: true},
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
		"kueue.x-k8s.io":        {"clusterqueues", "localqueues", "resourceflavors", "workloads"},
		"scheduling.run.ai":     {"queues", "podgroups"},
		"scheduling.volcano.sh": {"queues", "podgroups"},
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

// podPermissions returns the permissions for pods that read nodes, in an existing ledger namespace.
func podPermissions(namespace string) []fault.Permission {
	all := []fault.Permission{{Verb: "get", Resource: "nodes"}, {Verb: "get", Resource: "namespaces"}}
	for _, p := range fault.DebugPodPermissions(namespace) {
		if p.Group != "batch" { // pods of doctor do not belong to a run
			all = append(all, p)
		}
	}
	return all
}
