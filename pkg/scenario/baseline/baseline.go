// Package baseline records a cluster's objects to detect what changed: what a candidate changed, and what an
// exercise left behind. It omits everything that controllers, kubelets and detectors update continuously.
package baseline

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Options select what is captured. The zero value captures the whole cluster.
type Options struct {
	// Without are namespaces that are skipped with all their objects: that of the ledger, whose records change.
	Without []string
	// Whole are namespaces whose objects are stored in full regardless of Limit: those of the exercise.
	Whole []string
	// Verify are the namespaces in which owner references are untrusted, because a candidate may create pods there. An
	// object counts as the work of a controller only if that controller exists and would have created it.
	Verify []string
	// Limit is how many other objects are stored in full. Beyond it, only hashes are stored: Diff then reports which
	// fields differ but not their values, and Get returns only names. Zero means 10,000.
	Limit int
	// Parallel is how many kinds are listed concurrently; zero means 8. The client's own rate limit may be
	// stricter.
	Parallel int
}

// Baseline is the set of a cluster's objects at one time. It may be read concurrently.
type Baseline struct {
	Taken time.Time `json:"taken"`
	// Missing lists kinds that could not be listed, and why. Diff does not compare them.
	Missing []string `json:"missing,omitempty"`
	// kinds are the kinds that were listed, with their versions.
	kinds   map[schema.GroupKind]string
	objects map[key]*object
}

// key is an object's identity. It excludes the version, because the API server's preferred version may change.
type key struct {
	kind            schema.GroupKind
	namespace, name string
}

// object is the stored form of an object.
type object struct {
	version string
	// body is the normalized object, or beyond the limit only its names and labels.
	body map[string]any
	// hashes are the hashes of the fields of an object that is not stored in full; otherwise nil.
	hashes map[string]string
	// note says why the object is not what it pretends to be, such as a pod of a controller; usually "".
	note string
}

func keyOf(ref scenario.Ref) key {
	group, _ := schema.ParseGroupVersion(ref.APIVersion)
	return key{schema.GroupKind{Group: group.Group, Kind: ref.Kind}, ref.Namespace, ref.Name}
}

func (k key) ref(version string) scenario.Ref {
	api := schema.GroupVersion{Group: k.kind.Group, Version: version}.String()
	return scenario.Ref{APIVersion: api, Kind: k.kind.Kind, Namespace: k.namespace, Name: k.name}
}

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.namespace, other.namespace), cmp.Compare(k.kind.Group, other.kind.Group),
		cmp.Compare(k.kind.Kind, other.kind.Kind), cmp.Compare(k.name, other.name))
}

// Len returns the number of objects.
func (b *Baseline) Len() int { return len(b.objects) }

// Get returns an object without its status and other omitted fields, or nil. Callers must not change it.
func (b *Baseline) Get(ref scenario.Ref) map[string]any {
	if found := b.objects[keyOf(ref)]; found != nil {
		return found.body
	}
	return nil
}

// List returns the objects of a selector, sorted by namespace and name. It supports the field selectors
// metadata.name and metadata.namespace; for any other or invalid selector it returns nothing.
func (b *Baseline) List(selector scenario.Selector) []any {
	group, _ := schema.ParseGroupVersion(selector.APIVersion)
	kind := schema.GroupKind{Group: group.Group, Kind: selector.Kind}
	wanted, err := labels.Parse(selector.Labels)
	fields, known := fieldsOf(selector.Fields)
	if err != nil || !known {
		return []any{}
	}
	var found []key
	for k, o := range b.objects {
		if k.kind == kind && (selector.Namespace == "" || k.namespace == selector.Namespace) && fields.match(k) &&
			wanted.Matches(labelsOf(o.body)) {
			found = append(found, k)
		}
	}
	sorting.Func(found, key.compare)
	list := make([]any, 0, len(found))
	for _, k := range found {
		list = append(list, b.objects[k].body)
	}
	return list
}

// fields is a parsed field selector.
type fields struct{ name, namespace string }

func (f fields) match(k key) bool {
	return (f.name == "" || f.name == k.name) && (f.namespace == "" || f.namespace == k.namespace)
}

func fieldsOf(selector string) (fields, bool) {
	var all fields
	for term := range strings.SplitSeq(selector, ",") {
		name, value, is := strings.Cut(strings.Replace(term, "==", "=", 1), "=")
		switch {
		case term == "":
		case is && name == "metadata.name":
			all.name = value
		case is && name == "metadata.namespace":
			all.namespace = value
		default:
			return fields{}, false
		}
	}
	return all, true
}

func labelsOf(body map[string]any) labels.Set {
	metadata, _ := body["metadata"].(map[string]any)
	given, _ := metadata["labels"].(map[string]any)
	set := make(labels.Set, len(given))
	for name, value := range given {
		set[name], _ = value.(string)
	}
	return set
}
