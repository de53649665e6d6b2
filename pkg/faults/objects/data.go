package objects

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Data is the undo data in ledger.Undo.Data: names, hashes and, for a patch, the previous and new values.
type Data struct {
	// Created are the objects that the step creates.
	Created []Object `json:"created,omitempty"`
	// Patched is the object that the step patches. Edits are the changes.
	Patched *Object         `json:"patched,omitempty"`
	Edits   []kubeedit.Edit `json:"edits,omitempty"`
	// Ownership contains the owners of the patched fields, so that the undo can restore the owners. It is nil if it was
	// too large.
	Ownership *Ownership `json:"ownership,omitempty"`
	// Sealed reports whether a ClusterRole keeps the seal of this data.
	Sealed bool `json:"sealed,omitempty"`
}

// Limits of a step, so that a record has room for many steps.
const (
	maxObjects   = 500
	maxEdits     = 64 << 10 // bytes
	maxOwnership = 16 << 10 // bytes
)

// ReadData returns the undo data of a step. It returns nil without an error if the step has not changed anything yet.
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
	return &d, nil
}

// validate returns an error for data that this tool never writes. It is necessary because the data comes from the
// cluster and determines what the undo deletes and changes.
func (d *Data) validate() error {
	switch {
	case len(d.Created) > 0 == (d.Patched != nil):
		return errors.New("must be for either created or patched objects")
	case len(d.Created) > maxObjects || len(d.Created) > 0 && len(d.Edits) > 0:
		return errors.New("its list of created objects is invalid")
	case d.Patched != nil && (len(d.Edits) == 0 || d.Patched.UID == ""):
		return errors.New("the patch is not described")
	case d.Patched == nil && d.Ownership != nil:
		return errors.New("it contains field owners for created objects")
	}
	for _, o := range d.objects() {
		if o.Version == "" || o.Resource == "" || o.Kind == "" || o.Name == "" {
			return errors.New("no object is specified")
		}
	}
	for _, e := range d.Edits {
		if err := e.Validate(); err != nil {
			return err
		}
	}
	return d.Ownership.validate()
}

func (d *Data) objects() []Object {
	if d.Patched != nil {
		return []Object{*d.Patched}
	}
	return d.Created
}

// check returns an error if the data contains an object that a Creation or a Patching is not allowed to create or
// change.
func (d *Data) check(ledgerNamespace string) error {
	ledgerNamespace = cmp.Or(ledgerNamespace, ledger.DefaultNamespace)
	for _, o := range d.Created {
		if err := o.mayBeCreated(ledgerNamespace); err != nil {
			return err
		}
	}
	if d.Patched == nil {
		return nil
	}
	if err := d.Patched.mayBePatched(ledgerNamespace); err != nil {
		return err
	}
	for _, e := range d.Edits {
		if err := d.Patched.mayBeEdited(e); err != nil {
			return err
		}
	}
	return nil
}

// Objects returns the objects that a step created or patched, and the object that keeps its seal. It returns no objects
// for steps of other kinds, and for steps that have not changed anything yet.
func Objects(run ledger.Run, step ledger.Step) []Object {
	if step.Undo.Kind != UndoKind {
		return nil
	}
	d, err := ReadData(step)
	if err != nil || d == nil {
		return nil
	}
	all := slices.Clone(d.objects())
	if d.Sealed {
		all = append(all, Object{
			Group: groupRBAC, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole",
			Name: seal.ClusterRole(d.seal(run.ID, step.ID)),
		})
	}
	return all
}

// namespaces returns the marks of the namespaces that a run's steps create, by name.
func namespaces(run ledger.Run) map[string]string {
	found := map[string]string{}
	for _, step := range run.Steps {
		if step.Undo.Kind != UndoKind {
			continue
		}
		d, err := ReadData(step)
		if err != nil || d == nil {
			continue
		}
		for _, o := range d.Created {
			if o.isNamespace() {
				found[o.Name] = o.mark(d.seal(run.ID, step.ID))
			}
		}
	}
	return found
}

// needsKeeper reports whether the step affects an object that would outlive the namespaces of its run.
func (d *Data) needsKeeper(made map[string]string) bool {
	own := func(o Object) bool {
		_, goes := made[o.Namespace]
		return goes ||
			slices.ContainsFunc(d.Created, func(n Object) bool { return n.isNamespace() && n.Name == o.Namespace })
	}
	return slices.ContainsFunc(d.objects(), func(o Object) bool {
		return !own(o) && (!o.isNamespace() || d.Patched != nil)
	})
}
