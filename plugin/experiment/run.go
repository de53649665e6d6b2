package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/otlp"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/outfile"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func (o *options) run(ctx context.Context, args []string) error {
	if err := errors.Join(o.format.Validate(), o.dryRun.Validate(dryrun.Modes()...)); err != nil {
		return err
	}
	if o.list {
		return o.printList()
	}
	e, data, err := o.load(args)
	if o.explain && data != nil && err == nil {
		_, err = o.streams.Out.Write(data)
	}
	if err != nil || o.explain {
		return err
	}
	cluster, err := o.connection.Cluster()
	if err != nil {
		return err
	}
	if e.Target.Namespace == "" {
		e.Target.Namespace = cluster.Namespace
	}
	if err := errors.Join(o.files.check(), outfile.Check("--otlp-file", o.otlpFile)); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	targets, err := e.Target.Nodes(ctx, cluster.Client, nil)
	if err != nil {
		return fmt.Errorf("nothing was changed: target: %w", kube.Explain(err))
	}
	warnings, err := o.preflight(ctx, cluster, e, targets)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	commands, err := e.Lines(ctx, targets)
	if err != nil {
		return err
	}
	printer.Talk(o.streams.ErrOut, "Experiment %s on %s, in context %q, runs:\n%s\nand reverts everything at the end.",
		e.Metadata.Name, nodes(targets), cluster.Context, lines(commands))
	if slices.ContainsFunc(commands, experiment.IsPreparation) {
		printer.Talk(o.streams.ErrOut,
			"The first step replaces the pods of %s. The faults are injected where the new pods run.", e.Target.PodsOf)
	}
	if len(e.SimulateRemediation) > 0 {
		printer.Talk(o.streams.ErrOut, "%s", simulation(e.SimulateRemediation, targets))
	}
	for _, warning := range warnings {
		printer.Talk(o.streams.ErrOut, "%s", warning)
	}
	if o.dryRun != dryrun.None {
		fmt.Fprintf(o.streams.Out, "experiment/%s run (%s dry run)\n", e.Metadata.Name, o.dryRun)
		return nil
	}
	question := fmt.Sprintf("Run the experiment on %s in context %q?", nodes(targets), cluster.Context)
	if err := confirm.Ask(ctx, o.streams, question, o.yes); err != nil {
		return err
	}
	lab, err := o.lab(ctx, cluster, e)
	if err != nil {
		return err
	}
	result, err := lab.Play(ctx, e, targets)
	return o.report(ctx, result, err)
}

// nodes returns node names for use in a sentence.
func nodes(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	return "nodes " + strings.Join(names, ", ")
}

// preflight checks the permissions, and that each fault would be accepted. It returns the faults' warnings.
func (o *options) preflight(
	ctx context.Context, cluster *kube.Cluster, e *experiment.Experiment, targets []string,
) (warnings []string, err error) {
	if warnings, err = expect.Check(ctx, cluster.Client); err != nil {
		return nil, kube.Explain(err)
	}
	commands, err := e.Lines(ctx, targets)
	if err != nil {
		return nil, err
	}
	if err := o.checkWords(commands); err != nil {
		return nil, err
	}
	if len(e.SimulateRemediation) > 0 {
		if err := o.remediator(ctx, cluster, o.streams.ErrOut).Preflight(ctx, targets); err != nil {
			return nil, fmt.Errorf("simulated remediation: %w", kube.Explain(err))
		}
	}
	mode := dryrun.Client
	if o.dryRun == dryrun.Server {
		mode = dryrun.Server
	}
	for _, line := range commands {
		if slices.Contains(line, "RUN") { // the run does not exist yet
			continue
		}
		var said bytes.Buffer
		if err := o.call(ctx, &said, &said, append(slices.Clone(line), "--dry-run="+string(mode))); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(line, " "), err)
		}
		for said := range strings.Lines(said.String()) {
			if said = strings.TrimSpace(said); strings.HasPrefix(said, "Warning:") && !slices.Contains(warnings, said) {
				warnings = append(warnings, said)
			}
		}
	}
	return warnings, nil
}

// cordonTTL is the time after which `revert --expired` uncordons the nodes if this client has died.
const cordonTTL = time.Hour

// remediator returns the simulated remediator.
func (o *options) remediator(
	ctx context.Context, cluster *kube.Cluster, report io.Writer,
) *experiment.NodeRemediator {
	s := session.New(ctx, cluster, o.connection, 1, podflags.New(), progress.New(report))
	return &experiment.NodeRemediator{Session: s, TTL: cordonTTL, Allow: o.allow}
}

// simulation describes to the user what the simulated remediation will do.
func simulation(steps, targets []string) string {
	begin := "after each fault has been verified"
	if slices.Contains(steps, experiment.SimulateDetect) {
		begin = "as soon as a detector reports the fault"
	}
	it, its := "it", "its"
	if len(targets) > 1 {
		it, its = "them", "their"
	}
	evicts := ""
	if slices.Contains(steps, experiment.SimulateDrain) {
		evicts = fmt.Sprintf(", evicts %s pods", its)
	}
	after := "at the end"
	if slices.Contains(steps, experiment.SimulateUncordon) {
		after = "then"
	}
	return fmt.Sprintf("The remediation is simulated: %s, this command cordons %s%s, and %s uncordons %s.", begin,
		nodes(targets), evicts, after, it)
}

// checkWords rejects words in a file that would direct a command to a different cluster from the one shown, or hide the
// flags that are appended. The author of the file may not be the user who confirms it.
func (o *options) checkWords(commands [][]string) error {
	connection := pflag.NewFlagSet("", pflag.ContinueOnError)
	kube.NewConnection(o.streams).AddFlags(connection)
	for _, line := range commands {
		for _, word := range line {
			if word == "--" {
				return fmt.Errorf("%s: -- is not allowed in an experiment", strings.Join(line, " "))
			}
			name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
			short := len(word) > 1 && word[0] == '-' && word[1] != '-' && word[1] != 'n' &&
				connection.ShorthandLookup(word[1:2]) != nil
			long := strings.HasPrefix(word, "--") && name != "namespace" && connection.Lookup(name) != nil
			if short || long {
				return fmt.Errorf("%s: %s is not allowed in an experiment; pass it to the run "+
					"command", strings.Join(line, " "), word)
			}
		}
	}
	return nil
}

// call runs one of this tool's command lines in this process.
func (o *options) call(ctx context.Context, out, errOut *bytes.Buffer, line []string) error {
	root := o.root(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: errOut})
	root.SetArgs(slices.Concat(o.inherited(), line, o.allowances(line)))
	return root.ExecuteContext(ctx)
}

func (o *options) lab(ctx context.Context, cluster *kube.Cluster, e *experiment.Experiment) (*experiment.Lab, error) {
	store := ledger.New(cluster.Client, o.connection.LedgerNamespace)
	checker, err := o.checker(cluster)
	if err != nil {
		return nil, err
	}
	shown := expect.Shower(o.streams.ErrOut)
	return &experiment.Lab{
		Client:     cluster.Client,
		Remediator: o.remediator(ctx, cluster, io.Discard),
		Targets: func(ctx context.Context) ([]string, error) {
			nodes, err := e.Target.Nodes(ctx, cluster.Client, nil)
			if err == nil && len(e.SimulateRemediation) > 0 {
				err = o.remediator(ctx, cluster, o.streams.ErrOut).Preflight(ctx, nodes)
			}
			return nodes, kube.Explain(err)
		},
		Command: func(ctx context.Context, line []string) (string, error) {
			if !opensRun(line) {
				return "", o.quietly(ctx, new(bytes.Buffer), append(slices.Clone(line), "--yes"))
			}
			var out bytes.Buffer
			err := o.quietly(ctx, &out, append(slices.Clone(line), "--yes", "--output=name"))
			return strings.TrimPrefix(strings.TrimSpace(out.String()), "run/"), err
		},
		Revert: func(ctx context.Context, id string) error {
			return o.quietly(ctx, new(bytes.Buffer), []string{"revert", id, "--yes"})
		},
		Run: func(ctx context.Context, id string) (*ledger.Run, error) {
			run, err := store.Get(ctx, id)
			return &run, err
		},
		Check: func(ctx context.Context, checks []scenario.Check) ([]check.Result, error) {
			return checker.Run(ctx, checks)
		},
		Load: checker.Load,
		Show: shown,
		Say:  func(format string, args ...any) { printer.Talk(o.streams.ErrOut, format, args...) },
	}, nil
}

// allowances returns the flags that lift limits on the blast radius, for commands that have them.
func (o *options) allowances(line []string) []string {
	if line[0] == "revert" && o.allow.ControlPlane {
		return []string{"--allow-control-plane"}
	}
	if !slices.Contains([]string{"xid", "device", "runtime", "network"}, line[0]) {
		return nil
	}
	var flags []string
	for flag, given := range map[string]bool{
		"--allow-control-plane": o.allow.ControlPlane, "--allow-last-gpu-node": o.allow.LastGPUNode,
		"--allow-majority": o.allow.Majority,
	} {
		if given {
			flags = append(flags, flag)
		}
	}
	return flags
}

// quietly runs a command line, and shows its output only if it fails.
func (o *options) quietly(ctx context.Context, out *bytes.Buffer, line []string) error {
	var said bytes.Buffer
	err := o.call(ctx, out, &said, line)
	if err != nil && said.Len() > 0 {
		printer.Talk(o.streams.ErrOut, "%s", strings.TrimSpace(said.String()))
	}
	return err
}

// opensRun reports whether a command opens a run of its own.
func opensRun(line []string) bool {
	return len(line) < 2 || line[0] != "cuda" || line[1] != "arm" && line[1] != "disarm"
}

func (o *options) checker(cluster *kube.Cluster) (*check.Checker, error) {
	objects, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cluster.Config.Host, err)
	}
	mapper, err := o.connection.ToRESTMapper()
	if err != nil {
		return nil, kube.Explain(err)
	}
	return &check.Checker{
		Config: cluster.Config, Client: cluster.Client, Dynamic: objects, Mapper: mapper,
		Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy},
	}, nil
}

// report prints a result. It returns an error for an experiment that could not be carried out.
func (o *options) report(ctx context.Context, r experiment.Result, failed error) error {
	err := errors.Join(expect.Print(o.streams.Out, r, o.format), o.files.write(o.streams.ErrOut, r),
		otlp.Report(ctx, o.streams.ErrOut, r, o.otlpFile, os.Getenv))
	if err != nil { // the verdict is more important than a missing file
		printer.Talk(o.streams.ErrOut, "error: %v", err)
	}
	switch {
	case ctx.Err() != nil:
		printer.Talk(o.streams.ErrOut, "%s", expect.Summary(r))
		return context.Cause(ctx)
	case failed != nil:
		printer.Talk(o.streams.ErrOut, "%s", expect.Summary(r))
		return kube.Explain(failed)
	case !r.Passed:
		return &usage.Verdict{Message: expect.Summary(r)}
	}
	printer.Talk(o.streams.ErrOut, "%s", expect.Summary(r))
	if err != nil {
		return errors.New("a report was not written")
	}
	return nil
}
