package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/pager"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// nodePods checks nodes with a debug pod on each.
type nodePods struct {
	*leftoversFlags
	cluster         *kube.Cluster
	ledgerNamespace string
	streams         genericiooptions.IOStreams

	names  []string
	roles  map[string]string // roles by control plane node
	unseen []leftover.Skipped
	things map[string][]deadman.Leftover // leftovers found by the helper, by node
}

// choose determines the nodes and announces their debug pods. Only --clean requires confirmation.
func (p *nodePods) choose(ctx context.Context) error {
	if len(p.nodes) == 0 && !p.allNodes {
		return nil
	}
	var all, gpus []string
	p.roles = map[string]string{}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return p.cluster.Client.CoreV1().Nodes().List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if n, ok := object.(*corev1.Node); ok {
			all = append(all, n.Name)
			if role, is := fault.ControlPlaneRole(*n); is {
				p.roles[n.Name] = role
			}
			if fault.IsGPUNode(*n) {
				gpus = append(gpus, n.Name)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	if p.allNodes {
		if p.names = gpus; len(gpus) == 0 {
			printer.Talk(p.streams.ErrOut, "no node has GPUs; specify other nodes with --node")
			return nil
		}
	} else {
		for _, name := range p.nodes {
			if !slices.Contains(all, name) {
				return fault.NodeNotFound(name, all)
			}
		}
		p.names = p.nodes
	}
	slices.Sort(p.names)
	printer.Talk(p.streams.ErrOut, "%s", p.pods.Announcement(p.ledgerNamespace, p.names))
	return nil
}

// look returns the leftovers on the chosen nodes. It adds nodes that could not be checked to the list p.unseen.
func (p *nodePods) look(ctx context.Context, found *leftover.Found) ([]leftover.Leftover, error) {
	if len(p.names) == 0 {
		return nil, nil
	}
	answers, failed, err := p.ask(ctx, p.names, func(string) api.Leftovers { return api.Leftovers{} })
	if err != nil {
		return nil, err
	}
	p.things = answers
	var items []leftover.Leftover
	for _, name := range p.names {
		if why := failed[name]; why != nil {
			p.unseen = append(p.unseen, leftover.Skipped{What: "files on node " + name, Why: why.Error()})
			continue
		}
		items = append(items, found.OnNode(name, answers[name])...)
	}
	for _, l := range items {
		role := p.roles[l.Node]
		if role != "" && l.Remedy == leftover.OnNode && p.leftoversFlags.clean && !p.allowControlPlane {
			return nil, fmt.Errorf("node %q is a control plane node (label %s), and has leftovers; to clean it anyway, pass "+
				"--allow-control-plane", l.Node, role)
		}
	}
	return items, nil
}

// clean removes the leftovers on nodes. It first reads the ledger again, to keep the files of runs that have started in
// the meantime.
func (p *nodePods) clean(ctx context.Context, finder *leftover.Finder, report *leftoversReport) {
	var items []leftover.Leftover
	var names []string
	for _, l := range report.items {
		if l.Remedy == leftover.OnNode {
			items = append(items, l)
			if !slices.Contains(names, l.Node) {
				names = append(names, l.Node)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	var answers map[string][]deadman.Leftover
	var failed map[string]error
	now, err := finder.Find(ctx)
	if err == nil {
		answers, failed, err = p.ask(ctx, names, func(name string) api.Leftovers {
			return api.Leftovers{Clean: true, Keep: now.Keep(p.things[name])}
		})
	}
	for _, l := range items {
		result := leftover.Result{Leftover: l, Err: cmp.Or(err, failed[l.Node])}
		if result.Err == nil {
			result.Did, result.Err = became(l, answers[l.Node])
		}
		report.done(result)
	}
}

// became returns the helper's result for a leftover.
func became(l leftover.Leftover, answer []deadman.Leftover) (string, error) {
	i := slices.IndexFunc(answer,
		func(thing deadman.Leftover) bool { return thing.Kind == l.Kind && thing.Path == l.Name })
	switch {
	case i < 0:
		return leftover.DidGo, nil
	case answer[i].Removed:
		return didRemove, nil
	case answer[i].Problem != "":
		return "", errors.New(answer[i].Problem)
	default:
		return "", errors.New("not removed because a run may need it: check again")
	}
}

// ask runs the helper on several nodes, to find or remove leftovers. failed contains the errors by node.
func (p *nodePods) ask(
	ctx context.Context, names []string, what func(name string) api.Leftovers,
) (answers map[string][]deadman.Leftover, failed map[string]error, err error) {
	store := ledger.New(p.cluster.Client, p.ledgerNamespace)
	if _, err := store.EnsureNamespace(ctx); err != nil {
		return nil, nil, err
	}
	if err := fault.CheckNamespaceAccess(ctx, p.cluster.Client, p.ledgerNamespace); err != nil {
		return nil, nil, err
	}
	id, err := store.NewID("leftovers") // not a run, because nothing needs to be undone
	if err != nil {
		return nil, nil, err
	}
	report := progress.New(p.streams.ErrOut)
	found, errs := make([][]deadman.Leftover, len(names)), make([]error, len(names))
	var group errgroup.Group
	group.SetLimit(p.parallel)
	for i, name := range names {
		group.Go(func() error {
			found[i], errs[i] = p.askOne(ctx, id, name, what(name), func(text string) { report.Step(name, text) })
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	answers, failed = map[string][]deadman.Leftover{}, map[string]error{}
	for i, name := range names {
		if answers[name] = found[i]; errs[i] != nil {
			failed[name] = errs[i]
		}
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	return answers, failed, nil
}

func (p *nodePods) askOne(
	ctx context.Context, id, name string, what api.Leftovers, say func(string),
) (found []deadman.Leftover, err error) {
	session, err := p.pods.Start(ctx, p.cluster, p.pods.Spec(id, name, p.ledgerNamespace), say)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := session.Close(ctx); closing != nil {
			say(closing.Error())
		}
	}()
	return session.Leftovers(ctx, what)
}
