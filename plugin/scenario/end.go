package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
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
		Short: "Restore everything, and report what could not be restored",
		Long: `End an exercise: undo everything that its run changed, and compare the cluster with its state before the exercise. The candidate's kubeconfig then
becomes invalid.

Changes by the candidate outside the exercise's namespaces, such as a taint on a node, are listed first, with the commands to undo them.
With --restore, changes to objects that the scenario names are undone, and files that were added on nodes in directories where the scenario lets candidates work are removed. Other users may have made the same changes, so check the list.

The command can be repeated, from any machine. The exit code is 0 if the cluster is in its previous state, and 2 if differences remain.`,
		Example: `  # End the only open exercise
  kubectl gpu-fault scenario end`,
		Args: atMostOne("end"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			return c.end(cmd.Context(), one(args), how, allow, yes, format)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask for confirmation")
	cmd.Flags().BoolVar(&allow.ControlPlane, "allow-control-plane", false,
		"Allow privileged pods on control plane nodes")
	cmd.Flags().BoolVar(&how.Force, "force", false, "End the exercise even if the client that started it is still running")
	cmd.Flags().BoolVar(&how.Restore, "restore", false,
		"Also restore what the candidate changed outside the exercise's namespaces, including files on nodes")
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
	var endings []exercise.Ending
	err = each(ctx, lab, id, true, func(id string) error {
		ending, err := c.endOne(ctx, lab, id, how, yes)
		if err != nil {
			return err
		}
		if endings = append(endings, *ending); !ending.Clean() {
			return &usage.Verdict{}
		}
		return nil
	})
	return errors.Join(c.printEndings(endings, format), err)
}

func (c *common) endOne(
	ctx context.Context, lab *exercise.Lab, id string, how exercise.EndOptions, yes bool,
) (*exercise.Ending, error) {
	id, err := c.beforeEnd(ctx, lab, id, how)
	if err != nil {
		return nil, kube.Explain(err)
	}
	question := fmt.Sprintf("End exercise %s in context %q?", id, c.connection.Connected().Context)
	if err := confirm.Ask(ctx, c.streams, question, yes); err != nil {
		return nil, err
	}
	ending, err := lab.End(ctx, id, how)
	return ending, kube.Explain(err)
}

func (c *common) printEndings(all []exercise.Ending, format printer.Format) error {
	if format.IsTable() {
		for _, e := range all {
			text := printer.Wrap(printer.Escape(endingText(e)), printer.Width(c.streams.Out))
			if _, err := fmt.Fprintln(c.streams.Out, text); err != nil {
				return err
			}
		}
		return nil
	}
	var names []string
	for _, e := range all {
		names = append(names, "exercise/"+e.ID)
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return format.Object(c.streams.Out, all[0], names...)
	}
	list := map[string]any{"apiVersion": exercise.APIVersion, "kind": exercise.KindEnding + "List", "items": all}
	return format.Object(c.streams.Out, list, names...)
}

// beforeEnd prints what will be deleted and restored, and returns the exercise's ID. If the exercise's record is
// missing, only its run is known and will be reverted.
func (c *common) beforeEnd(ctx context.Context, lab *exercise.Lab, id string, how exercise.EndOptions) (string, error) {
	say := func(format string, args ...any) { printer.Talk(c.streams.ErrOut, format, args...) }
	e, err := lab.Get(ctx, id)
	if id != "" && errors.As(err, new(*exercise.NotFoundError)) {
		say("Exercise %s has no record; its run will be reverted if it exists.", id)
		return id, nil
	}
	if err != nil {
		return "", err
	}
	say("Exercise:  %s (%s), started by %s", e.ID, e.Scenario, e.By)
	say("Undoes:    everything that its run changed; the exercise's namespaces (%s) are deleted",
		strings.Join(e.Namespaces, ", "))
	leftovers, err := lab.Leftovers(ctx, e.ID)
	if err != nil {
		say("Warning: could not determine the candidate's changes: %v", c.connection.Explain(err))
	}
	what := "Left:     "
	if how.Restore {
		what = "Restores: "
	}
	for _, r := range leftovers {
		say("%s %s", what, r.Difference)
	}
	if len(leftovers) > 0 && !how.Restore {
		say("To restore these too, use --restore.")
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
		if r.Difference.Note != "" {
			fmt.Fprintf(&b, "%s; it has been removed\n", r.Difference)
			continue
		}
		done := map[baseline.Kind]string{baseline.Created: "deleted", baseline.Deleted: "recreated"}[r.Difference.Kind]
		fmt.Fprintf(&b, "%s %s was %s by the candidate, and has been %s\n", r.Difference.Ref.Kind,
			qualified(r.Difference.Ref.Namespace, r.Difference.Ref.Name), r.Difference.Kind, cmp.Or(done, "restored"))
	}
	for _, l := range e.Left {
		fmt.Fprintf(&b, "LEFT: %s %s: %s\n", l.Difference.Ref.Kind,
			qualified(l.Difference.Ref.Namespace, l.Difference.Ref.Name), l.Why)
		if l.ByHand != "" {
			fmt.Fprintf(&b, "      %s\n", l.ByHand)
		}
	}
	for _, c := range e.Conditions {
		fmt.Fprintf(&b, "%s, unlike before the exercise: %s\n"+
			"      the component that reports it, such as node-problem-detector, may keep reporting it until the component restarts\n", c, c.Message)
	}
	switch {
	case !e.Compared:
		fmt.Fprintf(&b, "exercise %s has ended; the cluster could not be compared, because the baseline no longer exists", e.ID)
	case e.Clean() && len(e.Conditions) > 0:
		fmt.Fprintf(&b, "exercise %s has ended; the cluster is in its previous state, except for %s on nodes", e.ID,
			count.Of(len(e.Conditions), "condition"))
	case e.Clean():
		fmt.Fprintf(&b, "exercise %s has ended; the cluster is in its previous state", e.ID)
	default:
		fmt.Fprintf(&b, "exercise %s has ended; %s from the baseline remaining", e.ID,
			count.Of(len(e.Left)+len(e.Files), "difference"))
	}
	if e.Compared && e.NodeShell {
		b.WriteString("\nNot compared on nodes: ")
		for _, what := range e.NotCompared {
			b.WriteString(what + "; ")
		}
		b.WriteString("files outside configuration directories, kernel settings (sysctls), and legacy iptables rules")
	}
	return b.String()
}

func qualified(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
