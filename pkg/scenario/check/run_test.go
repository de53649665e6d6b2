package check

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

var errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

// When a check is decided, and how: no earlier, or somebody fails who has solved it; and no later.
func TestTime(t *testing.T) {
	t.Parallel()
	const s = time.Second
	goodFrom := func(from, to time.Duration) func(time.Duration) (string, error) {
		return func(at time.Duration) (string, error) {
			if at >= from && at < to {
				return "good", nil
			}
			return "bad", nil
		}
	}
	for name, test := range map[string]struct {
		state             func(time.Duration) (string, error)
		within, sustained time.Duration
		ok                bool
		least, most       time.Duration
		message           string
	}{
		"at once":            {goodFrom(0, time.Hour), 0, 0, true, 0, 0, ""},
		"not at once":        {goodFrom(s, time.Hour), 0, 0, false, 0, 0, "expected"},
		"in time":            {goodFrom(3*s, time.Hour), 5 * s, 0, true, 3 * s, 4 * s, ""},
		"in the last moment": {goodFrom(5*s, time.Hour), 5 * s, 0, true, 5 * s, 5 * s, ""},
		"too late": {
			goodFrom(6*s, time.Hour), 5 * s, 0, false, 5 * s, 5 * s, "expected",
		},
		"for long enough":              {goodFrom(2*s, 70*s), 5 * s, 60 * s, true, 62 * s, 64 * s, ""},
		"for long enough from at once": {goodFrom(0, 70*s), 0, 60 * s, true, 60 * s, 61 * s, ""},
		"not for long enough": {
			goodFrom(2*s, 30*s), 5 * s, 60 * s, false, 30 * s, 31 * s, "held for only 2",
		},
		"it turns bad while there is time": {badIn(2*s, 3*s), 10 * s, 5 * s, true, 8 * s, 9 * s, ""},
		"it turns bad after its time":      {badIn(7*s, 8*s), 5 * s, 10 * s, false, 7 * s, 8 * s, "held for only 7"},
		"the API server restarts": {
			func(at time.Duration) (string, error) { return away(at, 0, 5*s) }, 0, 0, true, 5 * s, 6 * s, "",
		},
		"it restarts in the middle": {
			func(at time.Duration) (string, error) { return away(at, 5*s, 10*s) }, 0, 30 * s, true, 30 * s, 32 * s, "",
		},
		"nobody may look": {
			func(time.Duration) (string, error) { return "", forbidden() }, 2 * s, 0, false, 2 * s, 2 * s, "forbidden",
		},
		"another server has no time": {func(time.Duration) (string, error) {
			return "", apierrors.NewServiceUnavailable("the metrics are away")
		}, 2 * s, 0, false, 2 * s, 2 * s, "metrics"},
		"it cannot be seen for a while": {
			func(at time.Duration) (string, error) { return blindUntil(at, 3*s) }, 5 * s, 0, true, 3 * s, 4 * s, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				began := time.Now()
				w.ping = func(context.Context) error {
					if _, err := test.state(time.Since(began)); errors.Is(err, errRefused) {
						return err
					}
					return nil
				}
				w.settings(test.state)
				r := w.one(t, of(test.within, test.sustained))
				if r.OK != test.ok || r.Took < test.least || r.Took > test.most ||
					!strings.Contains(r.Message, test.message) {
					t.Errorf("%+v; wanted %v after %s to %s: %s", r, test.ok, test.least, test.most, test.message)
				}
			})
		})
	}
}

func away(at, from, to time.Duration) (string, error) {
	if at >= from && at < to {
		return "", errRefused
	}
	return "good", nil
}

func badIn(from, to time.Duration) func(time.Duration) (string, error) {
	return func(at time.Duration) (string, error) {
		if at >= from && at < to {
			return "bad", nil
		}
		return "good", nil
	}
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "s", errors.New("no"))
}

func blindUntil(at, until time.Duration) (string, error) {
	if at < until {
		return "", forbidden()
	}
	return "good", nil
}

// An API server that stays away is an error, and no grade: the candidate has not failed.
func TestAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ping = func(context.Context) error { return errRefused }
		w.settings(func(time.Duration) (string, error) { return "", errRefused })
		began := time.Now()
		_, err := w.Run(t.Context(), []scenario.Check{of(0, 0), of(time.Minute, 0)})
		if err == nil || !strings.Contains(err.Error(), "API server is unreachable") ||
			time.Since(began) > 15*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// An API server that hangs hangs nothing.
func TestHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		w.ping = hang
		w.Was = func(ctx context.Context, _ scenario.Ref) (map[string]any, error) { return nil, hang(ctx) }
		c := of(0, 0)
		c.Expect = "o == was"
		began := time.Now()
		if _, err := w.Run(t.Context(), []scenario.Check{c}); err == nil || time.Since(began) > 2*time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Whoever calls may go at any time; what is known by then is told, and the reason is theirs.
func TestCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.settings(func(time.Duration) (string, error) { return "bad", nil })
		gone := errors.New("ctrl-c")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(gone) })
		never := of(0, 0)
		never.Expect = `o.data.state == "bad"`
		began := time.Now()
		results, err := w.Run(ctx, []scenario.Check{of(time.Hour, 0), never})
		if !errors.Is(err, gone) || time.Since(began) != 3*time.Second || len(results) != 2 || !results[1].OK ||
			results[0].OK {
			t.Errorf("%v after %s: %+v", err, time.Since(began), results)
		}
	})
}

// Checks run at the same time, each with its own words; what is wrong with the check itself is told at once.
func TestParallelAndWords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.Params = map[string]any{"state": "good"}
		w.Was = func(context.Context, scenario.Ref) (map[string]any, error) { return nil, nil }
		w.settings(func(time.Duration) (string, error) { return "bad", nil })
		waits := of(10*time.Second, 0)
		waits.Message = "the state stays bad"
		broken, unknown, none, missing, byParam := of(time.Hour, 0), of(time.Hour, 0), of(time.Hour, 0), of(0, 0),
			of(0, 0)
		broken.Expect, unknown.Expect = "o.data.state ==", "stdout == ''"
		none.Object = nil
		missing.Expect, missing.Message = `o.spec.replicas == 1`, "it has no replicas"
		byParam.Expect = `o.data.state != p.state && was == null && facts.gpusPerNode == 0`
		results, err := w.Run(t.Context(), []scenario.Check{waits, waits, broken, unknown, none, missing, byParam})
		if err != nil || OK(results) || !OK(results[6:]) {
			t.Fatalf("%v %+v", err, results)
		}
		for i, want := range []Result{
			{Message: "the state stays bad", Took: 10 * time.Second, Saw: `o.data.state = "bad"; ConfigMap s`},
			{Message: "the state stays bad", Took: 10 * time.Second},
			{Message: "expect: unexpected end of the expression"}, {Message: "expect: unknown name stdout"},
			{Message: "no source"}, {Message: "it has no replicas (o has no field \"spec\")"}, {},
		} {
			if got := results[i]; got.Took != want.Took || !strings.Contains(got.Message, want.Message) ||
				!strings.Contains(got.Saw, want.Saw) {
				t.Errorf("%d: %+v, not %+v", i, got, want)
			}
		}
		if len(w.said) != 2 || w.said[0] != `the state is good: not yet: o.data.state = "bad"; ConfigMap s` {
			t.Errorf("said %q", w.said)
		}
	})
}

// A source that cannot be read must not be described by the scenario's message, which would claim something else.
func TestMessagesOfUnreadSources(t *testing.T) {
	t.Parallel()
	check := scenario.Check{Name: "it trains", Message: "the log shows no steps", Expect: "o.x == 1"}
	for want, test := range map[string]*trial{
		"could not be verified: no pod":           {check: check, unread: true, why: "no pod"},
		"the log shows no steps":                  {check: check, why: notSo(check.Expect)},
		"the log shows no steps (no such key: x)": {check: check, why: "no such key: x"},
		"no pod": {check: scenario.Check{Name: "it trains"}, unread: true, why: "no pod"},
	} {
		if got := test.message(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, test := range []struct {
		vars expr.Vars
		want bool
	}{{expr.Vars{"o": nil}, true}, {expr.Vars{"o": map[string]any{}}, false}, {expr.Vars{"list": nil}, false}} {
		if got := objectMissing(test.vars); got != test.want {
			t.Errorf("%v: %t", test.vars, got)
		}
	}
}

// The evidence of a failed check is the objects that it fails for, not the first ones in the list.
func TestCulprits(t *testing.T) {
	t.Parallel()
	object := func(name string, x int64) any {
		return map[string]any{"kind": "A", "metadata": map[string]any{"name": name}, "x": x}
	}
	list := []any{object("a", 1), object("b", 1), object("c", 2), object("d", 1)}
	const all = "a: a.x = 1; b: a.x = 1; c: a.x = 2; d: a.x = 1; every"
	for expect, want := range map[string]string{
		`list.all(a, a.x == 1)`: "c: a.x = 2; 1: A c, of 4 in total",
		`list.filter(a, a.x > 0).all(a, a.x == 1) && list.exists(b, b.metadata.name == "a")`: "c: a.x = 2; 1: A c, of 4 in total",
		`list.all(a, a.x > 2)`:            all,
		`list.exists(a, a.x > 2)`:         all,
		`list.all(a, a.x == list.size())`: all,
	} {
		program, err := expr.Compile(expect, "list")
		if err != nil {
			t.Fatal(err)
		}
		c := scenario.Check{Objects: &scenario.Selector{}, Expect: expect}
		one := &trial{check: c, program: program}
		vars := expr.Vars{"list": list}
		got := evidence(c, one.culprits(t.Context(), vars, view{vars: vars, evidence: "every"}))
		if got != want {
			t.Errorf("%s: %s, not %s", expect, got, want)
		}
		if len(vars["list"].([]any)) != len(list) {
			t.Error("the list was changed")
		}
	}
}
