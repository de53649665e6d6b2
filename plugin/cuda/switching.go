package cuda

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/workload"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// switching is the use of an arming on a cluster.
type switching struct {
	*arming
	cluster *workload.Cluster
	session *fault.Session
	witness *witness
	streams genericiooptions.IOStreams
	note    func(text string)
}

func (s *switching) run(ctx context.Context, kubeContext string) error {
	p, err := find(ctx, s.cluster, s.session.Ledger, s.id)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	now := time.Now()
	if s.verb == "disarm" && p.run.Expired(now) {
		printer.Talk(s.streams.ErrOut, "%s: %s; take it out with: %s", s.id, p.phase(now), s.session.Ledger.Command("revert", s.id))
		return nil
	}
	next, asked, err := s.next(ctx, p, now)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	s.before(p, asked, now, kubeContext)
	if s.dryRun != "none" {
		return s.tryOut(ctx, p, next)
	}
	if err := confirm.Ask(ctx, s.streams, fmt.Sprintf("%s run %s on %s in context %q?", strings.ToUpper(s.verb[:1])+s.verb[1:], s.id, p.data.Ref(), kubeContext), s.yes); err != nil {
		return err
	}
	pods, err := p.pods(s.cluster)(ctx)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	late, err := setState(ctx, s.cluster, p.data.Namespace, next, pods)
	if err != nil {
		return fmt.Errorf("run %s was not %sed: %w", s.id, s.verb, err)
	}
	if late != nil {
		s.note("its pods learn of it within a minute: " + late.Error())
	}
	s.record(ctx, p, asked)
	return s.await(ctx, p, next)
}

// next is the state to write, and the fault that it stands for.
func (s *switching) next(ctx context.Context, p *inPlace, now time.Time) (cudafault.State, *cudafault.Fault, error) {
	if p.run.InItsWay(now) {
		return p.state, nil, fmt.Errorf("run %s is still being made: wait for it", s.id)
	}
	if s.verb == "disarm" {
		next := p.state
		next.ArmedAt = time.Time{}
		return next, p.asked, nil
	}
	if p.run.Expired(now) {
		return p.state, nil, fmt.Errorf("the time of run %s was up at %s, and its processes pass all calls through for good: revert it (%s), and inject anew",
			s.id, p.run.Until.Local().Format("15:04:05"), s.session.Ledger.Command("revert", s.id))
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
	case asked == nil && p.asked == nil: // what the record does not tell, the state file does
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
		return p.state, nil, fmt.Errorf("--layer %s: run %s was injected with the shim for %s: revert it, and inject anew", layerOf(*asked), s.id, layerOf(*p.asked))
	}
	next, err := asked.State(s.id, generation, now, p.run.Until)
	return next, asked, err
}

// before says what is going to be done.
func (s *switching) before(p *inPlace, asked *cudafault.Fault, now time.Time, kubeContext string) {
	say := func(format string, args ...any) { printer.Talk(s.streams.ErrOut, format, args...) }
	say("%s on %s in namespace %s, in context %q; %s", s.id, p.data.Ref(), p.data.Namespace, kubeContext, p.phase(now))
	if s.verb == "disarm" {
		say("All calls pass through then. The shim stays loaded: `cuda arm %s` begins the fault again, `revert %s` takes it out.", s.id, s.id)
	} else {
		what := without(p.run.Summary)
		if asked != nil {
			what = asked.Summary()
		}
		say("Fault: %s.", what)
		say("It stays %s. Undo: `cuda disarm %s` ends it, `revert %s` takes the shim out.", end(p.run), s.id, s.id)
	}
	say("No pod is replaced. Processes notice at a call to the driver, at most a second later.")
	say("")
}

// record tells the ledger, and those who look at the workload. The undo in the record covers it already.
func (s *switching) record(ctx context.Context, p *inPlace, asked *cudafault.Fault) {
	text := without(p.run.Summary)
	if asked != nil {
		text = summary(*asked, false)
	}
	if s.verb == "disarm" {
		text += disarmedSuffix
	}
	run, err := s.session.Ledger.Update(ctx, s.id, func(run *ledger.Run) error {
		run.Summary = text
		if step := run.Step(p.step.ID); step != nil && asked != nil {
			kept, err := json.Marshal(detail{*asked})
			if err != nil {
				return err
			}
			step.Detail = kept
		}
		return nil
	})
	if err != nil {
		printer.Talk(s.streams.ErrOut, "Warning: the list of runs does not say so: %v", err)
		run = p.run
	}
	p.run = run
	s.session.Announce(ctx, run, p.step.ID, map[string]string{"arm": fault.ReasonArmed, "disarm": fault.ReasonDisarmed}[s.verb])
}

// await waits until the processes have noticed, and shows them.
func (s *switching) await(ctx context.Context, p *inPlace, next cudafault.State) error {
	s.note(s.verb + "ed; waiting until its processes take notice")
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	reports, err := s.witness.watch(limited, watching{
		run: s.id, pods: p.pods(s.cluster), current: func(file cudafault.State) bool { return sameArming(file, next) },
		done: func(reports []report) bool {
			return !slices.ContainsFunc(reports, func(r report) bool { return !r.noticed(next) })
		},
	})
	if ctx.Err() != nil {
		return fmt.Errorf("run %s is %sed, but nobody waits for its processes any more: %w", s.id, s.verb, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("run %s is %sed, but its pods cannot be asked: %w", s.id, s.verb, err)
	}
	p.state = next
	view := statusList{Items: []runStatus{statusOf(p, reports, time.Now())}}
	if err := view.print(s.streams, s.format); err != nil {
		return err
	}
	var late []string
	pending := 0
	for i := range reports {
		r := &reports[i]
		if r.asked && r.file != nil && r.file.Run == s.id && !sameArming(*r.file, next) {
			late = append(late, r.pod.Name)
		}
		pending += r.unaware(next)
	}
	if len(late) > 0 {
		return fmt.Errorf("run %s is %sed, but after %s the state file is not new in pods %v: their kubelets do so within a minute or two", s.id, s.verb, s.timeout, late)
	}
	if pending > 0 {
		printer.Talk(s.streams.ErrOut, "%s did not call the driver since, and will notice when they do, if they still live", count(pending, "process"))
	}
	printer.Talk(s.streams.ErrOut, "run %s is %sed, %s", s.id, s.verb, end(p.run))
	return nil
}

func layerOf(f cudafault.Fault) cudafault.Layer { return cmp.Or(f.Layer, cudafault.LayerDriver) }

func isExcluded(s cudafault.Status) bool {
	return s == cudafault.StatusOtherNode || s == cudafault.StatusOtherProcess
}

// sameArming is whether a state file is of an arming, or disarmed as that is.
func sameArming(file, want cudafault.State) bool {
	return file.Generation == want.Generation && file.ArmedAt.IsZero() == want.ArmedAt.IsZero()
}

// unaware is how many processes that may be alive have not noticed.
func (r *report) unaware(next cudafault.State) int {
	n := 0
	for _, p := range r.living() {
		acts := p.Status == cudafault.StatusArmed || p.Status == cudafault.StatusTripped || p.Status == cudafault.StatusPoisoned
		if p.Generation != next.Generation || next.ArmedAt.IsZero() == acts && !isExcluded(p.Status) {
			n++
		}
	}
	return n
}

// noticed is whether nothing is to be waited for in a pod: all its processes have noticed, or it does not run.
func (r *report) noticed(next cudafault.State) bool {
	if !r.asked {
		return true
	}
	return r.file != nil && sameArming(*r.file, next) && r.unaware(next) == 0
}

// tryOut ends a dry run; server asks the API server whether it would take the state.
func (s *switching) tryOut(ctx context.Context, p *inPlace, next cudafault.State) error {
	if s.dryRun == "server" {
		if err := tryState(ctx, s.cluster, p.data.Namespace, next); err != nil {
			return fmt.Errorf("run %s would not be %sed: %w", s.id, s.verb, err)
		}
	}
	_, err := fmt.Fprintf(s.streams.Out, "run/%s %sed (%s dry run)\n", s.id, s.verb, s.dryRun)
	return err
}
