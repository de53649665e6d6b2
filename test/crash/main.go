// Command crash proves that everything comes back, whatever dies. On a running test cluster it kills the client of the
// built plugin with SIGKILL on both sides of every request that changes something, and while the node is at work; and
// it kills, fills and deletes what a fault depends on. After each, a fresh process reverts, or the time is up, and the
// node must be as it was: content, mode, owner, extended attributes and times of the files, no process, no pod, no
// lock, no open run; and so must a Deployment: its spec, and who owns its fields.
//
// It prints the matrix, and as its last line how many of how many were restored.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trialTimeout ends a trial in which something hangs.
const trialTimeout = 15 * time.Minute

// perNode is how many trials take turns on a node: only one works there, the others wait for what the cluster does by
// itself.
const perNode = 4

func main() {
	state := flag.String("state", ".cluster", "the `folder` with the state of a running test cluster of ours")
	plugin := flag.String("plugin", "bin/kubectl-gpu_fault", "the plugin's `file`")
	group := flag.String("group", "", "only groups of trials that match this `regexp`: '^runtime break$'")
	exercises := flag.Bool("exercises", false,
		"also kill clients of `scenario` start and end, which wait for the nodes' GPUs")
	some := flag.Bool("sample", false,
		"only one trial at each kind of step, and of each kind of disturbance, drawn from the groups in turn; no outages")
	only := flag.String("only", "", "only trials that match this `regexp`: 'exec 2 .AFTER'")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := crash(ctx, *state, *plugin, *group, *only, *exercises, *some)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func crash(ctx context.Context, state, plugin, group, only string, exercises, some bool) error {
	matches, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	groups, err := regexp.Compile(group)
	if err != nil {
		return fmt.Errorf("-group: %w", err)
	}
	wanted := func(t trial) bool { return groups.MatchString(t.group) && matches.MatchString(t.String()) }
	w, err := openWorld(state, plugin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpu-fault-crash-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	stage := &stage{ctx: ctx, world: w, dir: dir, group: groups, exercises: exercises, start: time.Now()}
	planned := stage.plan(wanted)
	if some {
		stage.perform(sample(planned))
		return stage.report()
	}
	stage.perform(planned)
	stage.outages(slices.DeleteFunc(outages(), func(o *outage) bool { return !wanted(o.trial) }))
	// Whatever was done to the nodes before, of whichever group.
	stage.perform(slices.DeleteFunc(usable(w.workers), func(t trial) bool { return !matches.MatchString(t.String()) }))
	return stage.report()
}

// report tidies up and prints what became of the trials. The error says so if not everything came back.
func (st *stage) report() error {
	st.tidy()
	restored := printMatrix(os.Stdout, st.results)
	for _, r := range st.results {
		if r.err != nil {
			fmt.Printf("\nFAIL %s: %v\n", r.trial, r.err)
		}
	}
	fmt.Printf("\nrestored %d of %d\n", restored, len(st.results))
	if restored < len(st.results) {
		return errors.New("not everything came back")
	}
	return st.ctx.Err()
}

// stage is where trials are performed, side by side on all workers.
type stage struct {
	ctx   context.Context
	world *world
	dir   string
	group *regexp.Regexp // of the groups that are wanted
	start time.Time      // keeps the ledgers of two uses apart
	// exercises says to try those, too.
	exercises bool

	mu      sync.Mutex
	ledgers []string
	results []result
}

// plan lists the trials; those that wait the longest come first.
func (st *stage) plan(wanted func(trial) bool) []trial {
	all := expiries()
	for _, d := range disturbances() {
		all = append(all, d.trials()...)
	}
	all = append(all, edits()...)
	all = append(all, deviceDisturbances()...)
	// Learning how a command goes is a trial too: what is not killed must come back before anything else can.
	kinds, found := kinds(), map[string][]trial{}
	if st.exercises {
		kinds = append(kinds, exerciseKinds()...)
	}
	var learning []trial
	for _, k := range kinds {
		learning = append(learning, trial{k.name, "not killed, reverted", after, func(s *site) error {
			steps, err := k.learn(s)
			st.mu.Lock()
			defer st.mu.Unlock()
			found[k.name] = k.trials(steps)
			return err
		}})
	}
	st.perform(slices.DeleteFunc(learning, func(t trial) bool { return !st.group.MatchString(t.group) }))
	for _, k := range kinds {
		all = append(all, found[k.name]...)
	}
	return slices.DeleteFunc(all, func(t trial) bool { return !wanted(t) })
}

// site makes the place for one trial on a node that is locked.
func (st *stage) site(n *node) (*site, context.CancelFunc, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	name := fmt.Sprintf("crash-%s-%d", strconv.FormatInt(st.start.Unix(), 36), len(st.ledgers)+1)
	st.ledgers = append(st.ledgers, name)
	dir, err := os.MkdirTemp(st.dir, name+"-")
	ctx, cancel := context.WithTimeoutCause(st.ctx, trialTimeout, fmt.Errorf("not over within %s", trialTimeout))
	return &site{ctx: ctx, world: st.world, node: n, ledger: name, dir: dir, stretch: 1}, cancel, err
}

// perform does all trials, each on the next node that is free.
func (st *stage) perform(trials []trial) {
	queue := make(chan trial, len(trials))
	for _, t := range trials {
		queue <- t
	}
	close(queue)
	var group sync.WaitGroup
	for _, n := range st.world.workers {
		for range perNode {
			group.Go(func() {
				for {
					n.Lock()
					t, more := <-queue
					if more && st.ctx.Err() == nil {
						st.try(n, t)
					}
					n.Unlock()
					if !more || st.ctx.Err() != nil {
						return
					}
				}
			})
		}
	}
	group.Wait()
}

// try performs one trial on a node that is locked.
func (st *stage) try(n *node, t trial) {
	s, cancel, err := st.site(n)
	defer cancel()
	defer s.remove()
	if err == nil {
		err = s.settledNode()
	}
	start := time.Now()
	if err == nil {
		err = t.run(s)
	}
	for err != nil && t.column == alone && s.tooShort() && s.reverted() == nil {
		s.stretch *= 2
		s.say("%v: a client took %s of a TTL of %s; again, %d times as long", err, s.slowest, s.ttl, s.stretch)
		err = t.run(s)
	}
	st.note(s, t, start, err)
}

// note keeps the result, and makes the node fit for the next trial.
func (st *stage) note(s *site, t trial, start time.Time, err error) {
	took := time.Since(start).Round(100 * time.Millisecond)
	verdict := "ok"
	if errors.Is(err, errNever) {
		fmt.Fprintf(os.Stderr, "      --   %6s  %s  %s: %v\n", took, s.node.name, t, err)
		return
	}
	if err != nil {
		verdict = "FAIL"
		fresh, cancel := context.WithTimeout(context.WithoutCancel(st.ctx), time.Minute)
		defer cancel()
		s.ctx = fresh
		s.autopsy()
		if repairErr := s.node.repair(fresh); repairErr != nil {
			err = fmt.Errorf("%w; and the node could not be mended: %w", err, repairErr)
		}
		_ = s.world.client.CoreV1().Namespaces().Delete(fresh, s.ledger, metav1.DeleteOptions{})
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.results = append(st.results, result{t, err})
	fmt.Fprintf(os.Stderr, "%4d  %-4s %6s  %s  %s\n", len(st.results), verdict, took, s.node.name, t)
	if err != nil {
		fmt.Fprintf(os.Stderr, "--- %s: %v\n%s---\n", t, err, s.said.String())
	}
}

// tidy deletes the ledgers of all trials.
func (st *stage) tidy() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(st.ctx), time.Minute)
	defer cancel()
	_ = st.world.client.CoreV1().Pods(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "app=crash-partition"})
	for _, name := range st.ledgers {
		_ = st.world.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	}
}
