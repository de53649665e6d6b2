// Package baseline records a cluster's objects to detect changes by a candidate, and changes that remain after an
// exercise. It omits everything that controllers, kubelets and detectors update continuously.
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
	// Without lists namespaces that are skipped with all their objects: the ledger's namespace, whose records change.
	Without []string
	// Whole lists namespaces whose objects are stored in full regardless of Limit: the exercise's namespaces.
	Whole []string
	// Verify lists the namespaces in which owner references are untrusted, because a candidate may create pods there.
	// An object counts as the work of a controller only if the controller exists and would have created the object.
	Verify []string
	// Since is an earlier baseline, or nil. With Since, annotations on nodes are also stored if the client that set
	// them had set nothing on any node in the earlier baseline. The other annotations are set continuously by
	// components of the cluster.
	Since *Baseline
	// Limit is the number of objects, other than those in Whole, to store in full. Beyond the limit, only hashes are
	// stored: Diff then reports which fields differ but not their values, and Get returns only names. Zero means
	// 10,000.
	Limit int
	// Parallel is the number of kinds to list concurrently; zero means 8. The client's own rate limit may be stricter.
	Parallel int
}

// Baseline is the set of a cluster's objects at one time. It may be read concurrently.
type Baseline struct {
	Taken time.Time `json:"taken"`
	// Missing lists kinds that could not be listed, with the reason. Diff does not compare them.
	Missing []string `json:"missing,omitempty"`
	// Nodes is the state of nodes on which the candidate can become root, by node and item. See api.Info.State.
	Nodes map[string]map[string]string `json:"nodes,omitempty"`
	// nodeClients are the field managers of nodes, sorted.
	nodeClients []string
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
	// body is the normalized object, or, beyond the limit, only its names and labels.
	body map[string]any
	// hashes are the hashes of the object's fields if the object is not stored in full, and nil otherwise.
	hashes map[string]string
	// note is the reason why the object is not what it appears to be (for example, a controller's pod). It is usually
	// "".
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
