package cudashim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// maxSuggestions limits the number of suggested names.
const maxSuggestions = 3

// notFound returns the error for a missing object, with similar names that the user may have meant.
func (c *Cluster) notFound(ctx context.Context, mapping *meta.RESTMapping, namespace, name string) error {
	kind := ref(mapping.GroupVersionKind.GroupVersion().String(), mapping.GroupVersionKind.Kind, name)
	text := fmt.Sprintf("%s not found in namespace %q", kind, namespace)
	resource := c.Dynamic.Resource(mapping.Resource)
	list, err := resource.Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil { // the hint is optional
		return fmt.Errorf("%s: specify the namespace with -n", text)
	}
	var names []string
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	if close := near(name, names); len(close) > 0 {
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(close, ", "))
	}
	all, err := resource.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, Limit: 10})
	if err == nil {
		for _, o := range all.Items {
			if o.GetName() == name && o.GetNamespace() != namespace {
				return fmt.Errorf("%s, but exists in namespace %q: specify -n %s", text, o.GetNamespace(),
					o.GetNamespace())
			}
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%s, which has no object of that type: specify another namespace with -n", text)
	}
	slices.Sort(names)
	return fmt.Errorf("%s: supported values: %s", text, some(names))
}

// noSuchType returns the error for an unknown type, with similar types that the user may have meant.
func (c *Cluster) noSuchType(name string) error {
	text := fmt.Sprintf("type %q not found in the cluster", name)
	var known []string
	if c.Client != nil {
		// If an aggregated API server is down, the types of the others are still listed.
		lists, _ := c.Client.Discovery().ServerPreferredResources()
		for _, list := range lists {
			for _, resource := range list.APIResources {
				if resource.Namespaced && !strings.Contains(resource.Name, "/") {
					known = append(known, cmp.Or(resource.SingularName, strings.ToLower(resource.Kind)))
				}
			}
		}
	}
	if close := near(strings.ToLower(name), known); len(close) > 0 {
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(close, ", "))
	}
	return fmt.Errorf("%s; `kubectl api-resources` lists the types; is the operator installed?", text)
}

func some(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// near returns the names that differ from name by a typing error or a missing part, nearest first.
func near(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var close []candidate
	for _, other := range names {
		d := levenshtein.Distance(name, other, nil)
		if strings.HasPrefix(other, name+"-") || strings.HasSuffix(other, "-"+name) || letters(other) == letters(name) {
			d = 1 // a part is missing, or two letters are swapped
		}
		if d <= max(1, min(len(name), len(other))/3) {
			close = append(close, candidate{other, d})
		}
	}
	sorting.Func(close, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var result []string
	for _, c := range close {
		if !slices.Contains(result, c.name) && len(result) < maxSuggestions {
			result = append(result, c.name)
		}
	}
	return result
}

func letters(name string) string {
	sorted := []byte(name)
	slices.Sort(sorted)
	return string(sorted)
}
