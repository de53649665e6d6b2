package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// killedFor matches the kubelet's event about a container that it kills because of a failed probe.
var killedFor = regexp.MustCompile(`Container (\S+) failed (liveness|startup) probe`)

// loads matches lines that programs log while they load a model.
var loads = regexp.MustCompile(
	`(?i)load(?:ing)? (?:\w+ )*(?:model|weights|checkpoint|shards)|download(?:ing)?\b|Fetching \d+ files`,
)

// describeProbe describes the probe that made the kubelet kill a container. The probe's settings determine how long the
// program has to respond. If a startup probe had already succeeded, the program was killed while it was running, not
// while it was starting.
func describeProbe(f *facts.Facts, pod *corev1.Pod, killed string, issue *finding.Finding) {
	issue.Title = "the container's probe fails, so the kubelet kills the container"
	issue.Fix = finding.Fix{
		Text: "Check the container's log. If the program was still loading, add a startup probe that waits as long " +
			"as loading takes (failureThreshold times periodSeconds).",
		Commands: facts.EditCommands(pod),
	}
	m := killedFor.FindStringSubmatch(killed)
	if m == nil {
		return
	}
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == m[1] })
	if at < 0 {
		return
	}
	c := &pod.Spec.Containers[at]
	probe := c.LivenessProbe
	if m[2] == "startup" {
		probe = c.StartupProbe
	}
	if probe == nil {
		return
	}
	period, failures := cmp.Or(probe.PeriodSeconds, 10), cmp.Or(probe.FailureThreshold, 3)
	timeout := max(probe.TimeoutSeconds, 1)
	issue.Evidence = append(issue.Evidence, finding.FieldEvidence(facts.PodObject(pod),
		"container "+c.Name+" ."+m[2]+"Probe",
		"initialDelaySeconds %d, periodSeconds %d, timeoutSeconds %d, failureThreshold %d",
		probe.InitialDelaySeconds, period, timeout, failures))
	silent := (failures-1)*period + timeout
	switch {
	case m[2] == "startup":
		issue.Title = fmt.Sprintf("the startup probe of container %s gives the program %d s to start; after that, "+
			"the kubelet kills it", c.Name, probe.InitialDelaySeconds+period*failures)
		issue.Fix.Text = "Check the log of the previous instance to see whether the program was still loading. If it " +
			"was, raise the startup probe's failureThreshold: failureThreshold times periodSeconds must be at least " +
			"the startup time. If it was not, fix the problem that the log reports, or correct the probe's path and " +
			"port."
	case c.StartupProbe != nil:
		issue.Title = fmt.Sprintf("the liveness probe kills the running container %s after %d s without a response "+
			"(failureThreshold %d)", c.Name, silent, failures)
		issue.Fix.Text = fmt.Sprintf("The startup probe had succeeded, so a longer startup probe does not help. "+
			"Check the log of the previous instance to see what the program was doing when it was killed. If it was "+
			"working (loading a model at the first request, compiling kernels, capturing graphs, processing a long "+
			"prompt), set a liveness probe that tolerates this, such as periodSeconds 10, timeoutSeconds 30 and "+
			"failureThreshold 30; the current probe tolerates %d s. If the program hung, find out why first.", silent)
	default:
		issue.Title = fmt.Sprintf("the liveness probe of container %s fails, and the kubelet kills the container after "+
			"%d s without a response", c.Name, silent)
		if delay := probe.InitialDelaySeconds; delay > 0 {
			issue.Title += fmt.Sprintf(", from %d s after its start", delay)
		}
		issue.Fix.Text = "Check the log of the previous instance to see whether the program was still loading. If it " +
			"was, add a startup probe that waits as long as the model takes to load (failureThreshold times " +
			"periodSeconds). If the program had been ready, make the liveness probe more tolerant."
		e, found := lastWords(f, pod, c.Name)
		if last := words.LastLine(e.Text); found && loads.MatchString(last) &&
			!words.ContainsAny(strings.ToLower(last), []string{"error", "fail"}) {
			issue.Evidence = append(issue.Evidence, e)
			issue.Fix.Text = "The program was still loading when its log ended. Add a startup probe that waits as " +
				"long as the model takes to load (failureThreshold times periodSeconds); the liveness probe starts " +
				"after the startup probe has succeeded."
		}
	}
	issue.Fix.Commands = append([]string{shell.Command("kubectl -n %s logs %s -c %s --previous --tail=50",
		pod.Namespace, pod.Name, c.Name)}, issue.Fix.Commands...)
	if owner := metav1.GetControllerOf(pod); owner != nil && !isBuiltin(owner.APIVersion) {
		issue.Fix.Text += " An operator manages the pod through the " + owner.Kind + " " + owner.Name +
			", and may revert changes to the pod: set the probe in the resource that you created, the one that the " +
			"owner references name."
		issue.Fix.Commands[1] = shell.Command("kubectl -n %s get %s %s -o jsonpath='{.metadata.ownerReferences}'",
			pod.Namespace, strings.ToLower(owner.Kind), owner.Name)
	}
}

// isBuiltin reports whether an API version is that of a workload kind built into Kubernetes.
func isBuiltin(version string) bool {
	return version == "v1" || strings.HasPrefix(version, "apps/") || strings.HasPrefix(version, "batch/")
}

// describeUnready describes a running pod whose probe fails without a restart. If the probe times out although the
// program's log contains the response, a signature says that the timeout is too short.
func describeUnready(f *facts.Facts, pod *corev1.Pod, unhealthy finding.Evidence, issue *finding.Finding) {
	issue.Title = "the pod is running but does not become ready, because its probe fails"
	issue.Severity = finding.Warning
	issue.Fix = finding.Fix{
		Text: "Find out why the program does not respond to the probe.",
		Commands: []string{
			shell.Command("kubectl -n %s logs %s --all-containers --tail=50", pod.Namespace, pod.Name),
		},
	}
	if f.Age(pod) <= slowStart {
		issue.Title = "the pod is not ready, and its program only repeats what it waits for"
		issue.Confidence = finding.Possible
		e, _ := lastWords(f, pod, "")
		issue.Evidence = append(issue.Evidence, e)
	}
	kind, _, _ := strings.Cut(unhealthy.Text, " ")
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		more, ok := strings.CutPrefix(execOf(c.ReadinessProbe), execOf(c.LivenessProbe)+" && ")
		if ok && kind == "Readiness" { // no liveness probe failed
			issue.Evidence = append(issue.Evidence, finding.FieldEvidence(facts.PodObject(pod),
				".readinessProbe of container "+c.Name, "%s", "readiness alone: "+more))
		}
		probe := c.ReadinessProbe
		switch kind {
		case "Startup":
			probe = c.StartupProbe
		case "Liveness":
			probe = c.LivenessProbe
		}
		if probe == nil || probe.HTTPGet == nil || !strings.Contains(unhealthy.Text, "Client.Timeout exceeded") ||
			!strings.Contains(unhealthy.Text, probe.HTTPGet.Path+`": `) {
			continue
		}
		said := ""
		if e, ok := f.Responds(pod, c.Name, probe.HTTPGet.Path); ok {
			said = ", but the program responds later: " + e.Text
		}
		issue.Evidence = append(issue.Evidence, finding.FieldEvidence(facts.PodObject(pod),
			"container "+c.Name+" ."+strings.ToLower(kind)+"Probe", "timeoutSeconds %d%s",
			max(probe.TimeoutSeconds, 1), said))
	}
}

// waitsOn reports whether the end of a pod's log only repeats that the program is waiting.
func waitsOn(f *facts.Facts, pod *corev1.Pod) bool {
	e, _ := lastWords(f, pod, "")
	lines := strings.Split(digits.ReplaceAllString(e.Text, ""), "\n")
	return f.Age(pod) > 5*time.Minute && len(lines) > 2 && waits.MatchString(lines[0]) &&
		len(slices.Compact(lines)) == 1 && !strings.HasSuffix(e.Source, "previous instance")
}

var digits = regexp.MustCompile(`\d+`)

// execOf returns the command of a probe, or "" if it has none.
func execOf(probe *corev1.Probe) string {
	if probe == nil || probe.Exec == nil {
		return ""
	}
	return strings.Join(probe.Exec.Command, " ")
}
