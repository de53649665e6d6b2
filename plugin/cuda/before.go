package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// before tells, on stderr, what is going to be done where, who will not see it, and how it ends.
func (in *injecting) before(say func(string, ...any), d *decided, kubeContext string) {
	say("%s in namespace %s, %s, in context %q", d.workload.Ref(), d.workload.Target().Namespace, d.containers(),
		kubeContext)
	say("Fault: %s.", in.fault.Summary())
	say("How: a ConfigMap with the shim and %s go into the pod template. %s", cudashim.PreloadVar, in.replaced(d))
	say("When: %s", in.begins(d))
	if len(in.pinTo) > 0 {
		say("The pods are kept on %s%s.", strings.Join(in.pinTo, ", "), map[string]string{
			"hard": " and stay Pending where there is no room", "soft": " as far as there is room",
		}[in.pin])
	}
	say("It stays %s%s. Undo: `kubectl gpu-fault revert RUN`, %s; `cuda disarm RUN` ends the fault without a restart.",
		in.ttl.String(), map[bool]string{
			true:  "",
			false: "; then all calls pass through, and the pod template has the idle shim until it is reverted",
		}[in.ttl.TTL == 0],
		reverting(d.replaced))
	say("Not seen by: whatever reads kernel logs (NVSentinel, node-problem-detector, gpud), and DCGM: no line is written, no GPU is touched. For them add `kubectl gpu-fault xid %s`.",
		in.alsoXID())
	for _, note := range in.notes(d) {
		say("Note: %s", note)
	}
	say("")
}

// replaced returns how the pods come by the shim, where no note does.
func (in *injecting) replaced(d *decided) string {
	if d.replaced != cudashim.Rolling {
		return "What becomes of its pods is among the notes below."
	}
	return "Its controller replaces the pods by a rolling update, as after `kubectl rollout restart`."
}

// reverting returns what becomes of pods when the shim is taken out of their template.
func reverting(how cudashim.Replacement) string {
	switch how {
	case cudashim.OnDelete:
		return "after which pods keep the idle shim until somebody deletes them"
	case cudashim.Paused:
		return "after which pods that have the shim keep it, idle, until somebody resumes the rollout"
	case cudashim.NextJob:
		return "after which jobs that run keep the idle shim, and the next one is without it"
	case cudashim.Recreate:
		return "which deletes it and creates it again, so that its work begins anew once more"
	case cudashim.Unknown:
		return "after which its controller decides when the pods are replaced; until then they keep the idle shim"
	default:
		return "which replaces the pods once more"
	}
}

// begins returns when the fault is there.
func (in *injecting) begins(d *decided) string {
	switch {
	case in.disarmed:
		return "the shim passes all calls through until `kubectl gpu-fault cuda arm RUN`."
	case in.onlyNew:
		return "from the first call of the new pods on: only processes that start see this fault."
	case in.atStart, d.replaced == cudashim.OnDelete, d.replaced == cudashim.NextJob, d.replaced == cudashim.Paused:
		return "from the first call of the new pods on."
	default:
		return "once the new pods are ready and have called the driver, or made no call for 10 seconds."
	}
}

// alsoXID returns how the command for kernel logs goes on.
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

// notes returns what may surprise the user.
func (in *injecting) notes(d *decided) []string {
	notes := slices.Clone(d.notes)
	if in.ttl.TTL > 0 && in.ttl.TTL < in.timeout {
		notes = append(notes,
			fmt.Sprintf("the rollout may take %s (--timeout), and the time of the fault is up after %s (--ttl), counted from now: "+
				"where the rollout takes longer nothing is armed", in.timeout, in.ttl.TTL))
	}
	if !d.onGPUs() {
		notes = append(notes,
			"none of these containers requests GPUs: the fault is seen only where a process calls the CUDA driver")
	}
	if d.onGPUs() && needsRoom(d.workload) {
		notes = append(notes, "its rolling update starts a new pod before it ends an old one, and so needs a free GPU")
	}
	if len(d.without) > 0 {
		notes = append(notes, fmt.Sprintf(
			"there is no shim for nodes of architecture %s: pods there go on without the fault",
			strings.Join(d.without, ", "),
		))
	}
	for _, budget := range d.budgets {
		notes = append(notes, fmt.Sprintf(
			"PodDisruptionBudget %s covers these pods: those that fail count as unhealthy, and nodes with others of them may not be drained meanwhile",
			budget,
		))
	}
	if len(d.unread) > 0 {
		notes = append(notes, fmt.Sprintf(
			"an %s that an image sets by itself would be replaced while the shim is in; it could not be read of %s",
			cudashim.PreloadVar, strings.Join(d.unread, ", "),
		))
	}
	return notes
}
