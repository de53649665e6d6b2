package exercise

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// Report is the result of one grading.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID       string `json:"id"`
	Scenario string `json:"scenario"`
	Title    string `json:"title"`
	Seed     int64  `json:"seed"`
	By       string `json:"by,omitempty"` // the user who graded the exercise

	At time.Time `json:"at"`
	// Took is the candidate's time, in nanoseconds. It ends when the candidate submits the diagnosis, or, if they
	// change something afterwards, when the exercise is graded.
	Took    time.Duration `json:"took"`
	TimeBox time.Duration `json:"timeBox"` // in nanoseconds
	Late    bool          `json:"late,omitempty"`

	// Passed is set if all gates hold. Score is the points, 0 to 100; a failed attempt may also have points.
	Passed bool     `json:"passed"`
	Score  int      `json:"score"`
	Gates  []Gate   `json:"gates"`  // fixed, unchanged, collateral
	Points []Points `json:"points"` // fixed, diagnosis, collateral, time, hints
	// Reasons explain, in sentences, why points were not awarded.
	Reasons []string `json:"reasons,omitempty"`

	Fixed      []check.Result        `json:"fixed,omitempty"`
	Unchanged  []check.Result        `json:"unchanged,omitempty"`
	Collateral []baseline.Difference `json:"collateral,omitempty"`
	// Omitted is the number of additional differences that are not in Collateral.
	Omitted int `json:"omitted,omitempty"`
	// NotCompared lists kinds that could not be listed, with the reason. Changes to objects of these kinds are unknown.
	NotCompared []string `json:"notCompared,omitempty"`

	// Applied is the result of applying the submitted Terraform module; nil if there is none.
	Applied *Applied `json:"applied,omitempty"`

	Diagnosed []scenario.FieldScore `json:"diagnosed,omitempty"`
	Diagnosis *scenario.Diagnosis   `json:"diagnosis,omitempty"`
	Hints     []Taken               `json:"hints,omitempty"`
	Simulated string                `json:"simulated,omitempty"`
	Timeline  []Moment              `json:"timeline,omitempty"`
	// Recorded summarizes the candidate's requests, if there is a transcript.
	Recorded *Recorded `json:"recorded,omitempty"`
}

// Applied is the result of applying a Terraform module.
type Applied struct {
	At time.Time `json:"at"`
	// Changes lists what was changed, such as "changed NetworkPolicy tenant-orion/names".
	Changes []string `json:"changes,omitempty"`
	// Problems are the changes that the API server rejected, for example because the candidate lacks the
	// permission.
	Problems []string `json:"problems,omitempty"`
}

// Gate is a condition for passing.
type Gate struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Why  string `json:"why,omitempty"` // if it does not hold
}

// Points are the points for one weight.
type Points struct {
	Name string `json:"name"`
	Got  int    `json:"got"` // negative if hints cost more than their weight
	Of   int    `json:"of"`
	Why  string `json:"why,omitempty"`
}

// Moment is an event in the timeline.
type Moment struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// Ending is the result of `scenario end`.
type Ending struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Reverted describes the run's steps that could not be fully reverted.
	Reverted []string `json:"reverted,omitempty"`
	// Files describes the steps in Reverted that left a file on a node because it was changed after the run.
	Files []string `json:"files,omitempty"`
	// Restored lists the candidate's changes that were reverted.
	Restored []Restored `json:"restored,omitempty"`
	// Left lists the differences from the state before the exercise that remain and were caused by the exercise or the
	// candidate, with instructions to revert them manually.
	Left []Left `json:"left,omitempty"`
	// Elsewhere counts differences in places where neither the exercise nor the candidate could write. They come from
	// other activity in the cluster.
	Elsewhere int `json:"elsewhere,omitempty"`
	// Conditions are new node conditions that report problems. They were set by the kubelet or a detector, such as
	// node-problem-detector, which may keep them until it restarts. The exercise cannot reset them.
	Conditions []Condition `json:"conditions,omitempty"`
	// Compared is set if there was a baseline for the comparison; without one, remaining differences are unknown.
	Compared bool `json:"compared"`
	// NodeShell is set if the candidate could become root on nodes. NotCompared then describes what was not compared
	// there.
	NodeShell   bool     `json:"nodeShell,omitempty"`
	NotCompared []string `json:"notCompared,omitempty"`
}

// Restored is a change by the candidate that End reverted or would revert.
type Restored struct {
	Difference baseline.Difference `json:"difference"`
	How        string              `json:"how"` // for example: delete it, recreate it as it was, restore the changed fields
}

// Left is a difference that could not be reverted.
type Left struct {
	Difference baseline.Difference `json:"difference"`
	Why        string              `json:"why,omitempty"`
	ByHand     string              `json:"byHand,omitempty"`
}

// Clean reports whether no differences remain.
func (e Ending) Clean() bool { return e.Compared && len(e.Left) == 0 && len(e.Files) == 0 }
