package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// before prints a description of the planned change to stderr: its scope, the tools that do not see it, and how it
// ends.
func (in *injecting) before(say func(string, ...any), d *decided, kubeContext string) {
	say("%s in namespace %s, %s, in context %q", d.workload.Ref(), d.workload.Target().Namespace, d.containers(),
		kubeContext)
	say("Fault: %s.", in.fault.Summary())
	say("How: a volume that contains the shim, from a ConfigMap, and %s are added to the pod template. "+
		"%s", cudashim.PreloadVar,
		in.replaced(d))
	say("When: %s", in.begins(d))
	if len(in.pinTo) > 0 {
		say("The pods are kept on %s%s.", strings.Join(in.pinTo, ", "), map[string]string{
			"hard": " and stay Pending if the nodes are full", "soft": " if there is room",
		}[in.pin])
	}
	say("Duration: %s%s. Undo: `kubectl gpu-fault revert RUN`, %s; `cuda disarm RUN` stops the fault without a restart.",
		in.ttl.String(), map[bool]string{
			true:  "",
			false: "; then all calls pass through, and the idle shim stays in the pod template until the run is reverted",
		}[in.ttl.TTL == 0],
		reverting(d.replaced))
	say("Not seen by: tools that read kernel logs (NVSentinel, node-problem-detector, gpud), and DCGM: no kernel log line is written and no GPU is affected. For these tools, also run `kubectl gpu-fault xid %s`.",
		in.alsoXID())
	for _, note := range in.notes(d) {
		say("Note: %s", note)
	}
	say("")
}

// replaced returns a description of how the pods get the shim, unless a note already describes this.
func (in *injecting) replaced(d *decided) string {
	if d.replaced != cudashim.Rolling {
		return "The notes below describe what happens to the pods."
	}
	return "The workload's controller replaces the pods with a rolling update, as after `kubectl rollout restart`."
}

// reverting returns a description of what happens to pods when the shim is removed from their template.
func reverting(how cudashim.Replacement) string {
	switch how {
	case cudashim.OnDelete:
		return "after which the idle shim stays in pods until they are deleted"
	case cudashim.Paused:
		return "after which the idle shim stays in existing pods until the rollout is resumed"
	case cudashim.NextJob:
		return "after which the idle shim stays in running jobs, and the next job starts without it"
	case cudashim.Recreate:
		return "which recreates the workload, so its work starts over"
	case cudashim.Unknown:
		return "after which the workload's controller decides when to replace the pods; until then the idle shim stays in them"
	default:
		return "which replaces the pods again"
	}
}

// begins returns a description of when the fault starts.
func (in *injecting) begins(d *decided) string {
	switch {
	case in.disarmed:
		return "the shim passes all calls through until you run `kubectl gpu-fault cuda arm RUN`."
	case in.onlyNew:
		return "from the first call of the new pods: only newly started processes see this fault."
	case in.atStart, d.replaced == cudashim.OnDelete, d.replaced == cudashim.NextJob, d.replaced == cudashim.Paused:
		return "from the first call of the new pods."
	default:
		return "once the new pods are ready, and have called the driver or made no driver call for 10 seconds."
	}
}

// alsoXID returns the arguments of the `xid` command that writes the corresponding kernel log lines.
func (in *injecting) alsoXID() string {
	node := "NODE"
	if len(in.onlyOn) > 0 {
		node = in.onlyOn[0]
	}
	if in.fault.XID > 0 {
		return fmt.Sprintf("%d %s", in.fault.XID, node)
	}
	return "CODE " + node
}

// notes returns notes about effects that may surprise the user.
func (in *injecting) notes(d *decided) []string {
	notes := slices.Clone(d.notes)
	if in.ttl.TTL > 0 && in.ttl.TTL < in.timeout {
		notes = append(notes,
			fmt.Sprintf("the rollout may take %s (--timeout), but the fault expires %s from now (--ttl): if the "+
				"rollout takes longer, the fault is not armed", in.timeout, in.ttl.TTL))
	}
	if !d.onGPUs() {
		notes = append(notes,
			"none of these containers requests GPUs: only processes that call the CUDA driver or NVML see the fault")
	}
	if d.onGPUs() && needsRoom(d.workload) {
		notes = append(notes, "the rolling update starts a new pod before it stops an old one, and therefore needs a free GPU")
	}
	if len(d.without) > 0 {
		notes = append(notes, fmt.Sprintf(
			"no shim exists for nodes with architecture %s: pods on these nodes run without the fault",
			strings.Join(d.without, ", "),
		))
	}
	for _, budget := range d.budgets {
		notes = append(notes, fmt.Sprintf(
			"PodDisruptionBudget %s covers these pods: failing pods count as unhealthy, which may block drains of nodes that run the other pods",
			budget,
		))
	}
	if len(d.unread) > 0 {
		notes = append(notes, fmt.Sprintf(
			"could not determine whether these images set %s, which the shim would replace: %s",
			cudashim.PreloadVar, strings.Join(d.unread, ", "),
		))
	}
	return notes
}
