package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// others returns the first scenario, followed by the scenarios specified by --with.
func (s *starting) others(first *scenario.Scenario) ([]*scenario.Scenario, error) {
	all := []*scenario.Scenario{first}
	if len(s.with) > 0 && (s.workload != "" || s.terraform != "" || len(s.set) > 0) {
		return nil, errors.New("--with cannot be used with --workload, --terraform or --set")
	}
	for _, name := range s.with {
		found, err := scenario.Find(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("--with: %w", err)
		}
		if slices.ContainsFunc(all, func(o *scenario.Scenario) bool { return o.Metadata.Name == found.Metadata.Name }) {
			return nil, fmt.Errorf("--with: scenario %s is named twice", found.Metadata.Name)
		}
		all = append(all, found)
	}
	return all, nil
}

// seedsTried is the maximum number of random seeds to try. Several may be needed, because some variants of scenarios
// can only be used alone.
const seedsTried = 20

// resolveAll resolves the scenarios for the current state of the cluster, and checks that they can be used together.
func (s *starting) resolveAll(
	ctx context.Context, lab *exercise.Lab, all []*scenario.Scenario,
) (resolved []*scenario.Resolved, err error) {
	for try := 1; ; try++ {
		if resolved, err = s.resolveWith(ctx, lab, all); err != nil {
			return nil, err
		}
		if err = exercise.Together(resolved); err == nil {
			break
		}
		if !s.drawn || try == seedsTried {
			return nil, err
		}
		s.seed++
	}
	if s.dryRun == "client" {
		return resolved, nil
	}
	for _, r := range resolved {
		if err := lab.Preflight(ctx, r); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Metadata.Name, kube.Explain(err))
		}
	}
	return resolved, nil
}

// resolveWith resolves the scenarios for the seed.
func (s *starting) resolveWith(
	ctx context.Context, lab *exercise.Lab, all []*scenario.Scenario,
) (resolved []*scenario.Resolved, err error) {
	for i, one := range all {
		r, err := lab.Resolve(ctx, one, s.seed, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.Metadata.Name, kube.Explain(err))
		}
		if i > 0 { // the first exercise advertises the GPUs for all
			r.Facts.Simulation = nil
		}
		resolved = append(resolved, r)
	}
	return resolved, nil
}

// runTogether starts an exercise for each scenario. If one fails to start, it ends those already started.
func (s *starting) runTogether(ctx context.Context, all []*scenario.Scenario) error {
	lab, err := s.lab(ctx)
	if err != nil {
		return err
	}
	lab.Allow, lab.SimulateGPUs = s.allow, s.simulate
	resolved, err := s.resolveAll(ctx, lab, all)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	var wants, names []string
	for _, r := range resolved {
		wants, names = append(wants, r.NeedsConsent()...), append(names, r.Metadata.Name)
	}
	if err := s.consent(ctx, s.pack, wants, s.yes); err != nil {
		return err
	}
	for _, r := range resolved {
		s.before(r)
	}
	if s.dryRun != "none" {
		for _, r := range resolved {
			if err := s.printDryRun(r); err != nil {
				return err
			}
		}
		return nil
	}
	question := fmt.Sprintf("Start %s in context %q?", strings.Join(names, ", "), s.connection.Connected().Context)
	if err := confirm.Ask(ctx, s.streams, question, s.yes); err != nil {
		return err
	}
	group, err := exercise.NewGroup()
	if err != nil {
		return err
	}
	var started []*exercise.Exercise
	for i, one := range all {
		e, err := s.startOne(ctx, lab, one, resolved[i], i > 0, group)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", one.Metadata.Name, kube.Explain(err)), s.endAll(ctx, lab, started))
		}
		started = append(started, e)
	}
	return s.printTogether(lab, started)
}

// startOne starts an exercise. Every exercise but the first is resolved again, because the exercises before it use
// GPUs.
func (s *starting) startOne(
	ctx context.Context, lab *exercise.Lab, one *scenario.Scenario, r *scenario.Resolved, again bool, group string,
) (*exercise.Exercise, error) {
	if again {
		lab.SimulateGPUs = 0
		var err error
		if r, err = lab.Resolve(ctx, one, s.seed, nil); err != nil {
			return nil, err
		}
	}
	return lab.Start(ctx, r, exercise.StartOptions{
		For: s.lasts, Consent: true, Group: group, Command: session.CommandLine(os.Args),
	})
}

// endAll ends exercises, the newest first.
func (s *starting) endAll(ctx context.Context, lab *exercise.Lab, started []*exercise.Exercise) error {
	ctx = context.WithoutCancel(ctx)
	var failed []error
	for _, e := range slices.Backward(started) {
		if _, err := lab.End(ctx, e.ID, exercise.EndOptions{}); err != nil {
			failed = append(failed, fmt.Errorf("end exercise %s: %w", e.ID, err))
			continue
		}
		printer.Talk(s.streams.ErrOut, "Exercise %s ended.", e.ID)
	}
	return errors.Join(failed...)
}

func (s *starting) printTogether(lab *exercise.Lab, all []*exercise.Exercise) error {
	var writeErr error
	merged, err := merge(all)
	if err == nil && s.kubeconfig != "" {
		writeErr = writeNew(s.kubeconfig, merged)
	}
	if err = errors.Join(err, writeErr); err != nil {
		err = fmt.Errorf("the exercises are running, but the kubeconfig could not be written: %w; to write one, run: "+
			"kubectl gpu-fault scenario status --kubeconfig-out FILE", err)
	}
	var items []started
	var names []string
	for _, e := range all {
		card := lab.Card(e)
		card.Kubeconfig, card.Context = s.kubeconfig, contextOf(e)
		items, names = append(items, started{*e, card}), append(names, "exercise/"+e.ID)
	}
	if !s.format.IsTable() {
		list := map[string]any{"apiVersion": exercise.APIVersion, "kind": exercise.Kind + "List", "items": items}
		return errors.Join(s.format.Object(s.streams.Out, list, names...), err)
	}
	for i, item := range items {
		text := fmt.Sprintf("Task %d of %d: %s", i+1, len(items), cardText(item.Card))
		fmt.Fprintln(s.streams.Out, printer.Wrap(printer.Escape(text), printer.Width(s.streams.Out))+"\n")
		printer.Talk(s.streams.ErrOut, "Exercise %s (seed %d) is ready, and ends at %s.", item.ID, item.Seed,
			item.Until.Local().Format("15:04"))
	}
	return err
}

// contextOf returns the name of an exercise's context in a kubeconfig for several exercises. The name is the namespace,
// which does not reveal the scenario.
func contextOf(e *exercise.Exercise) string { return e.Public.Access.Home() }

// merge returns one kubeconfig for several exercises. Each has its own context and its own account.
func merge(all []*exercise.Exercise) ([]byte, error) {
	merged := clientcmdapi.NewConfig()
	for _, e := range all {
		one, err := clientcmd.Load(e.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig of exercise %s: %w", e.ID, err)
		}
		name, context := contextOf(e), one.Contexts[one.CurrentContext]
		merged.Clusters[name], merged.AuthInfos[name] = one.Clusters[context.Cluster], one.AuthInfos[context.AuthInfo]
		context.Cluster, context.AuthInfo = name, name
		merged.Contexts[name] = context
		if merged.CurrentContext == "" {
			merged.CurrentContext = name
		}
	}
	return clientcmd.Write(*merged)
}

// each calls do for the exercise with the ID, or for all that were started together if the ID is empty. A negative
// verdict does not stop the loop.
func each(ctx context.Context, lab *exercise.Lab, id string, newestFirst bool, do func(id string) error) error {
	var ids []string
	if id == "" {
		group, err := lab.Group(ctx)
		if err != nil {
			return kube.Explain(err)
		}
		for _, e := range group {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) < 2 {
		return do(id)
	}
	if newestFirst {
		slices.Reverse(ids)
	}
	var verdict error
	for _, id := range ids {
		switch err := do(id); {
		case errors.As(err, new(*usage.Verdict)):
			verdict = err
		case err != nil:
			return err
		}
	}
	return verdict
}
