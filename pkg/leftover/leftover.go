// Package leftover finds what fault injection left in a cluster, and removes it: what this tool left, and what the
// fault-injection tooling of NVIDIA's Dynamo left, which has no list of its own of what it changed.
//
// What is ours is known by its labels, and judged by the ledger: nothing of a run that may still be in place is a
// leftover. What is Dynamo's is known by the exact names that it gives. Where the two differ from what a user made, the
// user's stays.
package leftover

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Leftover is one thing that was left: an object, additions to an object, the fault of a run whose time is up, or a
// file on a node.
type Leftover struct {
	// APIVersion and Kind are the object's. A fault and a thing on a node have no APIVersion; their kinds are
	// KindFault, and deadman.Leftover's.
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
	// Node is where a file or a process was left; empty for what is in the API.
	Node string `json:"node,omitempty"`

	Of    Source    `json:"of"`
	Run   string    `json:"run,omitempty"` // of this tool, if it is known
	Since time.Time `json:"since,omitzero"`
	// What says what there is, one thing each.
	What []string `json:"what"`
	// With are what runs with the additions, or belongs to the fault, and goes with them: "pod/web-0".
	With []string `json:"with,omitempty"`
	// Doubts are what may be the tool's or the user's. They are left alone.
	Doubts []string `json:"doubts,omitempty"`

	// Remedy is what Cleaner does about it.
	Remedy Remedy `json:"remedy"`
	// Todo is what a person can do where Cleaner does nothing.
	Todo string `json:"todo,omitempty"`

	resource        schema.GroupVersionResource
	resourceVersion string
	generation      int64
	edit            func(place) change
	mountsSource    bool // Dynamo's ConfigMap must stay as long as this does
}

// KindFault is the kind of a run whose fault is still in place though its time is up, or though its client died.
const KindFault = "fault"

// Source is who left something.
type Source string

// The sources.
const (
	Ours    Source = "kubectl-gpu-fault"
	Dynamo  Source = "Dynamo fault injection"
	Foreign Source = "another fault injector" // on nodes, where it is not always known which
)

// Remedy is what Cleaner does about a leftover.
type Remedy string

// The remedies.
const (
	Delete Remedy = "delete" // the object
	Edit   Remedy = "edit"   // take the additions out of the object, and nothing else
	OnNode Remedy = "onNode" // the helper removes it, on the node
	Nobody Remedy = "none"   // it is left to a person: see Todo
)

// Ref names it as kubectl does: deployment.apps/web, fault/runtime-2hb5gn, or
// record/gpu-1:/var/lib/gpu-fault/runtime-2hb5gn.
func (l Leftover) Ref() string {
	if l.Node != "" {
		return l.Kind + "/" + l.Node + ":" + l.Name
	}
	return ref(l.APIVersion, l.Kind, l.Name)
}

func ref(apiVersion, kind, name string) string {
	text := strings.ToLower(kind)
	if group, _, grouped := strings.Cut(apiVersion, "/"); grouped {
		text += "." + group
	}
	return text + "/" + name
}

// Skipped is what could not be looked at.
type Skipped struct {
	What string `json:"what"` // pods, networkpolicies.networking.k8s.io
	Why  string `json:"why"`
	// Namespaces were looked at nevertheless.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Found is what Finder found.
type Found struct {
	Items   []Leftover
	Skipped []Skipped
	// InUse counts the objects of ours that belong to runs which may be in place.
	InUse int
	// Nodes are those where runs that change nodes may have left something.
	Nodes []string
	// Unmarked are namespaces that hold records but are not marked as ledgers. Their records are ignored.
	Unmarked []string

	runs *runs
}

// sortItems brings leftovers into the order in which people read them: faults first, then by namespace, kind and name.
func sortItems(items []Leftover) {
	first := func(l Leftover) int {
		if l.Kind == KindFault {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(items, func(a, b Leftover) int {
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Of, b.Of))
	})
}
