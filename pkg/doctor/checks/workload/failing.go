package workload

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// checkCompletes reports pods whose containers exit without an error and are restarted again and again.
func checkCompletes(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		troubles := f.Troubles(pod)
		if len(troubles) == 0 || killed(f, pod) ||
			pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && pod.Spec.RestartPolicy != "" ||
			slices.ContainsFunc(troubles, func(t facts.Trouble) bool {
				return !t.Ran || t.ExitCode != 0 || t.Container == ""
			}) {
			continue
		}
		r.Add(finding.Finding{
			Title: "the container's program exits without an error, and restartPolicy Always restarts it again and " +
				"again",
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
			Evidence: []finding.Evidence{quoteTrouble(pod, troubles[0])},
			Fix: finding.Fix{
				Text: "Set a command that keeps running (a CUDA base image contains only a shell, which exits at " +
					"once). If the program is supposed to exit, run it in a Job, or with restartPolicy Never or " +
					"OnFailure.",
				Commands: facts.EditCommands(pod),
			},
		})
	}
}

// checkRunsOn reports job pods that have finished their work while a sidecar is still running.
func checkRunsOn(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		proxy, since := facts.RunsOn(pod)
		if proxy == "" || f.Now.Sub(since) < slowStart {
			continue
		}
		r.Add(finding.Finding{
			Title: "the pod has finished its work, but its sidecar " + proxy +
				" is still running, so the pod keeps its GPUs and the job does not complete",
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: finding.Warning,
			Evidence: []finding.Evidence{finding.FieldEvidence(facts.PodObject(pod), ".status.containerStatuses",
				"%s is running; all other containers completed %s ago", proxy, words.AgeText(f.Now.Sub(since)))},
			Fix: finding.Fix{
				Text: `Keep the sidecar out of the job's pods (set sidecar.istio.io/inject: "false" or ` +
					"linkerd.io/inject: disabled in their template), run the sidecar as a native sidecar " +
					"(ENABLE_NATIVE_SIDECARS=true for istiod), or tell it to exit at the end of the job's command " +
					"(Istio: curl -X POST http://localhost:15020/quitquitquit). To release the GPUs now, delete the " +
					"pod once its results are saved.",
				Commands: []string{shell.Command("kubectl -n %s get pod %s -o yaml", pod.Namespace, pod.Name)},
			},
		})
	}
}

// killed reports whether the kubelet itself stops the pod's containers. Many programs then exit without an error.
func killed(f *facts.Facts, pod *corev1.Pod) bool {
	return slices.ContainsFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
		return e.Reason == "FailedPostStartHook" ||
			e.Reason == "Killing" && words.ContainsAny(e.Message, []string{"PostStartHook", "probe, will be restarted"})
	})
}

// checkFailing reports GPU pods that crash or do not start.
func checkFailing(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		switch pod.Status.Reason {
		case "UnexpectedAdmissionError",
			"TopologyAffinityError",
			"Evicted",
			"Preempting",
			"Preempted",
			"NodeShutdown",
			"Terminated",
			"Shutdown":
			continue // reported by other checks, or not an error
		}
		troubles := f.Troubles(pod)
		switch {
		case strings.HasPrefix(pod.Status.Reason, "OutOf"):
		case len(troubles) > 0:
			reportFailing(f, r, pod, troubles)
		case pod.Status.Phase == corev1.PodFailed && !f.History(pod):
			reportFailing(f, r, pod, []facts.Trouble{
				{Text: "phase Failed", Message: strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)},
			})
		case pod.Status.Phase == corev1.PodUnknown:
			reportFailing(f, r, pod, []facts.Trouble{{Text: "phase Unknown", Message: pod.Status.Message}})
		case facts.RunsReady(pod):
			reportRestart(f, r, pod)
		default:
			checkStarting(f, r, pod)
		}
	}
}

func reportFailing(f *facts.Facts, r *engine.Result, pod *corev1.Pod, troubles []facts.Trouble) {
	issue := finding.Finding{
		Title: "the GPU pod crashes", Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
		Failed: failedAt(f, pod, troubles),
		Own:    ownReason(f, pod, troubles),
		Fix: finding.Fix{Text: "Check the container's log and the pod's events.", Commands: []string{
			shell.Command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name),
			shell.Command("kubectl -n %s logs %s --all-containers --previous --tail=50", pod.Namespace, pod.Name),
		}},
	}
	if t := troubles[0]; !t.Ran {
		issue.Title = "the GPU pod does not start"
	}
	for _, t := range troubles[:min(2, len(troubles))] {
		issue.Evidence = append(issue.Evidence, quoteTrouble(pod, t))
	}
	if e, found := lastWords(f, pod, troubles[0].Container); found {
		issue.Evidence = append(issue.Evidence, e)
	} else if why := f.Unread(pod, troubles); why != "" {
		r.Unknown(facts.PodObject(pod), "%s", why)
	}
	for _, e := range f.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeWarning && len(issue.Evidence) < words.Few && e.Reason != "BackOff" {
			q := facts.Quote(e)
			q.Text = words.Clip(q.Text)
			issue.Evidence = append(issue.Evidence, q)
		}
	}
	r.Add(issue)
}

// lastWords returns the last lines of a container's log. It prefers the log of the previous instance, which is the one
// that failed.
func lastWords(f *facts.Facts, pod *corev1.Pod, container string) (finding.Evidence, bool) {
	var found finding.Evidence
	for _, l := range f.LogsOf(pod) {
		if l.Container != container && container != "" || strings.TrimSpace(l.Text) == "" {
			continue
		}
		text := strings.TrimRight(l.Text, "\r\n")
		lines := strings.Split(text[max(0, len(text)-2048):], "\n")
		e := finding.Evidence{
			Source: "end of the log of " + facts.PodObject(pod).String() + ", container " + l.Container,
			Text:   strings.ToValidUTF8(strings.Join(lines[max(0, len(lines)-3):], "\n"), ""),
		}
		if l.Previous {
			e.Source += ", previous instance"
			return e, true
		}
		found = e
	}
	return found, found.Text != ""
}

// checkStarting reports a scheduled pod that has warning events or is taking too long to start.
func checkStarting(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending {
		r.Pass(facts.PodObject(pod))
		return
	}
	since := f.Age(pod)
	if pod.Status.StartTime != nil {
		since = f.Now.Sub(pod.Status.StartTime.Time)
	}
	var warnings, older []finding.Evidence
	for _, e := range f.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeNormal || e.Reason == "FailedScheduling" {
			continue
		}
		q := facts.Quote(e)
		q.Text = words.Clip(q.Text)
		if f.Now.Sub(facts.EventTime(e)) < slowStart {
			warnings = append(warnings, q)
		} else {
			older = append(older, q)
		}
	}
	if len(warnings) == 0 && since >= slowStart { // no newer event shows that these warnings are outdated
		warnings = older
	}
	warnings = warnings[:min(len(warnings), words.Few)]
	text := "waiting: ContainerCreating"
	for c := range facts.Statuses(pod) {
		if c.State.Waiting != nil {
			text = "waiting: " + strings.TrimSpace(c.State.Waiting.Reason+" "+c.State.Waiting.Message)
			break
		}
	}
	state := finding.Evidence{Source: facts.PodObject(pod).String() + " .status", Text: words.Clip(text) + ", for " +
		words.AgeText(since)}
	issue := finding.Finding{
		Title: "the GPU pod does not start", Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
		Evidence: append([]finding.Evidence{state}, warnings...),
		Fix: finding.Fix{
			Text:     "Check the pod's events.",
			Commands: []string{shell.Command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name)},
		},
	}
	_, unconnected := f.BeforeProxy(pod)
	init := runningInit(pod)
	// A running init container may be downloading data.
	running := init != "" && init == pod.Status.InitContainerStatuses[0].Name && unconnected == ""
	said, _ := lastWords(f, pod, init)
	if init != "" && since >= slowStart && waits.MatchString(said.Text) {
		running = false
		if unconnected == "" {
			_, unconnected = f.OtherDomain(pod, nil)
		}
	}
	switch {
	case since < startTime, running && len(warnings) == 0:
		r.Pass(facts.PodObject(pod))
		return
	case len(warnings) > 0:
	case since < slowStart:
		if why := f.Missing("api/events"); why != "" {
			r.Unknown(facts.PodObject(pod), "api/events: %s", why)
		}
		issue.Severity, issue.Confidence = finding.Info, finding.Possible
		issue.Title = "the GPU pod is still starting"
	case unconnected != "":
	default:
		issue.Severity, issue.Confidence = finding.Warning, finding.Possible
		issue.Title = "the GPU pod has been starting for a long time without an error"
	}
	if init != "" {
		issue.Evidence[0].Text += "; init container " + init + " is running"
		if e, found := lastWords(f, pod, init); found {
			issue.Evidence = append(issue.Evidence, e)
		}
		issue.Fix.Text = "Check the pod's events, and the log of its init container " + init +
			", which the other containers are waiting for."
		issue.Fix.Commands = append(issue.Fix.Commands,
			shell.Command("kubectl -n %s logs %s -c %s --tail=50", pod.Namespace, pod.Name, init))
	}
	r.Add(issue)
}

// waits matches the last log lines of a program that is waiting for a server.
var waits = regexp.MustCompile(`(?i)\bwait(?:s|ing)? (?:for|until|on)\b|\bnot (?:yet )?(?:ready|reachable)\b|\bretrying\b`)

// runningInit returns the name of the init container that is running and that the other containers are waiting for, or
// "".
func runningInit(pod *corev1.Pod) string {
	for i, s := range pod.Status.InitContainerStatuses {
		if s.State.Running != nil && (i+1 == len(pod.Status.InitContainerStatuses) ||
			pod.Status.InitContainerStatuses[i+1].State.Waiting != nil) {
			return s.Name
		}
	}
	return ""
}
