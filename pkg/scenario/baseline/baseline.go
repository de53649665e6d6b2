// Package baseline remembers what a cluster's objects say, so that what became of them can be compared with it: what a
// candidate changed, and what an exercise left behind. It is made to be quiet: what controllers, kubelets and detectors
// write all the time is not in it.
package baseline

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Options say what of the cluster is captured. The zero value is all of it.
type Options struct {
	// Without are namespaces that are left out, with all that is in them: the ledger's, whose records change by
	// themselves.
	Without []string
	// Whole are namespaces whose objects are kept whole however many there are in the cluster: those of the exercise.
	Whole []string
	// Limit is how many other objects are kept whole; of those beyond it there are only hashes, by which Diff finds
	// which fields differ but not what was in them, and Get has only their names. Zero means 10,000.
	Limit int
	// Parallel is how many kinds are listed at the same time; zero means 8. The client's own rate limit may be the
	// tighter one.
	Parallel int
}

// Baseline is a cluster's objects at one time. It may be read by several at the same time.
type Baseline struct {
	Taken time.Time `json:"taken"`
	// Missing says which kinds could not be listed, and why. Diff does not compare these.
	Missing []string `json:"missing,omitempty"`
	// kinds are those that were listed, with the version they were listed in.
	kinds   map[schema.GroupKind]string
	objects map[key]*object
}

// key is an object's identity. The version is not part of it: which one the API server prefers may change.
type key struct {
	kind            schema.GroupKind
	namespace, name string
}

// object is what is kept of one object.
type object struct {
	version string
	// body is the normalized object, or what there is of it beyond the limit: names and labels.
	body map[string]any
	// hashes are those of the fields of an object that is not whole; else nil.
	hashes map[string]string
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

// Len returns how many objects there are.
func (b *Baseline) Len() int { return len(b.objects) }

// Get returns an object as it was, without its status and what else is not kept, or nil. It belongs to the baseline: do
// not change it.
func (b *Baseline) Get(ref scenario.Ref) map[string]any {
	if found := b.objects[keyOf(ref)]; found != nil {
		return found.body
	}
	return nil
}

// List returns the objects that the selector picks, sorted by namespace and name. Of field selectors it knows
// metadata.name and metadata.namespace; with any other, or one that cannot be parsed, it picks nothing.
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
	slices.SortFunc(found, key.compare)
	list := make([]any, 0, len(found))
	for _, k := range found {
		list = append(list, b.objects[k].body)
	}
	return list
}

// fields is a field selector.
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
