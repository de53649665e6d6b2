package cuda

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// switching carries out an arm or disarm on a cluster.
type switching struct {
	*arming
	cluster  *cudashim.Cluster
	session  *fault.Session
	observer *observer
	streams  genericiooptions.IOStreams
	note     func(text string)
	// injected returns the run whose shim is in the workload's pod template.
	injected func(ctx context.Context, p *inPlace) (run string, err error)
}

func (s *switching) run(ctx context.Context, kubeContext string) error {
	p, next, asked, err := s.find(ctx)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	s.before(p, asked, time.Now(), kubeContext)
	switch {
	case s.dryRun != "none":
		return s.tryOut(ctx, p, next)
	case s.verb == "disarm": // disarming only stops a fault, and therefore needs no confirmation
		return s.disarm(ctx, p, next)
	}
	if err := confirm.Ask(
		ctx, s.streams, fmt.Sprintf("Arm run %s on %s in context %q?", s.id, p.data.Ref(), kubeContext), s.yes,
	); err != nil {
		return err
	}
	if p, next, asked, err = s.find(ctx); err != nil { // the run may have changed before the user confirmed
		return fmt.Errorf("not armed: %w", err)
	}
	return s.arm(ctx, p, next, asked)
}

// find reads the run, and returns the state to write and the corresponding fault. It fails if the run cannot be armed
// now. A run can always be disarmed while it is in place.
func (s *switching) find(ctx context.Context) (*inPlace, cudafault.State, *cudafault.Fault, error) {
	p, err := find(ctx, s.cluster, s.session.Ledger, s.id)
	if p == nil {
		return nil, cudafault.State{}, nil, err
	}
	if s.verb == "disarm" && !errors.Is(err, errNoState) {
		if err != nil {
			s.note(err.Error() + "; the state is replaced with a new one")
		}
		return p, p.healthy(), p.asked, nil
	}
	if err != nil {
		return nil, cudafault.State{}, nil, err
	}
	if err := s.carries(ctx, p); err != nil {
		return nil, cudafault.State{}, nil, err
	}
	next, asked, err := s.next(ctx, p, time.Now())
	return p, next, asked, err
}

// carries returns an error if the shim was removed from the workload, for example by `kubectl rollout undo`, because
// new pods would not have the shim.
func (s *switching) carries(ctx context.Context, p *inPlace) error {
	now, err := s.injected(ctx, p)
	if err != nil {
		return err
	}
	if now != p.run.ID {
		return fmt.Errorf("the shim of run %s was removed from %s: close the run with %s, and inject the fault again",
			s.id,
			p.data.Ref(), s.session.Ledger.Command("revert", s.id))
	}
	return nil
}

// arm writes the record and then the state. The record determines whether the run may be armed, because a revert marks
// the record before undoing anything.
func (s *switching) arm(ctx context.Context, p *inPlace, next cudafault.State, asked *cudafault.Fault) error {
	pods, err := p.pods(s.cluster)(ctx)
	if err != nil {
		return fmt.Errorf("not armed: %w", err)
	}
	former, formerStep := p.run, p.step.ID
	run, err := s.record(ctx, p, asked)
	if errors.Is(err, ledger.ErrClosed) {
		return fmt.Errorf("not armed: run %s was reverted in the meantime", s.id)
	}
	if err != nil {
		return fmt.Errorf("not armed: %w", err)
	}
	late, err := setState(ctx, s.cluster, p.data.Namespace, s.id, next, pods)
	if err != nil {
		s.unrecord(ctx, former, formerStep)
		return err
	}
	p.run = run
	return s.finish(ctx, p, next, late)
}

// disarm writes the state and then the record. A client that is still injecting the run checks the record before and
// after arming. Because that client may have armed the run in between, disarm writes the state once more.
func (s *switching) disarm(ctx context.Context, p *inPlace, next cudafault.State) error {
	pods, unlisted := p.pods(s.cluster)(ctx)
	late, err := setState(ctx, s.cluster, p.data.Namespace, s.id, next, pods)
	if err != nil {
		return fmt.Errorf("run %s was not disarmed: %w", s.id, err)
	}
	if run, err := s.record(ctx, p, p.asked); err == nil {
		p.run = run
	} else {
		printer.Talk(s.streams.ErrOut, "Warning: the run is disarmed, but its record could not be updated: %v", err)
	}
	if p.run.InItsWay(time.Now()) {
		if late, err = setState(ctx, s.cluster, p.data.Namespace, s.id, next, pods); err != nil {
			return fmt.Errorf("run %s was disarmed, but its client is still running and may arm it again: %w", s.id,
				err)
		}
	}
	return s.finish(ctx, p, next, errors.Join(late, unlisted))
}

// finish announces the change and waits for the pods.
func (s *switching) finish(ctx context.Context, p *inPlace, next cudafault.State, late error) error {
	if late != nil {
		s.note("the pods receive the change within a minute: " + late.Error())
	}
	s.session.Announce(ctx, p.run, p.step.ID,
		map[string]string{"arm": fault.ReasonArmed, "disarm": fault.ReasonDisarmed}[s.verb])
	return s.await(ctx, p, next)
}

// mayArm returns an error if the run must not be armed, because it has ended or is being changed by another client.
func (s *switching) mayArm(run ledger.Run, step string, now time.Time) error {
	of := run.Step(step)
	revert := s.session.Ledger.Command("revert", s.id)
	switch {
	case run.IsClosed():
		return fmt.Errorf("run %s was closed at %s (%s): inject the fault again", s.id,
			run.Closed.Local().Format(time.DateTime), run.Phase)
	case run.InItsWay(now):
		return fmt.Errorf("the fault of run %s is still being injected: wait until the injection completes", s.id)
	case run.Phase == ledger.Interrupted, run.Phase == ledger.Failed:
		return fmt.Errorf(
			"run %s was interrupted or is being reverted (%s): revert the run with %s, and inject the fault again", s.id,
			run.Phase, revert,
		)
	case of == nil || !of.InPlace():
		return fmt.Errorf("run %s was reverted: inject the fault again", s.id)
	case run.Expired(now):
		return fmt.Errorf("run %s expired at %s, and its processes pass all calls through permanently: revert the run (%s), and inject the fault again",
			s.id, run.Until.Local().Format("15:04:05"), revert)
	}
	return nil
}

// next returns the state to arm with, and the corresponding fault.
func (s *switching) next(ctx context.Context, p *inPlace, now time.Time) (cudafault.State, *cudafault.Fault, error) {
	if err := s.mayArm(p.run, p.step.ID, now); err != nil {
		return p.state, nil, err
	}
	if s.nodes {
		nodes, err := s.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return p.state, nil, fmt.Errorf("list nodes: %w", err)
		}
		if err := checkNodes("--only-on-node", s.onlyOn, nodes.Items); err != nil {
			return p.state, nil, err
		}
	}
	generation := uint64(now.UnixNano())
	asked := s.fault
	switch {
	case asked == nil && p.asked == nil: // the record has no fault: reuse the state file
		next := p.state
		next.Generation, next.ArmedAt = generation, now.Truncate(time.Millisecond)
		if s.nodes {
			next.Nodes = s.onlyOn
		}
		return next, nil, nil
	case asked == nil:
		asked = new(*p.asked)
	case p.asked != nil:
		asked.Nodes = p.asked.Nodes
	}
	if s.nodes {
		asked.Nodes = s.onlyOn
	}
	if p.asked != nil && layerOf(*asked) != layerOf(*p.asked) {
		return p.state, nil, fmt.Errorf(
			"--layer %s: run %s was injected with the shim for %s; revert the run, and inject the fault again",
			layerOf(*asked), s.id,
			layerOf(*p.asked),
		)
	}
	next, err := asked.State(s.id, generation, now, p.run.Until)
	return next, asked, err
}

// before describes the planned change.
func (s *switching) before(p *inPlace, asked *cudafault.Fault, now time.Time, kubeContext string) {
	say := func(format string, args ...any) { printer.Talk(s.streams.ErrOut, format, args...) }
	say("%s on %s in namespace %s, in context %q; %s", s.id, p.data.Ref(), p.data.Namespace, kubeContext, p.phase(now))
	if s.verb == "disarm" {
		say("All calls will pass through. The shim stays loaded: `cuda arm %s` starts the fault again, and `revert "+
			"%s` removes the shim.",
			s.id, s.id)
	} else {
		what := without(p.run.Summary)
		if asked != nil {
			what = asked.Summary()
		}
		say("Fault: %s.", what)
		say("Duration: %s. Undo: `cuda disarm %s` stops the fault, and `revert %s` removes the shim.", end(p.run), s.id,
			s.id)
	}
	say("No pod is replaced. Processes notice the change at their next driver call, or up to one second after that " +
		"call.")
	say("")
}

// record updates the record of the run, unless the run must not be armed. The undo data in the record remains valid.
func (s *switching) record(ctx context.Context, p *inPlace, asked *cudafault.Fault) (ledger.Run, error) {
	var kept []byte
	if asked != nil {
		var err error
		if kept, err = json.Marshal(detail{*asked}); err != nil {
			return p.run, fmt.Errorf("encode the fault: %w", err)
		}
	}
	var refused error
	run, err := s.session.Ledger.Update(ctx, s.id, func(run *ledger.Run) error {
		if s.verb == "disarm" {
			run.Summary = without(run.Summary) + disarmedSuffix
			return nil
		}
		if refused = s.mayArm(*run, p.step.ID, time.Now()); refused != nil {
			return refused
		}
		run.Summary = without(run.Summary)
		if asked != nil {
			run.Summary, run.Step(p.step.ID).Detail = summary(*asked, false), kept
		}
		return nil
	})
	if refused != nil {
		err = refused
	}
	return run, err
}

// unrecord reverts the changes made by the method record, if the fault could not be armed. This is best effort, because
// only the state file affects the fault.
func (s *switching) unrecord(ctx context.Context, former ledger.Run, step string) {
	_, err := s.session.Ledger.Update(ctx, s.id, func(run *ledger.Run) error {
		run.Summary = former.Summary
		if now, was := run.Step(step), former.Step(step); now != nil && was != nil {
			now.Detail = was.Detail
		}
		return nil
	})
	if err != nil && !errors.Is(err, ledger.ErrClosed) {
		printer.Talk(s.streams.ErrOut, "Warning: the run is not armed, but its record could not be restored: %v", err)
	}
}

func layerOf(f cudafault.Fault) cudafault.Layer { return cmp.Or(f.Layer, cudafault.LayerDriver) }

// tryOut completes a dry run. A server dry run checks whether the API server accepts the state.
func (s *switching) tryOut(ctx context.Context, p *inPlace, next cudafault.State) error {
	if s.dryRun == "server" {
		if err := tryState(ctx, s.cluster, p.data.Namespace, s.id, next); err != nil {
			return fmt.Errorf("run %s would not be %sed: %w", s.id, s.verb, err)
		}
	}
	_, err := fmt.Fprintf(s.streams.Out, "run/%s %sed (%s dry run)\n", s.id, s.verb, s.dryRun)
	return err
}
