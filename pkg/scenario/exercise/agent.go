package exercise

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// KindAgentReport names the versioned form of an AgentReport.
const KindAgentReport = "AgentReport"

// The variables of the environment by which a program finds its task. KUBECONFIG is the third.
const (
	EnvCard      = "TASK_CARD"      // the task card, a JSON file: see Card
	EnvDiagnosis = "TASK_DIAGNOSIS" // where to write the diagnosis
)

// AgentOptions are how programs are tested.
type AgentOptions struct {
	Scenarios []*scenario.Scenario
	// Command is what sh runs for each try, in a folder of its own. It ends when it thinks that it is done. It may read
	// whatever its user may: who does not trust it runs it in a container.
	Command string
	// Repeats is how often each scenario is played, with Seed, Seed+1 and so on; zero means once.
	Repeats int
	Seed    int64
	// Timeout is how long one try may take; zero is the scenario's time box. Then the program is stopped, and what it
	// has done is graded.
	Timeout time.Duration
	// Record is a folder for a transcript of each try: SCENARIO-ID.jsonl; empty writes none.
	Record string
	// Output gets what the programs write; nil drops it.
	Output io.Writer
}

// Try is one time that a program was given a scenario.
type Try struct {
	Scenario string `json:"scenario"`
	Seed     int64  `json:"seed"`
	Passed   bool   `json:"passed"`
	Score    int    `json:"score"`
	// Invalid says why the try does not count: the lab, not the program, has failed.
	Invalid  string        `json:"invalid,omitempty"`
	TimedOut bool          `json:"timedOut,omitempty"`
	Exit     int           `json:"exit"`           // -1 when it was stopped
	Took     time.Duration `json:"took"`           // by the program, in nanoseconds
	Note     string        `json:"note,omitempty"` // what is to be known: its diagnosis cannot be read
	Report   *Report       `json:"report,omitempty"`
}

// Outcome returns the try in a word.
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

// Agents has a program solve scenarios, and says how often it does. Tries in which the lab could not be made do not
// count. The error says why it could not go on; the report then has what there is.
func (l *Lab) Agents(ctx context.Context, options AgentOptions, each func(Try)) (*AgentReport, error) {
	if strings.TrimSpace(options.Command) == "" {
		return nil, errors.New("there is no command to run")
	}
	type job struct {
		scenario *scenario.Scenario
		seed     int64
	}
	var jobs []job
	for _, s := range options.Scenarios {
		for i := range max(1, options.Repeats) {
			seed := options.Seed + int64(i)
			if _, err := l.Resolve(ctx, s, seed, nil); err != nil {
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
		if ctx.Err() != nil && try.Report == nil { // it was not given its time
			break
		}
		all = append(all, try)
		if each != nil {
			each(try)
		}
	}
	return summarize(options.Command, all), context.Cause(ctx)
}

// try plays a scenario once.
func (l *Lab) try(ctx context.Context, s *scenario.Scenario, seed int64, options AgentOptions) Try {
	try := Try{Scenario: s.Metadata.Name, Seed: seed, Exit: -1}
	if err := l.play(ctx, s, options, &try); err != nil {
		try.Invalid, try.Passed = err.Error(), false
	}
	return try
}

func (l *Lab) play(ctx context.Context, s *scenario.Scenario, options AgentOptions, try *Try) error {
	r, err := l.Resolve(ctx, s, try.Seed, nil)
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
		try.Note = strings.TrimPrefix(try.Note+"; left after the end: "+ending.inWords(), "; ")
	}
	return errors.Join(problem, err)
}

// solve runs the program, and grades what it has done.
func (l *Lab) solve(ctx context.Context, e *Exercise, options AgentOptions, try *Try) error {
	folder, err := os.MkdirTemp("", "task-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	kubeconfig, stop, err := l.record(ctx, e, options.Record)
	if err != nil {
		return err
	}
	defer func() { _, _ = stop() }()
	task, err := writeTask(folder, e, kubeconfig)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, e.Until.Sub(e.Started))
	defer cancel()
	began := time.Now()
	try.Exit = runProgram(limited, folder, task, options)
	try.Took = time.Since(began)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	try.TimedOut = limited.Err() != nil
	diagnosis, err := readDiagnosis(task.diagnosis)
	if err != nil {
		try.Note = err.Error()
	}
	if diagnosis != nil {
		if _, err := l.Submit(ctx, e.ID, *diagnosis); err != nil {
			try.Note = err.Error()
		}
	}
	transcript, err := stop()
	if err != nil { // what was done counts all the same
		try.Note = strings.TrimPrefix(try.Note+"; "+err.Error(), "; ")
	}
	report, err := l.GradeRecorded(ctx, e.ID, transcript)
	if err != nil {
		return err
	}
	try.Report, try.Passed, try.Score = report, report.Passed, report.Score
	return nil
}

// task is where the files of a program's task are.
type task struct{ card, kubeconfig, diagnosis string }

func writeTask(folder string, e *Exercise, kubeconfig []byte) (task, error) {
	files := task{
		filepath.Join(folder, "task.json"), filepath.Join(folder, "kubeconfig"),
		filepath.Join(folder, "diagnosis.json"),
	}
	card := CardOf(e)
	card.Kubeconfig, card.Diagnosis = files.kubeconfig, files.diagnosis
	card.Submit = howToSubmit + " Write it to the file that diagnosis names, and end."
	text, err := json.MarshalIndent(card, "", "  ")
	if err != nil {
		return files, err
	}
	if err := os.WriteFile(files.card, append(text, '\n'), 0o600); err != nil {
		return files, err
	}
	return files, os.WriteFile(files.kubeconfig, kubeconfig, 0o600)
}

// runProgram runs the command until it ends or ctx does, and returns its exit code; -1 when it was stopped.
func runProgram(ctx context.Context, folder string, files task, options AgentOptions) int {
	output := &quoted{w: options.Output}
	if output.w == nil {
		output.w = io.Discard
	}
	defer output.end()
	cmd := exec.CommandContext(ctx, "sh", "-c", options.Command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, output, output
	cmd.Env = append(environment(), "KUBECONFIG="+files.kubeconfig, EnvCard+"="+files.card,
		EnvDiagnosis+"="+files.diagnosis)
	cmd.WaitDelay = 5 * time.Second // for what holds its streams open
	alone(cmd)
	err := cmd.Run()
	if cmd.Process != nil {
		_ = cmd.Cancel() // what it has started may outlive it, and must not go on while it is graded
	}
	if err != nil && cmd.ProcessState == nil {
		_, _ = fmt.Fprintf(output, "%s: %v\n", options.Command, err)
		return -1
	}
	return cmd.ProcessState.ExitCode()
}

// quoted prefixes each line of a program's output with a bar, which distinguishes it from this tool's own output.
type quoted struct {
	w   io.Writer
	mid bool // in a line
}

func (q *quoted) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if !q.mid {
			_, _ = io.WriteString(q.w, "| ")
		}
		if _, err := q.w.Write(line); err != nil {
			return 0, err
		}
		q.mid = !bytes.HasSuffix(line, []byte("\n"))
	}
	return len(text), nil
}

func (q *quoted) end() {
	if q.mid {
		_, _ = q.Write([]byte("\n"))
	}
}

// environment returns this process's without what kubectl and this tool read.
func environment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "KUBE") && !strings.HasPrefix(name, "GPU_FAULT") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// readDiagnosis reads what a program has written; nil when it wrote nothing.
func readDiagnosis(path string) (*scenario.Diagnosis, error) {
	// The program may have created anything at this path: without O_NONBLOCK, opening a named pipe blocks.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var diagnosis scenario.Diagnosis
	if err == nil {
		defer func() { _ = file.Close() }()
		if info, statErr := file.Stat(); statErr != nil || !info.Mode().IsRegular() {
			err = errors.Join(errors.New("it is not a regular file"), statErr)
		} else {
			diagnosis, err = scenario.ReadDiagnosis(file)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the diagnosis cannot be read: %w", err)
	}
	if diagnosis == (scenario.Diagnosis{}) {
		return nil, nil
	}
	return &diagnosis, nil
}
