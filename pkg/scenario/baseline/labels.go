package baseline

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// relabeled returns the first label in which a pod differs from the template of its owner, or "". Labels that are not
// in the template count only if a Service selects the pod by them, because the Service would not select the next pod.
func (c *census) relabeled(owner, pod *unstructured.Unstructured) string {
	if mapAt(owner.Object, "spec", "template") == nil {
		return ""
	}
	wanted, has := mapAt(owner.Object, "spec", "template", "metadata", "labels"), pod.GetLabels()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if wanted[name] != has[name] && !numbered.MatchString(name) {
			return "metadata.labels[" + name + "]"
		}
	}
	var more []string
	for at, o := range c.objects {
		if at.kind.String() != "Service" || at.namespace != pod.GetNamespace() || !selects(at.kind, o, has) {
			continue
		}
		by, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
		for name := range by {
			if wanted[name] == nil && !numbered.MatchString(name) {
				more = append(more, "metadata.labels["+name+"]")
			}
		}
	}
	slices.Sort(more)
	return strings.Join(slices.Compact(more), ", ")
}

// numbered matches the labels that controllers and the API server add to each pod.
var numbered = regexp.MustCompile(`^(pod-template-hash|pod-template-generation|controller-revision-hash|controller-uid|` +
	`job-name|statefulset\.kubernetes\.io/.*|apps\.kubernetes\.io/.*|batch\.kubernetes\.io/.*|topology\.kubernetes\.io/.*)$`)
