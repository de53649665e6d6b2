package runtime

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

var (
	restartCounter = regexp.MustCompile(`Scheduled restart job, restart counter is at (\d+)`)
	tooQuickly     = "Start request repeated too quickly"
)

func checkRestartLoop(f *facts.Facts, r *engine.Result) {
	for _, pod := range f.Component(facts.Toolkit) {
		checkToolkitLoop(f, r, pod)
	}
	eachRuntime(r, f, func(n *facts.Node) {
		i := instance(n)
		unit, journal := runtimeJournal(n)
		if journal == "" {
			r.Unknown(n.Object(), "the journal of %s was not read", unit)
			return
		}
		var times []time.Time
		var last finding.Evidence
		for line := range strings.Lines(journal) {
			at, _ := journalTime(line)
			if m := restartCounter.FindStringSubmatch(line); m != nil {
				if count, _ := strconv.Atoi(m[1]); count > 0 {
					times = append(times, at)
				}
			} else if !strings.Contains(line, tooQuickly) {
				continue
			}
			last = finding.Clipped(
				finding.Evidence{Source: "nodes/" + n.Name + "/journal/" +
					unit, Time: at, Text: strings.TrimSpace(line)},
			)
		}
		now := n.Host.Probe.Time
		if now.IsZero() {
			now = f.Now
		}
		times = slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) > 10*time.Minute })
		if len(times) < 3 {
			r.Pass(n.Object())
			return
		}
		severity := finding.Warning
		if !i.Ready {
			severity = finding.Error
		}
		r.Add(finding.Finding{
			Object: n.Object(), Severity: severity, Title: "the container runtime restarts repeatedly",
			Evidence: []finding.Evidence{
				last,
				{
					Source: "nodes/" + n.Name + "/journal/" + unit,
					Text:   count.Of(len(times), "restart") + " in ten minutes",
				},
			},
			Fix: finding.Fix{
				Text: fmt.Sprintf("check the journal of %s for the reason why the runtime exits; if the NVIDIA "+
					"container toolkit or another tool restarts the runtime, let only one tool edit the "+
					"configuration", unit),
				Commands: []string{shell.OnHost(n.Name, "sudo journalctl -u %s -n 100 --no-pager", unit)},
			},
		})
	})
}

// checkToolkitLoop reports a toolkit that restarts the runtime and is itself terminated by the restart. Its container
// repeatedly exits without an error.
func checkToolkitLoop(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	for _, s := range pod.Status.ContainerStatuses {
		last, n := s.LastTerminationState.Terminated, f.Node(pod.Spec.NodeName)
		waits := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
		if n == nil || last == nil || last.ExitCode != 0 || !waits || s.RestartCount < 3 {
			continue
		}
		issue := finding.Finding{
			Object: n.Object(), Confidence: finding.Possible,
			Title: "the container runtime and the NVIDIA container toolkit restart each other",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(facts.PodObject(pod), "container "+s.Name+" .state.waiting", "%s: %s",
					s.State.Waiting.Reason,
					s.State.Waiting.Message),
				finding.FieldEvidence(facts.PodObject(pod), "container "+s.Name+" .lastState.terminated",
					"%s, exit code %d, %s",
					last.Reason, last.ExitCode, count.Of(s.RestartCount, "restart")),
			},
			Fix: finding.Fix{
				Text: "the toolkit container is terminated as soon as it has restarted the runtime: find out which " +
					"other tool writes the runtime's configuration or restarts the runtime; containerd before 1.6.9 " +
					"terminates containers on such a restart. To break the loop, set RUNTIME_RESTART_MODE=none for " +
					"the toolkit and restart the runtime manually",
				Commands: []string{restartUnit(n), facts.RestartPod(pod.Namespace, pod.Name)},
			},
		}
		if e, ok := facts.LogEvidence(f, pod, "Cleaning up Runtime", "Shutting Down", "Starting 'cleanup'"); ok {
			issue.Confidence, issue.Evidence = finding.Likely, append(issue.Evidence, e)
		}
		r.Add(issue)
		return
	}
}

// runtimeJournal returns the journal of the runtime's unit, which is empty if it was not read.
func runtimeJournal(n *facts.Node) (unit, journal string) {
	unit = unitOf(n)
	return unit, cmp.Or(n.Host.Journals[unit], n.Host.Journals[strings.TrimSuffix(unit, ".service")])
}

// runtimeStarted returns the time at which the node's runtime started, or the zero time if unknown.
func runtimeStarted(n *facts.Node) (started time.Time) {
	i := instance(n)
	if i == nil || n.Host == nil {
		return time.Time{}
	}
	for _, u := range n.Host.Probe.Units {
		if u.PID != 0 && u.PID == i.PID || u.Name == i.Unit && i.Unit != "" {
			started = u.Started
		}
	}
	return started
}
