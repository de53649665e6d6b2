// Package session creates a fault.Session with its ledger, undoers and progress reporting.
package session

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cordon"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/daemonpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/dcgm"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/fixes"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/gpureset"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// Undoers returns the undoer for each kind of undo in a ledger. Every fault must have one, or it cannot be reverted.
// The cluster's detectors are used to describe what cannot be undone. Undoers that need debug pods can only describe
// their work. New returns a session with complete undoers.
func Undoers(detectors func() []xid.Detector) map[string]fault.Undoer {
	return map[string]fault.Undoer{
		containerdconfig.UndoKind: containerdconfig.Undoer{},
		cudashim.UndoKind:         cudashim.Undoer{},
		fixes.UndoKind:            fixes.Undoer{},
		objects.UndoKind:          objects.Undoer{},
		cordon.UndoKind:           cordon.Undoer{},
		exercise.UndoKind:         exercise.Undoer{},
		kernellog.UndoKind:        logUndoer(detectors),

		daemonpod.UndoKind:       daemonpod.Undoer{},
		dcgm.UndoKind:            dcgm.Undoer{},
		gpureset.UndoKind:        gpureset.Undoer{},
		devicehealth.UndoKind:    devicehealth.Undoer{},
		firewall.UndoKind:        firewall.Undoer{},
		kernellog.ModuleUndoKind: kernellog.ModuleUndoer{Log: logUndoer(detectors)},
	}
}

func logUndoer(detectors func() []xid.Detector) kernellog.Undoer {
	return kernellog.Undoer{Forget: func(xids []string) []string { return forget(detectors(), xids) }}
}

// forget describes how to clear each detector that may have seen one of the written XIDs.
func forget(detectors []xid.Detector, xids []string) []string {
	var events []xid.Event
	for _, text := range xids {
		selector, err := xid.ParseSelector(text)
		if err != nil {
			continue // a companion line, which detectors ignore
		}
		event, err := selector.Event(xid.Options{})
		if err != nil {
			event = xid.Event{Kind: selector.Kind, Code: selector.Code, Body: "-"} // a user-defined code
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

// New returns a session on the cluster that shows its progress through report. Undoers start debug pods only with the
// settings in pods, and never with settings from records, which are untrusted.
func New(
	ctx context.Context, cluster *kube.Cluster, connection *kube.Connection, parallel int, pods podflags.Flags,
	report *progress.Reporter,
) *fault.Session {
	ledgerNamespace := connection.LedgerNamespace
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// Determine the detectors once for all steps of a run, because listing all nodes for each step would be expensive.
	detectors := sync.OnceValue(func() []xid.Detector { return xid.DetectorsOn(cluster.Providers(ctx, nil)) })
	undoers := Undoers(detectors)
	onStep := func(step ledger.Step, text string) { report.Step(step.Target.Name, text) }
	onNode := fault.OnNode{Progress: onStep}
	undoers[kernellog.ModuleUndoKind] = kernellog.ModuleUndoer{
		Log:      logUndoer(detectors),
		Start:    StartShortPod[kernellog.Pod](cluster, ledgerNamespace, pods),
		Progress: onStep,
	}
	undoers[containerdconfig.UndoKind] = containerdconfig.Undoer{
		Start:    unowned(StartPod(cluster, ledgerNamespace, pods)),
		Image:    pods.Image,
		Deadline: sync.OnceValue(func() time.Time { return time.Now().Add(containerdconfig.MostWait) }),
		OnNode:   onNode,
		Show:     report.Note,
	}
	undoers[firewall.UndoKind] = firewall.Undoer{
		Start:  StartShortPod[firewall.Pod](cluster, ledgerNamespace, pods),
		OnNode: onNode,
	}
	undoers[devicehealth.UndoKind] = devicehealth.Undoer{
		Client: cluster.Client, Start: StartShortPod[devicehealth.Pod](cluster, ledgerNamespace, pods),
		OnNode: onNode,
	}
	undoers[dcgm.UndoKind] = dcgm.Undoer{
		Engine: dcgm.Engine{Client: cluster.Client, Execer: debugpod.NewExecer(cluster.Config)},
	}
	undoers[daemonpod.UndoKind] = daemonpod.Undoer{
		Client: cluster.Client, Timeout: pods.Timeout, Progress: onStep,
	}
	undoers[cudashim.UndoKind] = cudashim.Undoer{
		Cluster: workloads(cluster), LedgerNamespace: ledgerNamespace,
		Progress: onStep,
	}
	undoers[fixes.UndoKind] = fixes.Undoer{Client: cluster.Client}
	undoers[cordon.UndoKind] = cordon.Undoer{Client: cluster.Client}
	undoers[objects.UndoKind] = objects.Undoer{
		Dynamic: dynamicClient(cluster), LedgerNamespace: ledgerNamespace,
		Progress: onStep,
	}
	return &fault.Session{
		Client:   cluster.Client,
		Ledger:   ledger.New(cluster.Client, ledgerNamespace),
		Features: connection.Features,
		Undoers:  undoers,
		Parallel: parallel,
		From:     host,
		Version:  build.Get().Version,
		Observer: fault.Observer{
			StepChanged: func(run ledger.Run, step ledger.Step) { stepChanged(report, run, step) },
			Progress:    onStep,
			Warning:     func(text string) { report.Note("Warning: " + text) },
		},
	}
}

// workloads returns a client that restores workloads. It needs no mapper because records contain resource names.
func workloads(cluster *kube.Cluster) *cudashim.Cluster {
	client := dynamicClient(cluster)
	if client == nil {
		return nil
	}
	return &cudashim.Cluster{Client: cluster.Client, Dynamic: client}
}

func dynamicClient(cluster *kube.Cluster) dynamic.Interface {
	client, err := dynamic.NewForConfig(cluster.Config)
	if err != nil { // cannot happen, because the configuration already works for the other client
		return nil
	}
	return client
}

// StartPod returns a function that starts debug pods for faults that change files.
func StartPod(cluster *kube.Cluster, ledgerNamespace string, pods podflags.Flags) containerdconfig.Start {
	return func(
		ctx context.Context, run ledger.Run, nodeName string, lives time.Duration, progress func(string),
	) (containerdconfig.Pod, error) {
		return startPod(ctx, cluster, ledgerNamespace, pods, run, nodeName, lives, progress)
	}
}

// The interfaces of debug pods for faults that outlive these pods.
var (
	_ devicehealth.Pod = (*debugpod.Session)(nil)
	_ firewall.Pod     = (*debugpod.Session)(nil)
	_ gpureset.Pod     = (*debugpod.Session)(nil)
	_ kernellog.Pod    = (*debugpod.Session)(nil)
)

// StartShortPod returns a function that starts debug pods for faults that outlive these pods. The debug pods implement
// P, which is one of the interfaces above.
func StartShortPod[P any](
	cluster *kube.Cluster, ledgerNamespace string, pods podflags.Flags,
) func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (P, error) {
	return func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (pod P, err error) {
		run.Owner = nil // see unowned
		session, err := startPod(ctx, cluster, ledgerNamespace, pods, run, nodeName, shortPodLives, progress)
		if err != nil {
			return pod, err
		}
		return any(session).(P), nil
	}
}

// shortPodLives is the deadline of debug pods that perform a single action, such as adding a firewall or failing
// devices.
const shortPodLives = 5 * time.Minute

func startPod(
	ctx context.Context, cluster *kube.Cluster, ledgerNamespace string, pods podflags.Flags,
	run ledger.Run, nodeName string, lives time.Duration, progress func(string),
) (*debugpod.Session, error) {
	spec := pods.Spec(run.ID, nodeName, ledgerNamespace)
	spec.Deadline, spec.Stays, spec.Owner = lives, lives == 0, run.OwnerReference()
	return pods.Start(ctx, cluster, spec, progress)
}

// unowned returns a start function for pods without an owner. After a run has expired, its Job no longer exists, and
// the garbage collector would immediately delete pods that the Job owns.
func unowned(start containerdconfig.Start) containerdconfig.Start {
	return func(
		ctx context.Context, run ledger.Run, nodeName string, lives time.Duration, progress func(string),
	) (containerdconfig.Pod, error) {
		run.Owner = nil
		return start(ctx, run, nodeName, lives, progress)
	}
}

func stepChanged(report *progress.Reporter, run ledger.Run, step ledger.Step) {
	said := string(step.State)
	if run.InOrder { // several steps on the same target
		said = step.Action + ": " + said
	}
	switch step.State {
	case ledger.StatePlanned, ledger.StateApplying, ledger.StateApplied:
		return // progress messages contain more details
	case ledger.StateReverted, ledger.StateSuperseded, ledger.StatePermanent:
		report.Step(run.ID+" "+step.Target.Name, said) // several runs may have steps on the same node
	default:
		report.Step(step.Target.Name, said)
	}
}

// secret is the flag whose value must not be in a record, because other users can read records.
const secret = "--token"

// CommandLine returns the user's command line without credentials, for use in the record.
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

// withoutUserinfo removes the user and password from a URL, or from a flag such as --server=https://name:password@host.
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
