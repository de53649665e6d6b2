// Package faults is `kubectl gpu-fault list` and `revert`: what is in place, by whom, and how it goes away.
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
		all, everywhere bool
		format          printer.Format
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the runs that are not closed: what is broken on purpose, where, by whom, until when",
		Example: `  # What is in place now
  kubectl gpu-fault list

  # Those that change something in a namespace
  kubectl gpu-fault list -n research

  # In the ledgers of all namespaces
  kubectl gpu-fault list -A

  # Closed runs too, with user, undo, reason and command
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
			store := ledger.New(cluster.Client, connection.LedgerNamespace)
			if everywhere {
				store.Namespace = metav1.NamespaceAll
			}
			found, err := store.List(cmd.Context(), scope)
			if err != nil {
				return kube.Explain(err)
			}
			for _, bad := range found.Unreadable {
				printer.Talk(streams.ErrOut, "Warning: record %s in namespace %s is left out: %s", bad.Name,
					bad.Namespace, printer.Clean(bad.Err.Error()))
			}
			for _, namespace := range found.Unmarked {
				printer.Talk(streams.ErrOut, "Warning: runs are left out: %v",
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
					"no runs that change something in namespace %q; without -n runs on nodes are listed too", namespace)
				return nil
			case len(found.Runs) == 0 && everywhere:
				printer.Talk(streams.ErrOut, "%s", strings.Replace(none, " in namespace %q", " in any namespace", 1))
				return nil
			case len(found.Runs) == 0:
				printer.Talk(streams.ErrOut, none, connection.LedgerNamespace)
				return nil
			}
			runs := table(found.Runs, format, everywhere, store.Now())
			if !format.IsWide() {
				runs.Fit(max(leastWidth, printer.Width(streams.Out)), "LEDGER", "FAULT", "TARGETS")
			}
			return runs.Write(streams.Out)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Closed runs too")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "The ledgers of all namespaces")
	format.AddFlags(cmd)
	return cmd
}

// in returns the runs with a target in a namespace; all when it is empty.
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

// leastWidth is the width that the table fits on any terminal and on a pipe, in columns.
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

// status returns the phase, but for a run whose time is up.
func status(run ledger.Run, now time.Time) string {
	if run.Expired(now) {
		return "Expired"
	}
	return string(run.Phase)
}

// until returns when the run ends or ended.
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
