package runtime

import (
	"strings"
)

// describe describes the planned change, the symptoms, and how the fault ends.
func (b *breaking) describe(say func(string, ...any)) {
	say("What: %s. Nothing else in the files is changed.", b.info.Summary)
	if other := b.Pods.OtherImage(); other != "" {
		say("How: a privileged pod%s changes the files and restarts containerd.", other)
	}
	if b.noRestart {
		say("containerd is not restarted: pods start normally until containerd is restarted.")
	} else {
		say("containerd is restarted; running containers are not affected. Symptom: %s",
			strings.ReplaceAll(b.info.Symptom, "nvidia", b.handler))
	}
	by := "; when the TTL expires, the node restores itself"
	if b.TTL.TTL == 0 {
		by = ""
	}
	say("Duration: %s. Undo: `kubectl gpu-fault revert RUN`, or delete the debug pod%s.", b.TTL.String(), by)
	if b.info.NodeLoss && !b.noRestart {
		say(
			"Warning: the node will be NotReady, and no pod can start on it, not even for a revert. The dead man's switch restores the configuration.",
		)
		say("To restore the configuration earlier, run this command on the node: %s", restoreByHand("RUN"))
	}
}
