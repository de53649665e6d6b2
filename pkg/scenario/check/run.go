package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

const (
	// lookTimeout is how long one look may take besides what its check allows it.
	lookTimeout = 20 * time.Second
	// awayFor is how long an API server that cannot be asked is waited for, whatever the check's own time: it may be
	// restarting.
	awayFor = 10 * time.Second
	// firstPause is the pause after the first look. It doubles until it is Checker.Every.
	firstPause = 100 * time.Millisecond
	// probeWithin is the time for a probe that says nothing: at once nothing has become of a pod.
	probeWithin = 30 * time.Second
)

// wasWord reports whether an expression compares with the baseline, which may cost a request.
var wasWord = regexp.MustCompile(`\bwas\b`)

// variables returns those that all expressions have.
func (c *Checker) variables() (expr.Vars, error) {
	facts, err := expr.Plain(c.Facts)
	if err != nil {
		return nil, fmt.Errorf("what is known of the cluster: %w", err)
	}
	params, err := expr.Plain(c.Params)
	if err != nil {
		return nil, fmt.Errorf("the scenario's parameters: %w", err)
	}
	return expr.Vars{"p": params, "facts": facts}, nil
}

// trial is one check while it is run.
type trial struct {
	*Checker
	check   scenario.Check
	source  source
	program *expr.Program
	base    expr.Vars

	deadline time.Time
	// since is since when it holds; zero when it does not.
	since time.Time
	// away is since when the API server cannot be asked; zero when it can.
	away time.Time
	// lookedFrom and lookedUntil are when the last look began and ended.
	lookedFrom, lookedUntil time.Time
	// saw and why are what the last look showed, and why it was not enough.
	saw, why string
	told     string
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

// lookLimit returns how long one look may take: an API server that hangs must not hang the check.
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

// message returns what is wrong: the scenario's own words and, where nothing could be compared, why.
func (t *trial) message() string {
	switch {
	case t.check.Message == "":
		return t.why
	case t.why == "" || t.why == notSo(t.check.Expect):
		return t.check.Message
	}
	return t.check.Message + " (" + t.why + ")"
}

// notSo returns why a check is false that was judged.
func notSo(expect string) string { return "it is not so that " + short(expect) }

// until looks again and again, until the check has held for long enough or its time is over.
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
			t.progress("%s: holds, and must for %s", t.check.Name, sustained)
		case holds:
			if t.lookedFrom.Sub(t.since) >= sustained {
				return true, nil
			}
		default:
			held := t.lookedFrom.Sub(t.since)
			if wasSo := !t.since.IsZero(); wasSo {
				t.why = fmt.Sprintf("it held for %s, and then no longer: %s", max(held, 0).Round(100*time.Millisecond),
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

// pause returns how long to wait: not past the moment at which the answer is due.
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

// look looks once and judges. What is not known is neither true nor false: it is too early, or the API server is away
// for a moment.
func (t *trial) look(ctx context.Context) (holds, known bool, err error) {
	limited, cancel := context.WithTimeout(ctx, lookLimit(t.check))
	defer cancel()
	seen, err := t.source.look(limited)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	if err != nil {
		t.saw, t.why = "", err.Error()
		return t.blind(ctx, err)
	}
	t.away = time.Time{}
	if seen.starts {
		t.deadline = time.Now().Add(within(t.check))
	}
	if seen.early {
		t.saw, t.why = seen.evidence, "it was too early to judge"
		t.tell()
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
	t.saw, t.why = evidence(t.check, seen), ""
	switch {
	case err != nil:
		t.why = err.Error()
	case !holds:
		t.why = notSo(t.check.Expect)
	}
	if !holds {
		t.tell()
	}
	return holds && err == nil, true, nil
}

// blind decides what it means that the source could not be seen.
func (t *trial) blind(ctx context.Context, cause error) (holds, known bool, err error) {
	t.tell()
	if !t.unreachable(ctx, cause) {
		t.away = time.Time{}
		return false, true, nil
	}
	if t.away.IsZero() {
		t.away = time.Now()
	}
	if time.Since(t.away) >= awayFor {
		return false, false, fmt.Errorf("check %q: the API server cannot be asked: %w", t.check.Name, cause)
	}
	return false, false, nil
}

// tell says what is waited for, when that is news.
func (t *trial) tell() {
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

// sleep waits, or returns why ctx ended.
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

// errGone is for an object that went while it was looked at; the next look may find another.
var errGone = errors.New("it is gone")
