package scheduler

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// served reports whether the cluster has another vendor's software that advertises the resource.
func (s *Scheduler) served(name corev1.ResourceName) bool {
	if facts.IsGPUResource(name) {
		return false
	}
	serves := func(software string) bool {
		return words.ContainsAny(string(name), facts.ResourcesOf(software))
	}
	return slices.ContainsFunc(s.F.DaemonSets, func(d appsv1.DaemonSet) bool { return serves(d.Name) }) ||
		slices.ContainsFunc(s.F.Snapshot.Pods, func(pod corev1.Pod) bool {
			return facts.Serves(&pod) && serves(pod.Name)
		})
}

// ofExtender reports whether a scheduler extender, such as HAMi's, accounts for the resource, which is why no node
// advertises it.
func (s *Scheduler) ofExtender(name corev1.ResourceName) bool {
	return !isCore(name) && strings.HasPrefix(string(name), "nvidia.com/") &&
		!slices.ContainsFunc(s.F.Nodes, func(n *facts.Node) bool { return n.Capacity(name) > 0 })
}

// unreachable matches messages from the scheduler about an extender that does not respond.
var unreachable = regexp.MustCompile(`^Post "?https?://\S+": |extender .*(?:refused|timeout|timed out)`)

// schedulerDown returns the verdict if the pod's scheduler, or its extender, is not running. It ignores pods in the
// same namespace, because users choose the names of those pods.
func (s *Scheduler) schedulerDown(pod *corev1.Pod, message string) (verdict, bool) {
	name := pod.Spec.SchedulerName
	extender := unreachable.MatchString(message)
	if !extender && (message != "" || name == "" || name == corev1.DefaultSchedulerName) {
		return verdict{}, false
	}
	for i := range s.F.Snapshot.Pods {
		by := &s.F.Snapshot.Pods[i]
		troubles := s.F.Troubles(by)
		is := by.Name == name || strings.HasPrefix(by.Name, name+"-") ||
			extender && strings.Contains(by.Name, "scheduler")
		if !is || by.Namespace == pod.Namespace || len(troubles) == 0 || s.F.Replaced(by) {
			continue
		}
		return verdict{
			Id: "sched.no-scheduler", Severity: finding.Error, Confidence: finding.Likely,
			Title: fmt.Sprintf("the pod's scheduler is not running: Pod %s/%s is failing", by.Namespace, by.Name),
			Evidence: []finding.Evidence{{
				Source: facts.PodObject(by).String() + ", container " + troubles[0].Container + " .status",
				Text:   words.Clip(strings.TrimSuffix(troubles[0].Text+": "+troubles[0].Message, ": ")),
			}},
			Fix: finding.Fix{
				Text: "Repair the scheduler pod; its log contains details. The GPUs and their device plugin are not " +
					"the cause.",
				Commands: []string{
					shell.Command("kubectl -n %s describe pod %s", by.Namespace, by.Name),
					shell.Command("kubectl -n %s logs %s --all-containers --tail=50", by.Namespace, by.Name),
				},
			},
		}, true
	}
	return verdict{}, false
}
