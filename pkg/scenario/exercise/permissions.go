package exercise

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// needed returns the permissions that the exercise itself needs, in addition to those of its steps.
func needed(ledgerNamespace string) []fault.Permission {
	var needs []fault.Permission
	for _, verb := range []string{"create", "get", "list", "update", "delete"} {
		needs = append(needs, fault.Permission{Verb: verb, Resource: "secrets", Namespace: ledgerNamespace})
	}
	return append(needs,
		// For snapshots before and after the exercise.
		fault.Permission{Verb: "list", Group: "*", Resource: "*", Optional: true},
		fault.Permission{Verb: "get", Resource: "pods/log"},
	)
}

// Permissions returns the permissions that a trainer needs for any variant of the scenarios. They cover all namespaces,
// because the names are not known in advance. They exclude those for node and process faults.
func Permissions(ledgerNamespace string, all []*scenario.Scenario) []fault.Permission {
	anywhere := scenario.Access{Namespaces: []string{""}, Read: []string{""}}
	needs := slices.Concat(access.Permissions("", anywhere),
		[]fault.Permission{{Verb: "deletecollection", Resource: "pods", Optional: true}})
	mapper := meta.NewDefaultRESTMapper(nil)
	var kind func(apiVersion, name string, verbs ...string)
	kind = func(apiVersion, name string, verbs ...string) {
		if strings.Contains(apiVersion+name, "${") { // only workloads have variable kinds
			kind("apps/v1", "Deployment", verbs...)
			kind("apps/v1", "StatefulSet", verbs...)
			kind("batch/v1", "Job", verbs...)
			return
		}
		gv, err := schema.ParseGroupVersion(apiVersion)
		if err != nil {
			return
		}
		mapper.Add(gv.WithKind(name), meta.RESTScopeNamespace)
		resource, _ := meta.UnsafeGuessKindToResource(gv.WithKind(name))
		for _, verb := range verbs {
			needs = append(needs, fault.Permission{Verb: verb, Group: gv.Group, Resource: resource.Resource})
		}
	}
	// For creating the candidate's account, and for verifying its permissions.
	for _, name := range []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} {
		kind("rbac.authorization.k8s.io/v1", name, "create", "get", "delete")
	}
	kind("v1", "ServiceAccount", "create", "get", "delete")
	for _, s := range all {
		checks := slices.Concat(s.Healthy, s.Sealed.Broken, s.Sealed.Grade.Fixed, s.Sealed.Grade.Unchanged)
		for _, step := range slices.Concat(s.Setup, s.Inject) {
			checks = append(checks, step.Wait...)
			if step.Create != nil {
				for _, o := range step.Create.Objects {
					apiVersion, _ := o["apiVersion"].(string)
					name, _ := o["kind"].(string)
					kind(apiVersion, name, "create", "get", "delete")
				}
				if step.Create.Shim != nil {
					kind("v1", "ConfigMap", "create", "get", "delete")
				}
			}
			if step.Patch != nil {
				kind(step.Patch.Object.APIVersion, step.Patch.Object.Kind, "get", "patch")
				if step.Patch.Subresource != "" { // only for nodes
					needs = append(needs, fault.Permission{Verb: "patch", Resource: "nodes/" + step.Patch.Subresource})
				}
			}
		}
		for _, c := range checks {
			switch {
			case c.Object != nil:
				kind(c.Object.APIVersion, c.Object.Kind)
			case c.Objects != nil:
				kind(c.Objects.APIVersion, c.Objects.Kind)
			}
		}
		needs = append(needs, (&check.Checker{Mapper: mapper}).Permissions(checks)...)
	}
	for i := range needs {
		needs[i].Namespace = ""
	}
	return fault.Permissions(needs, needed(ledgerNamespace))
}
