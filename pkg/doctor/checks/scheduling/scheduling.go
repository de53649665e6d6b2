// Package scheduling checks the scheduling of GPU pods.
package scheduling

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// sched.unbalanced considers only selectors and affinity, because a pod with a preset spec.nodeName looks the same as a
// pod bound by a scheduler: the kubelet sets PodScheduled for both. The checks do not evaluate the scheduler's other
// filters (inter-pod affinity, topology spread, host ports, volume limits); sched.unschedulable quotes the scheduler's
// message instead.

// Checks returns the checks for the scheduling layer.
func Checks() []engine.Check {
	return slices.Concat(pendingChecks(), []engine.Check{
		queuedCheck(),
		{
			ID:    "sched.unbalanced",
			Layer: finding.LayerScheduling,
			Title: "a GPU node is full while an identical node is idle, because pods are tied to the full node",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "GPU nodes with the same model and number of GPUs; node selectors and required affinity of the " +
				"pods that hold GPUs on these nodes or are waiting for them",
			Why: "Uneven use alone is normal: packing keeps room for large pods. It is reported only if selectors " +
				"restrict pods to the full node and exclude an identical idle node. The finding is a warning if a " +
				"pod is waiting, and Info otherwise.",
			Explains: []string{
				"sched.all-in-use", "sched.fragmented", "sched.insufficient-gpu", "sched.insufficient-other",
			},
			Sources: []string{"seed 001, scenario 5"},
			Run:     checkUnbalanced,
		},
		{
			ID:    "sched.topology",
			Layer: finding.LayerScheduling,
			Title: "the kubelet's topology manager rejected a GPU pod",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "Pod .status.reason TopologyAffinityError",
			Why: "The kubelet cannot allocate the GPUs and CPUs from a single NUMA node. A pod whose owner has " +
				"a healthy newer pod is ignored.",
			Explains: []string{"wl.pod-failing"},
			Doc:      "https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/",
			Run:      checkTopology,
		},
		{
			ID:      "alloc.unexpected-admission",
			Symptom: engine.Precise, Layer: finding.LayerDevicePlugin,
			Title: "the kubelet could not allocate the GPUs for a pod that was scheduled on its node",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "Pod .status.reason UnexpectedAdmissionError or OutOfnvidia.com/gpu, with its message",
			Why: "The scheduler and the kubelet disagree on how many GPUs are available: devices became " +
				"unhealthy, the device plugin or the kubelet restarted, or the pod bypassed the scheduler. The " +
				"finding is Info if the pod's owner has a healthy newer pod.",
			Explains: []string{"wl.pod-failing"},
			Sources: []string{
				"kubernetes#97131", "kubernetes#130145", "k8s-device-plugin#2038", "k8s-device-plugin#231",
			},
			Run: checkAdmission,
		},
	})
}

// pendingChecks returns one check for each reason why a pod is Pending, so that each reason can be selected, explained,
// and ignored separately.
func pendingChecks() []engine.Check {
	const why = "Doctor filters the GPU nodes as the scheduler does: by resource name, node selector and affinity, " +
		"size, taints and state, and allocatable minus the requests of all pods that have not terminated. The first " +
		"step that no node passes is the reason. Findings about pods younger than 30 s are Info. Pods that a " +
		"scheduling gate or an autoscaler holds back are reported as sched.waiting."
	const reads = "Unscheduled Pods that request GPUs or are meant for GPU nodes, their PodScheduled condition and " +
		"events; Node .status.allocatable, .spec.taints, labels; ResourceClaims, ResourceSlices"
	titles := []struct {
		id, title string
		sources   []string
	}{
		{
			"sched.none-advertised", "no node advertises the GPUs that a pod requests",
			[]string{"k8s-device-plugin#22", "k8s-device-plugin#33", "k8s-device-plugin#1228"},
		},
		{"sched.all-in-use", "all GPUs that a pod could use are allocated", []string{"k8s-device-plugin#348"}},
		{
			"sched.bigger-than-any-node",
			"a pod requests more GPUs than any node has",
			[]string{"seed 001, scenario 2"},
		},
		{"sched.fragmented", "enough GPUs are free, but not on a single node", nil},
		{
			"sched.wrong-resource-name", "a pod requests GPUs by a resource name that no node advertises",
			[]string{"k8s-device-plugin#240", "k8s-device-plugin#1080"},
		},
		{
			"sched.insufficient-gpu", "a node lacks healthy GPUs, or the scheduler sees fewer GPUs than the node has",
			[]string{"k8s-device-plugin#35", "k8s-device-plugin#1552"},
		},
		{"sched.insufficient-other", "GPU nodes lack CPU, memory or another resource for a pod", nil},
		{
			"sched.taint", "a pod does not tolerate the taint on the GPU nodes",
			[]string{"k8s-device-plugin#421", "kubernetes#76035"},
		},
		{"sched.node-selector", "a pod's selector or affinity matches no GPU node", []string{"seed 001, scenario 2"}},
		{"sched.nodes-unavailable", "all nodes with the right GPUs are cordoned, not ready or under pressure", nil},
		{"sched.volume", "a volume prevents a pod from being scheduled", nil},
		{"sched.no-scheduler", "no scheduler handles a pod", nil},
		{"sched.unschedulable", "the scheduler rejects a pod for a reason that doctor does not evaluate", nil},
		{"sched.waiting", "a pod is waiting intentionally, or for a node that is being added", nil},
	}
	var all []engine.Check
	for _, t := range titles {
		all = append(all, engine.Check{
			ID: t.id, Symptom: engine.Precise, Layer: finding.LayerScheduling, Title: t.title,
			Needs: []engine.Need{engine.NeedAPI},
			Reads: reads, Why: why,
			Sources: t.sources,
			Run:     func(f *facts.Facts, r *engine.Result) { reportPending(f, r, t.id) },
		})
	}
	return all
}

func reportPending(f *facts.Facts, r *engine.Result, id string) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/nodes") {
		return
	}
	all := scheduler.Pending(f)
	if id == "sched.insufficient-other" {
		all = append(slices.Clip(all), scheduler.Beside(f)...)
	}
	for _, p := range all {
		if p.Id != id {
			continue
		}
		issue := finding.Finding{
			Title: p.Title, Object: facts.PodObject(p.Pod), Nodes: p.Nodes, Severity: p.Severity,
			Confidence: p.Confidence,
			Evidence:   p.Evidence, Fix: p.Fix, Vague: p.Vague,
		}
		if old := predecessor(f, p.Pod); old != nil && id == "sched.all-in-use" {
			describeDeadlock(p.Pod, old, &issue)
		}
		r.Add(issue)
	}
}

// updated returns the name of the Deployment or Knative service whose updates replace a pod, and the name of the pod's
// generation: its ReplicaSet or revision.
func updated(pod *corev1.Pod) (name, generation string) {
	if revision := pod.Labels["serving.knative.dev/revision"]; revision != "" {
		return pod.Labels["serving.knative.dev/configuration"], "revision " + revision
	}
	return facts.DeploymentOf(pod)
}

// predecessor returns a pod that holds GPUs and belongs to an older generation of the pod's owner, or nil if there is
// none.
func predecessor(f *facts.Facts, pod *corev1.Pod) *corev1.Pod {
	owner, generation := updated(pod)
	if owner == "" {
		return nil
	}
	for i := range f.Snapshot.Pods {
		old := &f.Snapshot.Pods[i]
		other, its := updated(old)
		if old.Namespace == pod.Namespace && other == owner && its != generation && old.Spec.NodeName != "" &&
			old.DeletionTimestamp == nil && !facts.Ended(old) && f.AsksForGPU(old) &&
			old.CreationTimestamp.Before(&pod.CreationTimestamp) {
			return old
		}
	}
	return nil
}

// describeDeadlock describes a rolling update that is waiting for the GPUs of the pods that it replaces. The fix for
// Knative revisions is in a signature.
func describeDeadlock(pod, old *corev1.Pod, issue *finding.Finding) {
	deployment, _ := updated(pod)
	_, generation := updated(old)
	issue.Severity, issue.Confidence = finding.Error, finding.Likely
	issue.Title = "the rolling update is deadlocked: the new pod needs the GPUs that the Deployment's old pod holds"
	issue.Evidence = append(
		[]finding.Evidence{finding.FieldEvidence(facts.PodObject(old), ".metadata", "%s, running on %s", generation,
			old.Spec.NodeName)},
		issue.Evidence...)
	issue.Fix = finding.Fix{
		Text: "Let the Deployment delete the old pod first: use the Recreate strategy, or set maxSurge to 0 and " +
			"maxUnavailable to 1. Otherwise, add a GPU for the duration of the update.",
		Commands: []string{
			shell.Command("kubectl -n %s patch deployment %s --type merge -p %s", pod.Namespace, deployment,
				`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`),
		},
	}
}

// checkTopology reports pods that the topology manager rejected.
func checkTopology(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Status.Reason != "TopologyAffinityError" || pod.DeletionTimestamp != nil || !f.AsksForGPU(pod) ||
			f.Replaced(pod) {
			continue
		}
		evidence := []finding.Evidence{
			{
				Source: facts.PodObject(pod).String() + " .status.reason",
				Text:   pod.Status.Reason + ": " + words.Clip(pod.Status.Message),
			},
		}
		if n := f.Node(pod.Spec.NodeName); n != nil && n.Host != nil {
			if policy := n.Host.Probe.KubeletConfig["topologyManagerPolicy"]; policy != "" {
				evidence = append(evidence, finding.Evidence{
					Source: "kubelet configuration of Node " + n.Name, Text: "topologyManagerPolicy: " + policy,
				})
			}
		}
		r.Add(finding.Finding{
			Title:  "the kubelet's topology manager could not align the pod's GPUs and CPUs with NUMA nodes",
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Evidence: evidence,
			Fix: finding.Fix{
				Text: "Request no more CPUs and GPUs than one NUMA node has, or relax topologyManagerPolicy (to " +
					"best-effort) in the kubelet's configuration. The kubelet does not retry a rejected pod: delete " +
					"it, and recreate it if it has no controller.",
				Commands: []string{shell.Command("kubectl -n %s delete pod %s", pod.Namespace, pod.Name)},
			},
		})
	}
}

// admitsAgain is the time after a kubelet's start during which the kubelet may reject pods that were on the node before
// the start.
const admitsAgain = 15 * time.Minute

// early reports whether the kubelet rejected the pod because the device plugin had not registered yet: the node
// advertises its GPUs now but, according to the message, the kubelet did not know of any. The message "no healthy
// devices" can also mean faulty devices, so it counts only if an event shows that the node or its kubelet had just
// started.
func early(f *facts.Facts, pod *corev1.Pod) (restart []finding.Evidence, is bool) {
	n := f.Node(pod.Spec.NodeName)
	if n == nil || facts.GPUsOf(n.Status.Allocatable) == 0 {
		return nil, false
	}
	at := f.EndedAt(pod)
	for _, e := range f.EventsOf("Node", "", n.Name) {
		if ago := at.Sub(facts.EventTime(e)); ago.Abs() < admitsAgain &&
			(e.Reason == "Rebooted" || e.Reason == "Starting" && strings.Contains(e.Message, "kubelet")) {
			restart = []finding.Evidence{facts.Quote(e)}
			break
		}
	}
	return restart, words.ContainsAny(pod.Status.Message, []string{"unregistered", "Available: 0,"}) ||
		len(restart) > 0 && strings.Contains(pod.Status.Message, "no healthy devices present") &&
			facts.GPUsOf(n.Status.Allocatable) == facts.GPUsOf(n.Status.Capacity)
}

// checkAdmission reports pods whose GPUs the kubelet could not allocate.
func checkAdmission(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		outOf := strings.HasPrefix(pod.Status.Reason, "OutOf") &&
			facts.IsGPUResource(corev1.ResourceName(strings.TrimPrefix(pod.Status.Reason, "OutOf")))
		unexpected := pod.Status.Reason == "UnexpectedAdmissionError" &&
			(len(facts.GPURequests(pod)) > 0 || strings.Contains(pod.Status.Message, "nvidia.com/"))
		if pod.DeletionTimestamp != nil || !outOf && !unexpected {
			continue
		}
		issue := finding.Finding{
			Title:  "the kubelet could not allocate the GPUs for a pod that was scheduled on its node",
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
			Evidence: []finding.Evidence{{
				Source: facts.PodObject(pod).String() + " .status.message",
				Text:   pod.Status.Reason + ": " + words.Clip(pod.Status.Message),
			}},
			Fix: finding.Fix{
				Text: "Delete the failed pod. If the node's GPUs are healthy but new pods also fail, restart the " +
					"device plugin pod on the node, then the node's kubelet, which may hold stale allocations " +
					"(kubernetes#130145).",
				Commands: []string{
					shell.Command("kubectl -n %s delete pod %s", pod.Namespace, pod.Name),
					shell.Command(
						"kubectl get node %s -o jsonpath='{.status.capacity}{\"\\n\"}{.status.allocatable}{\"\\n\"}'",
						pod.Spec.NodeName,
					),
				},
			},
		}
		restart, tooEarly := early(f, pod)
		switch {
		case outOf:
			issue.Title = "the kubelet rejected the pod, because its node did not have enough free GPUs"
			issue.Fix.Text = "Delete the failed pod. If this happens again, find out what binds pods while the " +
				"device plugin is not ready or the GPUs are in use: spec.nodeName in the template, a second " +
				"scheduler, or Karpenter before 0.9."
		case tooEarly:
			issue.Title = "the kubelet admitted the pod before the device plugin had registered, which happens after " +
				"a restart"
			issue.Cause = "After a restart, the kubelet admits the node's pods again. Until the device plugin has " +
				"registered, the kubelet has no GPUs for them, and rejects them permanently. If only the kubelet was " +
				"restarted, newer kubelets do not reject pods that were already running (kubernetes#118559)."
			issue.Confidence, issue.Evidence = finding.Possible, append(issue.Evidence, restart...)
			issue.Fix.Text = "Delete the failed pods: controllers recreate them, but a pod without a controller must " +
				"be recreated manually. Drain a node before you restart it."
			if metav1.GetControllerOf(pod) == nil {
				issue.Title += ", and nothing recreates the pod"
				issue.Fix.Text = "Delete and recreate the pod (the command does both): the pod has no controller, so " +
					"it stays failed. Use a Job, Deployment or StatefulSet to run the program, and drain a node " +
					"before you restart it."
				issue.Fix.Commands[0] = shell.Command(
					"kubectl -n %s get pod %s -o json | jq 'del(.spec.nodeName, .status)' | kubectl replace --force -f -",
					pod.Namespace, pod.Name,
				)
			}
			if len(restart) > 0 {
				issue.Confidence = finding.Likely
				issue.Fix.Text += " The GPUs that the node advertises do not need repair."
			}
		case strings.Contains(pod.Status.Message, "no healthy devices present"),
			strings.Contains(pod.Status.Message, "unhealthy devices"):
			issue.Title = "the kubelet has no healthy GPU for a pod that was scheduled on its node"
			issue.Fix.Text =
				"Check the device plugin's log for the GPUs that it marked unhealthy, and for the reason. Repair " +
					"them and restart the device plugin pod. If the log names none, the plugin was not running when " +
					"the kubelet admitted the pod. Then delete the failed pod; if it has no controller, recreate it."
		}
		if n := f.Node(pod.Spec.NodeName); n != nil {
			issue.Evidence = append(issue.Evidence, scheduler.QuoteAllocatable([]*facts.Node{n})...)
		}
		if f.Replaced(pod) {
			issue.Severity = finding.Info
		}
		r.Add(issue)
	}
}
