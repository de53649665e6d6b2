// Package faults implements `kubectl gpu-fault list`, `revert` and `leftovers`.
package faults

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// runList is the output of `list -o json`.
type runList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Items      []ledger.Run `json:"items"`
}

// NewListCommand returns `list`.
func NewListCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	var (
		all, everywhere bool
		format          printer.Format
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the open runs: which faults are in place and where, who started them, and when they end",
		Example: `  # List the open runs
  kubectl gpu-fault list

  # List the runs that affect a namespace
  kubectl gpu-fault list -n research

  # List the runs in the ledgers of all namespaces
  kubectl gpu-fault list -A

  # List all runs, including closed ones, with user, undo, reason and command
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
			scope, none := ledger.Active, "no open runs in namespace %q; pass --all to include closed runs"
			if all {
				scope, none = ledger.All, "no runs in namespace %q"
			}
			store := ledger.New(cluster.Client, connection.LedgerNamespace)
			if everywhere {
				store.Namespace = metav1.NamespaceAll
			}
			found, err := store.List(cmd.Context(), scope)
			if err != nil {
				return kube.Explain(err)
			}
			for _, bad := range found.Unreadable {
				printer.Talk(streams.ErrOut, "Warning: ignored record %s in namespace %s: %s", bad.Name,
					bad.Namespace, printer.Clean(bad.Err.Error()))
			}
			for _, namespace := range found.Unmarked {
				printer.Talk(streams.ErrOut, "Warning: ignored runs: %v",
					&ledger.UnmarkedError{Namespace: namespace})
			}
			namespace := ""
			if connection.Namespace != nil {
				namespace = *connection.Namespace
			}
			found.Runs = in(namespace, found.Runs)
			if !format.IsTable() {
				return printRuns(streams, format, found.Runs)
			}
			switch {
			case len(found.Runs) == 0 && namespace != "":
				printer.Talk(streams.ErrOut,
					"no runs affect namespace %q; omit -n to include runs on nodes", namespace)
				return nil
			case len(found.Runs) == 0 && everywhere:
				printer.Talk(streams.ErrOut, "%s", strings.Replace(none, " in namespace %q", " in any namespace", 1))
				return nil
			case len(found.Runs) == 0:
				printer.Talk(streams.ErrOut, none, connection.LedgerNamespace)
				return nil
			}
			if !format.IsWide() {
				found.Runs = fleet.Fold(found.Runs)
			}
			runs := table(found.Runs, format, everywhere, store.Now())
			if !format.IsWide() {
				runs.Fit(max(leastWidth, printer.Width(streams.Out)), "LEDGER", "FAULT", "TARGETS")
			}
			return runs.Write(streams.Out)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Include closed runs")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "List the runs in the ledgers of all namespaces")
	format.AddFlags(cmd)
	return cmd
}

// in returns the runs with a target in a namespace, or all runs if namespace is empty.
func in(namespace string, runs []ledger.Run) []ledger.Run {
	if namespace == "" {
		return runs
	}
	return slices.DeleteFunc(runs, func(run ledger.Run) bool {
		return !slices.ContainsFunc(run.Targets(), func(t ledger.Target) bool {
			return t.Namespace == namespace || t.Kind == "Namespace" && t.Name == namespace
		})
	})
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

// leastWidth is the minimum width of the table in columns, and its width in a pipe.
const leastWidth = 80

func table(runs []ledger.Run, format printer.Format, everywhere bool, now time.Time) *printer.Table {
	t := &printer.Table{
		Header: []string{"RUN", "STATUS", "FAULT", "TARGETS", "AGE", "UNTIL"}, NoHeader: format.NoHeader,
	}
	if everywhere {
		t.Header = slices.Insert(t.Header, 0, "LEDGER")
	}
	if format.IsWide() {
		t.Header = append(t.Header, "BY", "UNDO", "REASON", "MESSAGE", "COMMAND")
	}
	undoers := session.Undoers(xid.Detectors)
	for _, run := range runs {
		row := []string{
			run.ID, status(run, now), run.Summary, targets(run), duration.HumanDuration(now.Sub(run.Created)),
			until(run, now),
		}
		if everywhere {
			row = slices.Insert(row, 0, run.Namespace)
		}
		if format.IsWide() {
			row = append(row, run.By, undo(undoers, run, now), cmp.Or(run.Reason, printer.Blank),
				cmp.Or(message(run), printer.Blank), commandLine(run.Command))
		}
		t.Add(row...)
	}
	return t
}

// status returns the phase of a run, or Expired.
func status(run ledger.Run, now time.Time) string {
	if run.Expired(now) {
		return "Expired"
	}
	return string(run.Phase)
}

// until returns the time at which the run ends or ended.
func until(run ledger.Run, now time.Time) string {
	switch {
	case run.IsClosed():
		return duration.HumanDuration(now.Sub(run.Closed)) + " ago"
	case run.Until.IsZero():
		return "never"
	case run.Expired(now):
		return duration.HumanDuration(now.Sub(run.Until)) + " ago"
	default:
		return "in " + duration.HumanDuration(run.Until.Sub(now))
	}
}
