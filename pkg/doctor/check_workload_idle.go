package doctor

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// idleTime is how long a pod may hold GPUs before their idleness counts: programs load data first.
const idleTime = 30 * time.Minute

// unusedMemory is how much of a GPU's memory, in MiB, the driver itself may use.
const unusedMemory = 1024

// idle reports whether nothing computes on the GPUs of a pod; nil when it cannot be told. Which process belongs to
// which pod is not known, so that only a node none of whose GPUs does anything tells: its pods are all idle.
func idle(n *Node, pod *corev1.Pod) *bool {
	log := n.gpus().smi
	if pod.Status.Phase != corev1.PodRunning || log == nil || len(log.GPUs) == 0 {
		return nil
	}
	quiet := true
	for _, g := range log.GPUs {
		switch {
		case len(g.Errors) > 0, g.MIG.Enabled != nil && *g.MIG.Enabled, g.MemoryUsed == nil,
			g.Utilization == nil || g.Utilization.GPU == nil:
			return nil
		case len(g.Processes) > 0, *g.MemoryUsed > unusedMemory, *g.Utilization.GPU > 0:
			quiet = false
		}
	}
	if !quiet && len(log.GPUs) > 1 {
		return nil // some of its pods compute
	}
	return &quiet
}

func checkIdle(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	wanted := slices.ContainsFunc(f.pending(),
		func(p pendingPod) bool { return p.id == "sched.all-in-use" || p.id == "sched.fragmented" })
	r.EachHost(f, func(n *Node, host *api.Diagnosis) {
		if host.SMI == "" {
			if len(newScheduler(f).holders([]*Node{n}, nil)) > 0 {
				r.Unknown(n.Object(), "no output of nvidia-smi: %s", host.Probe.SMIError)
			}
			return
		}
		for _, pod := range n.Pods {
			if Ended(pod) || pod.DeletionTimestamp != nil || !f.wantsGPU(pod) ||
				ComponentOf(pod.Labels, pod.Spec) != "" || pod.Status.StartTime == nil {
				continue
			}
			held := f.Now.Sub(pod.Status.StartTime.Time)
			if i := idle(n, pod); i == nil || !*i || held < idleTime {
				continue
			}
			finding := Finding{
				Title: "the pod holds GPUs that nothing runs on", Object: PodObject(pod), Nodes: onNode(pod),
				Severity: Info, Confidence: Likely,
				Evidence: []Evidence{
					{
						Source: "nvidia-smi on Node " + n.Name,
						Text:   "no process, no load and no memory in use on any GPU",
					},
					quoteDemand(pod, gpuDemand(pod)),
					{
						Source: PodObject(pod).String() + " .status.startTime", Time: pod.Status.StartTime.Time,
						Text: "running for " + ageText(held),
					},
				},
				Fix: Fix{
					Text:     "Ask its owner whether it is still needed, and end it.",
					Commands: []string{command("kubectl -n %s get pod %s -o wide", pod.Namespace, pod.Name)},
				},
			}
			if wanted {
				finding.Severity = Warning
			}
			r.Add(finding)
		}
	})
}
