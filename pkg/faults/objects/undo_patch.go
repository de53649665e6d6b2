package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// patched restores the values that have not changed since the patch. Other clients' changes are kept.
func (u undoing) patched(ctx context.Context) (ledger.State, string, error) {
	o := *u.data.Patched
	if o.Namespace != "" {
		if goes, err := u.goes(ctx, o.Namespace); err != nil || goes {
			return ledger.StateReverted, fmt.Sprintf("%s is being deleted with its namespace, or no longer exists", o), err
		}
	}
	var back restored
	err := retry(ctx, o, func() (err error) {
		back, err = u.takeBack(ctx, o)
		return err
	})
	if err != nil {
		return "", "", err
	}
	said, err := u.giveBack(ctx, o, back)
	if err != nil {
		return "", "", err
	}
	if u.data.Sealed {
		if err := keeper(u.Dynamic).Drop(ctx, u.seal); err != nil {
			return "", "", err
		}
	}
	return back.state, back.said + said, nil
}

// retry retries if another client writes first.
func retry(ctx context.Context, o Object, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		if !errors.Is(err, errChanged) && !apierrors.IsConflict(err) || attempt == attempts {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("patch %s: %w", o, errors.Join(context.Cause(ctx), err))
		case <-time.After(attemptPause):
		}
	}
}

// restored is the result for an object whose values were restored.
type restored struct {
	state ledger.State
	said  string
	// before and now are the object as read and the object with the restored values. They are the same if no value was
	// restored. Both are nil if the object is not the one that was patched.
	before, now *unstructured.Unstructured
	// theirs are the edits whose values have been changed by other clients.
	theirs []kubeedit.Edit
}

func (u undoing) takeBack(ctx context.Context, o Object) (restored, error) {
	live, err := u.live(ctx, o)
	switch {
	case err != nil:
		return restored{}, err
	case live == nil:
		return restored{state: ledger.StateSuperseded, said: fmt.Sprintf("%s no longer exists", o)}, nil
	case string(live.GetUID()) != o.UID:
		return restored{state: ledger.StateSuperseded,
			said: fmt.Sprintf("%s was not changed, because it is a different object (UID %s, not %s)", o,
				live.GetUID(), o.UID)}, nil
	}
	one := restored{state: ledger.StateReverted, before: live, now: live}
	desired, back, theirs := u.data.withoutOurs(live)
	if len(back) > 0 {
		if err := u.checkSeal(ctx, o, back); err != nil {
			return restored{}, err
		}
		u.report(fmt.Sprintf("restoring %s of %s", paths(back), o))
		if one.now, err = write(ctx, u.Dynamic, o, live, desired); err != nil {
			return restored{}, err
		}
	}
	switch {
	case len(theirs) > 0:
		one.state, one.theirs = ledger.StateSuperseded, theirs
		one.said = fmt.Sprintf("%s: not restored, because another client has changed %s; the value was %s before the patch", o,
			paths(theirs), was(theirs))
	case len(back) == 0:
		one.said = fmt.Sprintf("%s is already in its original state", o)
	default:
		one.said = fmt.Sprintf("%s of %s restored", paths(back), o)
	}
	return one, nil
}

// withoutOurs returns a copy of an object with the edits reverted. It also returns the edits that were reverted (back),
// and the edits whose values other clients have changed (theirs).
func (d *Data) withoutOurs(
	live *unstructured.Unstructured,
) (desired *unstructured.Unstructured, back, theirs []kubeedit.Edit) {
	desired = live.DeepCopy()
	for _, e := range slices.Backward(d.Edits) {
		changed, others := e.TakeBack(desired.Object)
		if changed {
			back = append(back, e)
		}
		if others {
			theirs = append(theirs, e)
		}
	}
	return desired, back, theirs
}

// checkSeal returns an error if only the ledger confirms the values in a record.
func (u undoing) checkSeal(ctx context.Context, o Object, edits []kubeedit.Edit) error {
	return seal.Check(ctx, keeper(u.Dynamic), u.seal,
		fmt.Sprintf("restore %s of %s manually (to %s) and revert again", paths(edits), o, was(edits)))
}

func was(edits []kubeedit.Edit) string {
	var all []string
	for _, e := range edits {
		all = append(all, brief(e.Was))
	}
	return strings.Join(all, ", ")
}
