package finding

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// InjectedFault is the ID of the finding about an open run with an active fault.
const InjectedFault = "fault.injected"

// These are the names of faults in the ledger. A runtime fault with a known mode also has a longer name, such as
// "runtime missing-handler".
const (
	AsXID = "xid"

	AsHarmlessXID = "xid harmless"
	AsRuntime     = "runtime"
	asCUDA        = "cuda"
	AsScenario    = "scenario"
)

// InjectedEffects returns the IDs of findings that each kind of fault causes directly. These findings in turn explain
// the indirect effects, so that an unrelated problem with the same object remains a root cause.
func InjectedEffects() map[string][]string {
	// Without its configuration, or during its restart, a runtime starts no pods, and its node is not Ready.
	runtime := []string{
		"rt.sandbox-failed", "rt.not-ready", "rt.restart-loop", "rt.edited-not-restarted", "rt.config-not-loaded",
		"node.not-ready", "node.condition",
	}
	effects := map[string][]string{
		// These findings are about the line itself, and about reactions of detectors and remediators: a condition, a
		// cordon, a reboot.
		AsXID: {"hw.*", "drv.gsp", "node.condition", "sched.node-state", "node.not-ready"},
		// If no detector acts on the XID, the node is neither cordoned nor lost.
		AsHarmlessXID: {"hw.*", "drv.gsp", "node.condition"},
		// In a pod that loads the library, CUDA calls fail, so the pod fails, hangs or falls back to the CPU.
		asCUDA: {
			"wl.pod-failing", "wl.cuda-error", "wl.cuda-oom", "wl.cuda-vs-driver", "wl.cuda-preload", "wl.cpu-mode",
			"wl.probe-failing", "wl.idle-holder",
		},
		// An exercise has its own namespaces, so it also explains self-evident findings in these namespaces.
		AsScenario: append([]string{"*"}, ProvenByItself()...),
		AsRuntime:  runtime,
	}
	for _, mode := range containerd.Modes() {
		effects[AsRuntime] = append(effects[AsRuntime], mode.Root)
		of := append(slices.Clone(runtime), mode.Root)
		if mode.NodeLoss || mode.Mode == containerd.ModeWrongInstance {
			of = append(of, "rt.handler-missing", "rt.default-missing", "rt.cri-disabled", "rt.unparsable")
		}
		effects[RuntimeAs(mode.Mode)] = of
	}
	effects[AsRuntime] = append(effects[AsRuntime], "rt.cri-disabled")
	return effects
}

// RuntimeAs returns the name of a runtime fault with the given mode.
func RuntimeAs(mode containerd.Mode) string { return AsRuntime + " " + string(mode) }

// labEffects returns the IDs of findings that are directly caused by an exercise's steps on nodes: lines in kernel
// logs, broken runtimes, firewalls, taints and labels.
func labEffects() []string {
	all := InjectedEffects()
	return slices.Concat(all[AsXID], all[AsRuntime], []string{"net.*", "sched.*", "gfd.labels", "nfd.labels"})
}

// IsOfGPU reports whether a finding is about GPUs or their driver, which kernel log lines can affect.
func IsOfGPU(f Finding) bool { return f.Layer == LayerHardware || f.Layer == LayerDriver || f.OfGPU }
