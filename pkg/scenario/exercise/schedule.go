package exercise

import (
	"context"
	"slices"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Keys of resources that exercises cannot share.
const (
	keyGPUs  = "gpus"  // scenarios with this key depend on the number of free GPUs
	keyNodes = "nodes" // a broken node affects other exercises
)

// keysOf returns the keys that an exercise needs exclusively: its namespaces and objects, the key for GPUs if it needs
// any, and the key for nodes if it changes them.
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

// job is work that needs exclusive access to its keys. do returns a function that reports the result; these functions
// are called one at a time.
type job struct {
	keys []string
	do   func() (report func())
}

// runJobs runs up to parallel jobs concurrently, as long as their keys do not conflict. After ctx is done, it starts no
// more jobs. It returns when all started jobs are complete.
func runJobs(ctx context.Context, jobs []job, parallel int) {
	var (
		mu      sync.Mutex
		freed   = sync.NewCond(&mu)
		busy    = map[string]bool{}
		pending = slices.Clone(jobs)
		workers sync.WaitGroup
	)
	// next waits for a job that can start; it returns false if none is left.
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
