package expect

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/otlp"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// Observation observes the cluster, starting before a fault.
type Observation struct {
	flags    *Flags
	streams  genericiooptions.IOStreams
	observer *experiment.Observer
	started  time.Time
	stop     context.CancelFunc
}

// Start starts observing the nodes, before the fault. It returns nil if nothing is expected.
func (f *Flags) Start(
	ctx context.Context, cluster *kube.Cluster, nodes []string, streams genericiooptions.IOStreams,
) (*Observation, error) {
	if !f.Given() {
		return nil, nil
	}
	o := &Observation{flags: f, streams: streams, observer: experiment.NewObserver(nodes), started: time.Now()}
	o.observer.Show = Shower(streams.ErrOut)
	watching, stop := context.WithCancel(ctx)
	o.stop = stop
	baseline, err := reaction.Watch(watching, reaction.Options{
		Client: cluster.Client, Targets: nodes, Each: o.observer.News,
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("observe the cluster: %w", kube.Explain(err))
	}
	o.observer.Baseline(o.observer.Targets, baseline)
	return o, nil
}

// Stop ends the observation.
func (o *Observation) Stop() {
	if o != nil {
		o.stop()
	}
}

// Finish waits for the expected reactions to a run, and prints the verdicts. The error is a *usage.Verdict if a verdict
// is negative.
func (o *Observation) Finish(ctx context.Context, run *ledger.Run, format printer.Format) error {
	proof := experiment.ProofOf(run)
	if proof.IsZero() {
		return nil // the run's error describes the reason
	}
	o.observer.ProvenSince(experiment.BeganOf(run), proof, run.Summary)
	printer.Talk(o.streams.ErrOut, "waiting up to %s for the cluster to react; Ctrl-C stops waiting, but does not end the fault",
		o.flags.longest())
	expect, err := o.flags.expectations(o.flags.expect, false)
	if err != nil {
		return err
	}
	not, err := o.flags.expectations(o.flags.not, true)
	if err != nil {
		return err
	}
	if _, err := o.observer.Expect(ctx, expect, not); err != nil {
		return err
	}
	result := o.observer.Result(run.Summary, o.started, []string{run.ID})
	result.InPlace = true
	if err := Print(o.streams.Out, result, format); err != nil {
		return err
	}
	if err := otlp.Report(ctx, o.streams.ErrOut, result, "", os.Getenv); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !result.Passed {
		return &usage.Verdict{Message: Summary(result)}
	}
	printer.Talk(o.streams.ErrOut, "%s", Summary(result))
	return nil
}

// Shower returns a function that prints each reaction on its own line.
func Shower(out io.Writer) func(experiment.Entry) {
	return func(e experiment.Entry) {
		printer.Talk(out, "%s", Line(e))
	}
}

// Line describes an entry.
func Line(e experiment.Entry) string {
	since := fmt.Sprintf("%.1fs", e.Since)
	if e.Early || e.What == experiment.WhatInject || e.What == experiment.WhatRevert {
		since = "" // this tool's own actions have no deadline
	}
	line := fmt.Sprintf("%8s  %-16s", since, e.What)
	where := e.Node
	if e.Pod != "" {
		where = e.Pod
	}
	for _, part := range []string{where, oneLine(e.Text)} {
		if part != "" {
			line += "  " + part
		}
	}
	if by := oneLine(e.Actor()); by != "" {
		line += "  by " + by
	}
	return strings.TrimRight(line, " ")
}

// oneLine shortens a message from the cluster to fit on the line.
func oneLine(text string) string {
	const most = 100
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}
