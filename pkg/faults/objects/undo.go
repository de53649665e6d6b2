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

// Undoer deletes what a step created, and takes back what it patched. Dynamic is nil where it is only to describe. It
// needs no mapper: records name resources.
type Undoer struct {
	Dynamic dynamic.Interface
	// LedgerNamespace is where nothing is undone; empty is ledger.DefaultNamespace.
	LedgerNamespace string
	// Successors says to delete also what somebody made anew under the name of an object of ours that is gone: a
	// candidate who deleted and created what cannot be changed. Without it that is left, and reported.
	Successors bool
	// Wait bounds how long it waits until what it deleted is gone; zero means DefaultWait.
	Wait time.Duration
	// Progress hears what it waits for; may be nil.
	Progress func(step ledger.Step, text string)
}

// DefaultWait is how long an undo waits until what it deleted is gone.
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
		return fmt.Sprintf("put back %s of %s, as far as it is still ours", paths(d.Edits), d.Patched)
	}
	var names []string
	own := map[string]bool{}
	for _, o := range d.Created {
		if o.isNamespace() {
			own[o.Name] = true
			names = append(names, o.String()+" with all that is in it")
		}
	}
	for _, o := range d.Created {
		if !o.isNamespace() && !own[o.Namespace] {
			names = append(names, o.String())
		}
	}
	return "delete " + listed(names)
}

// listed returns a list for people, cut where it is long.
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

// Verify implements fault.Verifier. What was created is known by the marks of the objects, each when it is deleted;
// what was patched in a namespace of the run goes with that.
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
	if len(back) == 0 { // a former undo put everything back, and its client died
		return nil
	}
	return one.checkSeal(ctx, *d.Patched, back)
}

// read reads a step's undo and checks it. It is nil when the step had changed nothing yet.
func (u Undoer) read(step ledger.Step) (*Data, error) {
	d, err := ReadData(step)
	switch {
	case err != nil || d == nil:
		return nil, err
	case u.Dynamic == nil:
		return nil, errNoCluster
	}
	if err := d.check(u.LedgerNamespace); err != nil {
		return nil, fmt.Errorf("the record's undo is rejected: %w", err)
	}
	return d, nil
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	d, err := u.read(step)
	switch {
	case err != nil:
		return "", "", err
	case d == nil: // who died before the data was there has changed nothing
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

// undoing is the undo of one step.
type undoing struct {
	Undoer
	run    ledger.Run
	step   ledger.Step
	data   *Data
	seal   seal.Seal
	report func(string)
}

// goes reports whether a namespace was created by the run, still is that one or gone, and so takes with it what is in
// it.
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
