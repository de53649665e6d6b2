package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// running contains the options of `scenario run`.
type running struct {
	common
	pack    packFlags
	all     bool
	agent   string
	repeats int
	seed    int64
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
		Short: "Let a program solve scenarios, and say how often it does: a benchmark for agents that operate clusters",
		Long: `Start each scenario, hand the candidate's kubeconfig and a task card to a program, and grade when it ends or its time is over.

The program runs by sh -c with these variables: KUBECONFIG, the candidate's; TASK_CARD, a JSON file with the title, the briefing, the access,
the deadline and where to write the diagnosis; TASK_DIAGNOSIS, that file. It gets none of the trainer's variables for kubectl and this tool, and
all others: its own API key comes in one. What it writes is shown behind a bar. With --repeats K each scenario is played K times with different
seeds, and the result has pass@k with its 95% interval.

The exit code is 0 when all were solved, and 2 when not, or when none could be played.`,
		Example: `  kubectl gpu-fault scenario run --all --agent ./my-agent --repeats 5 -o json > result.json`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(r.validate(), checkSimulation(cmd.Flags(), r.gpus)); err != nil {
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
	flags.StringVar(&r.agent, "agent", "", "Command that solves: run by sh -c")
	flags.IntVar(&r.repeats, "repeats", r.repeats, "How often each scenario is played, each time with another seed")
	flags.Int64Var(&r.seed, "seed", r.seed, "The first seed; the others follow it")
	flags.DurationVar(&r.timeout, "timeout", 0, "Time of the agent for one exercise (default: the scenario's time box)")
	flags.StringVar(&r.record, "record", "",
		"Folder for a transcript of what each program asks the API server; it is made")
	flags.BoolVar(&r.all, "all", false, "All scenarios that come with the program")
	addSimulation(flags, &r.gpus)
	nodefault.AddAllowances(flags, &r.allow)
	flags.BoolVarP(&r.yes, "yes", "y", false, "Do not ask")
	r.pods.AddImageFlags(cmd)
	r.format.AddFlags(cmd)
	return cmd
}

func (r *running) validate() error {
	switch {
	case r.agent == "":
		return fmt.Errorf("give --agent COMMAND: the program that solves; people use scenario start")
	case r.repeats < 1 || r.repeats > 1000:
		return fmt.Errorf("--repeats %d: give 1 to 1000", r.repeats)
	case r.timeout < 0:
		return fmt.Errorf("--timeout %s: give a time above 0", r.timeout)
	}
	return r.format.Validate()
}

func (r *running) run(ctx context.Context, chosen []*scenario.Scenario) error {
	lab, err := r.lab(ctx)
	if err != nil {
		return err
	}
	lab.Allow, lab.SimulateGPUs = r.allow, r.gpus
	question := fmt.Sprintf("Play %d scenario(s) %d time(s) in context %q?", len(chosen), r.repeats,
		r.connection.Connected().Context)
	if err := confirm.Ask(ctx, r.streams, question, r.yes); err != nil {
		return err
	}
	if r.record != "" {
		if err := os.MkdirAll(r.record, 0o700); err != nil {
			return fmt.Errorf("--record: %w", err)
		}
	}
	options := exercise.AgentOptions{
		Scenarios: chosen, Command: r.agent, Repeats: r.repeats, Seed: r.seed, Timeout: r.timeout, Record: r.record,
		Output: r.streams.ErrOut,
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
	// without a valid try, the result is inconclusive
	if err == nil && (result.Passed < result.Tries || result.Tries == 0) {
		return &usage.Verdict{}
	}
	return err
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
