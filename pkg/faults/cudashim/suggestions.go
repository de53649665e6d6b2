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
)

// maxSuggestions is how many near misses are told.
const maxSuggestions = 3

// notFound says that there is no object of that name, and which there are that the user may have meant.
func (c *Cluster) notFound(ctx context.Context, mapping *meta.RESTMapping, namespace, name string) error {
	kind := ref(mapping.GroupVersionKind.GroupVersion().String(), mapping.GroupVersionKind.Kind, name)
	text := fmt.Sprintf("%s is not in namespace %s", kind, namespace)
	resource := c.Dynamic.Resource(mapping.Resource)
	list, err := resource.Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil { // the hint is only a courtesy
		return fmt.Errorf("%s: give its namespace with -n", text)
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
				return fmt.Errorf("%s, but in namespace %s: give it with -n %s", text, o.GetNamespace(),
					o.GetNamespace())
			}
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%s, and neither is any other: give its namespace with -n", text)
	}
	slices.Sort(names)
	return fmt.Errorf("%s: there are %s", text, some(names))
}

// noSuchType says that the cluster knows no such type, and which it knows with a name like it.
func (c *Cluster) noSuchType(name string) error {
	text := fmt.Sprintf("the cluster has no type %q", name)
	var known []string
	if c.Client != nil {
		// What could be found is told, also when an aggregated API server is down.
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
	return fmt.Errorf("%s: `kubectl api-resources` lists those it has; is the operator installed?", text)
}

func some(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// near returns the names that a typing error or a forgotten part makes of another, the nearest first.
func near(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var close []candidate
	for _, other := range names {
		d := levenshtein.Distance(name, other, nil)
		if strings.HasPrefix(other, name+"-") || strings.HasSuffix(other, "-"+name) || letters(other) == letters(name) {
			d = 1 // a part was forgotten, or two letters change places
		}
		if d <= max(1, min(len(name), len(other))/3) {
			close = append(close, candidate{other, d})
		}
	}
	slices.SortFunc(close, func(a, b candidate) int {
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
