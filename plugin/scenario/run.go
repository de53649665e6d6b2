package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/scenario/report"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// running contains the options of `scenario run`.
type running struct {
	common
	pack    packFlags
	all     bool
	agent   string
	apart   isolation
	repeats int
	seed    int64
	set     map[string]string
	timeout time.Duration
	record  string
	allow   fault.Allowances
	gpus    int // number of GPUs to simulate
	yes     bool
	format  printer.Format
}

func (c *common) newRunCommand() *cobra.Command {
	r := &running{common: *c, repeats: 1, seed: 1}
	cmd := &cobra.Command{
		Use:   "run (NAME... | --all) --agent COMMAND",
		Short: "Run programs that solve scenarios, and measure how often they succeed",
		Long: `Start each scenario, pass the candidate's kubeconfig and a task card to a program, and grade the work when the program exits or its time runs out. This is a
benchmark for agents that operate clusters.

The program runs with sh -c and these environment variables: KUBECONFIG, the candidate's kubeconfig; TASK_CARD, a JSON file with the title, briefing, access,
deadline and diagnosis path; TASK_DIAGNOSIS, that path; TASK_USAGE, the path of a JSON file in which the program may report its model,
inputTokens, outputTokens, costUSD and steps. The program's output is shown with a prefix. With --repeats K, each scenario runs K times with different seeds,
and the result includes pass@k with its 95% interval.

The program runs in a sandbox (Linux): as a separate user if you are root, and otherwise as your user without capabilities. It can access the
system's programs, --agent-dir (read-only), its own processes, and /task, its home directory. It can reach the API server, with the candidate's
permissions, and nothing else. To pass environment variables, use --agent-env. To allow other hosts, such as the model's, use --agent-host; the
program reaches them through the proxy in HTTPS_PROXY. --no-isolation runs the program as your own user, with access to your
credentials and therefore to the answers: use it only for a program that isolates itself, such as a container.

--record DIR writes three files for each attempt: a trajectory (JSON: the commands with times and exit codes, the API requests, the usage, the
diagnosis, the grade), the report with the trajectory (HTML), and the transcript for scenario grade --transcript (JSON lines).

The exit code is 0 if all scenarios were solved, and 2 if any was not solved or none could be started.`,
		Example: `  # Run an agent five times on each scenario
  kubectl gpu-fault scenario run --all --agent ./my-agent --agent-dir . --repeats 5 -o json

  # Run an agent that calls a model, and record its actions
  kubectl gpu-fault scenario run gpu-memory --agent ./my-agent --agent-dir . \
      --agent-env MODEL_API_KEY --agent-host api.example.com --record runs`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(r.validate(), checkSimulation(cmd.Flags(), r.gpus)); err != nil {
				return err
			}
			if err := r.apart.complete(r.agent, r.connection.Files()); err != nil {
				return err
			}
			chosen, err := r.pack.several(args, r.all, r.gpus)
			if err != nil {
				return err
			}
			if err := r.consent(cmd.Context(), r.pack, wants(chosen), r.yes); err != nil {
				return err
			}
			return r.run(cmd.Context(), chosen)
		},
		ValidArgsFunction: completeNames,
	}
	r.pack.addFlags(cmd)
	r.pack.addTrust(cmd)
	flags := cmd.Flags()
	flags.StringVar(&r.agent, "agent", "", "Command of the agent, run with sh -c")
	r.apart.addFlags(flags)
	flags.IntVar(&r.repeats, "repeats", r.repeats, "Number of runs of each scenario, each with a different seed")
	flags.Int64Var(&r.seed, "seed", r.seed, "First seed; the other seeds follow consecutively")
	flags.StringToStringVar(&r.set, "set", nil, "Parameters of the scenarios, as NAME=VALUE")
	flags.DurationVar(&r.timeout, "timeout", 0, "Time for one exercise (default: the time box of the scenario)")
	flags.StringVar(&r.record, "record", "",
		"Directory for the trajectory, report and transcript of each attempt; created if missing")
	flags.BoolVar(&r.all, "all", false, "Run all built-in scenarios")
	addSimulation(flags, &r.gpus)
	nodefault.AddAllowances(flags, &r.allow)
	flags.BoolVarP(&r.yes, "yes", "y", false, "Do not ask for confirmation")
	r.pods.AddImageFlags(cmd)
	r.format.AddFlags(cmd)
	return cmd
}

func (r *running) validate() error {
	switch {
	case r.agent == "":
		return fmt.Errorf("specify --agent COMMAND; for people, use scenario start")
	case r.repeats < 1 || r.repeats > 1000:
		return fmt.Errorf("invalid value %d for --repeats: must be 1 to 1000", r.repeats)
	case r.timeout < 0:
		return fmt.Errorf("invalid value %s for --timeout: must be greater than 0", r.timeout)
	}
	return r.format.Validate()
}

func (r *running) run(ctx context.Context, chosen []*scenario.Scenario) error {
	lab, err := r.lab(ctx)
	if err != nil {
		return err
	}
	lab.Allow, lab.SimulateGPUs = r.allow, r.gpus
	question := fmt.Sprintf("Run %d scenario(s) %d time(s) in context %q?", len(chosen), r.repeats,
		r.connection.Connected().Context)
	if err := confirm.Ask(ctx, r.streams, question, r.yes); err != nil {
		return err
	}
	options := exercise.AgentOptions{
		Scenarios: chosen, Command: r.agent, Repeats: r.repeats, Seed: r.seed, Set: r.set, Timeout: r.timeout,
		Record: r.record, Output: r.streams.ErrOut, Isolation: r.apart.isolation(r.connection.Files()),
	}
	if r.record != "" {
		if err := os.MkdirAll(r.record, 0o700); err != nil {
			return fmt.Errorf("--record: %w", err)
		}
		options.Trajectory = r.write
	}
	result, err := lab.Agents(ctx, options, func(t exercise.Try) {
		printer.Talk(r.streams.ErrOut, "%s seed %d: %s, %s, in %s", t.Scenario, t.Seed, t.Outcome(),
			count.Of(t.Score, "point"), human(t.Took))
	})
	if result == nil {
		return err
	}
	if printErr := r.print(result); printErr != nil {
		return printErr
	}
	// if no try is valid, the result is inconclusive
	if err == nil && (result.Passed < result.Tries || result.Tries == 0) {
		return &usage.Verdict{}
	}
	return err
}

// write writes the trajectory and the report of a try into the directory of --record.
func (r *running) write(t exercise.Trajectory) error {
	name := filepath.Join(r.record, t.Scenario+"-"+t.ID)
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := report.Trajectory(&page, t, build.Get().Version); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(name+".json", append(text, '\n'), 0o600),
		os.WriteFile(name+".html", page.Bytes(), 0o600))
}

func (r *running) print(result *exercise.AgentReport) error {
	if !r.format.IsTable() {
		return r.format.Object(r.streams.Out, result)
	}
	t := &printer.Table{
		Header: []string{"SCENARIO", "TRIES", "PASSED", "PASS@1", "95%", "SCORE", "TOOK"}, NoHeader: r.format.NoHeader,
	}
	for _, s := range result.Scenarios {
		t.Add(s.Scenario, fmt.Sprint(s.Tries), fmt.Sprint(s.Passed), percent(s.PassAt1),
			percent(s.Low)+"-"+percent(s.High), fmt.Sprintf("%.0f", s.Score), human(s.Took))
	}
	return t.Write(r.streams.Out)
}

func percent(rate float64) string { return fmt.Sprintf("%.0f%%", 100*rate) }

func human(d time.Duration) string { return d.Round(time.Second).String() }
