package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// placement is a scheduling constraint. said is the scheduler's wording for the constraint.
type placement struct {
	said, rule, field string
	of                func(*corev1.Pod) any
}

// keptOffBy returns the first constraint that the scheduler's message names, or the zero placement if there is none.
func keptOffBy(message string) placement {
	affinity := func(pod *corev1.Pod) any { return pod.Spec.Affinity }
	for _, p := range []placement{
		{"didn't match pod affinity rules", "the pod's affinity rules", ".spec.affinity", affinity},
		{"didn't match pod anti-affinity rules", "the pod's anti-affinity rules", ".spec.affinity", affinity},
		{
			"didn't match pod topology spread constraints", "the pod's topology spread constraints",
			".spec.topologySpreadConstraints", func(pod *corev1.Pod) any { return pod.Spec.TopologySpreadConstraints },
		},
		{
			"didn't satisfy existing pods anti-affinity rules", "the anti-affinity rules of other pods",
			".metadata.labels, which these rules select", func(pod *corev1.Pod) any { return pod.Labels },
		},
	} {
		if strings.Contains(message, p.said) {
			return p
		}
	}
	return placement{}
}

// quote returns the constraint in the pod's spec as JSON.
func (p placement) quote(pod *corev1.Pod) string {
	text, err := json.Marshal(p.of(pod))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// otherwise returns the verdict if GPUs are free but another constraint excludes the pod.
func (s *Scheduler) otherwise(pod *corev1.Pod, message string, roomy []*facts.Node) verdict {
	need := map[corev1.ResourceName]int64{corev1.ResourcePods: 1}
	maps.Copy(need, facts.Demand(pod))
	var lacking []finding.Evidence
	var scarce []string
	blocked := Keep(roomy, func(n *facts.Node) bool {
		for _, name := range slices.Sorted(maps.Keys(need)) {
			if facts.LooksLikeGPU(name) || need[name] == 0 || s.ofExtender(name) {
				continue
			}
			used := s.Use(n)[name]
			if name == corev1.ResourcePods {
				used = int64(len(keepPods(n.Pods)))
			}
			if _, told := n.Status.Allocatable[name]; !told && isCore(name) {
				continue // the node does not report this resource
			}
			if n.Allocatable(name)-used < need[name] {
				if !slices.Contains(scarce, string(name)) {
					scarce = append(scarce, string(name))
				}
				lacking = append(lacking, finding.Evidence{
					Source: n.Object().String() + " .status.allocatable minus the requests of its pods",
					Text: fmt.Sprintf("%s: %s free, the pod requests %s", name,
						words.InWords(name, max(0, n.Allocatable(name)-used)), words.InWords(name, need[name])),
				})
				return true
			}
		}
		return false
	})
	v := verdict{Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(roomy)}
	insufficient := insufficientInMessage(message)
	switch {
	case len(blocked) == len(roomy), len(insufficient) > 0 && !slices.ContainsFunc(insufficient, isOurs):
		if len(scarce) == 0 {
			scarce = insufficient
		}
		v.Id, v.Title = "sched.insufficient-other", fmt.Sprintf(
			"GPUs are free, but their nodes do not have enough free %s for the pod", words.Joined(scarce))
		v.Evidence = lacking[:min(words.Few, len(lacking))]
		if len(lacking) > 0 && !slices.ContainsFunc(lacking, func(e finding.Evidence) bool {
			return !strings.HasPrefix(e.Text, "pods: ")
		}) {
			v.Title = "GPUs are free, but their nodes are already running as many pods as the kubelet allows"
			v.Fix = finding.Fix{
				Text: "Move pods that need no GPU off the GPU nodes (a taint keeps such pods away), or raise maxPods " +
					"in the kubelet's configuration if the nodes' pod CIDRs have enough addresses.",
			}
			break
		}
		v.Fix = finding.Fix{
			Text: fmt.Sprintf("Lower the pod's request for %s, or move pods that need no GPU off the GPU nodes (a "+
				"taint keeps such pods away).", words.Joined(scarce)),
			Commands: facts.EditCommands(pod),
		}
		if i := slices.IndexFunc(scarce, func(name string) bool { return !isCore(corev1.ResourceName(name)) }); i >= 0 {
			v.Fix = finding.Fix{
				Text: fmt.Sprintf("If the nodes advertise less %[1]s than they have (see below), repair the device "+
					"plugin that advertises it: its log contains the reason. Otherwise, find out which pods hold it.",
					scarce[i]),
				Commands: []string{
					shell.Command("kubectl get node %s -o jsonpath='{.status.capacity}{\"\\n\"}{.status.allocatable}{\"\\n\"}'",
						roomy[0].Name),
					shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", roomy[0].Name),
				},
			}
		}
	case strings.Contains(strings.ToLower(message), "volume"):
		return s.volume(pod, message, roomy)
	case keptOffBy(message).rule != "":
		by := keptOffBy(message)
		v.Id, v.Confidence = "sched.unschedulable", finding.Likely
		v.Title = fmt.Sprintf("GPUs are free, but %s keep the pod off their nodes", by.rule)
		v.Evidence = append([]finding.Evidence{
			finding.FieldEvidence(facts.PodObject(pod), by.field, "%s", by.quote(pod)),
		},
			QuoteAllocatable(roomy)...)
		v.Fix = finding.Fix{
			Text: "Change " + by.rule +
				" if they are not needed: a single node must satisfy all of them and have enough free GPUs.",
			Commands: facts.EditCommands(pod),
		}
		if strings.HasPrefix(by.field, ".metadata.labels") { // the cause is not in the pod's own spec
			v.Fix.Commands = []string{"kubectl get pods -A -o wide --show-labels"}
		}
	case slices.ContainsFunc(insufficient, isOurs):
		v.Id, v.Confidence = "sched.insufficient-gpu", finding.Possible
		v.Title = "the scheduler finds too few free GPUs, although enough are free according to the pods in the " +
			"snapshot"
		v.Evidence = QuoteAllocatable(roomy)
		v.Fix =
			finding.Fix{
				Text: "Check again: the pod may have been scheduled in the meantime. Otherwise, find pods that are " +
					"missing from the snapshot.",
				Commands: []string{
					shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", roomy[0].Name),
				},
			}
	case message == "" && s.notBound(pod) != nil:
		v.Id, v.Confidence = "sched.unschedulable", finding.Certain
		v.Title = "a scheduler has chosen a node for the pod, but cannot bind the pod to it"
		v.Evidence = []finding.Evidence{facts.Quote(s.notBound(pod))}
		v.Fix = finding.Fix{
			Text: "The message reports what rejected the binding, such as a policy that the pod violates: correct or " +
				"delete the pod. Some schedulers try such a pod first in each cycle, and reserve its resources.",
			Commands: []string{shell.Command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name)},
		}
	case message == "" && isUnprocessed(pod) && s.F.Age(pod) >= noScheduler:
		v.Id, v.Confidence = "sched.no-scheduler", finding.Likely
		name := pod.Spec.SchedulerName
		if name == "" {
			name = "default-scheduler"
		}
		v.Title = fmt.Sprintf("no scheduler has processed the pod: it is waiting for the scheduler %q", name)
		v.Evidence = []finding.Evidence{{Source: facts.PodObject(pod).String() + " .spec.schedulerName", Text: name}}
		v.Fix = finding.Fix{
			Text:     "Check that scheduler's log. If it does not run, start it, or remove schedulerName from the pod.",
			Commands: []string{"kubectl get pods -A | grep -i scheduler"},
		}
	case message == "":
		v.Id, v.Severity, v.Confidence = "sched.waiting", finding.Info, finding.Possible
		v.Title = "a node has room for the pod, and the scheduler has not reported a problem yet"
		v.Evidence = QuoteAllocatable(roomy)
		v.Fix = finding.Fix{Text: "Check again in a moment."}
	default:
		v.Id, v.Confidence = "sched.unschedulable", finding.Likely
		v.Title = "GPUs are free, but the scheduler keeps the pod off their nodes for another reason"
		v.Fix = finding.Fix{
			Text: "Check the scheduler's message: the settings for pod affinity, anti-affinity, topology spread and " +
				"host ports are in the pod's own spec.",
			Commands: facts.EditCommands(pod),
		}
		if !strings.Contains(message, "nodes are available") {
			s.describeQueue(pod, message, roomy, &v)
		}
	}
	return v
}

// isUnprocessed reports whether no scheduler has set the pod's PodScheduled condition.
func isUnprocessed(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

// notBound returns the event that explains why a pod is not bound to the node that its scheduler has chosen, or nil if
// there is none.
func (s *Scheduler) notBound(pod *corev1.Pod) *corev1.Event {
	for _, e := range s.F.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeWarning && slices.Contains([]string{"BindingError", "FailedBinding"}, e.Reason) {
			return e
		}
	}
	return nil
}

// insufficientInMessage returns the resources that the scheduler's message reports as insufficient: "2 Insufficient
// cpu, 1 Insufficient nvidia.com/gpu".
func insufficientInMessage(message string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`Insufficient ([A-Za-z0-9./_-]+)`).FindAllStringSubmatch(message, -1) {
		if name := strings.TrimRight(m[1], "."); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}
