package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// KindComparison is the kind of a Comparison.
const KindComparison = "ExperimentComparison"

// Comparison is the difference between two results.
type Comparison struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Before and After are the results.
	Before Compared `json:"before"`
	After  Compared `json:"after"`
	// Worse means that an expectation is worse, or that the experiment no longer passes.
	Worse bool     `json:"worse"`
	Items []Change `json:"items"`
}

// Compared is a result in a Comparison.
type Compared struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started"`
	Passed  bool      `json:"passed"`
	Error   string    `json:"error,omitempty"`
}

// Change is the difference between the two results for an expectation.
type Change struct {
	// Name is the name of the expectation, without the round. It begins with "not " for a reaction that must not
	// happen.
	Name string `json:"name"`
	// Before and After are nil if the result does not contain the expectation.
	Before *Outcome `json:"before,omitempty"`
	After  *Outcome `json:"after,omitempty"`
	// Seconds is the additional time, and Factor the ratio of the times. Both are nil if unknown.
	Seconds *float64 `json:"seconds,omitempty"`
	Factor  *float64 `json:"factor,omitempty"`
	// Worse means that the expectation was met more often in Before than in After. Slower means that the reaction takes
	// longer than the given Slower value allows.
	Worse  bool `json:"worse,omitempty"`
	Slower bool `json:"slower,omitempty"`
}

// Outcome summarizes an expectation over all rounds of a result.
type Outcome struct {
	// State is the state in the worst round.
	State  State `json:"state"`
	Met    int   `json:"met"`
	Rounds int   `json:"rounds"`
	// Median, Min and Max are the seconds from the verification to the reaction, over the rounds in which the reaction
	// happened. They are nil if it never happened, and for a reaction that must not happen.
	Median *float64 `json:"median,omitempty"`
	Min    *float64 `json:"min,omitempty"`
	Max    *float64 `json:"max,omitempty"`
	// Limit is the deadline in seconds.
	Limit float64 `json:"limit"`
}

// Slower is the additional time after which a reaction counts as slower. The zero value allows any time.
type Slower struct {
	percent float64
	time    time.Duration
}

// noise is the difference between two measurements of the same reaction; times are shown with this precision.
const noise = 0.1

// ParseSlower parses a percentage such as 20%, or a time such as 5s.
func ParseSlower(text string) (Slower, error) {
	var s Slower
	var err error
	if percent, is := strings.CutSuffix(text, "%"); is {
		if s.percent, err = strconv.ParseFloat(percent, 64); err == nil && s.percent > 0 && s.percent <= 1e6 {
			return s, nil
		}
	} else if s.time, err = time.ParseDuration(text); err == nil && s.time > 0 {
		return s, nil
	}
	return Slower{}, fmt.Errorf("must be a percentage such as 20%%, or a time such as 5s, not %q", brief(text))
}

func (s Slower) exceeded(before, after float64) bool {
	switch more := after - before; {
	case more < noise:
		return false
	case s.percent > 0:
		return more > before*s.percent/100
	case s.time > 0:
		return more > s.time.Seconds()
	}
	return false
}

// Compare compares two results of the same experiment.
func Compare(before, after Result, slower Slower) (Comparison, error) {
	c := Comparison{
		APIVersion: ledger.APIVersion, Kind: KindComparison,
		Before: compared(before), After: compared(after),
		Worse: before.Passed && !after.Passed || before.Error == "" && after.Error != "" ||
			len(before.LeftBehind) == 0 && len(after.LeftBehind) > 0,
	}
	names, old := before.Outcomes()
	more, now := after.Outcomes()
	common := false
	for _, name := range more {
		if old[name] == nil {
			names = append(names, name)
		}
	}
	for _, name := range names {
		one := change(name, old[name], now[name], slower)
		common = common || one.Before != nil && one.After != nil
		c.Worse = c.Worse || one.Worse || one.Slower
		c.Items = append(c.Items, one)
	}
	if !common && len(old) > 0 && len(now) > 0 {
		return c, errors.New("the results have no expectations in common")
	}
	return c, nil
}

func compared(r Result) Compared {
	return Compared{Name: r.Name, Started: r.Started, Passed: r.Passed, Error: r.Error}
}

func change(name string, before, after *Outcome, slower Slower) Change {
	c := Change{Name: name, Before: before, After: after}
	switch {
	case before == nil:
		return c
	case after == nil:
		c.Worse = before.Met > 0 // an expectation without a verdict is not met
		return c
	}
	often, was := after.Met*before.Rounds, before.Met*after.Rounds
	c.Worse = often < was || often == was && slices.Index(worst, after.State) < slices.Index(worst, before.State)
	if before.Median == nil || after.Median == nil {
		return c
	}
	more := *after.Median - *before.Median
	c.Seconds = &more
	if *before.Median >= noise {
		factor := *after.Median / *before.Median
		c.Factor = &factor
	}
	c.Slower = slower.exceeded(*before.Median, *after.Median)
	return c
}

// worst contains the states of verdicts, worst first.
var worst = []State{StateHappened, StateMissing, StateUnknown, StateLate, StateOK}

// Outcomes returns the outcome of each expectation by name, and the names in order.
func (r Result) Outcomes() (names []string, all map[string]*Outcome) {
	all = map[string]*Outcome{}
	took := map[string][]float64{}
	for i, k := range r.Keys() {
		v := r.Verdicts[i]
		o := all[k.Name]
		if o == nil {
			o = &Outcome{State: v.State, Limit: v.Limit}
			all[k.Name] = o
			names = append(names, k.Name)
		}
		o.Rounds++
		if v.OK {
			o.Met++
		}
		if slices.Index(worst, v.State) < slices.Index(worst, o.State) {
			o.State = v.State
		}
		if seconds, happened := v.Took(); happened && !v.Not {
			took[k.Name] = append(took[k.Name], seconds)
		}
	}
	for name, times := range took {
		sorting.Func(times, cmp.Compare)
		n := len(times)
		median := (times[n/2] + times[(n-1)/2]) / 2
		all[name].Median, all[name].Min, all[name].Max = &median, &times[0], &times[n-1]
	}
	return names, all
}
