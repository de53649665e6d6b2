// Package session puts a fault.Session together: the ledger, who undoes what, and where progress is shown.
package session

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// Undoers knows for every kind of undo in a ledger who does it. A fault that is missing here could not be reverted. The detectors are
// those of the cluster, for what cannot be undone.
func Undoers(detectors func() []xid.Detector) map[string]fault.Undoer {
	return map[string]fault.Undoer{
		kernellog.UndoKind: kernellog.Undoer{Forget: func(xids []string) []string { return forget(detectors(), xids) }},
	}
}

// forget says, for the XIDs that were written, what each detector that may have seen one needs to forget it.
func forget(detectors []xid.Detector, xids []string) []string {
	var events []xid.Event
	for _, text := range xids {
		selector, err := xid.ParseSelector(text)
		if err != nil {
			continue // a companion line, which no detector takes for an XID
		}
		event, err := selector.Event(xid.Options{})
		if err != nil {
			event = xid.Event{Kind: selector.Kind, Code: selector.Code, Body: "-"} // a code of the user's own
		}
		events = append(events, event)
	}
	var lines []string
	for _, d := range detectors {
		saw := slices.ContainsFunc(events, func(e xid.Event) bool { return d.Judge(e, xid.FormAuto).Seen != xid.No })
		if (saw || len(events) == 0) && d.Forget != "" {
			lines = append(lines, fmt.Sprintf("%s: %s", d.Name, d.Forget))
		}
	}
	return lines
}

// New returns a session on the cluster that shows its progress on report.
func New(ctx context.Context, cluster *kube.Cluster, ledgerNamespace string, parallel int, report *progress.Reporter) *fault.Session {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &fault.Session{
		Client:   cluster.Client,
		Ledger:   ledger.New(cluster.Client, ledgerNamespace),
		Undoers:  Undoers(func() []xid.Detector { return xid.DetectorsOn(cluster.Providers(ctx, nil)) }),
		Parallel: parallel,
		From:     host,
		Version:  build.Get().Version,
		Observer: fault.Observer{
			StepChanged: func(run ledger.Run, step ledger.Step) { stepChanged(report, run, step) },
			Progress:    func(step ledger.Step, text string) { report.Step(step.Target.Name, text) },
			Warning:     func(text string) { report.Note("Warning: " + text) },
		},
	}
}

func stepChanged(report *progress.Reporter, run ledger.Run, step ledger.Step) {
	switch step.State {
	case ledger.StatePlanned, ledger.StateApplying, ledger.StateApplied:
		return // progress tells more
	case ledger.StateReverted, ledger.StateSuperseded, ledger.StatePermanent:
		report.Step(run.ID+" "+step.Target.Name, string(step.State)) // of several runs, maybe on the same node
	default:
		report.Step(step.Target.Name, string(step.State))
	}
}

// secret is the flag whose value does not belong into a record that others read.
const secret = "--token"

// CommandLine is what the user typed, for the record, without credentials.
func CommandLine(args []string) []string {
	shown := slices.Clone(args)
	if len(shown) > 0 {
		shown[0] = filepath.Base(shown[0])
	}
	for i, arg := range shown {
		switch {
		case strings.HasPrefix(arg, secret+"="):
			shown[i] = secret + "=..."
		case i > 0 && args[i-1] == secret:
			shown[i] = "..."
		default:
			shown[i] = withoutUserinfo(shown[i])
		}
	}
	return shown
}

// withoutUserinfo takes name and password out of a URL, alone or behind a flag: --server=https://name:password@host.
func withoutUserinfo(arg string) string {
	flag, value, found := strings.Cut(arg, "=")
	if !found || !strings.HasPrefix(flag, "-") {
		flag, value = "", arg
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return arg
	}
	u.User = url.User("...")
	if flag != "" {
		flag += "="
	}
	return flag + u.String()
}
