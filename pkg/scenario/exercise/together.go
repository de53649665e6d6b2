package exercise

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// NewGroup returns a name for exercises that are started at the same time for one candidate.
func NewGroup() (string, error) { return ledger.NewID("group", rand.Reader) }

// Together returns an error if the scenarios cannot be started at the same time for one candidate: a broken node
// affects all pods, each exercise needs its own namespaces and objects, and together they must not need more GPUs than
// are free.
func Together(all []*scenario.Resolved) error {
	if len(all) < 2 {
		return nil
	}
	used := map[string]string{}
	gpus, free := 0, 0
	for _, r := range all {
		name := r.Metadata.Name
		if len(nodesOf(r)) > 0 || r.Public.Access.NodeShell {
			return fmt.Errorf("scenario %s with seed %d changes nodes, which would affect the others: use another --seed, or "+
				"start it alone", name, r.Seed)
		}
		for _, key := range keysOf(r) {
			switch {
			case key == keyGPUs, key == keyNodes:
				continue
			case used[key] != "":
				return fmt.Errorf("scenarios %s and %s both use %s: choose another scenario, or another --seed", used[key], name, key)
			}
			used[key] = name
		}
		if r.Requires.GPUs > 0 {
			gpus += r.Requires.GPUs * max(r.Requires.Nodes, 1)
		}
	}
	for _, node := range all[0].Facts.Nodes {
		free += node.FreeGPUs
	}
	if gpus > free {
		return fmt.Errorf("the scenarios need %d free GPUs in total, but only %d are free: choose fewer "+
			"scenarios", gpus, free)
	}
	return nil
}

// Group returns the running exercises that were started together, oldest first, if no other exercises are running.
// Otherwise, it returns none.
func (l *Lab) Group(ctx context.Context) ([]Exercise, error) {
	all, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	running := slices.DeleteFunc(all, func(e Exercise) bool { return !e.Running() })
	for _, e := range running {
		if e.Group == "" || e.Group != running[0].Group {
			return nil, nil
		}
	}
	slices.Reverse(running)
	return running, nil
}
