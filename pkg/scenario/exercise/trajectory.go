package exercise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/redact"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

// KindTrajectory is the kind of a Trajectory.
const KindTrajectory = "AgentTrajectory"

// Trajectory contains everything that is known about one try of a program, for analysis by people and programs.
type Trajectory struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID string `json:"id"` // the ID of the exercise
	Try
	Agent string `json:"agent"` // the program's command
	// Isolated is set if the program ran in a sandbox.
	Isolated bool      `json:"isolated"`
	Started  time.Time `json:"started"` // the start of the program; times of commands are relative to it
	// Commands are the programs that were executed, in order, without strings that look like credentials.
	Commands []sandbox.Ran `json:"commands"`
	// Omitted is the number of executed programs that are not in Commands. If no executed programs were recorded,
	// Unseen is the reason.
	Omitted int    `json:"omittedCommands,omitempty"`
	Unseen  string `json:"noCommands,omitempty"`
	// Requests are the program's requests to the API server.
	Requests []recorder.Line `json:"requests"`
}

// Usage is reported by a program, in the file that TASK_USAGE names. This tool cannot verify the usage.
type Usage struct {
	Model        string  `json:"model,omitempty"`
	InputTokens  int64   `json:"inputTokens,omitempty"`
	OutputTokens int64   `json:"outputTokens,omitempty"`
	CostUSD      float64 `json:"costUSD,omitempty"`
	Steps        int64   `json:"steps,omitempty"` // steps of the program's own loop, such as model calls
}

// String describes the usage: model, 1200 input tokens, 300 output tokens, 0.52 USD, 14 steps.
func (u Usage) String() string {
	var parts []string
	if u.Model != "" {
		parts = append(parts, u.Model)
	}
	for _, one := range []struct {
		n    int64
		what string
	}{{u.InputTokens, "input token"}, {u.OutputTokens, "output token"}, {u.Steps, "step"}} {
		if one.n > 0 {
			parts = append(parts, count.Of(int(one.n), one.what))
		}
	}
	if u.CostUSD > 0 {
		parts = append(parts, fmt.Sprintf("%.2f USD", u.CostUSD))
	}
	return strings.Join(parts, ", ")
}

// trajectory collects everything that is known about a try.
func trajectory(
	e *Exercise, try Try, options AgentOptions, started time.Time, ran sandbox.Result, requests *recorder.Transcript,
) Trajectory {
	t := Trajectory{
		APIVersion: APIVersion, Kind: KindTrajectory, ID: e.ID, Try: try, Agent: redact.Text(options.Command),
		Isolated: !options.Isolation.Off, Started: started, Commands: []sandbox.Ran{}, Omitted: ran.Omitted,
		Unseen: ran.Unseen, Requests: []recorder.Line{},
	}
	for _, one := range ran.Ran {
		one.Args = redact.Arguments(one.Args)
		t.Commands = append(t.Commands, one)
	}
	if requests != nil {
		t.Requests = requests.Lines
	}
	return t
}

// maxFile limits the size of files that a program submits.
const maxFile = 1 << 20

// handedIn opens a file that a program may have written into its directory, or returns nil if the file does not exist.
// The program may have created any type of file, including links to files of other users.
func handedIn(dir, name string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	// Without O_NONBLOCK, opening a named pipe blocks.
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("not a regular file"), err, file.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(file, maxFile), file}, nil
}

// readDiagnosis reads the diagnosis that a program wrote, or returns nil if it wrote none.
func readDiagnosis(dir string) (*scenario.Diagnosis, error) {
	file, err := handedIn(dir, diagnosisFile)
	if file == nil && err == nil {
		return nil, nil
	}
	var diagnosis scenario.Diagnosis
	if err == nil {
		defer func() { _ = file.Close() }()
		diagnosis, err = scenario.ReadDiagnosis(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read diagnosis: %w", err)
	}
	if diagnosis == (scenario.Diagnosis{}) {
		return nil, nil
	}
	return &diagnosis, nil
}

// readUsage reads the usage that a program reported, or returns nil if it reported none.
func readUsage(dir string) (*Usage, error) {
	file, err := handedIn(dir, usageFile)
	if file == nil && err == nil {
		return nil, nil
	}
	var usage Usage
	if err == nil {
		defer func() { _ = file.Close() }()
		reader := json.NewDecoder(file)
		reader.DisallowUnknownFields()
		err = reader.Decode(&usage)
	}
	if err == nil && (usage.InputTokens < 0 || usage.OutputTokens < 0 || usage.Steps < 0 || usage.CostUSD < 0 ||
		math.IsInf(usage.CostUSD, 0)) {
		err = errors.New("negative numbers")
	}
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return &usage, nil
}
