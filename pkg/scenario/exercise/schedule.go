package exercise

import (
	"context"
	"slices"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// The keys of what several exercises cannot use at the same time.
const (
	keyGPUs  = "gpus"  // how many are free is what such a scenario is about
	keyNodes = "nodes" // one that breaks a node breaks it for the others, too
)

// keysOf returns what an exercise must have for itself: its namespaces and objects; the GPUs where it needs any; and
// the nodes where it works on them.
func keysOf(r *scenario.Resolved) []string {
	namespaces := namespacesOf(r)
	var keys []string
	for _, namespace := range namespaces {
		keys = append(keys, "namespace "+namespace)
	}
	for _, ref := range ownedBy(r, namespaces) {
		keys = append(keys, ref.Kind+" "+ref.Namespace+"/"+ref.Name)
	}
	works := len(nodesOf(r)) > 0 || r.Public.Access.NodeShell || r.Facts.Simulation != nil
	if works {
		keys = append(keys, keyNodes)
	}
	if works || r.Requires.GPUs > 0 {
		keys = append(keys, keyGPUs)
	}
	return keys
}

// job is work that needs things for itself. do does it, and returns what is to be told; that is called one at a time.
type job struct {
	keys []string
	do   func() (report func())
}

// runJobs does jobs, as many at the same time as parallel, as far as they need nothing in common. It begins none after
// ctx's end, and returns when all that it began are over.
func runJobs(ctx context.Context, jobs []job, parallel int) {
	var (
		mu      sync.Mutex
		freed   = sync.NewCond(&mu)
		busy    = map[string]bool{}
		pending = slices.Clone(jobs)
		workers sync.WaitGroup
	)
	// next waits for a job that can begin; false when there is none any more.
	next := func() (job, bool) {
		mu.Lock()
		defer mu.Unlock()
		for len(pending) > 0 && ctx.Err() == nil {
			for i, one := range pending {
				if slices.ContainsFunc(one.keys, func(key string) bool { return busy[key] }) {
					continue
				}
				for _, key := range one.keys {
					busy[key] = true
				}
				pending = slices.Delete(pending, i, i+1)
				return one, true
			}
			freed.Wait()
		}
		return job{}, false
	}
	for range max(1, parallel) {
		workers.Go(func() {
			for one, is := next(); is; one, is = next() {
				report := one.do()
				mu.Lock()
				report()
				for _, key := range one.keys {
					delete(busy, key)
				}
				freed.Broadcast()
				mu.Unlock()
			}
		})
	}
	workers.Wait()
}
