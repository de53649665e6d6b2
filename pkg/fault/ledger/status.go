package ledger

import (
	"slices"
	"strings"
	"time"
)

// ClockSkew is the maximum expected difference between the clocks of two clients. Other clients consider a deadline to
// have passed only after this additional time.
const ClockSkew = time.Minute

// IsPermanent reports whether the change leaves nothing to undo.
func (u Undo) IsPermanent() bool { return u.Permanent || u.Kind == UndoNone }

// InPlace reports whether the step's change may be in place, because the step was started and not undone.
func (s Step) InPlace() bool {
	switch s.State {
	case StatePlanned, StateSkipped, StateReverted, StateSuperseded:
		return false
	}
	return s.Undone.IsZero()
}

// Pending reports whether the step still has to be undone.
func (s Step) Pending() bool {
	return s.InPlace() && s.State != StatePermanent && !s.Undo.IsPermanent()
}

// Pending returns the steps that still have to be undone.
func (r Run) Pending() []Step {
	var pending []Step
	for _, step := range r.Steps {
		if step.Pending() {
			pending = append(pending, step)
		}
	}
	return pending
}

// IsClosed reports whether the run is closed.
func (r Run) IsClosed() bool { return !r.Closed.IsZero() }

// InItsWay reports whether the run's client may still be making changes at the given time, because it has not recorded
// that it finished and the deadline has not passed.
func (r Run) InItsWay(now time.Time) bool {
	return !r.IsClosed() && (r.Phase == Planned || r.Phase == Applying) && now.Before(r.Deadline.Add(ClockSkew))
}

// Expired reports whether the run is open and its TTL has expired.
func (r Run) Expired(now time.Time) bool {
	return !r.IsClosed() && !r.Until.IsZero() && !now.Before(r.Until)
}

// Settled reports whether the run needs no further action, because it is closed, or because its client has finished and
// nothing can be undone.
func (r Run) Settled() bool {
	return r.IsClosed() || r.Phase != Planned && r.Phase != Applying && len(r.Pending()) == 0
}

// Step returns the step with the given ID, or nil if it does not exist.
func (r *Run) Step(id string) *Step {
	for i := range r.Steps {
		if r.Steps[i].ID == id {
			return &r.Steps[i]
		}
	}
	return nil
}

// Targets returns the distinct targets of the run, in the order of its steps.
func (r Run) Targets() []Target {
	var targets []Target
	for _, step := range r.Steps {
		if !slices.ContainsFunc(targets, step.Target.Same) {
			targets = append(targets, step.Target)
		}
	}
	return targets
}

// Same reports whether both targets are the same object. It does not compare UIDs: a node that re-registers is the same
// node.
func (t Target) Same(other Target) bool {
	return t.Kind == other.Kind && t.Namespace == other.Namespace && t.Name == other.Name
}

// String formats the target in kubectl's style, such as node/gpu-1 or deployment/web in namespace prod.
func (t Target) String() string {
	text := strings.ToLower(t.Kind) + "/" + t.Name
	if t.Namespace != "" {
		text += " in namespace " + t.Namespace
	}
	return text
}

// Clone returns a deep copy of the run.
func (r Run) Clone() Run {
	r.Command = slices.Clone(r.Command)
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		step := &r.Steps[i]
		step.Undo.Data = slices.Clone(step.Undo.Data)
		step.Detail = slices.Clone(step.Detail)
		step.Evidence = slices.Clone(step.Evidence)
	}
	return r
}
