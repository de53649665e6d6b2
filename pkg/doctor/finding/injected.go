package finding

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// InjectedFault is the finding of an open run whose fault is in place.
const InjectedFault = "fault.injected"

// The faults of runs, as the ledger names them. A runtime fault whose mode is known goes by both: "runtime
// missing-handler".
const (
	AsXID = "xid"

	AsHarmlessXID = "xid harmless"
	AsRuntime     = "runtime"
	asCUDA        = "cuda"
	AsScenario    = "scenario"
)

// InjectedEffects returns what each kind of fault leads to directly. What these findings explain in their turn is
// theirs, so that something real that is wrong at the same place stays a root.
func InjectedEffects() map[string][]string {
	// Without its configuration, or while it restarts, a runtime starts no pods, and its node is not Ready.
	runtime := []string{
		"rt.sandbox-failed", "rt.not-ready", "rt.restart-loop", "rt.edited-not-restarted", "rt.config-not-loaded",
		"node.not-ready", "node.condition",
	}
	effects := map[string][]string{
		// The line itself, and what detectors and remediators do about it: a condition, a cordon, a reboot.
		AsXID: {"hw.*", "drv.gsp", "node.condition", "sched.node-state", "node.not-ready"},
		// Of an XID upon which no detector acts nobody cordons or loses a node.
		AsHarmlessXID: {"hw.*", "drv.gsp", "node.condition"},
		// A pod that carries the library sees CUDA fail, and ends, hangs or computes on the CPU.
		asCUDA: {
			"wl.pod-failing", "wl.cuda-error", "wl.cuda-oom", "wl.cuda-vs-driver", "wl.cuda-preload", "wl.cpu-mode",
			"wl.probe-failing", "wl.idle-holder",
		},
		// An exercise has its namespaces to itself: what is proven by itself there is what it is about.
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

// RuntimeAs returns the name of a runtime fault whose mode is known.
func RuntimeAs(mode containerd.Mode) string { return AsRuntime + " " + string(mode) }

// labEffects returns what an exercise's steps on nodes lead to directly: lines in kernel logs, broken runtimes,
// firewalls, taints and labels.
func labEffects() []string {
	all := InjectedEffects()
	return slices.Concat(all[AsXID], all[AsRuntime], []string{"net.*", "sched.*", "gfd.labels", "nfd.labels"})
}

// IsOfGPU reports whether a finding is about the GPUs or their driver, which lines in kernel logs tell of.
func IsOfGPU(f Finding) bool { return f.Layer == LayerHardware || f.Layer == LayerDriver || f.OfGPU }
