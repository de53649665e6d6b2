package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

const (
	// lookTimeout is the time limit for one evaluation, in addition to the check's own timeout.
	lookTimeout = 20 * time.Second
	// awayFor is the time to wait for an unreachable API server, regardless of the check's own time, because the server
	// may be restarting.
	awayFor = 10 * time.Second
	// firstPause is the pause after the first evaluation. The pause is doubled after each evaluation, to at most
	// Checker.Every.
	firstPause = 100 * time.Millisecond
	// probeWithin is the default time for a probe, because a pod never has a result immediately.
	probeWithin = 30 * time.Second
)

// wasWord matches expressions that compare something with the baseline, because the comparison may require a request.
var wasWord = regexp.MustCompile(`\bwas\b`)

// variables returns the variables that are available in all expressions.
func (c *Checker) variables() (expr.Vars, error) {
	facts, err := expr.Plain(c.Facts)
	if err != nil {
		return nil, fmt.Errorf("facts of the cluster: %w", err)
	}
	params, err := expr.Plain(c.Params)
	if err != nil {
		return nil, fmt.Errorf("parameters of the scenario: %w", err)
	}
	return expr.Vars{"p": params, "facts": facts}, nil
}

// trial is the state of a running check.
type trial struct {
	*Checker
	check   scenario.Check
	source  source
	program *expr.Program
	base    expr.Vars

	deadline time.Time
	// since is the time at which the check began to hold; zero if it does not hold.
	since time.Time
	// away is the time at which the API server became unreachable; zero if it is reachable.
	away time.Time
	// lookedFrom and lookedUntil are the start and end of the last evaluation.
	lookedFrom, lookedUntil time.Time
	// saw is the evidence from the last evaluation. The field why contains the reason for a failure.
	saw, why string
	// unread is set if the source could not be read in the last evaluation.
	unread bool
	told   string
}

// run runs one check.
func (c *Checker) run(ctx context.Context, check scenario.Check, base expr.Vars) (result Result, err error) {
	began := time.Now()
	t := &trial{Checker: c, check: check, base: base, deadline: began.Add(within(check))}
	result.Name = check.Name
	defer func() { result.Took = time.Since(began) }()
	t.source, err = c.source(check, wasWord.MatchString(check.Expect))
	if err != nil {
		result.Message = err.Error()
		return result, nil
	}
	t.program, err = expr.Compile(check.Expect, check.Variables()...)
	if err != nil {
		result.Message = fmt.Sprintf("expect: %v", err)
		return result, nil
	}
	result.OK, err = t.until(ctx)
	result.Saw, result.LookedFrom, result.LookedUntil = t.saw, t.lookedFrom, t.lookedUntil
	if !result.OK {
		result.Message = t.message()
	}
	if left := t.source.close(ctx); left != nil {
		result.Message = strings.TrimPrefix(result.Message+"; "+left.Error(), "; ")
	}
	return result, err
}

func within(check scenario.Check) time.Duration {
	if check.Probe != nil && check.Within == 0 {
		return probeWithin
	}
	return time.Duration(check.Within)
}

// lookLimit returns the timeout of one evaluation, so that an API server that does not respond cannot block the check.
func lookLimit(check scenario.Check) time.Duration {
	limit := lookTimeout
	if check.Exec != nil {
		limit += time.Duration(check.Exec.Timeout)
	}
	if check.HTTP != nil {
		limit += 2 * time.Duration(check.HTTP.Timeout)
	}
	return limit
}

// message describes the problem in the scenario's words, or returns the reason why the source could not be read. For
// example, if a pod does not exist, this does not mean that its log lacks a line.
func (t *trial) message() string {
	switch {
	case t.unread && t.check.Message != "":
		return "could not be verified: " + t.why
	case t.check.Message == "":
		return t.why
	case t.why == "" || t.why == notSo(t.check.Expect):
		return t.check.Message
	}
	return t.check.Message + " (" + t.why + ")"
}

// notSo returns the reason why an evaluated check failed.
func notSo(expect string) string { return "expected " + short(expect) }

// until repeats the evaluation until the check has held for the required time or its time has expired.
func (t *trial) until(ctx context.Context) (bool, error) {
	sustained := time.Duration(t.check.Sustained)
	for pause := firstPause; ; pause = min(2*pause, t.every()) {
		t.lookedFrom = time.Now()
		holds, known, err := t.look(ctx)
		if err != nil {
			return false, err
		}
		t.lookedUntil = time.Now()
		switch now := t.lookedUntil; {
		case !known:
		case holds && t.since.IsZero():
			if sustained <= 0 {
				return true, nil
			}
			t.since = now
			t.progress("%s: the condition holds, and must keep holding for %s", t.check.Name, sustained)
		case holds:
			if t.lookedFrom.Sub(t.since) >= sustained {
				return true, nil
			}
		default:
			held := t.lookedFrom.Sub(t.since)
			if wasSo := !t.since.IsZero(); wasSo {
				t.why = fmt.Sprintf("held for only %s: %s", max(held, 0).Round(100*time.Millisecond),
					t.why)
			}
			t.since = time.Time{}
			if !now.Before(t.deadline) {
				return false, nil
			}
		}
		if err := sleep(ctx, t.pause(pause, sustained)); err != nil {
			return false, err
		}
	}
}

// pause returns the time to wait before the next evaluation, at most until the deadline.
func (t *trial) pause(most, sustained time.Duration) time.Duration {
	due := t.deadline
	if !t.since.IsZero() {
		due, most = t.since.Add(sustained), max(most, min(t.every(), sustained))
	}
	if left := time.Until(due); left > 0 {
		return min(most, left)
	}
	return most
}

// look evaluates the check once. The result is unknown if it is too early, or if the API server is temporarily
// unreachable.
func (t *trial) look(ctx context.Context) (holds, known bool, err error) {
	limited, cancel := context.WithTimeout(ctx, lookLimit(t.check))
	defer cancel()
	seen, err := t.source.look(limited)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	t.unread = err != nil
	if err != nil {
		t.saw, t.why = "", err.Error()
		return t.blind(ctx, err)
	}
	t.away = time.Time{}
	if seen.starts {
		t.deadline = time.Now().Add(within(t.check))
	}
	if seen.early {
		t.saw, t.why = seen.evidence, "too early to evaluate"
		t.report()
		return false, false, nil
	}
	vars := expr.Vars{"now": time.Now()}
	for _, of := range []expr.Vars{t.base, seen.vars} {
		for name, value := range of {
			vars[name] = value
		}
	}
	holds, err = t.program.Bool(ctx, vars)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	if err == nil && !holds && t.check.Objects != nil {
		seen = t.culprits(ctx, vars, seen)
	}
	t.saw, t.why = evidence(t.check, seen), ""
	switch {
	case err != nil && objectMissing(seen.vars):
		t.unread, t.why = true, seen.evidence
	case err != nil:
		t.why = err.Error()
	case !holds:
		t.why = notSo(t.check.Expect)
	}
	if !holds {
		t.report()
	}
	return holds && err == nil, true, nil
}

// maxSingle is the maximum number of objects that culprits evaluates one by one.
const maxSingle = 200

// culprits limits the evidence to the objects that cause the check to fail: without them, the expression would be true.
// If there are no such objects, culprits returns the view unchanged.
func (t *trial) culprits(ctx context.Context, vars expr.Vars, seen view) view {
	list, _ := seen.vars["list"].([]any)
	if len(list) < 2 || len(list) > maxSingle {
		return seen
	}
	vars = maps.Clone(vars)
	fails := func(list ...any) bool {
		vars["list"] = list
		holds, err := t.program.Bool(ctx, vars)
		return err == nil && !holds
	}
	var good, suspects []any
	for _, item := range list {
		if fails(item) {
			suspects = append(suspects, item)
		} else {
			good = append(good, item)
		}
	}
	if len(good) == 0 || fails(good...) {
		return seen
	}
	found := slices.DeleteFunc(suspects, func(item any) bool { return !fails(append(slices.Clone(good), item)...) })
	if len(found) == 0 {
		return seen
	}
	seen.vars = maps.Clone(seen.vars)
	seen.vars["list"], seen.evidence = found, fmt.Sprintf("%s, of %d in total", states(found), len(list))
	return seen
}

// objectMissing reports whether the check's object does not exist.
func objectMissing(vars expr.Vars) bool {
	o, is := vars["o"]
	return is && o == nil
}

// blind handles a source that cannot be read.
func (t *trial) blind(ctx context.Context, cause error) (holds, known bool, err error) {
	t.report()
	if !t.unreachable(ctx, cause) {
		t.away = time.Time{}
		return false, true, nil
	}
	if t.away.IsZero() {
		t.away = time.Now()
	}
	if time.Since(t.away) >= awayFor {
		return false, false, fmt.Errorf("check %q: the API server is unreachable: %w", t.check.Name, cause)
	}
	return false, false, nil
}

// report reports the reason why the check is waiting, if the reason has changed.
func (t *trial) report() {
	if t.check.Within <= 0 && t.check.Sustained <= 0 {
		return
	}
	text := t.saw
	if text == "" {
		text = t.why
	}
	if text != t.told {
		t.told = text
		t.progress("%s: not yet: %s", t.check.Name, text)
	}
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errGone means that an object was deleted during an evaluation; the next evaluation may find another object.
var errGone = errors.New("the object was deleted")
