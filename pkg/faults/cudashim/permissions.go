package cudashim

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Permissions returns the permissions that the injection and its undo need, for use in a fault.Plan.
func (in *Injection) Permissions() []fault.Permission {
	return Permissions(in.Workload.Resource.GroupResource(), in.Workload.Object.GetNamespace(), in.Recreate)
}

// Permissions returns the permissions to inject the shim into workloads of a kind in a namespace, and to remove it.
// recreate is for kinds whose templates are immutable. An empty namespace means all namespaces.
func Permissions(kind schema.GroupResource, namespace string, recreate bool) []fault.Permission {
	all := []fault.Permission{
		{Verb: "list", Resource: "pods", Namespace: namespace},
		// Required for the state to reach pods within a second instead of a minute.
		{Verb: "patch", Resource: "pods", Namespace: namespace, Optional: true},
		{Verb: "list", Resource: "events", Namespace: namespace, Optional: true}, // to see why pods are not created
	}
	for _, verb := range []string{"create", "get", "update", "delete"} {
		all = append(all, fault.Permission{Verb: verb, Resource: "configmaps", Namespace: namespace})
	}
	verbs := []string{"get", "patch"}
	if recreate {
		verbs = append(verbs, "create", "delete")
	}
	for _, verb := range verbs {
		all = append(all,
			fault.Permission{Verb: verb, Group: kind.Group, Resource: kind.Resource, Namespace: namespace})
	}
	return all
}

var _ fault.Needer = Undoer{}

// Needs implements fault.Needer.
func (u Undoer) Needs(step ledger.Step, _ string) []fault.Permission {
	d, err := ReadData(step)
	if err != nil || d == nil { // Undo reports the error or does nothing
		return nil
	}
	kind := schema.GroupResource{Group: d.Group, Resource: d.Resource}
	return slices.DeleteFunc(Permissions(kind, d.Namespace, d.Recreated != nil), func(p fault.Permission) bool {
		return p.Verb == "create" && p.Resource == "configmaps" // an undo only deletes ConfigMaps
	})
}

// Feature implements fault.Needer.
func (Undoer) Feature() string { return "cuda" }
