package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func (c *common) newEndCommand() *cobra.Command {
	var (
		yes    bool
		allow  fault.Allowances
		how    exercise.EndOptions
		format printer.Format
	)
	c = &common{connection: c.connection, streams: c.streams, pods: podflags.New()}
	c.pods.AnyBuild = true
	cmd := &cobra.Command{
		Use:   "end [ID]",
		Short: "Put everything back, and say what could not be",
		Long: `End an exercise: undo all that its run made, and compare the cluster with what it was before. Afterwards the candidate's kubeconfig is good
for nothing.

What the candidate left outside of the exercise's own namespaces, such as a taint of a node, is listed before, with what it takes to undo it by
hand. With --restore it is put back, as far as the scenario names it: others may have changed it too, so look at the list.

It may be repeated, and works from any machine. The exit code is 0 when nothing is left, and 2 when something is, with what to do about it.`,
		Example: `  kubectl gpu-fault scenario end`,
		Args:    atMostOne("end"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			return c.end(cmd.Context(), one(args), how, allow, yes, format)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	cmd.Flags().BoolVar(&allow.ControlPlane, "allow-control-plane", false,
		"Allow privileged pods on nodes of the control plane")
	cmd.Flags().BoolVar(&how.Force, "force", false, "Also while the client that started it seems to be at work")
	cmd.Flags().BoolVar(&how.Restore, "restore", false,
		"Also put back what the candidate left outside of the exercise's own namespaces, files of nodes included")
	c.pods.AddImageFlags(cmd)
	format.AddFlags(cmd)
	return cmd
}

func (c *common) end(
	ctx context.Context, id string, how exercise.EndOptions, allow fault.Allowances, yes bool, format printer.Format,
) error {
	lab, err := c.lab(ctx)
	if err != nil {
		return err
	}
	lab.Allow = allow
	if id, err = c.beforeEnd(ctx, lab, id, how); err != nil {
		return kube.Explain(err)
	}
	if err := confirm.Ask(
		ctx, c.streams, fmt.Sprintf("End exercise %s in context %q?", id, c.connection.Connected().Context), yes,
	); err != nil {
		return err
	}
	ending, err := lab.End(ctx, id, how)
	if err != nil {
		return kube.Explain(err)
	}
	if !format.IsTable() {
		err = format.Object(c.streams.Out, ending, "exercise/"+id)
	} else {
		_, err = fmt.Fprintln(c.streams.Out,
			printer.Wrap(printer.Escape(endingText(*ending)), printer.Width(c.streams.Out)))
	}
	if err == nil && !ending.Clean() {
		return &usage.Verdict{}
	}
	return err
}

// beforeEnd prints what will be deleted and restored, and returns the exercise's ID. If the exercise's record is
// missing, only its run is known and is reverted.
func (c *common) beforeEnd(ctx context.Context, lab *exercise.Lab, id string, how exercise.EndOptions) (string, error) {
	say := func(format string, args ...any) { printer.Talk(c.streams.ErrOut, format, args...) }
	e, err := lab.Get(ctx, id)
	if id != "" && errors.As(err, new(*exercise.NotFoundError)) {
		say("The record of exercise %s is gone: its run is reverted, as far as that is there.", id)
		return id, nil
	}
	if err != nil {
		return "", err
	}
	say("Exercise:  %s (%s), started by %s", e.ID, e.Scenario, e.By)
	say("Undoes:    all that its run made; of namespaces that it made (%s) nothing is kept",
		strings.Join(e.Namespaces, ", "))
	leftovers, err := lab.Leftovers(ctx, e.ID)
	if err != nil {
		say("Warning: what the candidate left is not known: %v", c.connection.Explain(err))
	}
	what := "Left:     "
	if how.Restore {
		what = "Restores: "
	}
	for _, r := range leftovers {
		say("%s %s", what, r.Difference)
	}
	if len(leftovers) > 0 && !how.Restore {
		say("With --restore what is left is put back, too.")
	}
	return e.ID, nil
}

// endingText describes the state of the cluster after the exercise.
func endingText(e exercise.Ending) string {
	var b strings.Builder
	for _, text := range e.Reverted {
		fmt.Fprintln(&b, text)
	}
	for _, r := range e.Restored {
		fmt.Fprintf(&b, "%s %s was %s by the candidate, and is as it was before\n", r.Difference.Ref.Kind,
			qualified(r.Difference.Ref.Namespace, r.Difference.Ref.Name), r.Difference.Kind)
	}
	for _, l := range e.Left {
		fmt.Fprintf(&b, "LEFT: %s %s: %s\n", l.Difference.Ref.Kind,
			qualified(l.Difference.Ref.Namespace, l.Difference.Ref.Name), l.Why)
		if l.ByHand != "" {
			fmt.Fprintf(&b, "      %s\n", l.ByHand)
		}
	}
	switch {
	case !e.Compared:
		fmt.Fprintf(&b, "exercise %s ended; there is no baseline any more to compare the cluster with", e.ID)
	case e.Clean():
		fmt.Fprintf(&b, "exercise %s ended; the cluster is as it was before", e.ID)
	default:
		fmt.Fprintf(&b, "exercise %s ended; %s from the baseline left", e.ID,
			count.Of(len(e.Left)+len(e.Files), "difference"))
	}
	return b.String()
}

func qualified(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
