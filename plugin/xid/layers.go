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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// The layers of one fault, in the order in which they are injected: what can be undone comes first, so that the lines
// in the kernel log, which remain, are written only if all other layers are proven.
const (
	layerCUDA   = "cuda"
	layerDevice = "device"
	layerKernel = "kernel"
)

// layerOrder is the order of the layers.
var layerOrder = []string{layerCUDA, layerDevice, layerKernel}

// seen says who sees a layer, and what is not true of it.
var seen = map[string][2]string{
	layerKernel: {"the detectors above", "the driver itself has no error: nvidia-smi and DCGM see a healthy GPU"},
	layerDevice: {
		"the kubelet: one device less is allocatable, and the status of the pod that holds it shows it",
		"the device plugin has noticed nothing",
	},
	layerCUDA: {
		"the programs of the workload, by CUDA and NVML: those that run and those that start",
		"programs of other pods, and of the node, see a healthy GPU",
	},
}

// layering holds the flags of the layers.
type layering struct {
	layers   []string
	workload string // TYPE/NAME of the layer cuda
}

func (l layering) has(layer string) bool { return slices.Contains(l.layers, layer) }

// isOne reports whether the kernel log is the only layer, as without the flag.
func (l layering) isOne() bool { return len(l.layers) < 2 }

// validate checks everything that needs no cluster. The selectors are those of the lines.
func (l *layering) validate(selectors []xid.Selector, pod string, endless bool) error {
	var layers []string
	for _, name := range l.layers {
		if name = strings.TrimSpace(name); !slices.Contains(layerOrder, name) {
			return fmt.Errorf("invalid value %q for --layers: supported values: kernel, device, cuda", name)
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
	case l.isOne():
		return nil
	case len(selectors) > 1 || selectors[0].Kind != xid.KindXID:
		return errors.New("--layers with more than kernel requires one XID")
	case l.has(layerDevice) && endless:
		return errors.New("--ttl 0 cannot be used with the layer device: the process on the node requires a time at " +
			"which it ends the fault")
	case !l.has(layerCUDA):
		return nil
	case pod != "":
		return errors.New("--pod cannot be used with the layer cuda, which replaces the pods: specify the node, " +
			"--gpu and --workload TYPE/NAME")
	case l.workload == "":
		return errors.New("the layer cuda requires --workload TYPE/NAME, such as deployment/vllm")
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
}

// prepare looks up what the layers change in the cluster.
func (w *writing) prepare(
	ctx context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod,
) (prepared, error) {
	var p prepared
	if w.layers.has(layerCUDA) {
		l, err := w.layers.load(w.code, names, cluster.Namespace).Prepare(ctx, w.connection, cluster)
		if err != nil {
			return p, kube.Explain(err)
		}
		if !l.OnGPUs {
			return p, fmt.Errorf("%s requests no GPU, so no GPU of the node can be the one that fails: use "+
				"`kubectl gpu-fault cuda inject %s --xid %d`, and leave out the layer cuda here", w.layers.workload,
				w.layers.workload, w.code)
		}
		p.changes, p.needs = append(p.changes, l.Change), l.Needs
		p.checks, p.describe = append(p.checks, l.Check), append(p.describe, l.Describe)
		p.timeout, p.cleanup, p.pods = l.Timeout, l.CleanupTimeout, l.Pods
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
		p.timeout += w.Pods.Timeout
	}
	p.needs = append(p.needs, device.Permissions(w.connection.LedgerNamespace)...)
	return p, nil
}

// onItsGPU returns a change to a node that is made to the GPUs of the pod of the layer cuda: which one the workload's
// new pod holds is known only when it runs. Without that layer, it returns the change as it is.
func (p prepared) onItsGPU(change fault.Change, of func(gpus.Pod) (fault.Change, error)) fault.Change {
	if p.pods == nil {
		return change
	}
	change.Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		pods, err := p.pods(ctx, r.Run())
		if err != nil {
			return nil, err
		}
		node := change.Target.Name
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.NodeName == node && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning
		})
		if i < 0 {
			return nil, fmt.Errorf("no pod of the workload runs on node %s: specify one that runs a pod of it, and "+
				"has a free GPU for its rolling update", node)
		}
		actual, err := of(gpus.Pod{Namespace: pods[i].Namespace, Name: pods[i].Name, UID: string(pods[i].UID)})
		if err != nil {
			return nil, err
		}
		return actual.Apply(ctx, r)
	}
	return change
}

// describeLayers says who sees each layer.
func (w *writing) describeLayers() {
	table := &printer.Table{Header: []string{"LAYER", "SEEN BY", "NOT TRUE OF IT"}}
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
var layerOf = map[string]string{cudashim.UndoKind: layerCUDA, devicehealth.UndoKind: layerDevice}

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
