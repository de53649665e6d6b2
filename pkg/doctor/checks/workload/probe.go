package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

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

// tellProbe describes the probe that made the kubelet kill a container. The probe's settings determine the time that
// the program has to respond. If a startup probe had succeeded, the program was killed later, while it was running.
func tellProbe(f *facts.Facts, pod *corev1.Pod, killed string, issue *finding.Finding) {
	issue.Title = "the container's probe fails, so the kubelet kills the container"
	issue.Fix = finding.Fix{
		Text:     "Give the container a startup probe that waits as long as the model takes to load (failureThreshold times periodSeconds).",
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
		issue.Title = fmt.Sprintf("the startup probe of container %s gives the program %d s to start, and the kubelet "+
			"then kills it", c.Name, probe.InitialDelaySeconds+period*failures)
		issue.Fix.Text = "Check in the log of the previous instance whether the program was still loading. If it was, " +
			"raise failureThreshold of the startup probe: times periodSeconds, it must last as long as the start. If " +
			"it was not, correct what the log reports, or the path and port of the probe."
	case c.StartupProbe != nil:
		issue.Title = fmt.Sprintf("the liveness probe kills the running container %s after %d s without a response "+
			"(failureThreshold %d)", c.Name, silent, failures)
		issue.Fix.Text = fmt.Sprintf("The startup probe had succeeded, so a longer one does not help. Check in the log "+
			"of the previous instance what the program did when it was killed. If it worked (compiled kernels, captured "+
			"graphs, processed a long prompt), set a liveness probe that tolerates this, such as periodSeconds 10, "+
			"timeoutSeconds 30 and failureThreshold 30; now it tolerates %d s. If it hung, find out why first.", silent)
	default:
		issue.Title = fmt.Sprintf("the liveness probe of container %s fails, and the kubelet kills the container after "+
			"%d s without a response", c.Name, silent)
		if delay := probe.InitialDelaySeconds; delay > 0 {
			issue.Title += fmt.Sprintf(", from %d s after its start", delay)
		}
		issue.Fix.Text = "Check in the log of the previous instance whether the program was still loading. If it was, " +
			"give the container a startup probe that waits as long as the model takes to load (failureThreshold times " +
			"periodSeconds). If it was ready before, make the liveness probe more tolerant."
		e, found := lastWords(f, pod, c.Name)
		if last := words.LastLine(e.Text); found && loads.MatchString(last) &&
			!words.ContainsAny(strings.ToLower(last), []string{"error", "fail"}) {
			issue.Evidence = append(issue.Evidence, e)
			issue.Fix.Text = "The program was still loading when its log ended. Give the container a startup probe that " +
				"waits as long as the model takes to load (failureThreshold times periodSeconds); the liveness probe " +
				"starts after it."
		}
	}
	issue.Fix.Commands = append([]string{shell.Command("kubectl -n %s logs %s -c %s --previous --tail=50",
		pod.Namespace, pod.Name, c.Name)}, issue.Fix.Commands...)
	if owner := metav1.GetControllerOf(pod); owner != nil && !isBuiltin(owner.APIVersion) {
		issue.Fix.Text += " An operator owns the pod through the " + owner.Kind + " " + owner.Name +
			", and may revert changes to it: set the probe in the resource that you created, which the owner references name."
		issue.Fix.Commands[1] = shell.Command("kubectl -n %s get %s %s -o jsonpath='{.metadata.ownerReferences}'",
			pod.Namespace, strings.ToLower(owner.Kind), owner.Name)
	}
}

// isBuiltin reports whether an API version is that of a workload kind built into Kubernetes.
func isBuiltin(version string) bool {
	return version == "v1" || strings.HasPrefix(version, "apps/") || strings.HasPrefix(version, "batch/")
}
