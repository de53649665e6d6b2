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

// KindAgentReport is the kind of an AgentReport.
const KindAgentReport = "AgentReport"

// Environment variables that tell a program its task, besides KUBECONFIG.
const (
	EnvCard      = "TASK_CARD"      // path of the task card, a JSON file: see Card
	EnvDiagnosis = "TASK_DIAGNOSIS" // path to write the diagnosis to
)

// AgentOptions configure how a program is tested.
type AgentOptions struct {
	Scenarios []*scenario.Scenario
	// Command is run by sh for each try, in its own directory. It exits when it is done. It can access
	// everything that its user can, so run an untrusted program in a container.
	Command string
	// Repeats is how often each scenario is played, with Seed, Seed+1 and so on; zero means once.
	Repeats int
	Seed    int64
	// Timeout limits one try; zero means the scenario's time box. When it expires, the program is stopped and
	// its work so far is graded.
	Timeout time.Duration
	// Record is a directory for a transcript of each try: SCENARIO-ID.jsonl; empty writes none.
	Record string
	// Output receives the output of the programs; nil discards it.
	Output io.Writer
}

// Try is one run of a program on a scenario.
type Try struct {
	Scenario string `json:"scenario"`
	Seed     int64  `json:"seed"`
	Passed   bool   `json:"passed"`
	Score    int    `json:"score"`
	// Invalid is why the try does not count: the lab failed, not the program.
	Invalid  string        `json:"invalid,omitempty"`
	TimedOut bool          `json:"timedOut,omitempty"`
	Exit     int           `json:"exit"` // -1 if it was stopped
	Took     time.Duration `json:"took"` // time of the program, in nanoseconds
	// Additional information, for example that its diagnosis cannot be read.
	Note   string  `json:"note,omitempty"`
	Report *Report `json:"report,omitempty"`
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

// Agents runs a program on scenarios, and reports how often it solves them. Tries whose lab failed to start do
// not count. If Agents cannot continue, it returns an error and the report so far.
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
		try.Note = strings.TrimPrefix(try.Note+"; not reverted: "+ending.inWords(), "; ")
	}
	return errors.Join(problem, err)
}

// solve runs the program and grades the result.
func (l *Lab) solve(ctx context.Context, e *Exercise, options AgentOptions, try *Try) error {
	dir, err := os.MkdirTemp("", "task-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	kubeconfig, stop, err := l.record(ctx, e, options.Record)
	if err != nil {
		return err
	}
	defer func() { _, _ = stop() }()
	task, err := writeTask(dir, e, kubeconfig)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, e.Until.Sub(e.Started))
	defer cancel()
	began := time.Now()
	try.Exit = runProgram(limited, dir, task, options)
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
	if err != nil { // changes in the cluster count even without a diagnosis
		try.Note = strings.TrimPrefix(try.Note+"; "+err.Error(), "; ")
	}
	report, err := l.GradeRecorded(ctx, e.ID, transcript)
	if err != nil {
		return err
	}
	try.Report, try.Passed, try.Score = report, report.Passed, report.Score
	return nil
}

// task holds the paths of a program's task files.
type task struct{ card, kubeconfig, diagnosis string }

func writeTask(dir string, e *Exercise, kubeconfig []byte) (task, error) {
	files := task{
		filepath.Join(dir, "task.json"), filepath.Join(dir, "kubeconfig"),
		filepath.Join(dir, "diagnosis.json"),
	}
	card := CardOf(e)
	card.Kubeconfig, card.Diagnosis = files.kubeconfig, files.diagnosis
	card.Submit = howToSubmit + " Write it to the path in the field diagnosis, then exit."
	text, err := json.MarshalIndent(card, "", "  ")
	if err != nil {
		return files, err
	}
	if err := os.WriteFile(files.card, append(text, '\n'), 0o600); err != nil {
		return files, err
	}
	return files, os.WriteFile(files.kubeconfig, kubeconfig, 0o600)
}

// runProgram runs the command until it exits or ctx is done. It returns the exit code, or -1 if the command was
// stopped.
func runProgram(ctx context.Context, dir string, files task, options AgentOptions) int {
	output := &quoted{w: options.Output}
	if output.w == nil {
		output.w = io.Discard
	}
	defer output.end()
	cmd := exec.CommandContext(ctx, "sh", "-c", options.Command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(environment(), "KUBECONFIG="+files.kubeconfig, EnvCard+"="+files.card,
		EnvDiagnosis+"="+files.diagnosis)
	cmd.WaitDelay = 5 * time.Second // do not wait longer for processes that keep its streams open
	alone(cmd)
	err := cmd.Run()
	if cmd.Process != nil {
		_ = cmd.Cancel() // stop processes that the program started, so that they do not run during grading
	}
	if err != nil && cmd.ProcessState == nil {
		_, _ = fmt.Fprintf(output, "%s: %v\n", options.Command, err)
		return -1
	}
	return cmd.ProcessState.ExitCode()
}

// quoted prefixes each line of a program's output with a bar, to distinguish it from this tool's own output.
type quoted struct {
	w   io.Writer
	mid bool // in the middle of a line
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

// environment returns this process's environment without the variables that configure kubectl and this tool.
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

// readDiagnosis reads the diagnosis that a program wrote, or returns nil if it wrote none.
func readDiagnosis(path string) (*scenario.Diagnosis, error) {
	// The program may have created any file type at this path: without O_NONBLOCK, opening a named pipe blocks.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var diagnosis scenario.Diagnosis
	if err == nil {
		defer func() { _ = file.Close() }()
		if info, statErr := file.Stat(); statErr != nil || !info.Mode().IsRegular() {
			err = errors.Join(errors.New("not a regular file"), statErr)
		} else {
			diagnosis, err = scenario.ReadDiagnosis(file)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read diagnosis: %w", err)
	}
	if diagnosis == (scenario.Diagnosis{}) {
		return nil, nil
	}
	return &diagnosis, nil
}
