package workload

import (
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// idleTime is the time for which a pod may hold idle GPUs before it is reported, because programs may load data first.
const idleTime = 30 * time.Minute

func checkIdle(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	wanted := slices.ContainsFunc(scheduler.Pending(f),
		func(p scheduler.PendingPod) bool { return p.Id == "sched.all-in-use" || p.Id == "sched.fragmented" })
	r.EachHost(f, func(n *facts.Node, host *api.Diagnosis) {
		if host.SMI == "" {
			if len(scheduler.New(f).Holders([]*facts.Node{n}, nil)) > 0 {
				r.Unknown(n.Object(), "no output from nvidia-smi: %s", host.Probe.SMIError)
			}
			return
		}
		for _, pod := range n.Pods {
			if facts.Ended(pod) || pod.DeletionTimestamp != nil || !f.AsksForGPU(pod) ||
				facts.ComponentOf(pod.Labels, &pod.Spec) != "" || pod.Status.StartTime == nil {
				continue
			}
			held := f.Now.Sub(pod.Status.StartTime.Time)
			if i := facts.Idle(n, pod); i == nil || !*i || held < idleTime {
				continue
			}
			issue := finding.Finding{
				Title: "the pod holds idle GPUs", Object: facts.PodObject(pod),
				Nodes:    facts.OnNode(pod),
				Severity: finding.Info, Confidence: finding.Likely,
				Evidence: []finding.Evidence{
					{
						Source: "nvidia-smi on Node " + n.Name,
						Text:   "no process, no load and no memory in use on any GPU",
					},
					facts.QuoteDemand(pod, facts.GPUDemand(pod)),
					{
						Source: facts.PodObject(pod).String() + " .status.startTime", Time: pod.Status.StartTime.Time,
						Text: "running for " + words.AgeText(held),
					},
				},
				Fix: finding.Fix{
					Text:     "Ask the pod's owner whether the pod is still needed; if not, delete it.",
					Commands: []string{shell.Command("kubectl -n %s get pod %s -o wide", pod.Namespace, pod.Name)},
				},
			}
			if wanted {
				issue.Severity = finding.Warning
			}
			r.Add(issue)
		}
	})
}
