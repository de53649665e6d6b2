package xid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/realxid"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// realFlags are the flags for XIDs that the driver itself reports.
type realFlags struct {
	on           bool
	image        string
	runtimeClass string
}

func (f *realFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "real", f.on,
		"Make the driver itself report XID 13, 31 or 43: a pod requests a GPU on the node, and its program causes an error on the GPU. NVML and DCGM also see the XID")
	flags.StringVar(&f.image, "real-image", f.image,
		"For --real: image of the pod that runs the program; requires only glibc, with libdl, libm, libpthread and librt (default: Debian pinned by digest)")
	flags.Lookup("real-image").DefValue = "" // a digest is too long to show on a terminal
	flags.StringVar(&f.runtimeClass, "runtime-class", f.runtimeClass,
		"For --real: RuntimeClass of the pod that runs the program, if pods that use GPUs require one (nvidia)")
}

// writtenOnly are the flags that describe a line or how it is written. They do not apply with --real, because the
// driver writes the line.
var writtenOnly = []string{
	"message", "via", "form", "driver", "count", "interval", "cascade", "process", "mig", "switch", "link", "seed",
	"layers", "workload", "gpu", "pod", "in-cluster", "ko", "kmod-headers",
}

// realXID carries out `xid CODE NODE --real`.
type realXID struct {
	inject
	real       realFlags
	code       int
	event      xid.Event
	connection *kube.Connection
	streams    genericiooptions.IOStreams
	cluster    *kube.Cluster
	nodes      []string
	injection  *realxid.Injection
}

// checkReal returns an error if a flag has no effect with --real.
func (f *flags) checkReal(cmd *cobra.Command) error {
	for _, name := range writtenOnly {
		if f.real.on && cmd.Flags().Changed(name) {
			why := "the driver writes the line"
			switch name {
			case "gpu", "pod":
				why = "the device plugin allocates a free GPU on the node"
			case "in-cluster":
				why = "the command itself creates the pods"
			}
			return fmt.Errorf("--%s cannot be used with --real: %s", name, why)
		}
	}
	return nil
}

// toReal checks everything that does not require a cluster.
func (f *flags) toReal(args []string) (*realXID, error) {
	f.Nodes.Names = args[1:]
	if err := f.inject.validate(); err != nil {
		return nil, err
	}
	selector, err := xid.ParseSelector(args[0])
	if err != nil && !strings.Contains(args[0], ",") {
		return nil, swapped(err, args)
	}
	if err != nil || selector.Kind != xid.KindXID || !slices.Contains(realxid.Codes(), selector.Code) {
		return nil, fmt.Errorf("--real does not support %s, only XIDs 13, 31 and 43, which a program can cause "+
			"without affecting other programs: omit --real to write the lines of any XID to the kernel log", args[0])
	}
	if f.real.image == "" {
		return nil, errors.New("--real-image must not be empty: specify an image with glibc")
	}
	event, err := selector.Event(xid.Options{})
	return &realXID{inject: f.inject, real: f.real, code: selector.Code, event: event}, err
}

// RealPermissions returns the permissions that --real needs in addition to Permissions, if the pods of the programs are
// in the given namespace.
func RealPermissions(namespace string) []fault.Permission {
	all := []fault.Permission{{Verb: "list", Resource: "pods"}} // to find free GPUs
	for _, verb := range []string{"create", "get", "delete"} {
		for _, resource := range []string{"pods", "configmaps"} {
			all = append(all, fault.Permission{Verb: verb, Resource: resource, Namespace: namespace})
		}
	}
	return all
}

func (x *realXID) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	x.connection, x.streams = connection, streams
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	x.cluster = cluster
	connection.Features = append(connection.Features, "real-xid")
	connection.RoleFlags = []string{"-n", cluster.Namespace}
	return x.Run(ctx, connection, streams, nodefault.Fault{
		Name: "xid", Summary: fmt.Sprintf("XID %d reported by the driver", x.code),
		Result:   fmt.Sprintf("XID %d reported by the driver", x.code),
		Question: "Cause an error on a GPU of",
		Describe: func(say func(string, ...any)) { x.describe(ctx, say) },
		Needs:    append(Permissions(connection.LedgerNamespace), RealPermissions(cluster.Namespace)...),
		Changes:  x.changes,
		Print:    x.print,
	})
}

// changes returns a change for each node, after all checks that concern the GPUs.
func (x *realXID) changes(
	ctx context.Context, cluster *kube.Cluster, nodes []string, _ *corev1.Pod,
) ([]fault.Change, error) {
	client, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, err
	}
	mapper, err := x.connection.ToRESTMapper()
	if err != nil {
		return nil, kube.Explain(err)
	}
	x.nodes = nodes
	x.injection = &realxid.Injection{
		Client: cluster.Client,
		Start: func(
			ctx context.Context, run ledger.Run, nodeName string, say func(string),
		) (realxid.Pod, error) {
			spec := x.Pods.Spec(run.ID, nodeName, x.connection.LedgerNamespace)
			spec.Owner = run.OwnerReference()
			return x.Pods.Start(ctx, cluster, spec, say)
		},
		Waiting: waiting,
		Undo:    objects.Undoer{Dynamic: client, LedgerNamespace: x.connection.LedgerNamespace},
		Remains: remains,
	}
	var changes []fault.Change
	for _, name := range nodes {
		change, err := x.change(ctx, client, mapper, name)
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", name, kube.Explain(err))
		}
		changes = append(changes, change)
	}
	return changes, nil
}

func (x *realXID) change(
	ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, name string,
) (change fault.Change, _ error) {
	node, err := checkGPUs(ctx, x.cluster.Client, name)
	if err != nil {
		return change, err
	}
	program, err := cudafault.CrashProgram(node.Status.NodeInfo.Architecture)
	if err != nil {
		return change, err
	}
	spec := realxid.Spec{
		XID: x.code, Node: name, Namespace: x.cluster.Namespace, Image: x.real.image,
		Pull: corev1.PullPolicy(x.Pods.Pull), RuntimeClass: x.real.runtimeClass, Program: program,
		Deadline: x.Pods.Timeout,
	}
	manifests, err := spec.Manifests()
	if err != nil {
		return change, err
	}
	creation := &objects.Creation{
		Dynamic: client, Mapper: mapper, Objects: manifests, Target: ledger.Target{Kind: "Node", Name: name},
		LedgerNamespace: x.connection.LedgerNamespace, MarksOnly: true,
	}
	// Ignore missing permissions here, because the preflight reports all of them at once.
	if err := creation.Check(ctx); err != nil && !apierrors.IsForbidden(err) {
		return change, err
	}
	return x.injection.Change(spec, creation.Change("make the driver report XID "+fmt.Sprint(x.code))), nil
}

// waiting returns the reason why the pod of a program is waiting. The hints in the returned error apply to this pod,
// not to a debug pod.
func waiting(pod *corev1.Pod) (string, error) {
	text, err := debugpod.WhyWaiting(pod, realxid.Container)
	var failed *debugpod.StartError
	if !errors.As(err, &failed) {
		return text, err
	}
	return "", fmt.Errorf("%s: %s; if the image is the cause, specify another image with --real-image", failed.Reason, failed.Message)
}

// remains turns a step into one that only wrote to a kernel log, because the lines are all that remains.
func remains(step *ledger.Step, result realxid.Result) {
	detail := kernellog.Detail{
		GPUs: []string{result.PCI.String()}, XIDs: []string{fmt.Sprint(result.XID)}, Count: 1, Records: []string{},
	}
	if result.Line != nil {
		detail.Records = append(detail.Records, result.Line.Text)
	}
	step.Undo = ledger.Undo{Kind: kernellog.UndoKind, Permanent: true}
	step.Detail, _ = json.Marshal(detail) // cannot fail for strings and numbers
}

func (x *realXID) describe(ctx context.Context, say func(string, ...any)) {
	image := ""
	if x.real.image != realxid.DefaultImage {
		image = fmt.Sprintf(" with image %q", x.real.image)
	}
	say("How: a pod in namespace %q%s requests one GPU on the node, and its program causes an error on the GPU; the driver reports the XID. "+
		"A privileged pod in namespace %q%s reads the kernel log.", x.cluster.Namespace, image, x.connection.LedgerNamespace, x.Pods.OtherImage())
	say("Harm: only the program's CUDA context is lost.")
	say("Undo: the pods and the program's ConfigMap are deleted immediately, or by `kubectl gpu-fault revert` if this command is killed. " +
		"The driver's log line cannot be removed; `kubectl gpu-fault revert` shows how to clear the XID from each " +
		"detector.")
	say("")
	detectors := xid.DetectorsOn(x.cluster.Providers(ctx, x.nodes))
	seen, _, reboots := verdicts(detectors, []xid.Event{x.event}, xid.FormModule)
	_ = seen.Write(x.streams.ErrOut)
	say("NVML also reports the XID to DCGM, to dcgm-exporter and to NVIDIA's device plugin, which ignores 13, 31 and 43 by default.")
	if len(reboots) > 0 {
		say("%s", mayReboot(reboots))
	}
}

// print prints what the driver and CUDA reported, in the same format as for written lines.
func (x *realXID) print(run *ledger.Run) error {
	out := newInjection(run)
	lines := 0
	for _, name := range x.nodes {
		node := written{Node: name, Error: failure(run, name), Records: []record{}}
		result, ok := x.injection.Result(name)
		if ok {
			node.CUDA = &cudaError{Code: result.Error, Name: cudafault.ErrorName(result.Error), GPU: string(result.GPU)}
		}
		if ok && result.Line != nil {
			lines++
			node.Records = append(node.Records, record{
				XID: fmt.Sprint(result.XID), GPU: result.PCI.String(), Sequence: result.Line.Sequence,
				Time: result.Line.Time, Priority: result.Line.Priority, Text: result.Line.Text,
			})
		}
		out.Nodes = append(out.Nodes, node)
	}
	if !x.Format.IsTable() {
		return x.Format.Object(x.streams.Out, out, "run/"+out.ID)
	}
	if lines > 0 {
		if err := out.table(x.Format).Write(x.streams.Out); err != nil {
			return err
		}
	}
	proven := 0
	for _, name := range x.nodes {
		if result, ok := x.injection.Result(name); ok {
			proven++
			text := fmt.Sprintf("%s: CUDA reported %s on %s", name, result.CUDA(), result.GPU)
			if result.Line == nil {
				text += "; this is the only evidence of the XID, because the kernel log could not be read: " +
					"" + result.Unread
			}
			printer.Talk(x.streams.ErrOut, "%s", text)
		}
	}
	if proven > 0 {
		printer.Talk(x.streams.ErrOut, "XID %d reported by the driver on %s; close the run with: %s", x.code,
			count.Of(proven, "node"), ledger.New(nil, x.connection.LedgerNamespace).Command("revert", out.ID))
	}
	return nil
}
