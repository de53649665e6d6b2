package cudashim

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// UndoKind is the ledger.Undo.Kind of changed workloads.
const UndoKind = "workload"

// Data is what the ledger keeps in ledger.Undo.Data: of the object only what we changed.
type Data struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Resource  string `json:"resource"` // deployments
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// ConfigMap holds the libraries and the state, in the same namespace.
	ConfigMap string          `json:"configMap"`
	Edits     []kubeedit.Edit `json:"edits"`
	// Owned is what other field managers lost to us when we changed values of their own.
	Owned []kubeedit.Owned `json:"owned,omitempty"`
	// Variable is LD_PRELOAD or LD_AUDIT, and Preload our part of its value.
	Variable string `json:"variable"`
	Preload  string `json:"preload"`
	// Pin is our node selector requirement, if there is one.
	Pin json.RawMessage `json:"pin,omitempty"`
	// Disarmed is the state file that the undo writes first.
	Disarmed []byte      `json:"disarmed,omitempty"`
	Replaced Replacement `json:"replaced"`
	// Before is the SHA-256 of the pod templates as they were, to prove that they are again.
	Before string `json:"before,omitempty"`
	// Recreated is set where the object had to be deleted and created again.
	Recreated *Recreated `json:"recreated,omitempty"`
}

// Recreated is the undo of an object whose template cannot be changed.
type Recreated struct {
	// Original is the object as it can be created again.
	Original json.RawMessage `json:"original"`
	// UID is that of our object; empty until it was created.
	UID string `json:"uid,omitempty"`
}

// maxOriginal bounds an object that is kept as a whole, in bytes: the record has room for 1 MiB.
const maxOriginal = 400 << 10

// ReadData reads the undo of a step, which must be about the step's target. It is nil, without an error, when the step
// had changed nothing yet.
func ReadData(step ledger.Step) (*Data, error) {
	if len(step.Undo.Data) == 0 {
		return nil, nil
	}
	var d Data
	if err := json.Unmarshal(step.Undo.Data, &d); err != nil {
		return nil, fmt.Errorf("the record's undo cannot be read: %w", err)
	}
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("the record's undo is rejected: %w", err)
	}
	if err := d.checkTarget(step.Target); err != nil {
		return nil, fmt.Errorf("the record's undo is rejected: %w", err)
	}
	return &d, nil
}

// validate refuses what this tool never writes: the data comes from the cluster, and says what to change in it.
func (d *Data) validate() error {
	switch {
	case d.Version == "" || d.Resource == "" || d.Kind == "" || d.Namespace == "" || d.Name == "" || d.UID == "":
		return errors.New("it does not name an object")
	case d.ConfigMap == "" || d.Preload == "" || d.Variable == "":
		return errors.New("it does not say what was put in")
	case d.Recreated != nil && len(d.Recreated.Original) > maxOriginal:
		return errors.New("the object is too large")
	}
	for _, e := range d.Edits {
		if len(e.Path) < 2 || e.Path[0] != kubeedit.Field("spec") {
			return fmt.Errorf("%s is no place of a pod template", e.Path)
		}
		if e.Made < 0 || e.Made > len(e.Path) {
			return fmt.Errorf("%s: invalid number of objects around it: %d", e.Path, e.Made)
		}
		if len(e.Ours) == 0 || !json.Valid(e.Ours) || len(e.Was) > 0 && !json.Valid(e.Was) {
			return fmt.Errorf("%s: its values make no sense", e.Path)
		}
	}
	return nil
}

func (d *Data) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: d.Group, Version: d.Version, Resource: d.Resource}
}

// Ref names the workload as kubectl does.
func (d *Data) Ref() string {
	return ref(schema.GroupVersion{Group: d.Group, Version: d.Version}.String(), d.Kind, d.Name)
}

// specs returns the paths of the pod specs that carry the shim.
func (d *Data) specs() []kubeedit.Path {
	var all []kubeedit.Path
	for _, e := range d.Edits {
		if n := len(e.Path); e.Path[n-1] == kubeedit.Element("name", volumeLib) {
			all = append(all, e.Path[:n-2])
		}
	}
	return all
}
