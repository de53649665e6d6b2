package xid

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/daemonpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/dcgm"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// The layers of one fault, in the order in which they are injected. Layers that can be undone come first, so that the
// lines in the kernel log, which remain, are written only if all other layers have been verified.
const (
	layerCUDA   = "cuda"
	layerDCGM   = "dcgm"
	layerNVML   = "nvml"
	layerDevice = "device"
	layerKernel = "kernel"
)

// layerOrder is the order of the layers. The nvml layer comes before the device layer, because it restarts the device
// plugin, which ends the device layer.
var layerOrder = []string{layerCUDA, layerNVML, layerDevice, layerDCGM, layerKernel}

// seen describes which readers see a layer, and the layer's limits.
var seen = map[string][2]string{
	layerKernel: {"the detectors above", "the driver itself reports no error, so nvidia-smi and DCGM see a healthy " +
		"GPU"},
	layerDevice: {
		"the kubelet: fewer devices are allocatable, and the pod's status shows the unhealthy device",
		"the device plugin does not notice the fault",
	},
	layerNVML: {
		"the node's device plugin, or the DaemonSet specified by --daemonset, through NVML",
		"other programs on the node see a healthy GPU; the pod restarts now, and again when the run is reverted",
	},
	layerDCGM: {
		"readers of DCGM's host engine on the node: dcgm-exporter if connected to it, health watches, policies",
		"no other reader; DCGM's metrics and health may not recover after the revert. Not yet tested with DCGM itself",
	},
	layerCUDA: {
		"the programs in the workload, through CUDA and NVML, both running and new ones",
		"programs in other pods and on the node see a healthy GPU",
	},
}

// layering holds the flags of the layers.
type layering struct {
	layers    []string
	workload  string // TYPE/NAME for the cuda layer
	daemonSet string // NAMESPACE/NAME for the nvml layer
}

func (l layering) has(layer string) bool { return slices.Contains(l.layers, layer) }

// isOne reports whether the kernel log is the only layer, which is the default.
func (l layering) isOne() bool { return len(l.layers) < 2 }

// completeLayers completes a list of layers. The list begins with kernel, because the other layers are rejected without
// it.
func completeLayers(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const noSpace = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	chosen := strings.Split(prefix, ",")
	last := chosen[len(chosen)-1]
	var words []cobra.Completion
	if chosen = chosen[:len(chosen)-1]; len(chosen) == 0 {
		if !strings.HasPrefix(layerKernel, last) {
			return nil, noSpace
		}
		words, chosen, last = append(words, layerKernel), []string{layerKernel}, ""
	}
	for _, layer := range layerOrder {
		if strings.HasPrefix(layer, last) && !slices.Contains(chosen, layer) {
			word := strings.Join(append(slices.Clone(chosen), layer), ",")
			words = append(words, cobra.CompletionWithDesc(word, seen[layer][0]))
		}
	}
	return words, noSpace
}

// nameFeatures adds the roles for the layers to the advice for users who lack permissions.
func (l layering) nameFeatures(connection *kube.Connection, namespace string) {
	if l.has(layerNVML) || l.has(layerDCGM) {
		connection.Features = append(connection.Features, "nvml")
	}
	if l.has(layerCUDA) {
		connection.Features = append(connection.Features, "cuda")
		connection.RoleFlags = []string{"-n", namespace}
	}
}

// validate checks everything that does not require a cluster.
func (l *layering) validate(o *options) error {
	selectors, pod := o.selectors, o.Nodes.Pod
	var layers []string
	for _, name := range l.layers {
		if name = strings.TrimSpace(name); !slices.Contains(layerOrder, name) {
			return fmt.Errorf("invalid value %q for --layers: supported values: kernel, device, nvml, dcgm, cuda", name)
		}
		if !slices.Contains(layers, name) {
			layers = append(layers, name)
		}
	}
	l.layers = layers
	switch {
	case !l.has(layerKernel):
		return errors.New("--layers must contain kernel; without the kernel layer, use `kubectl gpu-fault device " +
			"unhealthy` and `kubectl gpu-fault cuda inject`")
	case l.workload != "" && !l.has(layerCUDA):
		return errors.New("--workload requires --layers kernel,cuda")
	case l.daemonSet != "" && !l.has(layerNVML):
		return errors.New("--daemonset requires --layers kernel,nvml")
	case l.isOne():
		return nil
	case len(selectors) > 1 || selectors[0].Kind != xid.KindXID:
		return errors.New("--layers with a layer other than kernel requires exactly one XID")
	case o.text.MIG != (xid.MIG{}):
		return errors.New("--mig cannot be used with --layers: the other layers affect whole GPUs")
	case l.has(layerDevice) && o.TTL.TTL == 0:
		return errors.New("--ttl 0 cannot be used with the device layer: the process on the node must know when to " +
			"end the fault")
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
		return errors.New("--pod cannot be used with the cuda layer, which replaces the pods: specify the node, " +
			"--gpu and --workload TYPE/NAME")
	case l.workload == "":
		return errors.New("the cuda layer requires --workload TYPE/NAME, such as deployment/vllm")
	case len(o.Nodes.Names) > 1:
		return errOneNode
	}
	if _, _, ok := o.gpus.Indexes(); !ok {
		return fmt.Errorf("--gpu %s cannot be used with the cuda layer: specify indexes among the GPUs of the workload's "+
			"pod (0), or all", o.gpu)
	}
	code := selectors[0].Code
	profile, known := cudafault.FindProfile(code)
	if !known {
		return fmt.Errorf("no CUDA error is known for XID %d (`kubectl gpu-fault cuda profiles` "+
			"lists the known errors): omit the cuda layer", code)
	}
	if profile.None() {
		return fmt.Errorf("programs do not see XID %d: %s", code, profile.Note)
	}
	return l.load(code, nil, "").Validate()
}

// validateNVML validates the flags for the nvml layer.
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
		return fmt.Errorf("NVML has no known reaction to XID %d (`kubectl gpu-fault cuda profiles` lists the XIDs to which "+
			"NVML reacts): omit the nvml layer", code)
	}
	return nil
}

var errOneNode = errors.New("the cuda layer supports only one node: use a separate run for each node")

// ofGPUs returns the fault that an XID causes on the chosen GPUs, in containers that each request the given number of
// GPUs. A process that also has other GPUs can still initialize CUDA.
func ofGPUs(code int, chosen gpus.Choices, workload string, each int) (cudafault.Fault, error) {
	fault := cudafault.Fault{XID: code}
	indexes, all, _ := chosen.Indexes()
	switch {
	case each < 0:
		return fault, fmt.Errorf("%s does not request a GPU, so the failing GPU cannot be determined: use "+
			"`kubectl gpu-fault cuda inject %s --xid %d`, and omit the cuda layer here", workload, workload, code)
	case all:
		return fault, nil
	case each == 0:
		return fault, fmt.Errorf("the GPUs of %s are requested by several containers, or not as nvidia.com/gpu, so "+
			"their indexes are not known: specify --gpu all, or omit the cuda layer", workload)
	case slices.Max(indexes) >= each:
		return fault, fmt.Errorf("a pod of %s has %s, with indexes from 0 to %d: specify one of these with --gpu", workload,
			count.Of(each, "GPU"), each-1)
	case each > 1:
		fault.Devices = indexes
		if p, _ := cudafault.FindProfile(code); p.New == noDevice {
			fault.PhaseNew = new(int)
		}
	}
	return fault, nil
}

// noDevice is CUDA_ERROR_NO_DEVICE, which a process gets if its only GPU is lost.
const noDevice = 100

func (l layering) load(code int, nodes []string, namespace string) cuda.Load {
	return cuda.Load{
		Namespace: namespace, Name: l.workload, Nodes: nodes, Fault: cudafault.Fault{XID: code},
	}
}

// describeLayers prints which readers see each layer, and what is changed.
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

// layer is the evidence for one layer on one target, for tables and for -o json.
type layer struct {
	Layer    string   `json:"layer"`
	Target   string   `json:"target"`
	State    string   `json:"state"`
	Evidence []string `json:"evidence"`
	Error    string   `json:"error,omitempty"`
}

// layerOf maps kinds of undo to their layers. All other kinds belong to the kernel layer.
var layerOf = map[string]string{
	cudashim.UndoKind: layerCUDA, daemonpod.UndoKind: layerNVML, devicehealth.UndoKind: layerDevice,
	dcgm.UndoKind: layerDCGM,
}

// plannedLayer is a change shown in a dry run with several layers.
type plannedLayer struct {
	Layer  string `json:"layer"`
	Target string `json:"target"`
	Action string `json:"action"`
}

// printPlan prints what a run with several layers would change, in order, and the debug pods for the kernel log.
func (w *writing) printPlan(names []string) error {
	pods, objects := w.debugPods(names)
	var layers []plannedLayer
	add := func(layer string, target ledger.Target, action string) {
		layers = append(layers, plannedLayer{layer, strings.ToLower(target.Kind) + "/" + target.Name, action})
	}
	for _, c := range w.more.changes {
		add(layerOf[c.Undo.Kind], c.Target, c.Action)
	}
	for _, name := range names {
		add(layerKernel, ledger.Target{Kind: "Node", Name: name}, w.action)
	}
	return w.Format.Object(w.streams.Out, map[string]any{
		"apiVersion": ledger.APIVersion, "kind": "Plan", "summary": w.summary, "dryRun": w.DryRun,
		"layers": layers, "pods": pods.Items,
	}, objects...)
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

// layerTable returns a table with a row for each piece of evidence.
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
