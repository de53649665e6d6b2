// Package leftover finds and removes what was left in a cluster by this tool, and by the fault-injection tooling of
// NVIDIA Dynamo, which keeps no record of its changes.
//
// This tool's objects are identified by labels, and checked against the ledger: an object of a run whose changes may
// still be in place is not a leftover. Dynamo's additions are identified by their exact names. If an object differs
// from what Dynamo's tooling creates, it is assumed to belong to the user and preserved.
package leftover

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Leftover is something that was left behind: an object, additions to an object, the fault of an overdue run, or a file
// on a node.
type Leftover struct {
	// APIVersion and Kind are those of the object. Faults and items on a node have no APIVersion. The kind of a fault
	// is KindFault, and those of items on a node are the kinds of deadman.Leftover.
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
	// Node is the node of a file or a process. It is empty for objects in the API.
	Node string `json:"node,omitempty"`

	Of    Source    `json:"of"`
	Run   string    `json:"run,omitempty"` // run of this tool, if known
	Since time.Time `json:"since,omitzero"`
	// What describes the findings, one per item.
	What []string `json:"what"`
	// With are objects, such as "pod/web-0", that also have the additions or belong to the fault. They are cleaned
	// together with the leftover.
	With []string `json:"with,omitempty"`
	// Doubts describe what may belong to the tool or to the user, and is therefore skipped.
	Doubts []string `json:"doubts,omitempty"`

	// Remedy is the action that Cleaner takes.
	Remedy Remedy `json:"remedy"`
	// Todo describes what the user can do if Cleaner does nothing.
	Todo string `json:"todo,omitempty"`

	resource        schema.GroupVersionResource
	resourceVersion string
	generation      int64
	edit            func(place) change
	mountsSource    bool // Dynamo's ConfigMap is needed as long as this leftover exists
}

// KindFault is the kind of a run whose fault is still in place although it expired or its client crashed.
const KindFault = "fault"

// Source is the tool that left something behind.
type Source string

// Sources.
const (
	Ours    Source = "kubectl-gpu-fault"
	Dynamo  Source = "Dynamo fault injection"
	Foreign Source = "another fault injector" // on nodes, where the tool is not always known
)

// Remedy is the action that Cleaner takes on a leftover.
type Remedy string

// Remedies.
const (
	Delete Remedy = "delete" // delete the object
	Edit   Remedy = "edit"   // remove only the additions from the object
	OnNode Remedy = "onNode" // the helper removes it on the node
	Nobody Remedy = "none"   // the user decides; see Todo
)

// Ref formats the name in kubectl's format: deployment.apps/web, fault/runtime-2hb5gn, or
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

// Skipped is something that could not be searched.
type Skipped struct {
	What string `json:"what"` // pods, networkpolicies.networking.k8s.io
	Why  string `json:"why"`
	// Namespaces are the namespaces that were nevertheless searched.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Found is the result of Finder.
type Found struct {
	Items   []Leftover
	Skipped []Skipped
	// InUse counts this tool's objects that belong to runs whose changes may be in place.
	InUse int
	// Nodes are those on which runs may have left something behind.
	Nodes []string
	// Unmarked are namespaces that contain records but are not marked as ledgers. Their records are ignored.
	Unmarked []string

	runs *runs
}

// sortItems sorts leftovers: faults first, then the others by namespace, kind and name.
func sortItems(items []Leftover) {
	first := func(l Leftover) int {
		if l.Kind == KindFault {
			return 0
		}
		return 1
	}
	sorting.StableFunc(items, func(a, b Leftover) int {
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Of, b.Of))
	})
}
