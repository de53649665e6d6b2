package xid

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// beforeRun is a placeholder for the ID of a run that does not exist yet.
const beforeRun = "preflight"

// writing is one run that writes to kernel logs. It is shared by xid and xid replay.
type writing struct {
	inject
	connection *kube.Connection
	streams    genericiooptions.IOStreams

	summary string // "XID 79 on GPU 0"
	action  string // "write 1 record to the kernel log"
	events  []xid.Event
	form    xid.Form
	lasts   time.Duration      // total delay of the records
	sample  []kernellog.Record // records for a placeholder GPU, before the node is known
	compose func(info api.Info, pod gpus.Pod) ([]kernellog.Record, error)

	layers layering
	gpus   gpus.Choices
	code   int           // XID, set only if there is more than one layer
	more   prepared      // the layers other than the kernel log
	holder gpus.Pod      // pod whose GPUs are selected: from --pod, or from the cuda layer
	launch *fleet.Launch // launch from inside the cluster; otherwise nil
}

// run runs `xid CODE NODE`.
func (o *options) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	w, err := o.writing(connection)
	if err != nil {
		return err
	}
	w.streams = streams
	return w.run(ctx)
}

// writing returns the run that the options describe.
func (o *options) writing(connection *kube.Connection) (*writing, error) {
	sample, err := o.compose(o.sample())
	if err != nil {
		return nil, err
	}
	events, err := o.sampleEvents()
	if err != nil {
		return nil, err
	}
	return &writing{
		inject:     o.inject,
		connection: connection,
		summary:    o.summary(),
		action: "write " + lowerFirst(
			o.summary(),
		) + " to the kernel log",
		events: events,
		form:   o.form,
		layers: o.layers,
		gpus:   o.gpus,
		code:   o.selectors[0].Code,
		sample: sample,
		lasts:  o.lasts(sample),
		compose: func(info api.Info, pod gpus.Pod) ([]kernellog.Record, error) {
			places, err := o.places(info, pod)
			if err != nil {
				return nil, err
			}
			return o.compose(places)
		},
	}, nil
}

func (o *options) sampleEvents() ([]xid.Event, error) {
	var events []xid.Event
	for _, s := range o.selectors {
		steps, err := o.events(s, o.sample()[0])
		if err != nil {
			return nil, o.blame(err)
		}
		for _, step := range steps {
			events = append(events, step.Event)
		}
	}
	return events, nil
}

func (o *options) summary() string {
	words := make([]string, len(o.selectors))
	for i, s := range o.selectors {
		words[i] = s.String()
	}
	text := "XID " + words[0]
	switch {
	case len(words) > 1:
		text = "XIDs " + strings.Join(words, ", ")
	case o.isSwitch():
		return fmt.Sprintf("SXid %d on NVSwitch %s", o.selectors[0].Code, o.gpus.Address()) + times(o.count)
	case o.selectors[0].Kind == xid.KindFallenOff:
		text = "Record " + words[0]
	}
	if o.cascade {
		text += " with accompanying records"
	}
	return text + " on " + o.gpus.String() + times(o.count)
}

// lowerFirst adapts a summary for use in a sentence. "XID" remains in upper case.
func lowerFirst(text string) string {
	return strings.Replace(text, "Record", "record", 1)
}

func times(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", %d times", n)
}

// resolve returns the nodes and, if one is specified, the pod whose GPUs are selected. It prepares the layers other
// than the kernel log.
func (w *writing) resolve(ctx context.Context, cluster *kube.Cluster) (names []string, holder gpus.Pod, err error) {
	w.Nodes.NamespaceGiven = w.connection.Namespace != nil && *w.connection.Namespace != ""
	names, pod, err := w.Nodes.Resolve(ctx, cluster.Client, cluster.Namespace)
	if err != nil {
		return nil, holder, err
	}
	if pod != nil {
		if !asksForGPU(pod) {
			return nil, holder, fmt.Errorf(
				"nothing was changed: pod %s/%s does not request an nvidia.com device: specify another pod, or the node and --gpu",
				pod.Namespace,
				pod.Name,
			)
		}
		holder = gpus.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
		w.summary += " of " + holder.String()
	}
	if !w.layers.isOne() {
		if w.layers.has(layerCUDA) {
			w.summary += " of a pod of " + w.layers.workload
		}
		w.summary += " (" + strings.Join(w.layers.layers, ", ") + ")"
		if w.more, err = w.prepare(ctx, cluster, names, holder); err != nil {
			return nil, holder, fmt.Errorf("nothing was changed: %w", err)
		}
	}
	return names, holder, nil
}

func (w *writing) run(ctx context.Context) error {
	cluster, err := w.connection.Cluster()
	if err != nil {
		return err
	}
	w.layers.nameFeatures(w.connection, cluster.Namespace)
	names, holder, err := w.resolve(ctx, cluster)
	if err != nil {
		return err
	}
	injection := w.injection(cluster, holder)
	s := w.session(ctx, cluster, len(names))
	plan := w.plan(cluster, injection, names)
	w.launch, err = w.Launch(ctx, s, &plan, fleet.Launch{Nodes: names, PerNode: w.deadline(), Streams: w.streams})
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	if w.DryRun == dryrun.Client {
		return w.dry(ctx, cluster, names)
	}
	if done, err := w.Fleet.Earlier(ctx, s); done {
		return err
	}
	if err := s.Preflight(ctx, plan); err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	if w.DryRun == dryrun.Server {
		return w.dry(ctx, cluster, names)
	}
	if err := w.before(ctx, cluster, names); err != nil {
		return err
	}
	if err := w.confirm(ctx, cluster, names); err != nil {
		return err
	}
	if w.launch != nil {
		return kube.Explain(w.launch.Run(ctx))
	}
	return w.Observed(ctx, cluster, w.streams, names, func() (*ledger.Run, func() error, error) {
		run, err := s.Run(ctx, plan)
		return run, func() error { return w.print(run, injection, names) }, err
	})
}

// session returns a session whose timeout is sufficient for the nodes.
func (w *writing) session(ctx context.Context, cluster *kube.Cluster, nodes int) *fault.Session {
	report := progress.New(w.streams.ErrOut)
	s := session.New(ctx, cluster, w.connection, w.Parallel, w.Pods, report)
	s.Timeout, s.CleanupTimeout = time.Duration(fault.Rounds(nodes, w.Parallel))*w.deadline(), w.more.cleanup
	if !w.layers.isOne() { // layers are injected one after another
		s.Timeout = time.Duration(nodes)*w.deadline() + w.more.timeout
	}
	return s
}

func (w *writing) confirm(ctx context.Context, cluster *kube.Cluster, names []string) error {
	question := fmt.Sprintf("Write to the kernel log of %s in context %q?", nodefault.List(names), cluster.Context)
	if !w.layers.isOne() {
		question = fmt.Sprintf("Inject %s into %s in context %q?", w.summary, nodefault.List(names), cluster.Context)
	}
	return confirm.Ask(ctx, w.streams, question, w.Yes)
}

// dry prints the preview of a run: what it would write and create.
func (w *writing) dry(ctx context.Context, cluster *kube.Cluster, names []string) error {
	if err := w.before(ctx, cluster, names); err != nil {
		return err
	}
	w.preview()
	if w.DryRun == dryrun.Server {
		printer.Talk(w.streams.ErrOut,
			"the API server would admit the run's pods; it cannot check their actions on nodes")
	}
	if w.launch != nil {
		return w.launch.DryRun(string(w.DryRun))
	}
	if !w.layers.isOne() && !w.Format.IsTable() {
		return w.printPlan(names)
	}
	if err := w.printPods(names); err != nil || !w.Format.IsTable() {
		return err
	}
	for _, change := range w.more.changes {
		fmt.Fprintf(w.streams.Out, "%s/%s: %s (%s dry run)\n", strings.ToLower(change.Target.Kind), change.Target.Name,
			change.Action, w.DryRun)
	}
	return nil
}

// injection returns the fault that the run injects into the cluster.
func (w *writing) injection(cluster *kube.Cluster, pod gpus.Pod) *kernellog.Injection {
	w.holder = pod
	injection := &kernellog.Injection{
		Start: func(ctx context.Context, run ledger.Run, nodeName string, say func(string)) (kernellog.Pod, error) {
			spec := w.spec(run.ID, nodeName)
			spec.Owner = run.OwnerReference()
			return w.Pods.Start(ctx, cluster, spec, say)
		},
		Compose: func(_ string, info api.Info) ([]kernellog.Record, error) { return w.compose(info, w.holder) },
		Module:  w.throughModule(),
	}
	if pod.UID != "" {
		injection.PodUIDs = []string{pod.UID}
	}
	return injection
}

// asksForGPU reports whether the pod's spec requests an NVIDIA device, as an extended resource or through a claim.
func asksForGPU(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/") {
				return true
			}
		}
	}
	return false
}

// spec returns the spec of a node's debug pod.
func (w *writing) spec(run, nodeName string) debugpod.Spec {
	spec := w.Pods.Spec(run, nodeName, w.connection.LedgerNamespace)
	spec.Deadline = w.deadline()
	if w.builds() {
		spec.Image, spec.Memory = w.module.builder, builderMemory
	}
	return spec
}

// deadline returns the timeout for one node.
func (w *writing) deadline() time.Duration {
	if w.builds() {
		return w.Pods.Timeout + w.lasts + buildTime
	}
	return w.Pods.Timeout + w.lasts
}

func (w *writing) plan(cluster *kube.Cluster, injection *kernellog.Injection, names []string) fault.Plan {
	plan := fault.Plan{
		Fault: "xid", Summary: w.summary, Command: session.CommandLine(os.Args),
		Allow: w.Allow,
		Needs: append(w.Expect.Needs(), Permissions(w.connection.LedgerNamespace)...),
	}
	w.TTL.Apply(&plan)
	plan.InOrder = !w.layers.isOne()
	// The new pods of the workload need a device, and would be rejected while the device plugin is restarting. The
	// restart also ends the device layer.
	plan.UndoTogether = plan.InOrder && !w.more.suppliesDevices
	plan.Changes, plan.Needs = w.more.changes, append(plan.Needs, w.more.needs...)
	plan.Checks = w.more.checks
	for _, name := range names {
		change := injection.Change(ledger.Target{Kind: "Node", Name: name}, w.action)
		plan.Changes = append(plan.Changes, w.more.onItsGPU(change, func(pod gpus.Pod) (fault.Change, error) {
			w.holder, injection.PodUIDs = pod, []string{pod.UID} // layers are injected one after another
			return change, nil
		}))
	}
	plan.Checks = append(plan.Checks,
		func(ctx context.Context) error { return w.Pods.Try(ctx, cluster, w.spec(beforeRun, names[0])) })
	return plan
}

// Permissions returns the permissions to write to a kernel log, in addition to those for every fault.
func Permissions(ledgerNamespace string) []fault.Permission {
	return fault.DebugPodPermissions(ledgerNamespace)
}

// debugPods returns the debug pods that write the lines, and their names in the format of -o name.
func (w *writing) debugPods(names []string) (*corev1.PodList, []string) {
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	var objects []string
	for _, name := range names {
		p := debugpod.Pod(w.spec(beforeRun, name))
		list.Items = append(list.Items, *p)
		objects = append(objects, "pod/"+p.Name)
	}
	return list, objects
}

func (w *writing) printPods(names []string) error {
	list, objects := w.debugPods(names)
	if w.Format.IsTable() {
		for _, o := range objects {
			fmt.Fprintf(w.streams.Out, "%s created (%s dry run)\n", o, w.DryRun)
		}
		return nil
	}
	if len(list.Items) == 1 {
		return w.Format.Object(w.streams.Out, list.Items[0], objects...)
	}
	return w.Format.Object(w.streams.Out, list, objects...)
}
