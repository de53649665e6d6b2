package cudashim

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// UndoKind is the ledger.Undo.Kind for changed workloads.
const UndoKind = "workload"

// Data is the undo data in ledger.Undo.Data. It contains only the changes to the object, not the object itself.
type Data struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Resource  string `json:"resource"` // deployments
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// ConfigMap is the name of the ConfigMap with the libraries and the state, in the same namespace.
	ConfigMap string          `json:"configMap"`
	Edits     []kubeedit.Edit `json:"edits"`
	// Owned are the fields that other managers no longer own because of the change.
	Owned []kubeedit.Owned `json:"owned,omitempty"`
	// Variable is LD_PRELOAD or LD_AUDIT. Preload is the path of the shim in the variable's value.
	Variable string `json:"variable"`
	Preload  string `json:"preload"`
	// Pin is the node selector requirement of the injection, if any.
	Pin json.RawMessage `json:"pin,omitempty"`
	// Disarmed is the state file that the undo writes first.
	Disarmed []byte      `json:"disarmed,omitempty"`
	Replaced Replacement `json:"replaced"`
	// Before is the SHA-256 checksum of the original pod templates, for verifying the undo.
	Before string `json:"before,omitempty"`
	// Recreated is set if the object had to be deleted and recreated.
	Recreated *Recreated `json:"recreated,omitempty"`
}

// Recreated is the undo data for an object with an immutable template.
type Recreated struct {
	// Original is the original object in a form that can be created.
	Original json.RawMessage `json:"original"`
	// UID is the UID of the recreated object. It is empty until the object exists.
	UID string `json:"uid,omitempty"`
}

// maxOriginal limits the size of the original object in bytes, because a record can be at most 1 MiB.
const maxOriginal = 400 << 10

// ReadData returns the undo data of a step. The data must be for the step's target. ReadData returns nil without an
// error if the step has not changed anything yet.
func ReadData(step ledger.Step) (*Data, error) {
	if len(step.Undo.Data) == 0 {
		return nil, nil
	}
	var d Data
	if err := json.Unmarshal(step.Undo.Data, &d); err != nil {
		return nil, fmt.Errorf("decode the record's undo data: %w", err)
	}
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("the record's undo data is rejected: %w", err)
	}
	if err := d.checkTarget(step.Target); err != nil {
		return nil, fmt.Errorf("the record's undo data is rejected: %w", err)
	}
	return &d, nil
}

// validate returns an error for data that this tool never writes. It is necessary because the data comes from the
// cluster.
func (d *Data) validate() error {
	switch {
	case d.Version == "" || d.Resource == "" || d.Kind == "" || d.Namespace == "" || d.Name == "" || d.UID == "":
		return errors.New("no object is specified")
	case d.ConfigMap == "" || d.Preload == "" || d.Variable == "":
		return errors.New("the injection is not described")
	case d.Recreated != nil && len(d.Recreated.Original) > maxOriginal:
		return errors.New("the object is too large")
	}
	for _, e := range d.Edits {
		if len(e.Path) < 2 || e.Path[0] != kubeedit.Field("spec") {
			return fmt.Errorf("%s is not in a pod template", e.Path)
		}
		if err := e.Validate(); err != nil {
			return err
		}
		if len(e.Ours) == 0 || e.Element && len(e.Was) > 0 { // the injection never removes a value
			return fmt.Errorf("%s: invalid values in an edit", e.Path)
		}
	}
	return nil
}

func (d *Data) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: d.Group, Version: d.Version, Resource: d.Resource}
}

// Ref formats the name of the workload in kubectl's style.
func (d *Data) Ref() string {
	return ref(schema.GroupVersion{Group: d.Group, Version: d.Version}.String(), d.Kind, d.Name)
}

// specs returns the paths of the pod specs that have the shim.
func (d *Data) specs() []kubeedit.Path {
	var all []kubeedit.Path
	for _, e := range d.Edits {
		if n := len(e.Path); e.Path[n-1] == kubeedit.Element("name", volumeLib) {
			all = append(all, e.Path[:n-2])
		}
	}
	return all
}
