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

// Data is what the ledger keeps in ledger.Undo.Data: names, hashes and, of a patch, the values before and ours.
type Data struct {
	// Created are the objects that the step creates.
	Created []Object `json:"created,omitempty"`
	// Patched is the object that the step patches, and Edits are what that changes.
	Patched *Object         `json:"patched,omitempty"`
	Edits   []kubeedit.Edit `json:"edits,omitempty"`
	// Ownership is who owns the patched fields, for the undo to give them back; nil where that had no room.
	Ownership *Ownership `json:"ownership,omitempty"`
	// Sealed reports whether a ClusterRole keeps the seal of this data.
	Sealed bool `json:"sealed,omitempty"`
}

// The limits of a step, so that a record of many has room.
const (
	maxObjects   = 500
	maxEdits     = 64 << 10 // bytes
	maxOwnership = 16 << 10 // bytes
)

// ReadData reads the undo of a step. It is nil, without an error, when the step had changed nothing yet.
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
	return &d, nil
}

// validate refuses what this tool never writes: the data comes from the cluster, and says what to delete and to change
// in it.
func (d *Data) validate() error {
	switch {
	case len(d.Created) > 0 == (d.Patched != nil):
		return errors.New("it neither creates nor patches, or both")
	case len(d.Created) > maxObjects || len(d.Created) > 0 && len(d.Edits) > 0:
		return errors.New("what it creates makes no sense")
	case d.Patched != nil && (len(d.Edits) == 0 || d.Patched.UID == ""):
		return errors.New("it does not say what was patched")
	case d.Patched == nil && d.Ownership != nil:
		return errors.New("who owns what it creates makes no sense")
	}
	for _, o := range d.objects() {
		if o.Version == "" || o.Resource == "" || o.Kind == "" || o.Name == "" {
			return errors.New("it does not name an object")
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

// check refuses data about objects that neither a Creation nor a Patching touches.
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

// Objects returns what a step created or patched, and what keeps its seal: what is the run's own among the objects of a
// cluster. It is empty for steps of other kinds, and for those that have changed nothing yet.
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

// namespaces returns those that the steps of a run create, by name, with the mark of each.
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

// needsKeeper reports whether something of it would outlive the namespaces of its run.
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
