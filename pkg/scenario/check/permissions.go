package check

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Permissions returns the permissions that checks need, except for kinds that do not exist in the cluster.
func (c *Checker) Permissions(checks []scenario.Check) []fault.Permission {
	var needs []fault.Permission
	add := func(namespace, resource string, verbs ...string) {
		for _, verb := range verbs {
			needs = append(needs, fault.Permission{Verb: verb, Resource: resource, Namespace: namespace})
		}
	}
	pod := func(namespace string) {
		add(namespace, "pods", "create", "get", "delete")
		needs = append(needs,
			fault.Permission{Verb: "deletecollection", Resource: "events", Namespace: namespace, Optional: true})
	}
	for _, one := range checks {
		for _, more := range one.With {
			needs = append(needs, c.read("list", more.APIVersion, more.Kind, more.Namespace)...)
		}
		switch {
		case one.Object != nil:
			needs = append(needs, c.read("get", one.Object.APIVersion, one.Object.Kind, one.Object.Namespace)...)
		case one.Objects != nil:
			needs = append(needs, c.read("list", one.Objects.APIVersion, one.Objects.Kind, one.Objects.Namespace)...)
		case one.Logs != nil:
			add(one.Logs.Namespace, "pods", "get", "list")
			add(one.Logs.Namespace, "pods/log", "get")
		case one.Events != nil:
			add(one.Events.Namespace, "events", "list")
		case one.Exec != nil:
			add(one.Exec.Namespace, "pods", "get", "list")
			add(one.Exec.Namespace, "pods/exec", "create", "get") // SPDY uses POST, WebSocket uses GET
		case one.HTTP != nil && one.HTTP.Service != "":
			add(one.HTTP.Namespace, "services/proxy", "get")
		case one.HTTP != nil:
			pod(one.HTTP.Namespace)
			add(one.HTTP.Namespace, "pods/exec", "create", "get")
			add("", "nodes", "list")
		case one.Can != nil:
			needs = append(needs,
				fault.Permission{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"})
		case one.Probe != nil:
			namespace, _ := nested(one.Probe.Pod, "metadata", "namespace").(string)
			pod(namespace)
			add(namespace, "pods/log", "get")
			add(namespace, "events", "list")
		}
	}
	return fault.Permissions(needs)
}

// read returns the permission to read a kind.
func (c *Checker) read(verb, apiVersion, kind, namespace string) []fault.Permission {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil
	}
	mapping, err := c.Mapper.RESTMapping(gv.WithKind(kind).GroupKind(), gv.Version)
	if err != nil {
		return nil
	}
	return []fault.Permission{{Verb: verb, Group: gv.Group, Resource: mapping.Resource.Resource, Namespace: namespace}}
}
