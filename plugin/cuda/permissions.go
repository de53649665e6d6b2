package cuda

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"

// Permissions are what CUDA faults in the usual kinds of workloads of a namespace need, beyond what every fault needs; empty is all
// namespaces. Secrets are not among them.
func Permissions(namespace string) []fault.Permission {
	all := askPermissions(namespace)
	add := func(group, resource string, verbs ...string) {
		for _, verb := range verbs {
			all = append(all, fault.Permission{Verb: verb, Group: group, Resource: resource, Namespace: namespace})
		}
	}
	add("", "configmaps", "create", "get", "update", "delete")
	add("", "pods", "get", "patch")
	add("", "events", "create", "list")
	for _, kind := range []struct{ group, resource string }{
		{"apps", "deployments"}, {"apps", "statefulsets"}, {"apps", "daemonsets"}, {"apps", "replicasets"}, {"batch", "cronjobs"},
		{"leaderworkerset.x-k8s.io", "leaderworkersets"}, {"kubeflow.org", "pytorchjobs"}, {"kubeflow.org", "mpijobs"},
		{"ray.io", "rayclusters"}, {"nvidia.com", "dynamographdeployments"},
	} {
		add(kind.group, kind.resource, "get", "patch")
	}
	for _, kind := range []struct{ group, resource string }{{"batch", "jobs"}, {"jobset.x-k8s.io", "jobsets"}} { // made again with --recreate
		add(kind.group, kind.resource, "get", "patch", "create", "delete")
	}
	add("autoscaling", "horizontalpodautoscalers", "list") // for notes before the question
	add("policy", "poddisruptionbudgets", "list")
	return all
}
