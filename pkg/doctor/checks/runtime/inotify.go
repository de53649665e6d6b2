package runtime

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// raiseInotify returns the command that raises the node's inotify limits until the next reboot.
func raiseInotify(n *facts.Node) string {
	return shell.OnHost(n.Name, "sudo sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=524288")
}

// inotifyLimits quotes the node's inotify limits.
func inotifyLimits(n *facts.Node) (limits []finding.Evidence) {
	if n.Host == nil {
		return nil
	}
	for _, key := range []string{"fs.inotify.max_user_instances", "fs.inotify.max_user_watches"} {
		if value := n.Host.Probe.Sysctls[key]; value != "" {
			limits = append(limits, finding.Evidence{Source: "nodes/" + n.Name + ": " + key, Text: value})
		}
	}
	return limits
}

func checkNoInotify(f *facts.Facts, r *engine.Result) {
	eachRuntime(r, f, func(n *facts.Node) {
		if instance(n).Ready {
			r.Pass(n.Object())
			return
		}
		unit, journal := runtimeJournal(n)
		if journal == "" {
			r.Unknown(n.Object(), "the journal of %s was not read", unit)
			return
		}
		started := runtimeStarted(n).Truncate(time.Second) // journal times have a resolution of one second
		var said finding.Evidence
		for line := range strings.Lines(journal) {
			at, timed := journalTime(line)
			if timed && at.Before(started) || !strings.Contains(line, "too many open files") ||
				!words.ContainsAny(line, []string{"watcher", "inotify"}) {
				continue
			}
			said = finding.Clipped(
				finding.Evidence{Source: "nodes/" + n.Name + "/journal/" +
					unit, Time: at, Text: strings.TrimSpace(line)},
			)
		}
		if said.Text == "" {
			r.Pass(n.Object())
			return
		}
		r.Add(finding.Finding{
			Object: n.Object(), Title: "the container runtime could not create an inotify instance",
			Evidence: append([]finding.Evidence{said}, inotifyLimits(n)...),
			Fix: finding.Fix{
				Text: fmt.Sprintf(
					"raise the limits on the node, and in /etc/sysctl.d to make them persistent; then restart %s, "+
						"which does not retry by itself",
					unit,
				),
				Commands: []string{raiseInotify(n), restartUnit(n)},
			},
		})
	})
}

// journalTime parses the timestamp at the beginning of a line of `journalctl -o short-iso`.
func journalTime(line string) (time.Time, bool) {
	head, _, _ := strings.Cut(line, " ")
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05-0700"} {
		if t, err := time.Parse(layout, head); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

func checkInotify(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		for _, pod := range n.Pods {
			if facts.ComponentOf(pod.Labels, &pod.Spec) == "" || facts.Ended(pod) || podutils.IsPodReady(pod) {
				continue
			}
			e, ok := grepAll(f, pod, "watcher", "too many open files")
			if !ok {
				continue
			}
			r.Add(finding.Finding{
				Object: n.Object(), Title: "the node has no inotify watches left", Confidence: finding.Likely,
				Evidence: append([]finding.Evidence{e}, inotifyLimits(n)...),
				Fix: finding.Fix{
					Text: "raise the limits on the node, and in /etc/sysctl.d to make them persistent; the pods " +
						"then start",
					Commands: []string{raiseInotify(n)},
				},
			})
			break
		}
	}
}
