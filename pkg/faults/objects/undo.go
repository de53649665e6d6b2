package objects

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Undoer deletes the objects that a step created, and reverts its patches. Dynamic may be nil if only Describe is
// called. It needs no mapper, because records contain resources.
type Undoer struct {
	Dynamic dynamic.Interface
	// LedgerNamespace is a namespace in which nothing is undone. Empty means ledger.DefaultNamespace.
	LedgerNamespace string
	// Successors enables the deletion of objects that have replaced the created objects under the same names, because a
	// candidate may have recreated an object with immutable fields. If it is false, such objects are kept and reported.
	Successors bool
	// Wait is the timeout for deletions. Zero means DefaultWait.
	Wait time.Duration
	// Progress receives the progress of a step. It may be nil.
	Progress func(step ledger.Step, text string)
}

// DefaultWait is the default timeout for deletions in an undo.
const DefaultWait = 2 * time.Minute

var _ fault.Verifier = Undoer{}

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	d, err := ReadData(step)
	switch {
	case err != nil:
		return err.Error()
	case d == nil:
		return "nothing was changed yet"
	case d.Patched != nil:
		return fmt.Sprintf("restore %s of %s unless other clients have changed it", paths(d.Edits), d.Patched)
	}
	var names []string
	own := map[string]bool{}
	for _, o := range d.Created {
		if o.isNamespace() {
			own[o.Name] = true
			names = append(names, o.String()+" with everything in it")
		}
	}
	for _, o := range d.Created {
		if !o.isNamespace() && !own[o.Namespace] {
			names = append(names, o.String())
		}
	}
	return "delete " + listed(names)
}

// listed formats a list for messages, and shortens it if it is long.
func listed(names []string) string {
	const most = 6
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func paths(edits []kubeedit.Edit) string {
	var all []string
	for _, e := range edits {
		all = append(all, e.Path.String())
	}
	return listed(all)
}

// Verify implements fault.Verifier. Created objects are identified by their marks when they are deleted. An object that
// was patched in a namespace of the run is deleted with the namespace.
func (u Undoer) Verify(ctx context.Context, run ledger.Run, step ledger.Step) error {
	d, err := u.read(step)
	if err != nil || d == nil || !d.Sealed || d.Patched == nil {
		return err
	}
	one := undoing{Undoer: u, data: d, seal: d.seal(run.ID, step.ID)}
	live, err := one.live(ctx, *d.Patched)
	if err != nil || live == nil || string(live.GetUID()) != d.Patched.UID {
		return err
	}
	_, back, _ := d.withoutOurs(live)
	if len(back) == 0 { // an earlier undo restored everything before its client died
		return nil
	}
	return one.checkSeal(ctx, *d.Patched, back)
}

// read returns a step's undo data after checking it. It returns nil if the step has not changed anything yet.
func (u Undoer) read(step ledger.Step) (*Data, error) {
	d, err := ReadData(step)
	switch {
	case err != nil || d == nil:
		return nil, err
	case u.Dynamic == nil:
		return nil, errNoCluster
	}
	if err := d.check(u.LedgerNamespace); err != nil {
		return nil, fmt.Errorf("the record's undo data is rejected: %w", err)
	}
	return d, nil
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	d, err := u.read(step)
	switch {
	case err != nil:
		return "", "", err
	case d == nil: // the client died before it changed anything
		return ledger.StateReverted, "nothing was changed", nil
	}
	one := undoing{
		Undoer: u, run: run, step: step, data: d, seal: d.seal(run.ID, step.ID),
		report: func(text string) {
			if u.Progress != nil {
				u.Progress(step, text)
			}
		},
	}
	if d.Patched != nil {
		return one.patched(ctx)
	}
	return one.created(ctx)
}

// undoing is the process of undoing one step.
type undoing struct {
	Undoer
	run    ledger.Run
	step   ledger.Step
	data   *Data
	seal   seal.Seal
	report func(string)
}

// goes reports whether a namespace's objects are deleted together with the namespace. This is the case if the run
// created the namespace, and the namespace is still the same one or no longer exists.
func (u undoing) goes(ctx context.Context, namespace string) (bool, error) {
	instance, made := namespaces(u.run)[namespace]
	if !made {
		return false, nil
	}
	live, err := u.live(ctx, Object{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: namespace})
	if err != nil {
		return false, err
	}
	return live == nil || live.GetLabels()[LabelInstance] == instance, nil
}
