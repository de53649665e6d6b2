package cudashim

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Template is one pod template of an object.
type Template struct {
	// Name distinguishes the templates of an object, such as "worker" or "services.Decode". It is empty for Kubernetes'
	// own kinds, which have only one.
	Name string
	// Path is the template's path in the object.
	Path kubeedit.Path
	// Containers are those into which the shim can be injected, including init containers.
	Containers []Container

	spec kubeedit.Path // path of the pod spec
	meta kubeedit.Path // path of the pods' labels and annotations; nil if the kind has none
	env  kubeedit.Path // path of variables for all containers; nil if the kind has none
}

// Container is one container of a template.
type Container struct {
	Name  string
	Image string // empty if its controller sets it
	Init  bool   // an init container, possibly a sidecar
	GPU   bool   // requests nvidia.com/* resources
	GPUs  int    // requested number of nvidia.com/gpu; 0 if unknown
	path  kubeedit.Path
}

// label returns the template's name or, if it is empty, its path.
func (t Template) label() string {
	if t.Name == "" {
		return t.Path.String()
	}
	return t.Name
}

// Limits of the search for pod templates in objects of unknown kinds.
const (
	maxDepth     = 14
	maxTemplates = 64
)

// Templates returns the pod templates of an object, if any.
func Templates(object *unstructured.Unstructured) []Template {
	group, kind := object.GroupVersionKind().Group, object.GetKind()
	known := kubeedit.Path(nil)
	switch {
	case group == "" && kind == "Pod": // a running pod cannot be changed
		return nil
	case group == "" && kind == "ReplicationController",
		group == "apps" && slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"}, kind),
		group == "batch" && kind == kindJob:
		known = kubeedit.Fields("spec", "template")
	case group == "batch" && kind == kindCronJob:
		known = kubeedit.Fields("spec", "jobTemplate", "spec", "template")
	case group == "nvidia.com" && strings.HasPrefix(kind, "Dynamo"):
		if found := dynamoTemplates(object.Object); len(found) > 0 {
			return found
		}
	}
	if known != nil {
		if !isPodSpec(kubeedit.Map(object.Object, known.Then(kubeedit.Field("spec")))) {
			return nil
		}
		return []Template{templateAt(object.Object, "", known)}
	}
	l := locator{object: object.Object}
	l.walk(object.Object["spec"], kubeedit.Fields("spec"), 0)
	return named(l.found)
}

// templateAt returns the template with a spec and metadata at a path.
func templateAt(object map[string]any, name string, at kubeedit.Path) Template {
	t := Template{
		Name: name, Path: at, spec: at.Then(kubeedit.Field("spec")), meta: at.Then(kubeedit.Field("metadata")),
	}
	t.Containers = containers(object, t.spec)
	return t
}

// locator finds pod templates in objects of unknown kinds.
type locator struct {
	object map[string]any
	found  []Template
}

func (l *locator) walk(value any, at kubeedit.Path, depth int) {
	if depth > maxDepth || len(l.found) >= maxTemplates {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		if spec, ok := value["spec"].(map[string]any); ok && isPodSpec(spec) {
			l.found = append(l.found, templateAt(l.object, "", at))
			return
		}
		if isPodSpec(value) { // a pod spec without a template, as in KServe's predictors
			l.found = append(l.found, Template{Path: at, spec: at, Containers: containers(l.object, at)})
			return
		}
		for _, name := range sortedKeys(value) {
			if name != "" { // no path can have an empty name
				l.walk(value[name], at.Then(kubeedit.Field(name)), depth+1)
			}
		}
	case []any:
		key := listKey(value)
		for i, e := range value {
			step := kubeedit.Step{Index: i}
			if m, ok := e.(map[string]any); ok && key != "" {
				name, _ := m[key].(string)
				step = kubeedit.Element(key, name)
			}
			l.walk(e, at.Then(step), depth+1)
		}
	}
}

// listKey returns the field that distinguishes the elements of a list, or an empty string.
func listKey(list []any) string {
	for _, key := range []string{"name", "groupName"} { // groupName: Ray's workers
		seen := map[string]bool{}
		for _, e := range list {
			m, _ := e.(map[string]any)
			name, _ := m[key].(string)
			if name == "" || seen[name] {
				seen = nil
				break
			}
			seen[name] = true
		}
		if len(seen) > 0 {
			return key
		}
	}
	return ""
}

// isPodSpec reports whether an object has containers like a pod: all have a name, and at least one has an image.
func isPodSpec(spec map[string]any) bool {
	list, ok := spec["containers"].([]any)
	if !ok {
		return false
	}
	images := 0
	for _, e := range list {
		c, _ := e.(map[string]any)
		if name, _ := c["name"].(string); name == "" {
			return false
		}
		if image, _ := c["image"].(string); image != "" {
			images++
		}
	}
	return images > 0
}

// containers returns the containers of a pod spec.
func containers(object map[string]any, spec kubeedit.Path) []Container {
	var all []Container
	for _, list := range []string{"containers", "initContainers"} {
		for _, e := range kubeedit.List(object, spec.Then(kubeedit.Field(list))) {
			c, _ := e.(map[string]any)
			name, _ := c["name"].(string)
			if name == "" {
				continue
			}
			image, _ := c["image"].(string)
			all = append(all, Container{
				Name: name, Image: image, Init: list == "initContainers", GPU: wantsGPU(c),
				GPUs: wholeGPUs(c),
				path: spec.Then(kubeedit.Field(list), kubeedit.Element("name", name)),
			})
		}
	}
	return all
}

// wantsGPU reports whether a container requests resources from NVIDIA's device plugin: GPUs or MIG slices.
func wantsGPU(container map[string]any) bool {
	for _, kind := range []string{"limits", "requests"} {
		for name, amount := range kubeedit.Map(container, kubeedit.Fields("resources", kind)) {
			quantity, err := resource.ParseQuantity(fmt.Sprint(amount))
			if strings.HasPrefix(name, "nvidia.com/") && err == nil && !quantity.IsZero() {
				return true
			}
		}
	}
	return false
}

// wholeGPUs returns the number of nvidia.com/gpu resources that a container requests.
func wholeGPUs(container map[string]any) int {
	for _, kind := range []string{"limits", "requests"} {
		amount := kubeedit.Map(container, kubeedit.Fields("resources", kind))["nvidia.com/gpu"]
		if quantity, err := resource.ParseQuantity(fmt.Sprint(amount)); err == nil {
			return int(quantity.Value())
		}
	}
	return 0
}

// named gives templates names that users know, derived from their paths: leader, worker, head.
func named(templates []Template) []Template {
	count := map[string]int{}
	for i, t := range templates {
		templates[i].Name = nameOf(t.Path)
		count[templates[i].Name]++
	}
	for i, t := range templates {
		if t.Name == "" || count[t.Name] > 1 {
			templates[i].Name = strings.TrimPrefix(t.Path.String(), "spec.")
		}
	}
	return templates
}

// nameOf returns a path without the elements that every template has.
func nameOf(p kubeedit.Path) string {
	var words []string
	for i, s := range p {
		if s.IsIndex() {
			words = append(words, fmt.Sprint(s.Index))
			continue
		}
		word := s.Field
		if s.Key == "" {
			inList := i+1 < len(p) && (p[i+1].Key != "" || p[i+1].IsIndex()) // the element's key is more specific
			if inList || strings.HasSuffix(strings.ToLower(word), "replicaspecs") ||
				slices.Contains([]string{"spec", "template", "podTemplate",
					"leaderWorkerTemplate", "rayClusterSpec", "rayClusterConfig", "clusterSpec"}, word) {
				continue
			}
			for _, suffix := range []string{"PodTemplate", "Template", "GroupSpec", "PodSpec"} {
				word = strings.TrimSuffix(word, suffix)
			}
		}
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, ".")
}
