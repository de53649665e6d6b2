package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/fixes"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// IDs of the root causes that --fix supports.
const (
	fixCapacity = "dp.capacity-zero"
	fixHandler  = "rc.handler-mismatch"
	fixInjected = "fault.injected"
)

func fixable() []string { return []string{fixCapacity, fixHandler, fixInjected} }

// repair describes what --fix does: either carry out a plan in a session, or revert runs.
type repair struct {
	plan fault.Plan
	// summary contains a line for each change, diff shows the objects to create, and done is printed after the changes.
	summary, done []string
	diff          string
	revert        []string // IDs of the runs to revert
}

// everyPod is the interval at which --fix polls for the new pod.
const everyPod = 500 * time.Millisecond

// fixRoot examines a snapshot and fixes the root cause that --fix names.
func (e *examination) fixRoot(ctx context.Context, cluster *kube.Cluster, s *snapshot.Snapshot) error {
	r := doctor.Examine(s, doctor.Options{Since: e.since})
	if err := e.writeBundle(s); err != nil {
		return err
	}
	root, err := rootToFix(r, e.fix, e.fixObject)
	if err != nil {
		return err
	}
	fix, err := e.repair(ctx, cluster, s, root)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	printer.Talk(e.streams.ErrOut, "%s: %s", root.ID, root.Title)
	return e.carryOut(ctx, cluster, fix)
}

// carryOut shows a repair, asks for confirmation, and applies it.
func (e *examination) carryOut(ctx context.Context, cluster *kube.Cluster, fix repair) error {
	say := func(format string, args ...any) { printer.Talk(e.streams.ErrOut, format, args...) }
	for _, line := range fix.summary {
		say("%s", line)
	}
	if fix.diff != "" {
		say("%s", fix.diff)
	}
	if e.dryRun == "client" {
		return e.printDone(fix, " (client dry run)")
	}
	engine := session.New(ctx, cluster, e.connection, e.parallel, e.pods,
		progress.New(e.streams.ErrOut))
	engine.Timeout = e.pods.Timeout
	if len(fix.revert) > 0 {
		return e.revert(ctx, cluster, engine, fix)
	}
	if err := engine.Preflight(ctx, fix.plan); err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	if e.dryRun == "server" {
		return e.printDone(fix, " (server dry run)")
	}
	if err := confirm.Ask(ctx, e.streams, fmt.Sprintf("Fix in context %q?", cluster.Context), e.yes); err != nil {
		return err
	}
	run, err := engine.Run(ctx, fix.plan)
	if err != nil {
		return kube.Explain(err)
	}
	if len(run.Pending()) > 0 {
		say("to undo this, run: %s", engine.Ledger.Command("revert", run.ID))
	}
	return e.printDone(fix, "")
}

func (e *examination) printDone(fix repair, suffix string) error {
	for _, line := range fix.done {
		if _, err := fmt.Fprintln(e.streams.Out, printer.Escape(line)+suffix); err != nil {
			return err
		}
	}
	return nil
}

// rootToFix returns the root cause with the given ID or, if there are several, the one about the given object. If the
// root cause must be fixed manually, the error describes how.
func rootToFix(r doctor.Report, id, object string) (finding.Finding, error) {
	var found, consequences []finding.Finding
	var others []string
	for _, f := range r.Items {
		switch {
		case f.ID == id && f.Root:
			found = append(found, f)
		case f.ID == id:
			consequences = append(consequences, f)
		case f.Root:
			others = append(others, f.ID)
		}
	}
	slices.Sort(others)
	others = slices.Compact(others)
	switch {
	case len(found) == 0 && len(consequences) > 0:
		return finding.Finding{},
			fmt.Errorf("--fix %s: not a root cause, but a consequence of %s; see: kubectl gpu-fault doctor",
				id, strings.Join(consequences[0].CausedBy, ", "))
	case len(found) == 0 && len(others) == 0:
		return finding.Finding{},
			fmt.Errorf("--fix %s: not found; there are no findings to fix", id)
	case len(found) == 0:
		return finding.Finding{},
			fmt.Errorf("--fix %s: not found; root causes: %s", id, strings.Join(others, ", "))
	case object == "" && len(found) > 1:
		return finding.Finding{},
			fmt.Errorf("--fix %s matches %s; specify one:%s", id, count.Of(len(found), "root cause"), choices(found))
	case object != "":
		f, ok := about(found, object)
		if !ok {
			return f,
				fmt.Errorf("--fix %s=%s: no such root cause for this object; specify one:%s", id, object,
					choices(found))
		}
		found = []finding.Finding{f}
	}
	if !slices.Contains(fixable(), id) {
		return found[0], byHand(found[0])
	}
	return found[0], nil
}

// about returns the first root cause about an object, narrowed to that object. The object has the form NAME or
// NAMESPACE/NAME, or the form used in reports.
func about(found []finding.Finding, object string) (finding.Finding, bool) {
	for _, f := range found {
		for _, o := range toChange(f) {
			if object != o.Name && object != o.Namespace+"/"+o.Name && object != o.String() {
				continue
			}
			if f.Subject.Kind == "" {
				f.Object, f.Objects = o, nil
			}
			return f, true
		}
	}
	return finding.Finding{}, false
}

// choices returns the --fix flag for each of several root causes.
func choices(found []finding.Finding) string {
	var text string
	for _, f := range found {
		o := toChange(f)[0]
		name := o.Name
		if o.Namespace != "" {
			name = o.Namespace + "/" + name
		}
		text += fmt.Sprintf("\n  --fix %s=%s: %s: %s", f.ID, name, f.Object, f.Title)
	}
	return text
}

// byHand returns an error that describes how to fix a finding that doctor cannot fix itself.
func byHand(f finding.Finding) error {
	text := fmt.Sprintf(
		"--fix %s: nothing was changed: doctor cannot fix this safely; fix it manually.\n%s", f.ID,
		f.Fix.Text,
	)
	for _, line := range slices.Concat(strings.Split(strings.TrimRight(f.Fix.Values, "\n"), "\n"), f.Fix.Commands) {
		if line != "" {
			text += "\n  " + line
		}
	}
	return errors.New(text)
}

// repair returns the plan for fixing a root cause.
func (e *examination) repair(
	ctx context.Context, cluster *kube.Cluster, s *snapshot.Snapshot, root finding.Finding,
) (repair, error) {
	switch root.ID {
	case fixInjected:
		return reverting(s, root)
	case fixHandler:
		return e.createClasses(ctx, cluster, s, root)
	default:
		return e.restartPlugin(ctx, cluster, s, root)
	}
}

// toChange returns the objects that the finding's fix changes or creates.
func toChange(f finding.Finding) []finding.Object {
	if f.Subject.Kind != "" {
		return []finding.Object{f.Subject}
	}
	return objectsOf(f)
}

func objectsOf(f finding.Finding) []finding.Object {
	if len(f.Objects) > 0 {
		return f.Objects
	}
	return []finding.Object{f.Object}
}

// reverting returns a repair that reverts the runs that the finding names, or the runs that changed its objects.
func reverting(s *snapshot.Snapshot, root finding.Finding) (repair, error) {
	var fix repair
	about := func(run snapshot.Run) bool {
		words := strings.Join(append(slices.Clone(root.Fix.Commands), root.Fix.Text), "\n")
		return slices.ContainsFunc(objectsOf(root),
			func(o finding.Object) bool { return o.Kind == "Run" && o.Name == run.ID }) ||
			slices.Contains(strings.Fields(words), run.ID)
	}
	for _, run := range s.Runs {
		if run.Closed.IsZero() && about(run) {
			fix.revert = append(fix.revert, run.ID)
			fix.summary = append(fix.summary, fmt.Sprintf("revert run %s: %s, by %s", run.ID, run.Summary, run.By))
			fix.done = append(fix.done, "run/"+run.ID+" reverted")
		}
	}
	if len(fix.revert) == 0 {
		return fix,
			errors.New(
				"could not determine which run caused this; use kubectl gpu-fault list and kubectl gpu-fault revert RUN",
			)
	}
	return fix, nil
}

func (e *examination) revert(ctx context.Context, cluster *kube.Cluster, engine *fault.Session, fix repair) error {
	if e.dryRun == "server" {
		return errors.New(
			"--dry-run=server: most of a revert happens on nodes, which a server dry run cannot check; use --dry-run=client",
		)
	}
	// The records may have changed since the snapshot. Show their current contents, and revert only those runs.
	var runs []ledger.Run
	for _, id := range fix.revert {
		run, err := engine.Ledger.Get(ctx, id)
		if err != nil {
			return fmt.Errorf("nothing was reverted: %w", kube.Explain(err))
		}
		runs = append(runs, run)
		for _, target := range run.Targets() {
			printer.Talk(e.streams.ErrOut, "  run %s: %s", id, printer.Clean(target.String()))
		}
	}
	if err := confirm.Ask(ctx, e.streams, fmt.Sprintf("Revert in context %q?", cluster.Context), e.yes); err != nil {
		return err
	}
	var errs []error
	for _, run := range runs {
		if _, err := engine.RevertShown(ctx, run, false); err != nil {
			errs = append(errs, kube.Explain(err))
		} else {
			errs = append(errs, e.printDone(repair{done: []string{"run/" + run.ID + " reverted"}}, ""))
		}
	}
	return errors.Join(errs...)
}

// createClasses returns a repair that creates missing RuntimeClasses that pods request, provided that a node's runtime
// has loaded a handler for them.
func (e *examination) createClasses(
	ctx context.Context, cluster *kube.Cluster, s *snapshot.Snapshot, root finding.Finding,
) (repair, error) {
	fix := repair{plan: e.newPlan("create missing RuntimeClasses", fixes.Permissions(""))}
	for _, o := range toChange(root) {
		if o.Kind != "RuntimeClass" {
			continue
		}
		_, err := cluster.Client.NodeV1().RuntimeClasses().Get(ctx, o.Name, metav1.GetOptions{})
		if err == nil {
			return fix, fmt.Errorf(
				"RuntimeClass %q names a handler that its nodes do not have. Either install the handler or correct the RuntimeClass.\n%s",
				o.Name, root.Fix.Text,
			)
		}
		if !apierrors.IsNotFound(err) {
			return fix, fmt.Errorf("get RuntimeClass %s: %w", o.Name, err)
		}
		handler, nodes := handlerFor(s, o.Name)
		if len(nodes) == 0 {
			return fix, fmt.Errorf(
				"no known node has a handler %q, so creating this RuntimeClass would not help; inspect the GPU nodes with --all-gpu-nodes.\n%s",
				o.Name, root.Fix.Text,
			)
		}
		change, err := fixes.CreateRuntimeClass(cluster.Client, o.Name, handler)
		if err != nil {
			return fix, err
		}
		raw, err := yaml.Marshal(fixes.RuntimeClass(o.Name, handler))
		if err != nil {
			return fix, fmt.Errorf("show RuntimeClass %s: %w", o.Name, err)
		}
		fix.plan.Changes = append(fix.plan.Changes, change)
		fix.summary = append(fix.summary, fmt.Sprintf("create RuntimeClass %s; its handler %s is loaded on %s", o.Name,
			handler, strings.Join(nodes[:min(3, len(nodes))], ", ")))
		fix.diff += "+ " + strings.ReplaceAll(strings.TrimSpace(string(raw)), "\n", "\n+ ") + "\n"
		fix.done = append(fix.done, "runtimeclass.node.k8s.io/"+o.Name+" created")
	}
	if len(fix.plan.Changes) == 0 {
		return fix, byHand(root)
	}
	return fix, nil
}

// handlerFor returns the handler for a RuntimeClass, and the nodes that have it. The handler has the same name as the
// class; for nvidia it may also have the name that CRI-O and older configurations use.
func handlerFor(s *snapshot.Snapshot, class string) (handler string, nodes []string) {
	names := []string{class}
	if class == "nvidia" {
		names = append(names, "nvidia-container-runtime")
	}
	for _, handler := range names {
		if nodes := withHandler(s, handler); len(nodes) > 0 {
			return handler, nodes
		}
	}
	return "", nil
}

// withHandler returns the nodes that have a runtime handler, according to the node's status or to what the helper read
// from the runtime.
func withHandler(s *snapshot.Snapshot, handler string) []string {
	var names []string
	for _, n := range s.Nodes {
		has := slices.ContainsFunc(n.Status.RuntimeHandlers,
			func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler })
		if host := s.Hosts[n.Name]; host != nil && host.Runtime.Instance != nil {
			if config, err := host.Runtime.Instance.InMemory(); err == nil && config != nil {
				_, loaded := config.Handlers[handler]
				has = has || loaded
			}
		}
		if has {
			names = append(names, n.Name)
		}
	}
	return names
}

// restartPlugin returns a repair that deletes a pod of the device plugin on the finding's nodes. The pod is running and
// Ready, but advertises no devices.
func (e *examination) restartPlugin(
	ctx context.Context, cluster *kube.Cluster, s *snapshot.Snapshot, root finding.Finding,
) (repair, error) {
	fix := repair{}
	if root.Subject.Kind != "" { // the pod's template is wrong, so recreating the pod does not help
		return fix, byHand(root)
	}
	for _, o := range objectsOf(root) {
		if o.Kind != "Node" {
			continue
		}
		for i := range s.Pods {
			p := &s.Pods[i]
			if p.Spec.NodeName != o.Name || facts.ComponentOf(p.Labels, &p.Spec) != facts.DevicePlugin {
				continue
			}
			now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return fix, fmt.Errorf("get pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			change, err := fixes.RestartPod(ctx, cluster.Client, now, everyPod)
			if err != nil {
				return fix, fmt.Errorf("%w.\n%s", err, root.Fix.Text)
			}
			if fix.plan.Fault == "" {
				fix.plan = e.newPlan("restart the device plugin", fixes.Permissions(p.Namespace))
			}
			fix.plan.Needs = fault.Permissions(fix.plan.Needs, fixes.Permissions(p.Namespace))
			fix.plan.Changes = append(fix.plan.Changes, change)
			fix.summary = append(fix.summary, fmt.Sprintf(
				"delete pod %s/%s on node %s; its DaemonSet recreates it. GPU pods keep running. This cannot be undone, and does not need to be",
				p.Namespace, p.Name, o.Name,
			))
			fix.done = append(fix.done, fmt.Sprintf("pod/%s deleted", p.Name))
		}
	}
	if len(fix.plan.Changes) == 0 {
		return fix, errors.New("no running pod of the device plugin to restart.\n" + root.Fix.Text)
	}
	return fix, nil
}

func (e *examination) newPlan(summary string, needs []fault.Permission) fault.Plan {
	return fault.Plan{
		Fault: fixes.Fault, Summary: summary, Command: session.CommandLine(os.Args),
		Reason: "kubectl gpu-fault doctor --fix " + e.fix,
		Needs:  needs, NoPods: true,
	}
}
