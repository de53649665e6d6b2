package scenario

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func (c *common) newEndCommand() *cobra.Command {
	var (
		yes, force bool
		format     printer.Format
	)
	cmd := &cobra.Command{
		Use:   "end [ID]",
		Short: "Put everything back, and say what could not be",
		Long: `End an exercise: undo all that its run made, delete and put back what the candidate left where they could write, and compare the cluster with
what it was before. Afterwards the candidate's kubeconfig is good for nothing.

It may be repeated, and works from any machine. The exit code is 0 when nothing is left, and 2 when something is, with what to do about it.`,
		Example: `  kubectl gpu-fault scenario end`,
		Args:    atMostOne("end"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			return c.end(cmd.Context(), one(args), yes, force, format)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	cmd.Flags().BoolVar(&force, "force", false, "Also while the client that started it seems to be at work")
	format.AddFlags(cmd)
	return cmd
}

func (c *common) end(ctx context.Context, id string, yes, force bool, format printer.Format) error {
	lab, err := c.lab(ctx)
	if err != nil {
		return err
	}
	e, err := lab.Get(ctx, id)
	if err != nil {
		return kube.Explain(err)
	}
	leftovers, err := lab.Leftovers(ctx, e.ID)
	if err != nil {
		return kube.Explain(err)
	}
	c.beforeEnd(*e, leftovers)
	if err := confirm.Ask(ctx, c.streams, fmt.Sprintf("End exercise %s in context %q?", e.ID, c.connection.Connected().Context), yes); err != nil {
		return err
	}
	ending, err := lab.End(ctx, e.ID, force)
	if err != nil {
		return kube.Explain(err)
	}
	if !format.IsTable() {
		err = format.Object(c.streams.Out, ending, "exercise/"+e.ID)
	} else {
		_, err = fmt.Fprintln(c.streams.Out, printer.Wrap(printer.Escape(endingText(*ending)), printer.Width(c.streams.Out)))
	}
	if err == nil && !ending.Clean() {
		return &usage.Verdict{}
	}
	return err
}

// beforeEnd says what is going to be deleted and put back.
func (c *common) beforeEnd(e exercise.Exercise, leftovers []exercise.Restored) {
	say := func(format string, args ...any) { printer.Talk(c.streams.ErrOut, format, args...) }
	say("Exercise:  %s (%s), started by %s", e.ID, e.Scenario, e.By)
	say("Deletes:   %s, with all that is in there", list("namespace", e.Namespaces))
	for _, r := range leftovers {
		say("Also:      %s: %s", r.Difference.Ref.Kind+" "+qualified(r.Difference.Ref.Namespace, r.Difference.Ref.Name), r.How)
	}
}

// endingText says what became of the cluster.
func endingText(e exercise.Ending) string {
	var b strings.Builder
	for _, text := range e.Reverted {
		fmt.Fprintln(&b, text)
	}
	for _, r := range e.Restored {
		fmt.Fprintf(&b, "%s %s: %s\n", r.Difference.Ref.Kind, qualified(r.Difference.Ref.Namespace, r.Difference.Ref.Name), r.How)
	}
	for _, l := range e.Left {
		fmt.Fprintf(&b, "LEFT: %s %s: %s\n", l.Difference.Ref.Kind, qualified(l.Difference.Ref.Namespace, l.Difference.Ref.Name), l.Why)
		if l.ByHand != "" {
			fmt.Fprintf(&b, "      %s\n", l.ByHand)
		}
	}
	switch {
	case !e.Compared:
		fmt.Fprintf(&b, "exercise %s ended; there is no baseline any more to compare the cluster with", e.ID)
	case len(e.Left) == 0:
		fmt.Fprintf(&b, "exercise %s ended; the cluster is as it was before", e.ID)
	default:
		fmt.Fprintf(&b, "exercise %s ended; %d differences to the time before are left", e.ID, len(e.Left))
	}
	return b.String()
}

func qualified(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// list is "namespace a" or "namespaces a, b".
func list(what string, names []string) string {
	switch len(names) {
	case 0:
		return "nothing"
	case 1:
		return what + " " + names[0]
	}
	return what + "s " + strings.Join(names, ", ")
}
