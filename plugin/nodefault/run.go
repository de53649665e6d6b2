package nodefault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// Fault is the fault that a command injects into nodes.
type Fault struct {
	Name    string // name of the command, such as runtime
	Summary string
	// Result is the state of a node afterwards, such as "broken".
	Result string
	// Question is the confirmation question without the nodes, such as "Break containerd's configuration on".
	Question string
	// Describe describes the planned change to the user, and how the fault ends, by calling say. It may be nil.
	Describe func(say func(format string, args ...any))
	// Needs are the permissions that the fault needs in addition to those for every fault.
	Needs []fault.Permission
	// Nodes selects the nodes if the arguments and flags in Flags do not. It may be nil.
	Nodes func(ctx context.Context, cluster *kube.Cluster) ([]string, error)
	// Changes returns a change for each node. pod is the pod that selects the node, or nil if nodes were specified.
	Changes func(
		ctx context.Context, cluster *kube.Cluster, nodes []string, pod *corev1.Pod,
	) ([]fault.Change, error)
	// Print prints the result of a run. If it is nil, the evidence is printed as a table, or the whole record in other
	// formats.
	Print func(*ledger.Run) error
	// DryRun returns the object that a dry run prints as YAML instead of the nodes. It may be nil.
	DryRun func() any
	// Timed reports whether the fault ends when the TTL expires even though it starts no debug pods.
	Timed bool
	// CleanupTimeout limits the cleanup after a failure or an interruption; 0 means the default of fault.Session.
	CleanupTimeout time.Duration
}

// Run injects a fault into the nodes that the flags select. It asks for confirmation, and prints the evidence.
func (f *Flags) Run(
	ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams, what Fault,
) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	f.Nodes.NamespaceGiven = connection.Namespace != nil && *connection.Namespace != ""
	names, pod, err := f.nodes(ctx, cluster, what)
	if err != nil {
		return err
	}
	changes, err := what.Changes(ctx, cluster, names, pod)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	plan := f.plan(cluster, connection, names[0], what, changes)
	s := f.session(ctx, cluster, connection, streams, len(names))
	s.CleanupTimeout = what.CleanupTimeout
	launch, err := f.Launch(ctx, s, &plan, fleet.Launch{Nodes: names, PerNode: f.Pods.Timeout, Streams: streams})
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	describe := func() {
		say := func(format string, args ...any) { printer.Talk(streams.ErrOut, format, args...) }
		say("%s: %s, in context %q", what.Summary, List(names), cluster.Context)
		if what.Describe != nil {
			what.Describe(say)
		}
		if launch != nil {
			launch.Describe()
		}
		say("")
	}
	if f.DryRun == dryrun.Client {
		describe()
		return f.printDryRun(streams, names, what, plan, launch)
	}
	if done, err := f.Fleet.Earlier(ctx, s); done {
		return err
	}
	if err := s.Preflight(ctx, plan); err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	describe()
	if f.DryRun == dryrun.Server {
		return f.printDryRun(streams, names, what, plan, launch)
	}
	question := fmt.Sprintf("%s %s in context %q?", what.Question, List(names), cluster.Context)
	if err := confirm.Ask(ctx, streams, question, f.Yes); err != nil {
		return err
	}
	if launch != nil {
		return kube.Explain(launch.Run(ctx))
	}
	return f.Observed(ctx, cluster, streams, names, func() (*ledger.Run, func() error, error) {
		run, err := s.Run(ctx, plan)
		return run, func() error { return f.print(streams, connection, what, run) }, kube.Explain(err)
	})
}

// Launch completes the launch from inside the cluster. Without --in-cluster, it returns nil. It adds the permissions
// and checks of the launch to the plan. In a pod of a fleet, it sets the fields of the plan and the session that come
// from the fleet.
func (f *Flags) Launch(
	ctx context.Context, s *fault.Session, plan *fault.Plan, launch fleet.Launch,
) (*fleet.Launch, error) {
	f.Fleet.Name(plan)
	s.From = f.Fleet.Origin(s.From)
	if f.Fleet.InShard() {
		s.Allow = f.Allow // required to undo the changes of a lost pod
		s.CleanupTimeout = fleet.Cleanup(s.CleanupTimeout, fault.Rounds(len(launch.Nodes), f.Parallel))
	}
	if !f.Fleet.InCluster {
		return nil, nil
	}
	launch.Flags, launch.Pods, launch.Format, launch.Session = &f.Fleet, &f.Pods, f.Format, s
	launch.Fault, launch.Summary = plan.Fault, plan.Summary
	launch.Parallel, launch.Cleanup = f.Parallel, s.CleanupTimeout
	return &launch, launch.Prepare(ctx, plan)
}

// nodes returns the nodes, and the pod that selects the node, if any.
func (f *Flags) nodes(ctx context.Context, cluster *kube.Cluster, what Fault) ([]string, *corev1.Pod, error) {
	if what.Nodes == nil {
		return f.Nodes.Resolve(ctx, cluster.Client, cluster.Namespace)
	}
	names, err := what.Nodes(ctx, cluster)
	return names, nil, err
}

// manyNodes is the number of nodes above which memory is garbage-collected more often. A run on a thousand nodes should
// use less than 200 MiB, and spends most of the time waiting for the API server.
const manyNodes = 200

// Observed runs a fault, prints it, and then waits for the expected reactions of the cluster. If the output is an
// object, the object describes the reactions.
func (f *Flags) Observed(
	ctx context.Context, cluster *kube.Cluster, streams genericiooptions.IOStreams, names []string,
	inject func() (run *ledger.Run, show func() error, err error),
) error {
	if len(names) > manyNodes {
		defer debug.SetGCPercent(debug.SetGCPercent(50))
	}
	observation, err := f.Expect.Start(ctx, cluster, names, streams)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	defer observation.Stop()
	run, show, err := inject()
	if observation == nil || err != nil {
		return errors.Join(show(), err)
	}
	if f.Format.IsTable() {
		if err := show(); err != nil {
			return err
		}
	}
	return observation.Finish(ctx, run, f.Format)
}

// session returns a session whose timeout is sufficient for the nodes.
func (f *Flags) session(
	ctx context.Context,
	cluster *kube.Cluster,
	connection *kube.Connection,
	streams genericiooptions.IOStreams,
	nodes int,
) *fault.Session {
	s := session.New(ctx, cluster, connection, f.Parallel, f.Pods, progress.New(streams.ErrOut))
	s.Timeout = time.Duration(fault.Rounds(nodes, f.Parallel)) * f.Pods.Timeout
	return s
}

func (f *Flags) plan(
	cluster *kube.Cluster, connection *kube.Connection, first string, what Fault, changes []fault.Change,
) fault.Plan {
	plan := fault.Plan{
		Fault:   what.Name,
		Summary: what.Summary,
		Command: session.CommandLine(os.Args),
		Allow:   f.Allow,
		Changes: changes,
		Needs:   append(f.Expect.Needs(), what.Needs...),
		NoPods:  f.NoPods,
	}
	f.TTL.Apply(&plan)
	if !f.NoPods {
		spec := f.Pods.Spec("preflight", first, connection.LedgerNamespace)
		plan.Checks = append(plan.Checks, func(ctx context.Context) error { return f.Pods.Try(ctx, cluster, spec) })
	}
	return plan
}

func (f *Flags) printDryRun(
	streams genericiooptions.IOStreams, names []string, what Fault, plan fault.Plan, launch *fleet.Launch,
) error {
	if launch != nil {
		return launch.DryRun(string(f.DryRun))
	}
	if !f.Format.IsTable() {
		var objects []string
		for _, name := range names {
			objects = append(objects, "node/"+name)
		}
		return f.Format.Object(streams.Out, plan.Planned(), objects...)
	}
	if what.DryRun != nil {
		return printer.Format{Output: "yaml"}.Object(streams.Out, what.DryRun())
	}
	for _, name := range names {
		fmt.Fprintf(streams.Out, "node/%s %s (%s dry run)\n", name, what.Result, f.DryRun)
	}
	return nil
}

// print prints the evidence as a table, or the whole record in other formats.
func (f *Flags) print(
	streams genericiooptions.IOStreams, connection *kube.Connection, what Fault, run *ledger.Run,
) error {
	if run == nil {
		return nil
	}
	if what.Print != nil {
		return what.Print(run)
	}
	if !f.Format.IsTable() {
		return f.Format.Object(streams.Out, run, "run/"+run.ID)
	}
	table := &printer.Table{Header: []string{"NODE", "SOURCE", "PROOF"}, NoHeader: f.Format.NoHeader}
	var proven []string
	permanent := true
	for _, step := range run.Steps {
		if step.State != ledger.StateProven {
			continue
		}
		proven = append(proven, step.Target.Name)
		permanent = permanent && step.Undo.IsPermanent()
		for _, e := range step.Evidence {
			table.Add(step.Target.Name, e.Source, e.Text)
		}
	}
	if len(proven) == 0 {
		return nil
	}
	if err := table.Write(streams.Out); err != nil {
		return err
	}
	revert := ledger.New(nil, connection.LedgerNamespace).Command("revert", run.ID)
	if permanent {
		printer.Talk(streams.ErrOut, "%s on %s; this cannot be undone; to close the record: %s", what.Result, List(proven), revert)
		return nil
	}
	end := "until " + run.Until.Local().Format("15:04:05")
	switch {
	case run.Until.IsZero():
		end = "no end"
	case f.NoPods && !what.Timed: // the node does not end the fault on its own
		end = "until the run is reverted"
	}
	printer.Talk(streams.ErrOut, "%s on %s, %s; to revert the run: %s", what.Result, List(proven), end, revert)
	return nil
}

// List formats node names for use in a sentence.
func List(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	text := count.Of(len(names), "node") + ": " + strings.Join(names[:min(mostNames, len(names))], ", ")
	if more := len(names) - mostNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// mostNames is the maximum number of names in a sentence.
const mostNames = 10
