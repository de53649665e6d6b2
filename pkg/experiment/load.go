package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// Phase is a part of an experiment.
type Phase string

// The phases of an experiment, in their order.
const (
	PhaseBefore   Phase = "before"
	PhaseFault    Phase = "fault"    // from the first injection
	PhaseReverted Phase = "reverted" // from a revert step until the next injection
)

// LoadResult is the result for the requests of a load.
type LoadResult struct {
	Name   string      `json:"name"`
	URL    string      `json:"url"`
	Phases []LoadPhase `json:"phases"`
	// Error is the reason why no requests were sent.
	Error string `json:"error,omitempty"`
}

// LoadPhase contains statistics about the requests that succeeded or failed in one phase.
type LoadPhase struct {
	Phase Phase `json:"phase"`
	Stats
}

// Stats are statistics about a number of requests. Times are in seconds. The time of a request without a response is
// the time until the client gave up.
type Stats struct {
	Requests int     `json:"requests"`
	OK       float64 `json:"ok"` // share, 0 to 1
	P50      float64 `json:"p50"`
	P95      float64 `json:"p95"`
	P99      float64 `json:"p99"`
}

// defaultWindow is the default time span that an expectation about a load considers.
const defaultWindow = 10 * time.Second

// mostSamples limits the memory for a load. At the default rate, it is enough for 14 hours.
const mostSamples = 100_000

// meter collects the requests of a load.
type meter struct {
	check.Load

	mu      sync.Mutex
	phase   Phase
	samples []sample
	failure error
}

type sample struct {
	check.Request
	phase Phase
}

func (m *meter) took(r check.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.samples) < mostSamples {
		m.samples = append(m.samples, sample{r, m.phase})
	}
}

func (m *meter) enter(phase Phase) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = phase
}

// since returns statistics about the requests whose result arrived after the given time.
func (m *meter) since(at time.Time) Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, _ := slices.BinarySearchFunc(m.samples, at, func(s sample, at time.Time) int { return s.At.Compare(at) })
	return stats(m.samples[first:])
}

func stats(all []sample) Stats {
	var took []float64
	answered := 0
	for _, s := range all {
		took = append(took, s.Took.Seconds())
		if s.OK {
			answered++
		}
	}
	slices.Sort(took)
	result := Stats{Requests: len(all), P50: percentile(took, 50), P95: percentile(took, 95), P99: percentile(took, 99)}
	if len(all) > 0 {
		result.OK = float64(answered) / float64(len(all))
	}
	return result
}

// percentile returns the nearest-rank percentile of sorted values, or 0 if there are none.
func percentile(sorted []float64, percent float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	value := sorted[max(int(math.Ceil(percent/100*float64(len(sorted)))), 1)-1]
	return math.Round(value*1000) / 1000 // the clock has a resolution of a hundredth of a second
}

func (m *meter) result() LoadResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := LoadResult{Name: m.Name, URL: m.URL, Phases: []LoadPhase{}}
	if m.failure != nil {
		r.Error = m.failure.Error()
	}
	for _, phase := range []Phase{PhaseBefore, PhaseFault, PhaseReverted} {
		var of []sample
		for _, s := range m.samples {
			if s.phase == phase {
				of = append(of, s)
			}
		}
		if len(of) > 0 {
			r.Phases = append(r.Phases, LoadPhase{phase, stats(of)})
		}
	}
	return r
}

// startLoads sends the requests of the experiment's loads until stop is called. stop waits until the pods are deleted.
func (p *play) startLoads(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	for _, l := range p.Experiment.Load {
		l.Namespace = cmp.Or(l.Namespace, p.Target.Namespace)
		m := &meter{Load: l, phase: PhaseBefore}
		p.meters = append(p.meters, m)
		sending.Go(func() {
			if err := p.Lab.Load(ctx, l, p.targets, m.took); err != nil && ctx.Err() == nil {
				p.Say("Warning: %v", err)
				m.mu.Lock()
				m.failure = err
				m.mu.Unlock()
			}
		})
	}
	return func() { cancel(); sending.Wait() }
}

// loadTimeout is the timeout for the first request of each load, including the start of its pod.
const loadTimeout = 2 * time.Minute

// awaitLoads waits until each load has sent a request. Otherwise, the report could not compare the time of the fault
// with the time before it.
func (p *play) awaitLoads(ctx context.Context) error {
	limit := time.Now().Add(loadTimeout)
	for _, m := range p.meters {
		for m.since(time.Time{}).Requests == 0 {
			m.mu.Lock()
			failure := m.failure
			m.mu.Unlock()
			switch {
			case failure != nil:
				return failure
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case time.Now().After(limit):
				return fmt.Errorf("load %s: no request was sent within %s", m.Name, loadTimeout)
			}
			pause(ctx, lookAtLoads)
		}
	}
	return nil
}

func (p *play) enter(phase Phase) {
	for _, m := range p.meters {
		m.enter(phase)
	}
}

// lookAtLoads is the interval between evaluations of an expectation about a load.
const lookAtLoads = 200 * time.Millisecond

// loadVars are the variables in an expectation about a load.
var loadVars = []string{"requests", "ok", "p50", "p95", "p99"}

// measure evaluates an expectation about a load until it is met or its deadline expires. The first evaluation is one
// window after the verification of the fault, and each evaluation needs at least one request.
func (p *play) measure(ctx context.Context, x *pending) {
	i := slices.IndexFunc(p.meters, func(m *meter) bool { return m.Name == x.Load })
	if i < 0 {
		return
	}
	m := p.meters[i]
	for ; ctx.Err() == nil && time.Now().Before(x.deadline()); pause(ctx, lookAtLoads) {
		now := time.Now()
		from := now.Add(-x.window())
		if from.Before(x.proof) {
			continue // requests from before the fault would count
		}
		s := m.since(from)
		if s.Requests == 0 {
			continue
		}
		is, err := x.test.Bool(ctx, expr.Vars{
			"requests": s.Requests, "ok": s.OK, "p50": s.P50, "p95": s.P95, "p99": s.P99,
		})
		if ctx.Err() == nil && (is || err != nil) {
			p.observer.checked(x, now, is, s.String(), err)
			return
		}
		p.observer.recordLast(x, s.String())
	}
}

// String returns the statistics for display.
func (s Stats) String() string {
	return fmt.Sprintf("%s, %.0f %% ok, p50 %.2fs, p95 %.2fs, p99 %.2fs", count.Of(s.Requests, "request"), 100*s.OK,
		s.P50, s.P95, s.P99)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// checkLoads returns an error if a load is invalid or its name is not unique.
func (e *Experiment) checkLoads() error {
	var names []string
	for _, l := range e.Load {
		if err := l.Validate(); err != nil {
			return err
		}
		if slices.Contains(names, l.Name) {
			return fmt.Errorf("two loads have the name %q", l.Name)
		}
		names = append(names, l.Name)
	}
	return nil
}

// compileLoad checks an expectation about a load.
func compileLoad(e Expectation) (*expr.Program, error) {
	switch {
	case e.Load == "" && (e.Expect != "" || e.Window != 0):
		return nil, errors.New("expect and window require load")
	case e.Load == "":
		return nil, nil
	case e.Expect == "":
		return nil, errors.New(`expect is missing: an expression such as ok >= 0.99 && p95 < 2.0`)
	case e.Window < 0 || e.window() >= max(e.Within, e.For).Std():
		return nil, fmt.Errorf("window (%s) must be shorter than the value of within or for", e.window())
	}
	test, err := expr.Compile(e.Expect, loadVars...)
	if err != nil {
		return nil, fmt.Errorf("expect: %w", err)
	}
	return test, nil
}

func (e Expectation) window() time.Duration {
	if e.Window == 0 {
		return defaultWindow
	}
	return e.Window.Std()
}
