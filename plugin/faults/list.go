// Package faults is `kubectl gpu-fault list` and `revert`: what is in place, by whom, and how it goes away.
package faults

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// runList is what `list -o json` prints.
type runList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Items      []ledger.Run `json:"items"`
}

// NewListCommand returns `list`.
func NewListCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	var (
		all    bool
		format printer.Format
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the runs that are not closed: what is broken on purpose, where, by whom",
		Example: `  # What is in place now
  kubectl gpu-fault list

  # With what was reverted, what undo would do, and the commands
  kubectl gpu-fault list --all -o wide`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			cluster, err := connection.Cluster()
			if err != nil {
				return err
			}
			scope, none := ledger.Active, "no open runs in namespace %q; --all shows closed ones too"
			if all {
				scope, none = ledger.All, "no runs in namespace %q"
			}
			found, err := ledger.New(cluster.Client, connection.LedgerNamespace).List(cmd.Context(), scope)
			if err != nil {
				return kube.Explain(err)
			}
			for _, bad := range found.Unreadable {
				printer.Talk(streams.ErrOut, "Warning: record %s is left out: %v", bad.Name, bad.Err)
			}
			if !format.IsTable() {
				return printRuns(streams, format, found.Runs)
			}
			if len(found.Runs) == 0 {
				printer.Talk(streams.ErrOut, none, connection.LedgerNamespace)
				return nil
			}
			return table(found.Runs, format).Write(streams.Out)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Closed runs too")
	format.AddFlags(cmd)
	return cmd
}

func printRuns(streams genericiooptions.IOStreams, format printer.Format, runs []ledger.Run) error {
	names := make([]string, len(runs))
	for i, run := range runs {
		names[i] = "run/" + run.ID
	}
	if runs == nil {
		runs = []ledger.Run{}
	}
	return format.Object(streams.Out, runList{APIVersion: ledger.APIVersion, Kind: "RunList", Items: runs}, names...)
}

func table(runs []ledger.Run, format printer.Format) *printer.Table {
	t := &printer.Table{Header: []string{"RUN", "PHASE", "FAULT", "TARGETS", "BY", "AGE"}, NoHeader: format.NoHeader}
	if format.IsWide() {
		t.Header = append(t.Header, "UNDO", "MESSAGE", "COMMAND")
	}
	undoers := session.Undoers(xid.Detectors)
	for _, run := range runs {
		row := []string{run.ID, string(run.Phase), run.Summary, targets(run), run.By, duration.HumanDuration(time.Since(run.Created))}
		if format.IsWide() {
			row = append(row, undo(undoers, run), cmp.Or(message(run), printer.Blank), commandLine(run.Command))
		}
		t.Add(row...)
	}
	return t
}
