package experiment

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// The percentiles are those of the nearest rank, of all requests: one that times out must not make a load look fast.
func TestStats(t *testing.T) {
	t.Parallel()
	var all []sample
	for i := range 100 {
		all = append(all, sample{Request: check.Request{Took: time.Duration(i+1) * time.Second, OK: i < 50}})
	}
	if got, want := stats(all), (Stats{100, 0.5, 50, 95, 99}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if got := stats(nil); got != (Stats{}) {
		t.Errorf("nothing is %+v", got)
	}
}

// served sends requests that are answered while no fault is in place.
func served(w *world) func(context.Context, check.Load, []string, func(check.Request)) error {
	var broken atomic.Bool
	inject, revert := w.Lab.Command, w.Lab.Revert
	w.Lab.Command = func(ctx context.Context, line []string) (string, error) {
		broken.Store(true)
		return inject(ctx, line)
	}
	w.Lab.Revert = func(ctx context.Context, id string) error {
		broken.Store(false)
		return revert(ctx, id)
	}
	return func(ctx context.Context, _ check.Load, _ []string, each func(check.Request)) error {
		for ctx.Err() == nil {
			each(check.Request{At: time.Now(), Took: 10 * time.Millisecond, OK: !broken.Load()})
			pause(ctx, 5*time.Millisecond)
		}
		return nil
	}
}

const loaded = `
load: [{name: served, url: "http://a:80/"}]
steps:
- inject: {xid: 79}
- expect:
  - {name: fails, load: served, expect: "ok < 0.1", window: 100ms, within: 10s}
- expect-not:
  - {name: is served, load: served, expect: "ok > 0.5", window: 100ms, for: 400ms}
- revert: {}
- expect:
  - {name: is served again, load: served, expect: "ok == 1.0 && p99 < 1.0", window: 100ms, within: 10s}
`

// A load shows what users notice: the figures of each phase, and expectations about them that count from the fault.
func TestLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Lab.Load = served(w)
	r, err := w.Play(t.Context(), parse(t, loaded), []string{"a"})
	if err != nil || !r.Passed || len(r.Load) != 1 || len(r.Load[0].Phases) != 3 {
		t.Fatalf("%v\n%+v", err, r)
	}
	for _, p := range r.Load[0].Phases {
		if p.Requests == 0 || p.Phase == PhaseBefore && p.OK != 1 || p.Phase == PhaseFault && p.OK > 0.2 {
			t.Errorf("%+v", p)
		}
	}
	if v := r.Verdicts[0]; v.After < 0.1 || !strings.HasSuffix(strings.Split(v.Text, " ok")[0], ", 0 %") {
		t.Errorf("%+v", v)
	}
}

// A load that cannot be sent ends the experiment before anything is injected.
func TestLoadThatIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Lab.Load = func(context.Context, check.Load, []string, func(check.Request)) error {
		return errors.New("image x: no wget")
	}
	r, err := w.Play(t.Context(), parse(t, loaded), []string{"a"})
	if err == nil || r.Passed || len(w.lines) != 0 || !strings.Contains(r.Load[0].Error, "no wget") {
		t.Errorf("%v, %q\n%+v", err, w.lines, r)
	}
}

// What an expectation says about a load is checked before anything runs.
func TestBadLoadExpectations(t *testing.T) {
	t.Parallel()
	for says, expectation := range map[string]string{
		"no load has the name":     `load: other, expect: "ok > 0.9", within: 1m`,
		"expect is missing":        `load: served, within: 1m`,
		"require load":             `expect: "ok > 0.9", reaction: cordon, within: 1m`,
		"must be shorter than":     `load: served, expect: "ok > 0.9", within: 5s`,
		"unknown name okay":        `load: served, expect: "okay > 0.9", within: 1m`,
		"only one of reaction, no": `load: served, expect: "ok > 0.9", steady: x, within: 1m`,
	} {
		_, err := Parse("f", []byte(head+`
load: [{name: served, url: "http://a:80/"}]
steady: [{name: x, object: {apiVersion: v1, kind: Node, name: a}, expect: "true"}]
steps:
- expect: [{name: x, `+expectation+`}]
`))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", expectation, err)
		}
	}
}

// Without requests, an expectation about a load is unknown, also one that must not be met.
func TestLoadThatStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Lab.Load = func(ctx context.Context, _ check.Load, _ []string, each func(check.Request)) error {
		each(check.Request{At: time.Now(), OK: true})
		<-ctx.Done()
		return nil
	}
	r, err := w.Play(t.Context(), parse(t, `
load: [{name: served, url: "http://a:80/"}]
steps:
- inject: {xid: 79}
- wait: 50ms
- expect-not: [{name: fails, load: served, expect: "ok < 0.5", window: 10ms, for: 300ms}]
`), []string{"a"})
	if err != nil || r.Passed || r.Verdicts[0].State != StateUnknown {
		t.Errorf("%v\n%+v", err, r)
	}
}
