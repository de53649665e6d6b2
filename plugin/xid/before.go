package xid

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// before prints to stderr which lines will be written to which nodes, what cannot be undone, and how detectors will
// react.
func (w *writing) before(ctx context.Context, cluster *kube.Cluster, names []string) error {
	say := func(format string, args ...any) { printer.Talk(w.streams.ErrOut, format, args...) }
	say("%s: %s, in context %q", w.summary, nodefault.List(names), cluster.Context)
	if labels := w.labels(); len(labels) > 1 {
		say("Records, in order: %s", strings.Join(labels, ", "))
	}
	for _, line := range w.how() {
		say("%s", line)
	}
	if w.launch != nil {
		w.launch.Describe()
	}
	say("")

	seen, blind, reboots := verdicts(xid.DetectorsOn(cluster.Providers(ctx, names)), w.events, w.form)
	if err := seen.Write(w.streams.ErrOut); err != nil {
		return err
	}
	say("The line does not reach %s. For the reasons, run `kubectl gpu-fault xid explain "+
		"CODE`.", strings.Join(blind, ", "))
	say("")
	if !w.layers.isOne() {
		w.describeLayers()
	}
	if len(reboots) > 0 {
		say("%s", mayReboot(reboots))
		say("")
	}
	return nil
}

func mayReboot(detectors []string) string {
	return fmt.Sprintf("Warning: if installed, %s may cordon, drain and reboot the node.",
		strings.Join(detectors, " and "))
}

// labels returns the labels of the records, in order, limited to those that fit on a line.
func (w *writing) labels() []string {
	const most = 12
	var all []string
	for i, r := range w.sample {
		if i == most {
			return append(all, fmt.Sprintf("... (%d)", len(w.sample)))
		}
		all = append(all, r.XID)
	}
	return all
}

// verdicts returns a row for each detector that may see the events, with the XIDs that it sees and its reaction to the
// worst of them. It also returns the names of detectors that see no events, and of those that may reboot a node.
func verdicts(
	detectors []xid.Detector, events []xid.Event, form xid.Form,
) (seen *printer.Table, blind, reboots []string) {
	events = worstFirst(events, form)
	seen = &printer.Table{Header: []string{"DETECTOR", "SEES", "XID", "REACTION"}}
	for _, d := range detectors {
		var (
			worst  xid.Verdict
			labels []string
		)
		for _, e := range events {
			v := d.Judge(e, form)
			if rank(v) > rank(worst) {
				worst = v
			}
			if v.Seen != xid.No && !slices.Contains(labels, label(e)) {
				labels = append(labels, label(e))
			}
		}
		if len(labels) == 0 {
			blind = append(blind, d.Name)
			continue
		}
		text := worst.Reaction
		if worst.Seen == xid.Depends && worst.Why != "" {
			text = worst.Why
		}
		seen.Add(d.Name, string(worst.Seen), strings.Join(labels, ","), text)
		if worst.MayReboot {
			reboots = append(reboots, d.Name)
		}
	}
	return seen, blind, reboots
}

// rank orders verdicts by their impact on the node.
func rank(v xid.Verdict) int {
	n := map[xid.Sight]int{xid.Yes: 20, xid.Depends: 10, xid.No: 1}[v.Seen]
	if v.Fatal {
		n += 4
	}
	if v.MayReboot {
		n += 2
	}
	return n
}

// worstFirst sorts events by the worst verdict of any detector.
func worstFirst(events []xid.Event, form xid.Form) []xid.Event {
	worst := func(e xid.Event) int {
		most := 0
		for _, v := range xid.JudgeAll(e, form) {
			most = max(most, rank(v))
		}
		return most
	}
	sorted := slices.Clone(events)
	sorting.StableFunc(sorted, func(a, b xid.Event) int { return worst(b) - worst(a) })
	return sorted
}

// previewLines is the maximum number of lines shown in a dry run.
const previewLines = 24

// preview prints the lines of a dry run.
func (w *writing) preview() {
	say := func(format string, args ...any) { printer.Talk(w.streams.ErrOut, format, args...) }
	say("Would write, on each node, with the address of that node's GPU:")
	at := time.Duration(0)
	for i, r := range w.sample {
		at += r.Delay
		if i == previewLines {
			say("  ... and %d more", len(w.sample)-i)
			break
		}
		say("  +%-8s %s", at.Round(time.Millisecond), strings.ReplaceAll(strings.TrimSuffix(r.Data, "\n"), "\n", `\n`))
	}
}
