package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// KindAgentReport is the kind of an AgentReport.
const KindAgentReport = "AgentReport"

// Environment variables that describe the task to a program, in addition to KUBECONFIG.
const (
	EnvCard      = "TASK_CARD"      // path of the task card, a JSON file: see Card
	EnvDiagnosis = "TASK_DIAGNOSIS" // path of the file for the diagnosis
	EnvUsage     = "TASK_USAGE"     // path of the file for the usage: see Usage
)

// Files of a task, in the program's own directory.
const (
	cardFile       = "task.json"
	kubeconfigFile = "kubeconfig"
	diagnosisFile  = "diagnosis.json"
	usageFile      = "usage.json"
)

// AgentOptions configure the test of a program.
type AgentOptions struct {
	Scenarios []*scenario.Scenario
	// Command is run by sh for each try. It must exit when it is done.
	Command   string
	Isolation Isolation
	// Repeats is the number of times to run each scenario, with Seed, Seed+1 and so on; zero means once.
	Repeats int
	Seed    int64
	Set     map[string]string // parameters that do not depend on the seed
	// Timeout limits the duration of one attempt; zero means the scenario's time box. When it expires, the program is
	// stopped and its work so far is graded.
	Timeout time.Duration
	// Record is a directory for a transcript of each try, SCENARIO-ID.jsonl; if empty, no transcripts are kept.
	Record string
	// Trajectory receives the trajectory of each try; nil discards it.
	Trajectory func(Trajectory) error
	// Output receives the output of the programs; nil discards it.
	Output io.Writer
}

// Try is one run of a program on a scenario.
type Try struct {
	Scenario string `json:"scenario"`
	Seed     int64  `json:"seed"`
	Passed   bool   `json:"passed"`
	Score    int    `json:"score"`
	// Invalid is the reason why the try does not count: a failure of the lab, not the program.
	Invalid  string        `json:"invalid,omitempty"`
	TimedOut bool          `json:"timedOut,omitempty"`
	Exit     int           `json:"exit"` // -1 if it was stopped
	Took     time.Duration `json:"took"` // the program's time, in nanoseconds
	// Usage is reported by the program itself.
	Usage *Usage `json:"usage,omitempty"`
	// Additional information, for example that the program's diagnosis cannot be read.
	Note   string  `json:"note,omitempty"`
	Report *Report `json:"report,omitempty"`
}

// note appends to the additional information.
func (t *Try) note(err error) {
	if err != nil {
		t.Note = strings.TrimPrefix(t.Note+"; "+err.Error(), "; ")
	}
}

// Outcome returns the outcome in a word or two.
func (t Try) Outcome() string {
	switch {
	case t.Invalid != "":
		return Errored
	case t.Passed:
		return Passed
	case t.TimedOut:
		return "timed out"
	}
	return NotPass
}

// Agents runs a program on scenarios, and measures how often it solves them. Tries whose lab failed to start do not
// count. If Agents cannot continue, it returns an error and the report so far.
func (l *Lab) Agents(ctx context.Context, options AgentOptions, each func(Try)) (*AgentReport, error) {
	if strings.TrimSpace(options.Command) == "" {
		return nil, errors.New("no command specified")
	}
	type job struct {
		scenario *scenario.Scenario
		seed     int64
	}
	var jobs []job
	for _, s := range options.Scenarios {
		for i := range max(1, options.Repeats) {
			seed := options.Seed + int64(i)
			if _, err := l.Resolve(ctx, s, seed, options.Set); err != nil {
				return nil, fmt.Errorf("scenario %s, seed %d: %w", s.Metadata.Name, seed, err)
			}
			jobs = append(jobs, job{s, seed})
		}
	}
	var all []Try
	for _, one := range jobs {
		if ctx.Err() != nil {
			break
		}
		try := l.try(ctx, one.scenario, one.seed, options)
		if ctx.Err() != nil && try.Report == nil { // the try did not get its full time
			break
		}
		all = append(all, try)
		if each != nil {
			each(try)
		}
	}
	return summarize(options.Command, all), context.Cause(ctx)
}

// try runs a scenario once.
func (l *Lab) try(ctx context.Context, s *scenario.Scenario, seed int64, options AgentOptions) Try {
	try := Try{Scenario: s.Metadata.Name, Seed: seed, Exit: -1}
	if err := l.play(ctx, s, options, &try); err != nil {
		try.Invalid, try.Passed = err.Error(), false
	}
	return try
}

func (l *Lab) play(ctx context.Context, s *scenario.Scenario, options AgentOptions, try *Try) error {
	r, err := l.Resolve(ctx, s, try.Seed, options.Set)
	if err != nil {
		return err
	}
	e, err := l.Start(ctx, r,
		StartOptions{For: options.Timeout, Consent: true, Command: []string{"run", "--agent", options.Command}})
	if err != nil {
		return err
	}
	problem := l.solve(ctx, e, options, try)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cleanup)
	defer cancel()
	ending, err := l.End(clean, e.ID, EndOptions{Restore: true})
	if err == nil && !ending.Clean() {
		try.note(errors.New("not reverted: " + ending.inWords()))
	}
	return errors.Join(problem, err)
}

// solve runs the program and grades the result.
func (l *Lab) solve(ctx context.Context, e *Exercise, options AgentOptions, try *Try) error {
	place, err := newPlace(options.Isolation)
	if err != nil {
		return err
	}
	defer func() { _ = place.remove() }()
	if options.Record == "" {
		options.Record = place.base
	}
	kubeconfig, stop, err := l.record(ctx, e, options.Record, place.listener())
	if err != nil {
		return err
	}
	defer func() { _, _ = stop() }()
	variables, err := writeTask(place, e, kubeconfig)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, e.Until.Sub(e.Started))
	defer cancel()
	began := l.clock(ctx)()
	ran, err := place.run(limited, options.Command, variables, options.Output)
	if err != nil {
		return err
	}
	try.Exit, try.Took = ran.Exit, ran.Took
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	try.TimedOut = limited.Err() != nil
	try.Usage, err = readUsage(place.own)
	try.note(err)
	diagnosis, err := readDiagnosis(place.own)
	try.note(err)
	if diagnosis != nil {
		_, err := l.Submit(ctx, e.ID, *diagnosis)
		try.note(err)
	}
	transcript, err := stop()
	try.note(err) // changes in the cluster count even without a transcript
	report, err := l.GradeRecorded(ctx, e.ID, transcript)
	if err != nil {
		return err
	}
	try.Report, try.Passed, try.Score = report, report.Passed, report.Score
	if options.Trajectory != nil {
		try.note(options.Trajectory(trajectory(e, *try, options, began, ran, transcript)))
	}
	return nil
}

// writeTask writes the files for a program's task, and returns the environment variables with their paths.
func writeTask(p *place, e *Exercise, kubeconfig []byte) ([]string, error) {
	card := CardOf(e)
	card.Kubeconfig = filepath.Join(p.seen, kubeconfigFile)
	card.Diagnosis = filepath.Join(p.seen, diagnosisFile)
	card.Submit = howToSubmit + " Write it to the path in the diagnosis field, then exit."
	text, err := json.MarshalIndent(card, "", "  ")
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.WriteFile(filepath.Join(p.own, cardFile), append(text, '\n'), 0o600),
		os.WriteFile(filepath.Join(p.own, kubeconfigFile), kubeconfig, 0o600))
	return []string{
		"KUBECONFIG=" + card.Kubeconfig, EnvCard + "=" + filepath.Join(p.seen, cardFile),
		EnvDiagnosis + "=" + card.Diagnosis, EnvUsage + "=" + filepath.Join(p.seen, usageFile),
	}, err
}
