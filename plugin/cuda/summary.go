package cuda

import (
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// seenAtStart reports whether only newly started processes see a fault. Running processes have already called cuInit
// and counted their devices.
func seenAtStart(s cudafault.State) bool {
	running := s.Error != 0 && s.Classes&^cudafault.ClassInit != 0 || s.Latency > 0 || s.HangClasses != 0 ||
		s.Corrupt > 0 || s.MemLimit > 0
	return !running
}

// disarmedSuffix marks the summary of a run that is not armed.
const disarmedSuffix = " [disarmed]"

// summary returns the summary of a run as shown in lists of runs.
func summary(f cudafault.Fault, disarmed bool) string {
	text := f.Summary()
	switch {
	case strings.HasPrefix(text, "XID "):
		text = "CUDA " + text
	case !strings.HasPrefix(text, "CUDA"):
		text = "CUDA: " + text
	}
	if disarmed {
		text += disarmedSuffix
	}
	return text
}

// without returns a summary with disarmedSuffix removed.
func without(summary string) string { return strings.TrimSuffix(summary, disarmedSuffix) }
