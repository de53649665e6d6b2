// Package objects creates and patches any Kubernetes objects as changes of a fault.Plan, under neutral names: what it
// leaves in sight looks as if somebody had used kubectl.
//
// What is created carries a label, app.kubernetes.io/instance, whose value is its mark: a word made of a hash over the
// run, the step, and the kinds, names and contents of all that the step creates, and of the object's own name, so that
// nobody sees what came together. The list is in the ledger before the first object is there, so that a client may die
// at any moment: what has a name of the list and its mark was made by this step. The mark is the step's seal on the
// object (pkg/seal): whoever can write only the ledger can put any name into a record, but no mark on anyone's object.
// For what cannot carry a mark (a patched object, an object whose label the candidate removed) a ClusterRole keeps the
// seal.
package objects

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// UndoKind is the ledger.Undo.Kind of objects that were created or patched.
const UndoKind = "objects"

// LabelInstance is on every object that is created; its value is the object's mark.
const LabelInstance = "app.kubernetes.io/instance"

// The field managers, as kubectl's.
const (
	ManagerCreate = "kubectl-create"
	ManagerPatch  = "kubectl-patch"
)

// Object names an object, and the resource by which it is reached.
type Object struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Resource  string `json:"resource"` // deployments
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Subresource is "status" for that of a Node, which is patched apart; else empty.
	Subresource string `json:"subresource,omitempty"`
	// Sum is the SHA-256 of the manifest, in hexadecimal; empty for what is patched.
	Sum string `json:"sum,omitempty"`
	// UID is that of the object that was created or patched; empty until it was created.
	UID string `json:"uid,omitempty"`
}

// APIVersion is as manifests have it: apps/v1.
func (o Object) APIVersion() string {
	return schema.GroupVersion{Group: o.Group, Version: o.Version}.String()
}

// GVR returns what dynamic clients reach it by.
func (o Object) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: o.Group, Version: o.Version, Resource: o.Resource}
}

// subresources returns what a request names behind the object.
func (o Object) subresources() []string {
	if o.Subresource == "" {
		return nil
	}
	return []string{o.Subresource}
}

// String names it for people: Deployment team-a/trainer.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// same reports whether both name one object, whatever is known of it.
func (o Object) same(other Object) bool {
	return o.Group == other.Group && o.Resource == other.Resource && o.Namespace == other.Namespace &&
		o.Name == other.Name
}

func (o Object) isNamespace() bool { return o.Group == "" && o.Resource == "namespaces" }

// is reports whether a live object is of the type that the name says: the resource alone could be another's.
func (o Object) is(live *unstructured.Unstructured) bool {
	return live.GroupVersionKind() == schema.GroupVersionKind{Group: o.Group, Version: o.Version, Kind: o.Kind}
}

// seal returns the seal of a step's undo: of everything that it would follow, except UIDs, which are known only after
// the creation.
func (d *Data) seal(run, step string) seal.Seal {
	plain := Data{Created: make([]Object, len(d.Created)), Patched: d.Patched, Edits: d.Edits, Ownership: d.Ownership}
	for i, o := range d.Created {
		o.UID = ""
		plain.Created[i] = o
	}
	return seal.Of(run, step, kubeedit.Encode(plain))
}

// mark returns the label of an object that a step creates.
func (o Object) mark(s seal.Seal) string { return s.Mark(o.Group, o.Resource, o.Namespace, o.Name) }

// keeper returns where the seals of steps are that mark no object.
func keeper(client dynamic.Interface) seal.ClusterRoles {
	return seal.ClusterRoles{Dynamic: client, FieldManager: ManagerCreate, Label: LabelInstance}
}
