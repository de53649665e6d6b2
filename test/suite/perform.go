package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"
)

// queue hands out jobs.
type queue struct {
	mu     sync.Mutex
	jobs   []job // those that take longest first
	onSite map[site]int
	// If restUntil is set, jobs of the rest start last, and none starts after this time. leftOut lists those.
	restUntil time.Time
	leftOut   []job
}

// perform runs the jobs: the unit tests first; then those with clusters side by side, and beside them, with low
// priority, those without; at last those that need the machine alone. It returns the jobs for which no time was left.
func perform(ctx context.Context, w *workshop, r *report, jobs []job, o options) []job {
	q := &queue{onSite: map[site]int{}}
	if o.restFor > 0 {
		q.restUntil = time.Now().Add(o.restFor)
	}
	for range o.repeat {
		q.jobs = append(q.jobs, jobs...)
	}
	r.work(ctx, w.bay(nil, nil), q, first)
	var group sync.WaitGroup
	built := make(chan struct{})
	group.Go(func() {
		defer close(built)
		r.build(w, jobs)
	})
	group.Go(func() {
		<-built
		r.work(ctx, w.bay(nil, nil), q, bench)
	})
	following, stop := context.WithCancel(ctx)
	defer stop()
	go w.pace.follow(following, readCPUTime().free())
	for number := range o.lanes {
		group.Go(func() {
			r.work(ctx, w.bay(&lane{workshop: w, number: number + 1, built: built}, nil), q, pair, wide, own)
		})
	}
	group.Wait()
	r.work(ctx, w.bay(&lane{workshop: w, number: 1, built: built}, nil), q, alone)
	r.jobs -= len(q.leftOut)
	return q.leftOut
}

// build builds the programs that the jobs run. If one does not compile, the jobs say so when they come to it.
func (r *report) build(w *workshop, jobs []job) {
	const what = "build of the test programs"
	log, err := w.logFile("build")
	if err != nil {
		r.problem(what, err)
		return
	}
	defer log.Close()
	start := time.Now()
	if err := w.build(jobs, log); err != nil {
		text, _ := os.ReadFile(log.Name())
		r.problem(what, fmt.Errorf("%w\n%s", err, text))
		return
	}
	fmt.Fprintf(r.talk, "             ok   %6.1fs  %s\n", time.Since(start).Seconds(), what)
}

// work runs jobs as long as there are any for the sites: in a lane, or without a cluster.
func (r *report) work(ctx context.Context, b *bay, q *queue, sites ...site) {
	for ctx.Err() == nil {
		at := site("")
		if b.lane != nil {
			at = b.lane.site
		}
		j, more := q.next(at, sites...)
		if !more {
			break
		}
		r.run(b, j)
	}
	if b.lane == nil {
		return
	}
	name := fmt.Sprintf("lane %d down", b.lane.number)
	log, err := b.logFile(name)
	if err == nil {
		err = b.lane.down(log)
		_ = log.Close()
	}
	if err != nil {
		r.problem(name, err)
	}
}

// next returns the next job for one of the sites: first for the site where the caller is at, then for one where nobody
// is, which would otherwise begin last, then for that with the most work for each caller there.
func (q *queue) next(at site, sites ...site) (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	hold := q.holdsRest(sites)
	work := map[site]float64{}
	for _, j := range q.jobs {
		if !hold || j.tier != rest {
			work[j.site] += max(j.seconds, 1)
		}
	}
	best := site("")
	for _, s := range sites {
		if work[s] == 0 {
			continue
		}
		if s == at {
			best = s
			break
		}
		empty, bestEmpty := q.onSite[s] == 0, best != "" && q.onSite[best] == 0
		if best == "" || empty && !bestEmpty ||
			empty == bestEmpty && work[s]/float64(q.onSite[s]+1) > work[best]/float64(q.onSite[best]+1) {
			best = s
		}
	}
	for i, j := range q.jobs {
		if j.site == best && (!hold || j.tier != rest) {
			q.jobs = append(q.jobs[:i:i], q.jobs[i+1:]...)
			q.onSite[at]--
			q.onSite[best]++
			return j, true
		}
	}
	return job{}, false
}

// holdsRest reports whether jobs of the rest must wait for other jobs of the sites. After restUntil, it removes the
// jobs of the rest from the queue.
func (q *queue) holdsRest(sites []site) bool {
	if q.restUntil.IsZero() {
		return false
	}
	if time.Now().After(q.restUntil) {
		q.jobs = slices.DeleteFunc(q.jobs, func(j job) bool {
			if j.tier == rest {
				q.leftOut = append(q.leftOut, j)
			}
			return j.tier == rest
		})
	}
	return slices.ContainsFunc(q.jobs, func(j job) bool { return j.tier != rest && slices.Contains(sites, j.site) })
}

// run runs one job in a bay, and reports what became of it.
func (r *report) run(b *bay, j job) {
	log, err := b.logFile(j.name)
	if err != nil {
		r.problem(j.name, err)
		return
	}
	defer log.Close()
	b = b.workshop.bay(b.lane, log)
	if b.lane != nil {
		defer b.lane.sit(j.site)()
		if b.ctx.Err() != nil { // interrupted while it waited
			return
		}
		if err = b.lane.prepare(b, j.site); err != nil {
			b.lane.evidence(log)
			err = errors.Join(err, b.lane.down(log))
		}
		b = b.workshop.bay(b.lane, log) // the cluster's settings may be others now
	} else if j.site != first {
		command := b.command
		b.command = func(name string, args ...string) *exec.Cmd {
			// Linux weighs sessions first, and processes only within them.
			return command("sh", append([]string{
				"-c", `{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 "$@"`, "sh", name,
			}, args...)...)
		}
	}
	if b.lane != nil {
		<-b.lane.built
	}
	if j.site == first {
		r.begins(j) // nothing else runs, and it takes minutes
	}
	start := time.Now()
	var results []result
	if err == nil {
		results, err = j.run(b)
	}
	failed := err != nil
	for _, result := range results {
		failed = failed || result.failed
	}
	if failed && b.lane != nil && b.lane.site != "" && b.ctx.Err() == nil {
		// The next job must not suffer for it.
		b.lane.evidence(log)
		err = errors.Join(err, b.lane.down(log))
	}
	took := time.Since(start)
	if (j.site == pair || j.site == wide) && !failed {
		b.pace.finished(took.Seconds(), j.seconds)
	}
	r.finished(j, results, err, took, log.Name())
}

var notInFileNames = regexp.MustCompile(`[^A-Za-z0-9_.,-]+`)

// logFile opens the log of a job; a job that is repeated goes on in its own.
func (w *workshop) logFile(name string) (*os.File, error) {
	name = notInFileNames.ReplaceAllString(name, "_")
	name = name[:min(len(name), 150)]
	return os.OpenFile(filepath.Join(w.dir, "logs", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}
