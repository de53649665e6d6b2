package expect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
)

// limits contains the times from --within: one for all reactions, and separate times for some of them.
type limits struct {
	all  time.Duration
	some map[reaction.Name]time.Duration
}

func (l limits) of(name reaction.Name) time.Duration {
	if d := l.some[name]; d > 0 {
		return d
	}
	return l.all
}

// limits parses --within.
func (f *Flags) limits() (limits, error) {
	l := limits{all: DefaultWithin, some: map[reaction.Name]time.Duration{}}
	for i, word := range f.within {
		name, text, named := strings.Cut(strings.TrimSpace(word), "=")
		if !named {
			text = name
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second || d > 24*time.Hour {
			return l, fmt.Errorf("invalid value %q for --within: must be a time with a unit, 1s to 24h", word)
		}
		if !named {
			if slices.ContainsFunc(f.within[:i], func(w string) bool { return !strings.Contains(w, "=") }) {
				return l, fmt.Errorf("invalid value %q for --within: a time for all reactions is already specified", word)
			}
			l.all = d
			continue
		}
		known, err := reaction.Parse(name)
		if err != nil {
			return l, fmt.Errorf("--within: %w", err)
		}
		if l.some[known] > 0 {
			return l, fmt.Errorf("invalid value %q for --within: %s already has a time", word, known)
		}
		l.some[known] = d
	}
	return l, nil
}

// validateWithin also rejects a time for a reaction that is not expected.
func (f *Flags) validateWithin() error {
	l, err := f.limits()
	if err != nil {
		return err
	}
	for _, word := range slices.Concat(f.expect, f.not) {
		name, _, _ := strings.Cut(strings.TrimSpace(word), "=")
		if known, err := reaction.Parse(name); err == nil {
			delete(l.some, known)
		}
	}
	for name := range l.some {
		return fmt.Errorf("--within specifies a time for %s, which is neither in --expect nor in --expect-not", name)
	}
	return nil
}

// longest returns the longest time for an expected reaction.
func (f *Flags) longest() time.Duration {
	l, _ := f.limits() // valid: Validate has checked it
	var longest time.Duration
	for _, word := range slices.Concat(f.expect, f.not) {
		name, _, _ := strings.Cut(strings.TrimSpace(word), "=")
		known, _ := reaction.Parse(name)
		longest = max(longest, l.of(known))
	}
	return longest
}
