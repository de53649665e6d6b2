package exercise

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// Report is one judgment.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID       string `json:"id"`
	Scenario string `json:"scenario"`
	Title    string `json:"title"`
	Seed     int64  `json:"seed"`
	By       string `json:"by,omitempty"` // who graded

	At time.Time `json:"at"`
	// Took is the candidate's time, in nanoseconds. It ends when they hand in the diagnosis, if nothing that they may
	// change is different when it is judged, and else with the judgment.
	Took    time.Duration `json:"took"`
	TimeBox time.Duration `json:"timeBox"` // in nanoseconds
	Late    bool          `json:"late,omitempty"`

	// Passed reports whether the gates hold; Score the points, 0 to 100, which a failure may have, too.
	Passed bool     `json:"passed"`
	Score  int      `json:"score"`
	Gates  []Gate   `json:"gates"`  // fixed, unchanged, collateral
	Points []Points `json:"points"` // fixed, diagnosis, collateral, time, hints
	// Reasons say in sentences why it is not all the points.
	Reasons []string `json:"reasons,omitempty"`

	Fixed      []check.Result        `json:"fixed,omitempty"`
	Unchanged  []check.Result        `json:"unchanged,omitempty"`
	Collateral []baseline.Difference `json:"collateral,omitempty"`
	// Omitted is how many differences more there are than Collateral lists.
	Omitted int `json:"omitted,omitempty"`
	// NotCompared are kinds that could not be listed, and why: what was done to these is not known.
	NotCompared []string `json:"notCompared,omitempty"`

	// Applied is what became of the Terraform module that was handed in; nil when none was.
	Applied *Applied `json:"applied,omitempty"`

	Diagnosed []scenario.FieldScore `json:"diagnosed,omitempty"`
	Diagnosis *scenario.Diagnosis   `json:"diagnosis,omitempty"`
	Hints     []Taken               `json:"hints,omitempty"`
	Simulated string                `json:"simulated,omitempty"`
	Timeline  []Moment              `json:"timeline,omitempty"`
	// Of the candidate's requests, where there is a transcript
	Recorded *Recorded `json:"recorded,omitempty"`
}

// Applied says how a Terraform module was brought into the cluster.
type Applied struct {
	At time.Time `json:"at"`
	// Changes are what was done: changed NetworkPolicy tenant-orion/names.
	Changes []string `json:"changes,omitempty"`
	// Problems say what could not be done: the candidate may not, or the API server refuses it.
	Problems []string `json:"problems,omitempty"`
}

// Gate is something that must hold to pass.
type Gate struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Why  string `json:"why,omitempty"` // when it does not hold
}

// Points are those of one weight.
type Points struct {
	Name string `json:"name"`
	Got  int    `json:"got"` // of hints also below zero: they cost more than their weight
	Of   int    `json:"of"`
	Why  string `json:"why,omitempty"`
}

// Moment is something that happened.
type Moment struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// Ending is what `end` did.
type Ending struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Reverted says for each step of the run that could not be undone as it was, what became of it.
	Reverted []string `json:"reverted,omitempty"`
	// Files are those of these steps that leave a file of a node as somebody has changed it.
	Files []string `json:"files,omitempty"`
	// Restored is what the candidate had left and was put back.
	Restored []Restored `json:"restored,omitempty"`
	// Left are differences to the time before the exercise that are the exercise's or the candidate's, and how to undo
	// them by hand. None means that nothing is left.
	Left []Left `json:"left,omitempty"`
	// Elsewhere counts differences where neither the exercise nor the candidate could write: the cluster's own life.
	Elsewhere int `json:"elsewhere,omitempty"`
	// Compared reports whether there was a baseline to compare with; without, nothing is known about what is left.
	Compared bool `json:"compared"`
}

// Restored is something that the candidate had left, or that End would put back.
type Restored struct {
	Difference baseline.Difference `json:"difference"`
	How        string              `json:"how"` // delete it, create it again, change back what differs
}

// Left is a difference that could not be undone.
type Left struct {
	Difference baseline.Difference `json:"difference"`
	Why        string              `json:"why,omitempty"`
	ByHand     string              `json:"byHand,omitempty"`
}

// Clean reports whether nothing is left.
func (e Ending) Clean() bool { return e.Compared && len(e.Left) == 0 && len(e.Files) == 0 }
