package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// rowList is the output of `selftest -o json`.
type rowList struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Items      []exercise.Row `json:"items"`
}

func (c *common) newSelftestCommand() *cobra.Command {
	var (
		pack     packFlags
		seeds    []int64
		parallel int
		all, yes bool
		sample   bool
		once     bool
		attempts []string
		allow    fault.Allowances
		simulate int
		format   printer.Format
	)
	cmd := &cobra.Command{
		Use:   "selftest (NAME... | --all)",
		Short: "Verify scenarios on this cluster: every solution passes, and no wrong fix does",
		Long: `Start each scenario with each seed, once for each of its solutions and wrong fixes. Apply the solution or wrong fix with the candidate's
permissions, grade the result, end the exercise, and compare the cluster with its previous state. A solution must pass, a wrong fix must fail, and no change may remain.

The exit code is 0 if all of these conditions hold, and 2 otherwise.`,
		Example: `  # Test a built-in scenario
  kubectl gpu-fault scenario selftest gpu-resources --seeds 1,2

  # Test your own scenario
  kubectl gpu-fault scenario selftest --file my-scenario.yaml

  # Test only one solution
  kubectl gpu-fault scenario selftest --file my-scenario.yaml --attempt 'raise the limit'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(format.Validate(), checkSimulation(cmd.Flags(), simulate)); err != nil {
				return err
			}
			chosen, err := pack.several(args, all, simulate)
			if err != nil {
				return err
			}
			if parallel < 1 || len(seeds) == 0 {
				return fmt.Errorf("--parallel %d with %s: both numbers must be at least 1", parallel,
					count.Of(len(seeds), "seed"))
			}
			if err := c.consent(cmd.Context(), pack, wants(chosen), yes); err != nil {
				return err
			}
			lab, err := c.lab(cmd.Context())
			if err != nil {
				return err
			}
			lab.Allow, lab.SimulateGPUs, lab.Sample, lab.Once = allow, simulate, sample, once
			lab.Attempts = attempts
			return c.selftest(cmd.Context(), lab, chosen, seeds, parallel, yes, format)
		},
		ValidArgsFunction: completeNames,
	}
	pack.addFlags(cmd)
	pack.addTrust(cmd)
	cmd.Flags().Int64SliceVar(&seeds, "seeds", []int64{1, 2}, "Seeds of the variants")
	cmd.Flags().IntVar(&parallel, "parallel", 1, "Number of exercises in parallel")
	cmd.Flags().BoolVar(&sample, "sample", false,
		"Test only one solution and one wrong fix for each seed, selected by the seed")
	cmd.Flags().BoolVar(&once, "once", false,
		"Test each solution and wrong fix only with the first seed whose variant includes it")
	cmd.Flags().StringArrayVar(&attempts, "attempt", nil,
		"Test only the solution or wrong fix with this name; may be repeated")
	cmd.MarkFlagsMutuallyExclusive("sample", "once")
	cmd.MarkFlagsMutuallyExclusive("sample", "attempt")
	cmd.Flags().BoolVar(&all, "all", false, "Test all built-in scenarios")
	addSimulation(cmd.Flags(), &simulate)
	nodefault.AddAllowances(cmd.Flags(), &allow)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask for confirmation")
	c.pods.AddImageFlags(cmd)
	format.AddFlags(cmd)
	return cmd
}

// several returns the scenarios with the given names, or all scenarios if there are no names. With simulated GPUs, it
// omits scenarios that need real ones.
func (p *packFlags) several(names []string, all bool, simulated int) ([]*scenario.Scenario, error) {
	switch {
	case all && (len(names) > 0 || p.file != ""):
		return nil, fmt.Errorf("--all cannot be used with scenario names or --file")
	case all:
		chosen, err := scenario.Builtin()
		return slices.DeleteFunc(chosen,
				func(s *scenario.Scenario) bool { return simulated > 0 && !s.Requires.Simulatable() }),
			err
	case len(names) == 0:
		s, err := p.load("")
		return []*scenario.Scenario{s}, err
	}
	var chosen []*scenario.Scenario
	for _, name := range names {
		s, err := p.load(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}

func (c *common) selftest(
	ctx context.Context, lab *exercise.Lab, chosen []*scenario.Scenario, seeds []int64, parallel int, yes bool,
	format printer.Format,
) error {
	question := fmt.Sprintf("Test %d scenario(s) with %d seed(s) in context %q?", len(chosen), len(seeds),
		c.connection.Connected().Context)
	if err := confirm.Ask(ctx, c.streams, question, yes); err != nil {
		return err
	}
	var (
		mu   sync.Mutex
		rows = []exercise.Row{}
	)
	runErr := lab.SelftestAll(ctx, chosen, seeds, parallel, func(r exercise.Row) {
		mu.Lock()
		defer mu.Unlock()
		rows = append(rows, r)
		printer.Talk(c.streams.ErrOut, "%s", rowText(r))
	})
	right := 0
	for _, r := range rows {
		if r.OK {
			right++
		}
	}
	if err := c.printRows(rows, format); err != nil {
		return err
	}
	printer.Talk(c.streams.ErrOut, "scenarios right %d of %d", right, len(rows))
	if errors.As(runErr, new(*exercise.SelftestError)) {
		return &usage.Verdict{}
	}
	return kube.Explain(runErr)
}

func rowText(r exercise.Row) string {
	text := fmt.Sprintf("%s seed %d, %s: wanted %s, got %s", r.Scenario, r.Seed, r.Attempt, r.Wanted, r.Got)
	if !r.OK {
		text = "WRONG: " + text + ": " + r.Why
	}
	return text
}

func (c *common) printRows(rows []exercise.Row, format printer.Format) error {
	if !format.IsTable() {
		return format.Object(c.streams.Out, rowList{exercise.APIVersion, "SelftestList", rows})
	}
	t := &printer.Table{
		Header:   []string{"SCENARIO", "SEED", "ATTEMPT", "WANTED", "GOT", "BROKEN", "GRADE", "TOOK"},
		NoHeader: format.NoHeader,
	}
	for _, r := range rows {
		got := r.Got
		if !r.OK {
			got += " WRONG"
		}
		t.Add(r.Scenario, strconv.FormatInt(r.Seed, 10), r.Attempt, r.Wanted, got, seconds(r.Broken), seconds(r.Grade),
			seconds(r.Took))
	}
	return t.Write(c.streams.Out)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
