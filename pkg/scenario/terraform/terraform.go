// Package terraform writes and reads small Terraform modules: objects of a cluster as resources of provider kubernetes,
// and what stands for them in a cloud as resources of provider google.
//
// Reading evaluates: variables, locals, for_each, dynamic blocks and the usual functions count by their values, so that
// two texts which mean the same are the same. No provider, module or program is run, nothing outside of the folder is
// read, and what evaluating may take is bounded: the text comes from a candidate. Nothing here needs Terraform or a
// cluster.
package terraform

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Object is a Kubernetes object: a manifest.
type Object = map[string]any

// Body is what a resource of another provider has: attributes by their names, and of blocks a list each, as Terraform
// has them.
type Body = map[string]any

// Module is what Terraform files mean.
type Module struct {
	Objects []Object `json:"objects,omitempty"`
	// Resources are those that are no Kubernetes objects, by their types and then by their names:
	// google_compute_firewall, license. With for_each or count the name has the key, as Terraform writes it:
	// license["tenant-orion"].
	Resources map[string]map[string]Body `json:"resources,omitempty"`
}

// Files are texts by the names of their files, without folders.
type Files map[string][]byte

// List returns the resources of a type, by their names; nil when there are none.
func (m Module) List(resource string) []any {
	var all []any
	for _, name := range slices.Sorted(maps.Keys(m.Resources[resource])) {
		all = append(all, m.Resources[resource][name])
	}
	return all
}

// Types returns those of the resources that are no Kubernetes objects.
func (m Module) Types() []string { return slices.Sorted(maps.Keys(m.Resources)) }

// Add puts a resource in that is no Kubernetes object.
func (m *Module) Add(resource, name string, body Body) {
	if m.Resources == nil {
		m.Resources = map[string]map[string]Body{}
	}
	if m.Resources[resource] == nil {
		m.Resources[resource] = map[string]Body{}
	}
	m.Resources[resource][name] = body
}

// Within refuses what a module may not bring in that began as another one: kinds of objects and types of resources
// which that one had none of, and objects outside of some namespaces.
func (m Module) Within(began Module, namespaces []string) error {
	var kinds []string
	for _, object := range began.Objects {
		kinds = append(kinds, kindOf(object))
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	for _, object := range m.Objects {
		kind, namespace, name := kindOf(object), textAt(object, "metadata", "namespace"),
			textAt(object, "metadata", "name")
		switch {
		case !slices.Contains(kinds, kind):
			return fmt.Errorf("the module has %s %s, and it manages only %s: take it out", kind, name,
				strings.Join(kinds, ", "))
		case !slices.Contains(namespaces, namespace):
			return fmt.Errorf("the module puts %s %s into namespace %q: it may be %s", kind, name, namespace,
				strings.Join(namespaces, " or "))
		}
	}
	for _, resource := range m.Types() {
		if _, had := began.Resources[resource]; !had {
			return fmt.Errorf("the module has a resource of type %s, and it came with %s: take it out", resource,
				strings.Join(append(began.Types(), "Kubernetes objects"), ", "))
		}
	}
	return nil
}

// kindOf returns an object's kind, with the group where it has one: NetworkPolicy.networking.k8s.io.
func kindOf(object Object) string {
	group, _, grouped := strings.Cut(textAt(object, "apiVersion"), "/")
	if !grouped {
		return textAt(object, "kind")
	}
	return textAt(object, "kind") + "." + group
}

// nameOf tells an object from all others.
func nameOf(object Object) string {
	return kindOf(object) + " " + textAt(object, "metadata", "namespace") + "/" + textAt(object, "metadata", "name")
}

// textAt returns a text in a manifest; empty when there is none.
func textAt(object Object, path ...string) string {
	for _, key := range path[:len(path)-1] {
		object, _ = object[key].(map[string]any)
	}
	text, _ := object[path[len(path)-1]].(string)
	return text
}
