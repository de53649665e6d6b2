package cuda

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// usualKinds are the common kinds of workloads. Workloads with immutable templates are recreated if --recreate is set.
var usualKinds = []struct {
	schema.GroupResource
	recreate bool
}{
	{schema.GroupResource{Group: "apps", Resource: "deployments"}, false},
	{schema.GroupResource{Group: "apps", Resource: "statefulsets"}, false},
	{schema.GroupResource{Group: "apps", Resource: "daemonsets"}, false},
	{schema.GroupResource{Group: "batch", Resource: "cronjobs"}, false},
	{schema.GroupResource{Group: "batch", Resource: "jobs"}, true},
	{schema.GroupResource{Group: "jobset.x-k8s.io", Resource: "jobsets"}, true},
	{schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}, false},
	{schema.GroupResource{Group: "kubeflow.org", Resource: "pytorchjobs"}, false},
	{schema.GroupResource{Group: "kubeflow.org", Resource: "mpijobs"}, false},
	{schema.GroupResource{Group: "ray.io", Resource: "rayclusters"}, false},
	{schema.GroupResource{Group: "nvidia.com", Resource: "dynamographdeployments"}, false},
}

// Permissions returns the permissions that are required for CUDA faults in the common kinds of workloads in a
// namespace, in addition to those for every fault. An empty namespace means all namespaces. No permission for Secrets
// is needed.
func Permissions(namespace string) []fault.Permission {
	all := append(askPermissions(namespace),
		fault.Permission{Verb: "create", Resource: "events", Namespace: namespace, Optional: true},
		// Required to find the workload that owns the specified pod or ReplicaSet.
		fault.Permission{Verb: "get", Resource: "pods", Namespace: namespace},
		fault.Permission{Verb: "get", Group: "apps", Resource: "replicasets", Namespace: namespace},
	)
	for _, kind := range usualKinds {
		all = append(all, cudashim.Permissions(kind.GroupResource, namespace, kind.recreate)...)
	}
	return fault.Permissions(all)
}

// askPermissions returns the permissions for querying the shim in pods, and for listing the autoscalers and disruption
// budgets shown before the confirmation. Exec over WebSockets is a GET.
func askPermissions(namespace string) []fault.Permission {
	return []fault.Permission{
		{Verb: "list", Resource: "pods", Namespace: namespace},
		{Verb: "create", Resource: "pods/exec", Namespace: namespace},
		{Verb: "get", Resource: "pods/exec", Namespace: namespace},
		// Required for crashing pods, in which exec fails.
		{Verb: "get", Resource: "pods/log", Namespace: namespace, Optional: true},
		{
			Verb: "list", Group: "autoscaling", Resource: "horizontalpodautoscalers", Namespace: namespace,
			Optional: true,
		},
		{Verb: "list", Group: "policy", Resource: "poddisruptionbudgets", Namespace: namespace, Optional: true},
	}
}
