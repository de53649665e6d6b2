package scheduler

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

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

// unrequested returns the verdict on a pod that requests GPUs only with claims or annotations. The DRA layer checks the
// devices of claims; the other reasons are those of any pod, or are in the scheduler's message.
func (s *Scheduler) unrequested(pod *corev1.Pod, message string) verdict {
	claims := len(pod.Spec.ResourceClaims) > 0
	if message == "" || !claims && s.F.Waits(pod, false) != "" { // only a signature for its message makes it a problem
		return verdict{}
	}
	offering := Keep(s.nodes, func(n *facts.Node) bool { return !claims || facts.DRADevicesOn(s.F, n.Name) > 0 })
	selected := Keep(offering, func(n *facts.Node) bool { return Selects(pod, n) })
	open := Keep(selected, func(n *facts.Node) bool { return untolerated(pod, n) == nil && facts.Available(n) })
	switch {
	case len(offering) == 0:
	case len(selected) == 0:
		return s.nodeSelector(pod, nil)
	case len(open) == 0:
		return s.closed(pod, selected)
	case !claims || len(insufficientInMessage(message)) > 0:
		v := withoutGPUs(s.otherwise(pod, message, open))
		v.Vague = v.Id == "sched.unschedulable"
		return v
	}
	return verdict{
		Id: "sched.unschedulable", Severity: finding.Error, Confidence: finding.Likely,
		Title: "the scheduler cannot schedule a pod with a claim for GPUs, for a reason other than the claim",
		Nodes: s.names(s.nodes),
		Fix: finding.Fix{
			Text: "Check the scheduler's message, the pod's other requests and its selectors, and the nodes' taints.",
		},
	}
}

// withoutGPUs removes from a title that GPUs are free, which is unknown if the pod requests none.
func withoutGPUs(v verdict) verdict {
	v.Title = strings.Replace(strings.TrimPrefix(v.Title, "GPUs are free, but "), "their nodes", "the GPU nodes", 1)
	return v
}

// beside are unscheduled pods that request no GPUs but may run only on GPU nodes.
type beside []PendingPod

// Beside returns the pods that request no GPUs, are meant for GPU nodes, and do not fit there. Their GPU workload may
// wait for them: they download its model or serve it.
func Beside(f *facts.Facts) []PendingPod { return facts.Once(f, findBeside) }

func findBeside(f *facts.Facts) (all beside) {
	s := New(f)
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if !facts.Unscheduled(pod) || len(facts.GPUDemand(pod)) > 0 || len(pod.Spec.ResourceClaims) > 0 ||
			pod.Spec.Priority != nil && *pod.Spec.Priority < 0 || // such pods only reserve room for others
			f.Age(pod) < scaleUpTime || facts.ComponentOf(pod.Labels, &pod.Spec) != "" || f.AsksForGPU(pod) {
			continue
		}
		message := scheduledMessage(f, pod)
		hints := SelectorText(pod)
		for _, t := range pod.Spec.Tolerations {
			hints += t.Key
		}
		if !strings.Contains(message.Text, "Insufficient ") || !words.ContainsAny(hints, []string{"gpu", "nvidia"}) {
			continue
		}
		selected := Keep(f.Nodes, func(n *facts.Node) bool { return Selects(pod, n) && !Foreign(pod, n) })
		if len(selected) == 0 || slices.ContainsFunc(selected, s.poor) {
			continue
		}
		if v := withoutGPUs(s.otherwise(pod, message.Text, selected)); v.Id == "sched.insufficient-other" {
			v.Severity, v.Evidence = finding.Warning, append([]finding.Evidence{message}, v.Evidence...)
			all = append(all, PendingPod{pod, v})
		}
	}
	return all
}

// ofScheduler returns the verdict on a claim for which the pod's scheduler finds no device, if another scheduler has
// allocated devices to an equal claim, or if the devices need a feature that the scheduler may lack.
func ofScheduler(f *facts.Facts, pod *corev1.Pod, message string) (v verdict) {
	name := pod.Spec.SchedulerName
	if !strings.Contains(message, "cannot allocate all") || name == "" || name == corev1.DefaultSchedulerName {
		return v
	}
	by := corev1.DefaultSchedulerName
	for i := range f.ResourceSlices {
		if s := &f.ResourceSlices[i]; len(s.Spec.SharedCounters) > 0 || facts.Yes(s.Spec.PerDeviceNodeSelection) {
			v.Title = "the scheduler " + name + " may not support the partitionable devices in the ResourceSlices"
			v.Confidence = finding.Possible
			v.Evidence = []finding.Evidence{{
				Source: "ResourceSlice " + s.Name + " .spec", Text: "sharedCounters or perDeviceNodeSelection",
			}}
			break
		}
	}
	for i := range f.ResourceClaims {
		c := &f.ResourceClaims[i]
		for _, user := range c.Status.ReservedFor {
			p := f.Pod(c.Namespace, user.Name)
			if p == nil || p.Spec.SchedulerName == name || !equalClaim(f, pod, c) {
				continue
			}
			by = p.Spec.SchedulerName
			v.Title, v.Confidence = "the scheduler "+name+" finds no device for the claim, but "+by+
				" does for an equal claim", finding.Likely
			v.Evidence = append(v.Evidence[:min(1, len(v.Evidence))], finding.Evidence{
				Source: facts.PodObject(p).String() + " .spec.schedulerName and .spec.resourceClaims",
				Text:   by + ", ResourceClaim " + c.Name + " is allocated",
			})
		}
	}
	if v.Title != "" {
		v.Id, v.Severity = "sched.unschedulable", finding.Error
		v.Fix = finding.Fix{
			Text: "Update " + name + ". Until then, set schedulerName of pods with claims to " + by + ". Some " +
				"schedulers ignore partitionable devices (KAI up to v0.17.0: KAI-Scheduler#2100): if no pod claims " +
				"MIG devices, turn off the feature gate DynamicMIG of NVIDIA's DRA driver.",
			Commands: facts.EditCommands(pod),
		}
	}
	return v
}

// equalClaim reports whether one of the pod's claims is equal to another claim.
func equalClaim(f *facts.Facts, pod *corev1.Pod, other *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(wanted corev1.PodResourceClaim) bool {
		claim := facts.ClaimOf(f, pod, wanted)
		return claim != nil && reflect.DeepEqual(claim.Spec, other.Spec)
	})
}
