package cuda

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// usualKinds are the usual kinds of workloads; those whose templates cannot be changed are made again, with --recreate.
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

// Permissions returns what CUDA faults in the usual kinds of workloads of a namespace need, beyond what every fault
// needs; empty is all namespaces. Secrets are not among them.
func Permissions(namespace string) []fault.Permission {
	all := append(askPermissions(namespace),
		fault.Permission{Verb: "create", Resource: "events", Namespace: namespace, Optional: true},
		// What is named, and leads up to the workload that owns it.
		fault.Permission{Verb: "get", Resource: "pods", Namespace: namespace},
		fault.Permission{Verb: "get", Group: "apps", Resource: "replicasets", Namespace: namespace},
	)
	for _, kind := range usualKinds {
		all = append(all, cudashim.Permissions(kind.GroupResource, namespace, kind.recreate)...)
	}
	return fault.Permissions(all)
}

// askPermissions returns what it takes to ask pods what the shim in them does, and to tell before the question who else
// watches over them. Exec over WebSockets is a GET.
func askPermissions(namespace string) []fault.Permission {
	return []fault.Permission{
		{Verb: "list", Resource: "pods", Namespace: namespace},
		{Verb: "create", Resource: "pods/exec", Namespace: namespace},
		{Verb: "get", Resource: "pods/exec", Namespace: namespace},
		// Of pods that crash and cannot be asked
		{Verb: "get", Resource: "pods/log", Namespace: namespace, Optional: true},
		{
			Verb: "list", Group: "autoscaling", Resource: "horizontalpodautoscalers", Namespace: namespace,
			Optional: true,
		},
		{Verb: "list", Group: "policy", Resource: "poddisruptionbudgets", Namespace: namespace, Optional: true},
	}
}
