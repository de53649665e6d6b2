// Package terraform writes and reads small Terraform modules. In a module, the objects in a cluster are resources of
// the kubernetes provider, and their cloud equivalents are resources of the google provider.
//
// Reading evaluates variables, locals, for_each, dynamic blocks and the usual functions, so that equivalent modules are
// equal. It does not run providers, modules or programs, reads nothing outside the directory, and limits the cost of
// evaluation, because modules come from candidates. It requires neither Terraform nor a cluster.
package terraform

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Object is the manifest of a Kubernetes object.
type Object = map[string]any

// Body is the content of a resource from another provider: its attributes by name, and a list for each type of block,
// as in Terraform.
type Body = map[string]any

// Module is what a set of Terraform files declares.
type Module struct {
	Objects []Object `json:"objects,omitempty"`
	// Resources contains the resources that are not Kubernetes objects, by type and name, such as
	// google_compute_firewall and license. With for_each or count, the name includes the key, as in Terraform:
	// license["tenant-orion"].
	Resources map[string]map[string]Body `json:"resources,omitempty"`
}

// Files contains the contents of files. The keys are file names without directories.
type Files map[string][]byte

// List returns the resources of a type sorted by name, or nil if there are none.
func (m Module) List(resource string) []any {
	var all []any
	for _, name := range slices.Sorted(maps.Keys(m.Resources[resource])) {
		all = append(all, m.Resources[resource][name])
	}
	return all
}

// Types returns the types of the resources that are not Kubernetes objects.
func (m Module) Types() []string { return slices.Sorted(maps.Keys(m.Resources)) }

// Add adds a resource that is not a Kubernetes object.
func (m *Module) Add(resource, name string, body Body) {
	if m.Resources == nil {
		m.Resources = map[string]map[string]Body{}
	}
	if m.Resources[resource] == nil {
		m.Resources[resource] = map[string]Body{}
	}
	m.Resources[resource][name] = body
}

// Within returns an error if a module contains something that may not be added to the original module: kinds of objects
// or types of resources that the original does not contain, or objects outside the given namespaces.
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
			return fmt.Errorf("the module must not contain %s %s; supported kinds: %s", kind, name,
				strings.Join(kinds, ", "))
		case !slices.Contains(namespaces, namespace):
			return fmt.Errorf("the module must not contain %s %s in namespace %q: the namespace must be %s", kind, name,
				namespace,
				strings.Join(namespaces, " or "))
		}
	}
	for _, resource := range m.Types() {
		if _, had := began.Resources[resource]; !had {
			return fmt.Errorf("the module must not contain resources of type %s; supported types: %s", resource,
				strings.Join(append(began.Types(), "Kubernetes objects"), ", "))
		}
	}
	return nil
}

// kindOf returns an object's kind, including its group if it has one, such as NetworkPolicy.networking.k8s.io.
func kindOf(object Object) string {
	group, _, grouped := strings.Cut(textAt(object, "apiVersion"), "/")
	if !grouped {
		return textAt(object, "kind")
	}
	return textAt(object, "kind") + "." + group
}

// nameOf returns a unique name of an object.
func nameOf(object Object) string {
	return kindOf(object) + " " + textAt(object, "metadata", "namespace") + "/" + textAt(object, "metadata", "name")
}

// textAt returns a string in a manifest, or "" if it does not exist.
func textAt(object Object, path ...string) string {
	for _, key := range path[:len(path)-1] {
		object, _ = object[key].(map[string]any)
	}
	text, _ := object[path[len(path)-1]].(string)
	return text
}
