package xid

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/daemonpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// The layers of one fault, in the order in which they are injected: what can be undone comes first, so that the lines
// in the kernel log, which remain, are written only if all other layers are proven.
const (
	layerCUDA   = "cuda"
	layerNVML   = "nvml"
	layerDevice = "device"
	layerKernel = "kernel"
)

// layerOrder is the order of the layers. The layer device ends when the device plugin restarts, which the layer nvml
// makes it do.
var layerOrder = []string{layerCUDA, layerNVML, layerDevice, layerKernel}

// seen describes who sees a layer, and its limits.
var seen = map[string][2]string{
	layerKernel: {"the detectors above", "the driver itself has no error: nvidia-smi and DCGM see a healthy GPU"},
	layerDevice: {
		"the kubelet: fewer devices are allocatable, and the status of the pod shows it",
		"the device plugin has noticed nothing",
	},
	layerNVML: {
		"the device plugin of the node, or the DaemonSet of --daemonset, by NVML",
		"other programs of the node see a healthy GPU; its pod restarts, and once more when the run is reverted",
	},
	layerCUDA: {
		"the programs of the workload, by CUDA and NVML: those that run and those that start",
		"programs of other pods, and of the node, see a healthy GPU",
	},
}

// layering holds the flags of the layers.
type layering struct {
	layers    []string
	workload  string // TYPE/NAME of the layer cuda
	daemonSet string // NAMESPACE/NAME of the layer nvml
}

func (l layering) has(layer string) bool { return slices.Contains(l.layers, layer) }

// isOne reports whether the kernel log is the only layer, as without the flag.
func (l layering) isOne() bool { return len(l.layers) < 2 }

// validate checks everything that needs no cluster. The selectors are those of the lines.
func (l *layering) validate(o *options) error {
	selectors, pod := o.selectors, o.Nodes.Pod
	var layers []string
	for _, name := range l.layers {
		if name = strings.TrimSpace(name); !slices.Contains(layerOrder, name) {
			return fmt.Errorf("invalid value %q for --layers: supported values: kernel, device, nvml, cuda", name)
		}
		if !slices.Contains(layers, name) {
			layers = append(layers, name)
		}
	}
	l.layers = layers
	switch {
	case !l.has(layerKernel):
		return errors.New("--layers must contain kernel; without it, use `kubectl gpu-fault device unhealthy` and " +
			"`kubectl gpu-fault cuda inject`")
	case l.workload != "" && !l.has(layerCUDA):
		return errors.New("--workload requires --layers kernel,cuda")
	case l.daemonSet != "" && !l.has(layerNVML):
		return errors.New("--daemonset requires --layers kernel,nvml")
	case l.isOne():
		return nil
	case len(selectors) > 1 || selectors[0].Kind != xid.KindXID:
		return errors.New("--layers with more than kernel requires one XID")
	case o.text.MIG != (xid.MIG{}):
		return errors.New("--mig cannot be used with --layers: the other layers are those of whole GPUs")
	case l.has(layerDevice) && o.TTL.TTL == 0:
		return errors.New("--ttl 0 cannot be used with the layer device: the process on the node requires a time at " +
			"which it ends the fault")
	}
	if l.has(layerNVML) {
		if err := l.validateNVML(o); err != nil {
			return err
		}
	}
	switch {
	case !l.has(layerCUDA):
		return nil
	case pod != "":
		return errors.New("--pod cannot be used with the layer cuda, which replaces the pods: specify the node, " +
			"--gpu and --workload TYPE/NAME")
	case l.workload == "":
		return errors.New("the layer cuda requires --workload TYPE/NAME, such as deployment/vllm")
	case len(o.Nodes.Names) > 1:
		return errOneNode
	}
	if _, _, ok := o.gpus.Indexes(); !ok {
		return fmt.Errorf("--gpu %s cannot be used with the layer cuda: specify indexes among the GPUs of the workload's "+
			"pod (0), or all", o.gpu)
	}
	code := selectors[0].Code
	profile, known := cudafault.FindProfile(code)
	if !known {
		return fmt.Errorf("programs see no CUDA error of XID %d that is known (`kubectl gpu-fault cuda profiles` "+
			"shows those that are): leave out the layer cuda", code)
	}
	if profile.None() {
		return fmt.Errorf("programs see nothing of XID %d itself: %s", code, profile.Note)
	}
	return l.load(code, nil, "").Validate()
}

// validateNVML checks what the layer nvml needs.
func (l *layering) validateNVML(o *options) error {
	if l.daemonSet != "" {
		if _, _, err := cuda.ParseDaemonSet(l.daemonSet); err != nil {
			return fmt.Errorf("--daemonset: %w", err)
		}
	}
	code := o.selectors[0].Code
	profile, known := cudafault.FindProfile(code)
	switch {
	case !known || !profile.NVMLEvent && profile.NVML == 0 && profile.NVMLInit == 0:
		return fmt.Errorf("NVML shows nothing of XID %d that is known (`kubectl gpu-fault cuda profiles` shows the XIDs that "+
			"it does): leave out the layer nvml", code)
	}
	return nil
}

// devices returns the indexes of the chosen GPUs of a node in nvidia-smi; among those of a pod, if there is one.
func (w *writing) devices(
	ctx context.Context, cluster *kube.Cluster, r fault.Recorder, node string, holder gpus.Pod,
) (indexes []int, err error) {
	r.Progress("starting the debug pod")
	start := session.StartShortPod[devicehealth.Pod](cluster, w.connection.LedgerNamespace, w.Pods)
	pod, err := start(ctx, r.Run(), node, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	what := api.Inspect{}
	if holder.UID != "" {
		what.PodUIDs = []string{holder.UID}
	}
	info, err := pod.Inspect(ctx, what)
	if err != nil {
		return nil, err
	}
	chosen, err := w.gpus.Pick(*info, holder)
	if err != nil {
		return nil, err
	}
	all, err := gpus.Of(*info)
	if err != nil {
		return nil, err
	}
	for _, g := range chosen {
		index := slices.Index(all, g)
		if index < 0 {
			return nil, fmt.Errorf("the driver of node %s has no GPU %s: leave out the layer nvml", node, g.PCI)
		}
		indexes = append(indexes, index)
	}
	return indexes, nil
}

var errOneNode = errors.New("the layer cuda is for one node: inject the fault into each node with a run of its own")

// ofGPUs returns the fault of an XID in the chosen GPUs of containers that request so many each. A process that has
// other GPUs can still initialise CUDA.
func ofGPUs(code int, chosen gpus.Choices, workload string, each int) (cudafault.Fault, error) {
	fault := cudafault.Fault{XID: code}
	indexes, all, _ := chosen.Indexes()
	switch {
	case each < 0:
		return fault, fmt.Errorf("%s requests no GPU, so no GPU of the node can be the one that fails: use "+
			"`kubectl gpu-fault cuda inject %s --xid %d`, and leave out the layer cuda here", workload, workload, code)
	case all:
		return fault, nil
	case each == 0:
		return fault, fmt.Errorf("the GPUs of %s are requested by several containers, or not as nvidia.com/gpu, so that "+
			"indexes are not known: specify --gpu all, or leave out the layer cuda", workload)
	case slices.Max(indexes) >= each:
		return fault, fmt.Errorf("a pod of %s has %s, with the indexes from 0 to %d: specify --gpu among them", workload,
			count.Of(each, "GPU"), each-1)
	case each > 1:
		fault.Devices = indexes
		if p, _ := cudafault.FindProfile(code); p.New == noDevice {
			fault.PhaseNew = new(int)
		}
	}
	return fault, nil
}

// noDevice is CUDA_ERROR_NO_DEVICE: what a process gets whose only GPU is lost.
const noDevice = 100

func (l layering) load(code int, nodes []string, namespace string) cuda.Load {
	return cuda.Load{
		Namespace: namespace, Name: l.workload, Nodes: nodes, Fault: cudafault.Fault{XID: code},
	}
}

// prepared is what the layers besides the kernel log add to a plan.
type prepared struct {
	changes          []fault.Change
	needs            []fault.Permission
	checks           []func(context.Context) error
	describe         []func(say func(string, ...any))
	timeout, cleanup time.Duration
	// pods returns the pods that the layer cuda is in, when it is in place; nil without that layer.
	pods func(context.Context, ledger.Run) ([]corev1.Pod, error)
	pod  *gpus.Pod // the one whose GPUs all layers are about, once it is known
}

// prepare looks up what the layers change in the cluster.
func (w *writing) prepare(
	ctx context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod,
) (prepared, error) {
	p := prepared{pod: &gpus.Pod{}}
	if w.layers.has(layerCUDA) {
		if len(names) > 1 { // of a selector
			return p, errOneNode
		}
		load := w.layers.load(w.code, names, cluster.Namespace)
		load.GPUs = func(each int) (cudafault.Fault, error) { return ofGPUs(w.code, w.gpus, w.layers.workload, each) }
		l, err := load.Prepare(ctx, w.connection, cluster)
		if err != nil {
			return p, kube.Explain(err)
		}
		p.changes, p.needs = append(p.changes, l.Change), l.Needs
		p.checks, p.describe = append(p.checks, l.Check), append(p.describe, l.Describe)
		p.timeout, p.cleanup, p.pods = l.Timeout, l.CleanupTimeout, l.Pods
		check := l.Check
		p.checks[0] = func(ctx context.Context) error {
			err := check(ctx)
			if errors.Is(err, cudashim.ErrImmutable) {
				return fmt.Errorf("%s cannot be changed while it exists: use `kubectl gpu-fault cuda inject %s --xid %d "+
					"--recreate`, and leave out the layer cuda here", w.layers.workload, w.layers.workload, w.code)
			}
			return err
		}
	}
	p.cleanup = max(p.cleanup, fault.DefaultCleanupTimeout)
	if err := w.prepareNVML(ctx, cluster, names, holder, &p); err != nil {
		return p, kube.Explain(err)
	}
	if !w.layers.has(layerDevice) {
		return p, nil
	}
	for _, name := range names {
		of := func(pod gpus.Pod) (fault.Change, error) {
			return device.Unhealthy{Node: name, GPU: w.gpu, Pod: pod, Pods: w.Pods}.Change(w.connection, cluster)
		}
		change, err := of(holder)
		if err != nil {
			return p, err
		}
		p.changes = append(p.changes, p.onItsGPU(change, of))
		p.timeout, p.cleanup = p.timeout+w.Pods.Timeout, p.cleanup+w.Pods.Timeout
	}
	p.needs = append(p.needs, device.Permissions(w.connection.LedgerNamespace)...)
	return p, nil
}

// prepareNVML adds the layer nvml, if it was asked for.
func (w *writing) prepareNVML(
	ctx context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod, p *prepared,
) error {
	if !w.layers.has(layerNVML) {
		return nil
	}
	for _, name := range names {
		of := holder
		d := &cuda.Daemon{
			Node: name, DaemonSet: w.layers.daemonSet, Pods: w.Pods, Fault: cudafault.Fault{XID: w.code},
			Devices: func(ctx context.Context, r fault.Recorder) ([]int, error) {
				return w.devices(ctx, cluster, r, name, of)
			},
		}
		l, err := d.Prepare(ctx, cluster)
		if err != nil {
			return err
		}
		p.changes = append(p.changes, p.onItsGPU(l.Change, func(pod gpus.Pod) (fault.Change, error) {
			of = pod
			return l.Change, nil
		}))
		p.needs = append(p.needs, l.Needs...)
		p.checks, p.describe = append(p.checks, l.Check), append(p.describe, l.Describe)
		p.timeout, p.cleanup = p.timeout+l.Timeout, p.cleanup+l.CleanupTimeout
	}
	return nil
}

// onItsGPU returns a change to a node that is made to the GPUs of the pod of the layer cuda: which one the workload's
// new pod holds is known only when it runs. Without that layer, it returns the change as it is. All changes are made to
// the GPUs of the same pod, also if the workload's controller has replaced it in the meantime: its kubelet knows them
// as long as the pod exists.
func (p prepared) onItsGPU(change fault.Change, of func(gpus.Pod) (fault.Change, error)) fault.Change {
	if p.pods == nil {
		return change
	}
	change.Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		if p.pod.UID == "" {
			pods, err := p.pods(ctx, r.Run())
			if err != nil {
				return nil, err
			}
			if *p.pod, err = podOn(change.Target.Name, pods); err != nil {
				return nil, err
			}
		}
		actual, err := of(*p.pod)
		if err != nil {
			return nil, err
		}
		return actual.Apply(ctx, r)
	}
	return change
}

// podOn returns the only pod that runs on a node.
func podOn(node string, pods []corev1.Pod) (gpus.Pod, error) {
	var on []gpus.Pod
	ended := ""
	for _, p := range pods {
		switch {
		case p.Spec.NodeName != node || p.DeletionTimestamp != nil:
		case p.Status.Phase == corev1.PodRunning:
			on = append(on, gpus.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)})
		default:
			ended = p.Name
		}
	}
	switch {
	case len(on) == 1:
		return on[0], nil
	case len(on) > 1:
		return gpus.Pod{}, fmt.Errorf("%s of the workload run on node %s, and a fault is one of the GPUs of one: specify a "+
			"node that runs one of them", count.Of(len(on), "pod"), node)
	case ended != "":
		return gpus.Pod{}, fmt.Errorf("pod %s on node %s has ended with the CUDA error, and holds no GPU any more: specify a "+
			"workload whose containers are restarted, or leave out the layer cuda", ended, node)
	}
	return gpus.Pod{}, fmt.Errorf("no pod of the workload runs on node %s: specify one that runs a pod of it, and has a "+
		"free GPU for its rolling update", node)
}

// describeLayers prints who sees each layer, and what is changed.
func (w *writing) describeLayers() {
	table := &printer.Table{Header: []string{"LAYER", "SEEN BY", "LIMITS"}}
	for i := len(layerOrder) - 1; i >= 0; i-- {
		if name := layerOrder[i]; w.layers.has(name) {
			table.Add(name, seen[name][0], seen[name][1])
		}
	}
	_ = table.Write(w.streams.ErrOut)
	for _, describe := range w.more.describe {
		describe(func(format string, args ...any) { printer.Talk(w.streams.ErrOut, format, args...) })
	}
	printer.Talk(w.streams.ErrOut, "")
}

// layer is the proof of one layer on one target, for people and for -o json.
type layer struct {
	Layer    string   `json:"layer"`
	Target   string   `json:"target"`
	State    string   `json:"state"`
	Evidence []string `json:"evidence"`
	Error    string   `json:"error,omitempty"`
}

// layerOf is the layer of each kind of undo that a run can have; kernel for all others.
var layerOf = map[string]string{
	cudashim.UndoKind: layerCUDA, daemonpod.UndoKind: layerNVML, devicehealth.UndoKind: layerDevice,
}

// layersOf returns the layers of a run.
func layersOf(run *ledger.Run) []layer {
	var all []layer
	for _, step := range run.Steps {
		l := layer{
			Layer:  cmp.Or(layerOf[step.Undo.Kind], layerKernel),
			Target: strings.ToLower(step.Target.Kind) + "/" + step.Target.Name,
			State:  string(step.State), Evidence: []string{},
		}
		if step.State == ledger.StateFailed {
			l.Error = step.Message
		}
		for _, e := range step.Evidence {
			l.Evidence = append(l.Evidence, e.Text)
		}
		all = append(all, l)
	}
	return all
}

// layerTable has a row for each piece of evidence.
func layerTable(layers []layer, format printer.Format) *printer.Table {
	table := &printer.Table{Header: []string{"LAYER", "TARGET", "STATE", "EVIDENCE"}, NoHeader: format.NoHeader}
	for _, l := range layers {
		rows := l.Evidence
		if l.Error != "" || len(rows) == 0 {
			rows = append(slices.Clone(rows), l.Error)
		}
		for _, text := range rows {
			table.Add(l.Layer, l.Target, l.State, text)
		}
	}
	return table
}
