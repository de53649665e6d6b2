// Package objects creates and patches any Kubernetes objects as changes of a fault.Plan. It uses neutral names, so that
// the changes look as if a user had made them with kubectl.
//
// Each created object has a mark as the value of the label app.kubernetes.io/instance. The mark is a hash of the run,
// the step, the kinds, names and contents of all objects of the step, and the object's own name, so that the marks do
// not show which objects belong together. The list of objects is in the ledger before the first object exists, so the
// client may die at any time: an object with a name on the list and the corresponding mark was created by this step.
// The mark is the step's seal on the object (pkg/seal): a user who can write only the ledger can put any name into a
// record, but cannot set a mark on an object. For objects without a mark (a patched object, or an object whose label
// the candidate removed), a ClusterRole keeps the seal.
package objects

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// UndoKind is the ledger.Undo.Kind for created and patched objects.
const UndoKind = "objects"

// LabelInstance is the label of created objects whose value is the mark.
const LabelInstance = "app.kubernetes.io/instance"

// Field managers with the same names as those that kubectl uses.
const (
	ManagerCreate = "kubectl-create"
	ManagerPatch  = "kubectl-patch"
)

// Object identifies an object and its resource.
type Object struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Resource  string `json:"resource"` // deployments
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Subresource is "status" for the status of a Node, which is patched separately, and empty otherwise.
	Subresource string `json:"subresource,omitempty"`
	// Sum is the SHA-256 digest of the manifest in hexadecimal. It is empty for a patched object.
	Sum string `json:"sum,omitempty"`
	// UID is the UID of the created or patched object. It is empty before the creation.
	UID string `json:"uid,omitempty"`
}

// APIVersion returns the apiVersion, such as apps/v1.
func (o Object) APIVersion() string {
	return schema.GroupVersion{Group: o.Group, Version: o.Version}.String()
}

// GVR returns the resource for dynamic clients.
func (o Object) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: o.Group, Version: o.Version, Resource: o.Resource}
}

// subresources returns the subresources for a request.
func (o Object) subresources() []string {
	if o.Subresource == "" {
		return nil
	}
	return []string{o.Subresource}
}

// String formats the object for messages, such as Deployment team-a/trainer.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// same reports whether two values identify the same object, regardless of the other fields.
func (o Object) same(other Object) bool {
	return o.Group == other.Group && o.Resource == other.Resource && o.Namespace == other.Namespace &&
		o.Name == other.Name
}

func (o Object) isNamespace() bool { return o.Group == "" && o.Resource == "namespaces" }

// is reports whether a live object has the recorded type. The resource alone does not determine it.
func (o Object) is(live *unstructured.Unstructured) bool {
	return live.GroupVersionKind() == schema.GroupVersionKind{Group: o.Group, Version: o.Version, Kind: o.Kind}
}

// seal returns the seal of a step's undo data. It covers everything except UIDs, which are known only after the objects
// have been created.
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

// keeper returns the object that keeps the seals of steps that do not mark an object.
func keeper(client dynamic.Interface) seal.ClusterRoles {
	return seal.ClusterRoles{Dynamic: client, FieldManager: ManagerCreate, Label: LabelInstance}
}
