package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// longestWait is the maximum duration of a wait step.
const longestWait = 24 * time.Hour

// commands returns the command lines that inject a fault on the targets, one for each layer.
func (i Inject) commands(ctx context.Context, t Target, targets []string, run string) ([][]string, error) {
	if len(i.Command) > 0 {
		if t.PodsOf == "" && strings.Contains(strings.Join(i.Command, " "), "${target.podsOf}") {
			return nil, errors.New("this experiment requires a workload: specify podsOf in the target, or --pods-of TYPE/NAME")
		}
		words := make([]any, len(i.Command))
		for n, word := range i.Command {
			words[n] = word
		}
		resolved, err := expr.InterpolateContext(ctx, words, expr.Vars{
			"target": map[string]any{"node": first(targets), "podsOf": t.PodsOf, "namespace": t.Namespace}, "run": run,
		})
		if err != nil {
			return nil, fmt.Errorf("command: %w", err)
		}
		var line []string
		for _, word := range resolved.([]any) {
			line = append(line, fmt.Sprint(word))
		}
		return [][]string{line}, nil
	}
	var gpu []string
	if i.GPU != nil {
		gpu = []string{"--gpu", fmt.Sprint(i.GPU)}
	}
	namespace := []string{}
	if t.Namespace != "" {
		namespace = []string{"--namespace", t.Namespace}
	}
	workload := i.CUDA
	if workload == "" {
		workload = t.PodsOf
	}
	if workload == "" && slices.Contains(i.Layers, LayerCUDA) {
		return nil, errors.New("the cuda layer requires a workload: set the field cuda, or podsOf in the target " +
			"(--pods-of)")
	}
	kernel := slices.Concat([]string{"xid", fmt.Sprint(i.XID)}, targets, gpu)
	device := slices.Concat([]string{"device", "unhealthy"}, targets, gpu)
	cuda := slices.Concat([]string{"cuda", "inject", workload}, namespace)
	var all [][]string
	switch {
	case i.Device != "":
		all = append(all, device)
	case i.Runtime != "":
		all = append(all, slices.Concat([]string{"runtime", "break"}, targets, []string{"--mode", i.Runtime}))
	case i.Network != "":
		network := slices.Concat([]string{"network", i.Network}, targets)
		if t.PodsOf != "" {
			network = slices.Concat(network, []string{"--workload", t.PodsOf}, namespace)
		}
		all = append(all, network)
	case i.CUDA != "" && len(i.Layers) == 0:
		if i.XID != nil {
			cuda = append(cuda, "--xid", fmt.Sprint(i.XID))
		}
		all = append(all, cuda)
	case len(i.Layers) == 0:
		all = append(all, kernel)
	}
	for _, layer := range i.Layers {
		switch layer {
		case LayerKernel:
			if more := i.withKernel(); more != nil { // flags such as --daemonset apply to the first command
				all = append([][]string{slices.Concat(kernel, more)}, all...)
				continue
			}
			all = append(all, kernel)
		case LayerDevice:
			if i.withKernel() == nil {
				all = append(all, device)
			}
		case LayerCUDA:
			all = append(all, append(slices.Clone(cuda), "--xid", fmt.Sprint(i.XID)))
		}
	}
	// Additional flags apply only to the first command. The other commands get only the flags that the layers share.
	all[0] = append(all[0], flags(i.Flags)...)
	return all, nil
}

// withKernel returns the --layers flag of the kernel log command if this command also injects the layers nvml and dcgm,
// which have no command of their own. It then also injects the device layer, if the fault includes this layer, because
// its run already locks the node. Otherwise, withKernel returns nil.
func (i *Inject) withKernel() []string {
	layers := LayerKernel
	for _, layer := range i.Layers {
		if layer == LayerNVML || layer == LayerDCGM {
			layers += "," + layer
		}
	}
	if layers == LayerKernel {
		return nil
	}
	if slices.Contains(i.Layers, LayerDevice) {
		layers += "," + LayerDevice
	}
	return []string{"--layers", layers}
}

// IsPreparation reports whether a command only prepares a fault, which a later `cuda arm` starts.
func IsPreparation(line []string) bool {
	return slices.Contains(line, "--disarmed") || slices.Contains(line, "--disarmed=true")
}

func flags(given map[string]any) []string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		switch value := given[name].(type) {
		case []any:
			var parts []string
			for _, v := range value {
				parts = append(parts, fmt.Sprint(v))
			}
			words = append(words, "--"+name+"="+strings.Join(parts, ","))
		default:
			words = append(words, "--"+name+"="+fmt.Sprint(value))
		}
	}
	return words
}
