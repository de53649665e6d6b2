package experiment

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// KindResult is the kind of a Result.
const KindResult = "ExperimentResult"

// Result is what happened in an experiment. All reports are made from it.
type Result struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Name is the experiment's, or the summary of the fault.
	Name    string    `json:"name"`
	Targets []string  `json:"targets,omitempty"` // names of nodes
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Passed means that all expectations were met, everything was reverted unless InPlace, and nothing failed.
	Passed   bool      `json:"passed"`
	Runs     []string  `json:"runs,omitempty"` // IDs, as in `list --all`
	Verdicts []Verdict `json:"verdicts"`
	Timeline []Entry   `json:"timeline"`
	// Omitted is how many entries the timeline lacks because there were too many.
	Omitted int `json:"omitted,omitempty"`
	// InPlace means that the fault was not reverted, because the command only waits for the reactions.
	InPlace bool `json:"inPlace,omitempty"`
	// LeftBehind describes what could not be reverted.
	LeftBehind []string     `json:"leftBehind,omitempty"`
	Load       []LoadResult `json:"load,omitempty"`
	// Simulated are the steps of the remediation that this tool did itself.
	Simulated []string `json:"simulated,omitempty"`
	// Error is why the experiment was not carried out as a whole.
	Error string `json:"error,omitempty"`
}

// Result returns what has happened until now.
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

// Failed returns how many verdicts are negative.
func (r Result) Failed() int {
	n := 0
	for _, v := range r.Verdicts {
		if !v.OK {
			n++
		}
	}
	return n
}

// ProofOf returns when the last change of a run was proven, by the clock of its client; the zero time if none was.
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

// BeganOf returns when the first of the changes that were proven began, by the clock of the run's client; the zero time
// if none was. A reaction can come before the proof: a detector reads the kernel log as fast as this tool does.
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

// Key identifies a verdict in its result, and the verdicts of other results about the same expectation.
type Key struct {
	// Name is that of the expectation, without the round, and begins with "not " for what must not happen.
	Name  string
	Round int
}

// notPrefix is before the name of what must not happen.
const notPrefix = "not "

// Keys returns the key of each verdict. If an experiment expects the same several times, the second name ends with #2.
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

// Took returns the seconds from the proof to what happened. It reports false if nothing happened.
func (v Verdict) Took() (float64, bool) {
	happened := v.State == StateOK && !v.Not || v.State == StateLate || v.State == StateHappened
	return max(v.After, 0), happened
}
