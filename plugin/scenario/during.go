package scenario

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func (c *common) newHintCommand() *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "hint [ID]",
		Short: "Print the next hint, and deduct its cost from the score",
		Example: `  # Print the next hint of the only open exercise
  kubectl gpu-fault scenario hint`,
		Args: atMostOne("hint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			lab, err := c.lab(cmd.Context())
			if err != nil {
				return err
			}
			taken, left, err := lab.Hint(cmd.Context(), one(args))
			if err != nil {
				return kube.Explain(err)
			}
			if !format.IsTable() {
				return format.Object(c.streams.Out, taken)
			}
			if _, err := fmt.Fprintln(
				c.streams.Out, printer.Wrap(printer.Escape(taken.Text), printer.Width(c.streams.Out)),
			); err != nil {
				return err
			}
			printer.Talk(c.streams.ErrOut, "It costs %s; hints left: %d.", count.Of(taken.Cost, "point"), left)
			return nil
		},
		ValidArgsFunction: c.completeExercises,
	}
	format.AddFlags(cmd)
	return cmd
}

func (c *common) newRevealCommand() *cobra.Command {
	var (
		yes    bool
		format printer.Format
	)
	cmd := &cobra.Command{
		Use:   "reveal [ID]",
		Short: "Print the answer: what was broken, how to find it, and how to fix it",
		Long: `Print the answer of an exercise. If the exercise has not been graded yet, the command asks for confirmation. The record of the exercise shows
that the answer was revealed.`,
		Example: `  # Print the answer of the only open exercise
  kubectl gpu-fault scenario reveal`,
		Args: atMostOne("reveal"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			return c.reveal(cmd.Context(), one(args), yes, format)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask for confirmation")
	format.AddFlags(cmd)
	return cmd
}

func (c *common) reveal(ctx context.Context, id string, yes bool, format printer.Format) error {
	lab, err := c.lab(ctx)
	if err != nil {
		return err
	}
	e, err := lab.Get(ctx, id)
	if err != nil {
		return kube.Explain(err)
	}
	if e.Open() && e.Last() == nil {
		if err := c.ask(ctx, fmt.Sprintf("Exercise %s has not been graded yet. Print the answer?", e.ID), yes); err != nil {
			return err
		}
	}
	sealed, err := lab.Reveal(ctx, e.ID)
	if err != nil {
		return kube.Explain(err)
	}
	if !format.IsTable() {
		return format.Object(c.streams.Out, sealed)
	}
	_, err = fmt.Fprintln(c.streams.Out, printer.Wrap(printer.Escape(answer(sealed)), printer.Width(c.streams.Out)))
	return err
}
