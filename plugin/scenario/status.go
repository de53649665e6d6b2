package scenario

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// exerciseList is the output of `status -o json`.
type exerciseList struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Items      []exercise.Exercise `json:"items"`
}

func (c *common) newStatusCommand() *cobra.Command {
	var (
		all        bool
		kubeconfig string
		format     printer.Format
	)
	cmd := &cobra.Command{
		Use:   "status [ID]",
		Short: "Show the open exercises, their progress and the remaining time",
		Example: `  # Show the open exercises
  kubectl gpu-fault scenario status

  # Include exercises that have ended
  kubectl gpu-fault scenario status --all

  # Write a new kubeconfig for the candidate
  kubectl gpu-fault scenario status scenario-x7k2mq --kubeconfig-out candidate.kubeconfig`,
		Args: atMostOne("status"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			if kubeconfig != "" {
				return c.newKubeconfig(cmd.Context(), one(args), kubeconfig)
			}
			shown, err := c.shown(cmd.Context(), one(args), all)
			if err != nil {
				return kube.Explain(err)
			}
			return c.printExercises(shown, one(args) != "", format)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().BoolVar(&all, "all", false, "Include exercises that have ended")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig-out", "",
		"File for a new kubeconfig for the candidate; must not exist")
	format.AddFlags(cmd)
	return cmd
}

// shown returns the exercises to print: the named one, the running ones, or all.
func (c *common) shown(ctx context.Context, id string, all bool) ([]exercise.Exercise, error) {
	lab, err := c.lab(ctx)
	if err != nil {
		return nil, err
	}
	if id != "" {
		e, err := lab.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		return []exercise.Exercise{*e}, nil
	}
	found, err := lab.List(ctx)
	shown := []exercise.Exercise{}
	for _, e := range found {
		if all || e.Running() {
			shown = append(shown, e)
		}
	}
	return shown, err
}

func (c *common) newKubeconfig(ctx context.Context, id, file string) error {
	lab, err := c.lab(ctx)
	if err != nil {
		return err
	}
	var all []*exercise.Exercise
	err = each(ctx, lab, id, false, func(id string) error {
		e, err := lab.Get(ctx, id)
		if err == nil {
			e.Kubeconfig, err = lab.Kubeconfig(ctx, e.ID)
		}
		all = append(all, e)
		return kube.Explain(err)
	})
	if err != nil {
		return err
	}
	data := all[0].Kubeconfig
	if len(all) > 1 {
		if data, err = merge(all); err != nil {
			return err
		}
	}
	if err := writeNew(file, data); err != nil {
		return fmt.Errorf("--kubeconfig-out: %w", err)
	}
	printer.Talk(c.streams.ErrOut, "wrote %s", file)
	return nil
}

func (c *common) printExercises(shown []exercise.Exercise, named bool, format printer.Format) error {
	if !format.IsTable() {
		names := make([]string, len(shown))
		for i, e := range shown {
			names[i] = "exercise/" + e.ID
		}
		if named {
			return format.Object(c.streams.Out, shown[0], names...)
		}
		return format.Object(c.streams.Out, exerciseList{exercise.APIVersion, exercise.Kind + "List", shown}, names...)
	}
	if len(shown) == 0 {
		printer.Talk(c.streams.ErrOut, "no exercise is open; to list the scenarios, run: kubectl gpu-fault scenario list")
		return nil
	}
	t := &printer.Table{
		Header:   []string{"EXERCISE", "SCENARIO", "PHASE", "LEFT", "HINTS", "SCORE", "BY", "AGE"},
		NoHeader: format.NoHeader,
	}
	if format.IsWide() {
		t.Header = append(t.Header, "SEED", "MESSAGE")
	}
	now := time.Now()
	for _, e := range shown {
		row := []string{
			e.ID, e.Scenario, string(e.Phase), left(e, now), strconv.Itoa(len(e.Hints)), score(e), e.By,
			duration.HumanDuration(now.Sub(e.Created)),
		}
		if format.IsWide() {
			row = append(row, strconv.FormatInt(e.Seed, 10), orBlank(e.Message))
		}
		t.Add(row...)
	}
	return t.Write(c.streams.Out)
}

// left returns the remaining part of the time box.
func left(e exercise.Exercise, now time.Time) string {
	switch {
	case !e.Open() || e.Until.IsZero():
		return printer.Blank
	case now.After(e.Until):
		return "over"
	}
	return duration.HumanDuration(e.Until.Sub(now))
}

func score(e exercise.Exercise) string {
	last := e.Last()
	switch {
	case last == nil:
		return printer.Blank
	case last.Passed:
		return fmt.Sprintf("%d passed", last.Score)
	}
	return fmt.Sprintf("%d failed", last.Score)
}

func orBlank(text string) string {
	if text == "" {
		return printer.Blank
	}
	return text
}
