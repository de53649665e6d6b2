package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// way is one of the alternatives to measure.
type way struct {
	name  string
	do    func(context.Context, int) error
	after func(context.Context, int) error // not measured; may be nil
}

// sample contains the times of one way, in seconds.
type sample []float64

func (s sample) median() float64 { return slices.Sorted(slices.Values(s))[len(s)/2] }

// alternate runs the ways in turn, and returns the times of each way by its name.
func (b *bench) alternate(ctx context.Context, ways ...way) (map[string]sample, error) {
	times := map[string]sample{}
	for i := range b.rounds + 1 {
		for _, way := range ways {
			start := time.Now()
			if err := way.do(ctx, i); err != nil {
				return nil, fmt.Errorf("%s: %w", way.name, err)
			}
			if i > 0 { // skip the first round, which warms up caches
				times[way.name] = append(times[way.name], time.Since(start).Seconds())
			}
			if way.after != nil {
				if err := way.after(ctx, i); err != nil {
					return nil, fmt.Errorf("after %s: %w", way.name, err)
				}
			}
		}
	}
	return times, nil
}

// compared returns the row that compares two samples. If the unit is ms, the samples are converted to milliseconds.
func compared(what, unit string, ours sample, against string, other sample) row {
	factor := 1.0
	if unit == "ms" {
		factor = 1000
	}
	return row{
		What: what, Unit: unit, Median: ours.median() * factor, Min: slices.Min(ours) * factor,
		Max: slices.Max(ours) * factor, Against: against, Other: other.median() * factor,
	}
}

// within returns the row with a limit for its ratio; 0 means no limit.
func (r row) within(limit float64) row {
	r.Limit = limit
	return r.judged()
}

// atMost returns the row with a limit for the difference.
func (r row) atMost(more float64) row {
	r.More = more
	return r.judged()
}

// ours runs the program being measured against the cluster that a kubeconfig specifies.
func (b *bench) ours(ctx context.Context, args ...string) (string, error) {
	return output(ctx, b.plugin, append([]string{"--kubeconfig", b.kubeconfig}, args...)...)
}

// theirs runs kubectl in the benchmark's namespace.
func (b *bench) theirs(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	return output(ctx, b.kubectl,
		append([]string{"--kubeconfig", kubeconfig, "--namespace", namespace}, args...)...)
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String() + stderr.String(), nil
}

// until polls until the condition holds, for a minute at most.
func until(ctx context.Context, what string, pause time.Duration, holds func() (bool, error)) error {
	for deadline := time.Now().Add(time.Minute); ; {
		done, err := holds()
		if done {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("timed out waiting for %s", what), err, ctx.Err())
		}
		time.Sleep(pause)
	}
}
