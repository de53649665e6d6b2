package cudashim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Selection selects templates and containers.
type Selection struct {
	// Services are names of templates. An empty list means all templates. For a DynamoGraphDeployment, these are the
	// names of services.
	Services []string
	// Containers are names of containers. An empty list means the containers that request GPUs or, if there are none,
	// all except sidecars.
	Containers []string
}

// Chosen is a template, with the list of its containers that get the shim.
type Chosen struct {
	Template   Template
	Containers []Container // never empty
}

// Select returns the containers that get the shim. The error lists the supported names.
func (w *Workload) Select(s Selection) ([]Chosen, error) {
	templates := w.Templates
	if len(s.Services) > 0 {
		templates = nil
		for _, name := range s.Services {
			i := slices.IndexFunc(w.Templates,
				func(t Template) bool { return t.Name != "" && (t.Name == name || t.Name == "services."+name) })
			if i < 0 {
				return nil, fmt.Errorf("%s has no service or template %q: supported values: %s", w.Ref(), name,
					templateNames(w.Templates))
			}
			if !slices.ContainsFunc(templates, func(t Template) bool { return t.Name == w.Templates[i].Name }) {
				templates = append(templates, w.Templates[i])
			}
		}
	}
	picks := func(c Container) bool { return slices.Contains(s.Containers, c.Name) }
	if len(s.Containers) == 0 {
		picks = byDefault(templates)
	}
	var chosen []Chosen
	found, there := map[string]bool{}, map[string]bool{}
	for _, t := range templates {
		c := Chosen{Template: t}
		for _, container := range t.Containers {
			there[container.Name] = true
			if picks(container) {
				found[container.Name] = true
				c.Containers = append(c.Containers, container)
			}
		}
		if len(c.Containers) > 0 {
			chosen = append(chosen, c)
		}
	}
	for _, name := range s.Containers {
		if !found[name] {
			return nil, fmt.Errorf("%s has no container %q: supported values: %s", w.Ref(), name,
				strings.Join(slices.Sorted(maps.Keys(there)), ", "))
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%s has only sidecars (%s): specify containers with --container", w.Ref(),
			strings.Join(slices.Sorted(maps.Keys(there)),
				", "))
	}
	return chosen, nil
}

// byDefault returns a filter for the containers that request GPUs or, if none does, for all except sidecars.
func byDefault(templates []Template) func(Container) bool {
	for _, t := range templates {
		if slices.ContainsFunc(t.Containers, func(c Container) bool { return c.GPU && !c.Init }) {
			return func(c Container) bool { return c.GPU && !c.Init }
		}
	}
	return func(c Container) bool { return !c.Init && !slices.Contains(sidecars(), c.Name) }
}

// sidecars returns the names of containers that service meshes and agents inject.
func sidecars() []string {
	return []string{"istio-proxy", "linkerd-proxy", "consul-dataplane", "envoy-sidecar", "vault-agent",
		"cloud-sql-proxy", "fluent-bit", "filebeat",
		"daprd", "queue-proxy"}
}

func templateNames(templates []Template) string {
	var names []string
	for _, t := range templates {
		names = append(names, t.label())
	}
	return strings.Join(names, ", ")
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
