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

// patched takes back what is still as the patch left it. What somebody else has changed meanwhile stays.
func (u undoing) patched(ctx context.Context) (ledger.State, string, error) {
	o := *u.data.Patched
	if o.Namespace != "" {
		if goes, err := u.goes(ctx, o.Namespace); err != nil || goes {
			return ledger.StateReverted, fmt.Sprintf("%s goes with its namespace, or is gone", o), err
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

// retry does something again when somebody else was faster.
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

// restored is what became of an object whose values were put back.
type restored struct {
	state ledger.State
	said  string
	// before is the object as it was read, and now as it is with the values put back: the same one where there were
	// none. Both are nil when it is not the one that was patched.
	before, now *unstructured.Unstructured
	// theirs are the edits where others have written something else meanwhile.
	theirs []kubeedit.Edit
}

func (u undoing) takeBack(ctx context.Context, o Object) (restored, error) {
	live, err := u.live(ctx, o)
	switch {
	case err != nil:
		return restored{}, err
	case live == nil:
		return restored{state: ledger.StateSuperseded, said: fmt.Sprintf("%s is not there any more", o)}, nil
	case string(live.GetUID()) != o.UID:
		return restored{state: ledger.StateSuperseded,
			said: fmt.Sprintf("%s is another one than was patched (uid %s, not %s), and was left alone", o,
				live.GetUID(), o.UID)}, nil
	}
	one := restored{state: ledger.StateReverted, before: live, now: live}
	desired, back, theirs := u.data.withoutOurs(live)
	if len(back) > 0 {
		if err := u.checkSeal(ctx, o, back); err != nil {
			return restored{}, err
		}
		u.report(fmt.Sprintf("putting back %s of %s", paths(back), o))
		if one.now, err = write(ctx, u.Dynamic, o, live, desired); err != nil {
			return restored{}, err
		}
	}
	switch {
	case len(theirs) > 0:
		one.state, one.theirs = ledger.StateSuperseded, theirs
		one.said = fmt.Sprintf("%s: somebody has changed %s meanwhile, and that was left; it was %s before", o,
			paths(theirs), was(theirs))
	case len(back) == 0:
		one.said = fmt.Sprintf("%s is as it was", o)
	default:
		one.said = fmt.Sprintf("%s of %s is as it was", paths(back), o)
	}
	return one, nil
}

// withoutOurs returns an object without what is still ours, which edits that takes back, and those where others have
// written something else.
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

// checkSeal refuses to write what a record says if only the ledger says so.
func (u undoing) checkSeal(ctx context.Context, o Object, edits []kubeedit.Edit) error {
	return seal.Check(ctx, keeper(u.Dynamic), u.seal,
		fmt.Sprintf("put %s of %s back by hand (to %s) and revert again", paths(edits), o, was(edits)))
}

func was(edits []kubeedit.Edit) string {
	var all []string
	for _, e := range edits {
		all = append(all, brief(e.Was))
	}
	return strings.Join(all, ", ")
}
