package leftover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
)

// standing is the state of a run according to the ledger. It also determines how the run's objects are handled.
type standing int

const (
	unknown    standing = iota // the record may be in a namespace that the user may not read
	missing                    // the run has no record in the entire cluster
	closed                     // the run is closed
	ended                      // the run has no client and nothing to revert, but the record is open
	overdue                    // the run expired or its client crashed, and there is something to revert
	inUse                      // the client may be active, or the fault is in place as intended
	unreadable                 // the record is damaged, or from a newer version
)

// knownRun is a run in a ledger.
type knownRun struct {
	standing standing
	run      ledger.Run // zero unless it was read
	store    *ledger.Store
	why      error // reason why the record is unreadable
	// unmarked is the namespace of the run's record if that namespace is not marked as a ledger, and empty otherwise.
	unmarked string
}

// runs are the runs in all ledgers of the cluster that the user may read.
type runs struct {
	byID map[string]knownRun
	// complete is set if the records of all namespaces were read. Otherwise, a run that is not in byID may still have a
	// record.
	complete bool
	// unmarked lists namespaces that contain records but are not marked as ledgers.
	unmarked []string
	unread   []Skipped
	now      time.Time
}

// loadRuns reads the ledgers in all namespaces with records. It must be called after listing the objects: the record of
// a run is created first, so if an object has no record, the record was deleted.
func (f *Finder) loadRuns(ctx context.Context, records []metav1.PartialObjectMetadata, complete bool) (*runs, error) {
	known := &runs{byID: map[string]knownRun{}, complete: complete, now: f.now()}
	scopes := map[string]ledger.Scope{}
	records, err := f.trusted(ctx, records, known)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		isClosed := record.Labels[ledger.LabelClosed] == "true"
		known.learn(record.Name, knownRun{standing: closed})
		switch {
		case isClosed && record.Labels[ledger.LabelFault] == nodeFault:
			scopes[record.Namespace] = ledger.All // to determine how the run ended
		case !isClosed && scopes[record.Namespace] == "":
			scopes[record.Namespace] = ledger.Active
		}
	}
	for namespace, scope := range scopes {
		store := ledger.New(f.Client, namespace)
		found, err := store.List(ctx, scope)
		if apierrors.IsForbidden(err) {
			known.complete = false
			for _, record := range records {
				if record.Namespace == namespace && record.Labels[ledger.LabelClosed] != "true" {
					known.learn(record.Name, knownRun{standing: unreadable, store: store, why: err})
				}
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, run := range found.Runs {
			known.learn(run.ID, knownRun{standing: judge(run, known.now), run: run, store: store})
		}
		for _, bad := range found.Unreadable {
			known.learn(bad.Name, knownRun{standing: unreadable, store: store, why: bad.Err})
		}
	}
	return known, nil
}

// trusted returns the records in namespaces that are marked as ledgers. Other records may be forged by users of the
// namespace. They are ignored, and no suggested command uses them.
func (f *Finder) trusted(
	ctx context.Context, records []metav1.PartialObjectMetadata, known *runs,
) ([]metav1.PartialObjectMetadata, error) {
	marked := map[string]bool{}
	var trusted []metav1.PartialObjectMetadata
	for _, record := range records {
		is, asked := marked[record.Namespace]
		if !asked {
			err := ledger.New(f.Client, record.Namespace).CheckNamespace(ctx)
			switch {
			case errors.As(err, new(*ledger.UnmarkedError)):
				known.unmarked = append(known.unmarked, record.Namespace)
			case apierrors.IsForbidden(err):
				what := fmt.Sprintf("records in namespace %q", record.Namespace)
				known.unread = append(known.unread, Skipped{What: what, Why: "you are not allowed to get namespaces"})
			case err != nil:
				return nil, err
			}
			is = err == nil
			marked[record.Namespace] = is
		}
		if is {
			trusted = append(trusted, record)
			continue
		}
		// An unmarked namespace alone does not make the run's objects leftovers: it may be a ledger that the
		// administrator has not marked.
		known.learn(record.Name, knownRun{standing: unknown, unmarked: record.Namespace})
	}
	return trusted, nil
}

// learn keeps the more cautious of two standings.
func (r *runs) learn(id string, known knownRun) {
	if old, ok := r.byID[id]; !ok || known.standing >= old.standing {
		r.byID[id] = known
	}
}

// of returns the run with the ID.
func (r *runs) of(id string) knownRun {
	known, ok := r.byID[id]
	switch {
	case ok:
		return known
	case r.complete:
		return knownRun{standing: missing}
	default:
		return knownRun{standing: unknown}
	}
}

// openFor returns the ID and the state of an open run that changes the object.
func (r *runs) openFor(kind, namespace, name string) (string, knownRun) {
	for id, known := range r.byID {
		if known.standing < ended {
			continue
		}
		if slices.ContainsFunc(
			known.run.Targets(), (ledger.Target{Kind: kind, Namespace: namespace, Name: name}).Same,
		) {
			return id, known
		}
	}
	return "", knownRun{standing: missing}
}

// judge returns the standing of a run that was read.
func judge(run ledger.Run, now time.Time) standing {
	finished := run.Phase != ledger.Planned && run.Phase != ledger.Applying
	switch {
	case run.IsClosed():
		return closed
	case run.InItsWay(now):
		return inUse
	case len(run.Pending()) > 0 && (run.Expired(now) || !finished):
		return overdue
	case len(run.Pending()) > 0:
		return inUse
	case finished && now.Before(run.Deadline.Add(ledger.ClockSkew)):
		return inUse // the client may be cleaning up
	default:
		return ended
	}
}

// faults returns the leftovers of kind fault.
func (r *runs) faults() []Leftover {
	var all []Leftover
	for id, known := range r.byID {
		if known.standing != overdue {
			continue
		}
		why := "the client crashed"
		if known.run.Expired(r.now) {
			why = fmt.Sprintf("expired at %s", known.run.Until.Format(time.RFC3339))
		}
		what := fmt.Sprintf("%s on %s: %s; not confirmed as reverted", known.run.Summary,
			targets(known.run.Pending()), why)
		all = append(all, Leftover{
			Kind: KindFault, Namespace: known.store.Namespace, Name: id, Of: Ours, Run: id, Since: known.run.Created,
			What: []string{what}, Remedy: Nobody, Todo: known.store.Command("revert", id),
		})
	}
	return all
}

func targets(steps []ledger.Step) string {
	var names []string
	for _, step := range steps {
		if name := step.Target.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// nodeFault is the fault that changes files on nodes.
const nodeFault = "runtime"

// nodes returns the nodes on which a run may have left something behind because it was not fully reverted.
func (r *runs) nodes() []string {
	var names []string
	for _, known := range r.byID {
		if known.standing == inUse {
			continue
		}
		for _, step := range known.run.Steps {
			left := known.run.Fault == nodeFault && (step.InPlace() || step.State == ledger.StateSuperseded) ||
				step.Undo.Kind == kernellog.ModuleUndoKind && step.Pending()
			if left && step.Target.Kind == "Node" && !slices.Contains(names, step.Target.Name) {
				names = append(names, step.Target.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}
