package experiment

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// KindResult is the kind of a Result.
const KindResult = "ExperimentResult"

// Result is the result of an experiment, from which all reports are created.
type Result struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Name is the name of the experiment, or the summary of the fault.
	Name    string    `json:"name"`
	Targets []string  `json:"targets,omitempty"` // names of nodes
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Passed means that all expectations were met, that everything was reverted (unless InPlace is set), and that
	// nothing failed.
	Passed   bool      `json:"passed"`
	Runs     []string  `json:"runs,omitempty"` // IDs, as in `list --all`
	Verdicts []Verdict `json:"verdicts"`
	Timeline []Entry   `json:"timeline"`
	// Omitted is the number of entries missing from the timeline because there were too many.
	Omitted int `json:"omitted,omitempty"`
	// InPlace means that the fault was not reverted, because the command only waits for the reactions.
	InPlace bool `json:"inPlace,omitempty"`
	// LeftBehind describes changes that could not be reverted.
	LeftBehind []string     `json:"leftBehind,omitempty"`
	Load       []LoadResult `json:"load,omitempty"`
	// Simulated lists the steps of the remediation that this tool performed itself.
	Simulated []string `json:"simulated,omitempty"`
	// Error is the reason why the experiment was not completed.
	Error string `json:"error,omitempty"`
}

// Result returns the result so far.
func (o *Observer) Result(name string, started time.Time, runs []string) Result {
	r := Result{
		APIVersion: ledger.APIVersion, Kind: KindResult, Name: name, Targets: o.Targets, Started: started,
		Ended: time.Now(), Passed: true, Runs: runs, Verdicts: o.Verdicts(), Timeline: o.Entries(),
	}
	o.mu.Lock()
	r.Omitted = o.omitted
	o.mu.Unlock()
	for _, v := range r.Verdicts {
		r.Passed = r.Passed && v.OK
	}
	return r
}

// Failed returns the number of negative verdicts.
func (r Result) Failed() int {
	n := 0
	for _, v := range r.Verdicts {
		if !v.OK {
			n++
		}
	}
	return n
}

// ProofOf returns the time at which the last change in a run was verified, according to its client's clock, or the zero
// time if no change was verified.
func ProofOf(run *ledger.Run) time.Time {
	var last time.Time
	if run == nil {
		return last
	}
	for _, step := range run.Steps {
		if step.State == ledger.StateProven && step.Ended.After(last) {
			last = step.Ended
		}
	}
	return last
}

// BeganOf returns the start of the first verified change, according to the clock of the run's client, or the zero time
// if there is none. A reaction can come before the verification, because a detector reads the kernel log as fast as
// this tool.
func BeganOf(run *ledger.Run) time.Time {
	var first time.Time
	if run == nil {
		return first
	}
	for _, step := range run.Steps {
		if step.State == ledger.StateProven && (first.IsZero() || step.Started.Before(first)) {
			first = step.Started
		}
	}
	return first
}

// Key identifies a verdict in its result, and verdicts about the same expectation in other results.
type Key struct {
	// Name is the name of the expectation, without the round. It begins with "not " for a reaction that must not
	// happen.
	Name  string
	Round int
}

// notPrefix precedes the name of a reaction that must not happen.
const notPrefix = "not "

// Keys returns the key of each verdict. If an experiment has the same expectation several times, the second name ends
// with #2.
func (r Result) Keys() []Key {
	taken, last := map[Key]bool{}, map[Key]int{}
	keys := make([]Key, len(r.Verdicts))
	for i, v := range r.Verdicts {
		k := Key{Name: v.Name, Round: v.Round}
		if v.Round > 1 {
			k.Name = strings.TrimSuffix(k.Name, roundSuffix(v.Round))
		}
		if v.Not {
			k.Name = notPrefix + k.Name
		}
		for first := k; taken[k]; {
			last[first]++
			k.Name = fmt.Sprintf("%s #%d", first.Name, last[first]+1)
		}
		taken[k], keys[i] = true, k
	}
	return keys
}

// Took returns the seconds from the verification to the reaction. It returns false if there was no reaction.
func (v Verdict) Took() (float64, bool) {
	happened := v.State == StateOK && !v.Not || v.State == StateLate || v.State == StateHappened
	return max(v.After, 0), happened
}
