package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// HostOptions say how nodes are read.
type HostOptions struct {
	// Parallel is how many nodes are read at once; 5 when zero.
	Parallel int
	// Timeout is for one node; 2 minutes when zero.
	Timeout time.Duration
}

// Hosts reads these nodes and puts what it finds into the snapshot, without secrets. Why a node was not read is in Missing: because read
// failed, or because it is a GPU node that is not among the names. The error is that of ctx, and what was read till then is kept.
func Hosts(
	ctx context.Context, s *snapshot.Snapshot, names []string, read func(ctx context.Context, nodeName string) (*node.Diagnosis, error),
	options HostOptions, progress func(string),
) error {
	if progress == nil {
		progress = func(string) {}
	}
	if options.Parallel <= 0 {
		options.Parallel = 5
	}
	if options.Timeout <= 0 {
		options.Timeout = 2 * time.Minute
	}
	if s.Hosts == nil {
		s.Hosts = map[string]*node.Diagnosis{}
	}
	for _, n := range doctor.NewFacts(s).GPUNodes {
		if !slices.Contains(names, n.Name) && n.Host == nil {
			s.Missing = append(s.Missing, snapshot.Missing{What: "nodes/" + n.Name, Why: "not read: it was not asked for, or looks healthy; doctor --node " + n.Name + " reads it"})
		}
	}
	var mu sync.Mutex
	done := 0
	group := errgroup.Group{}
	group.SetLimit(options.Parallel)
	for _, name := range names {
		group.Go(func() error {
			host, err := readHost(ctx, name, read, options.Timeout)
			mu.Lock()
			defer mu.Unlock()
			done++
			if err != nil {
				s.Missing = append(s.Missing, snapshot.Missing{What: "nodes/" + name, Why: err.Error()})
				progress(fmt.Sprintf("node %s: %v (%d of %d)", name, err, done, len(names)))
				return nil
			}
			s.Hosts[name] = snapshot.RedactHost(host)
			progress(fmt.Sprintf("node %s read (%d of %d)", name, done, len(names)))
			return nil
		})
	}
	_ = group.Wait() // errors are in Missing
	return context.Cause(ctx)
}

func readHost(ctx context.Context, name string, read func(context.Context, string) (*node.Diagnosis, error), timeout time.Duration) (*node.Diagnosis, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("not read: %w", context.Cause(ctx))
	}
	late := fmt.Errorf("not read within %s", timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, late)
	defer cancel()
	host, err := read(ctx, name)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, errors.Join(context.Cause(ctx), err)
	case err != nil:
		return nil, err
	case host == nil:
		return nil, errors.New("not read: there was no answer")
	}
	return host, nil
}
