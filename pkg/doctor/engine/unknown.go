package engine

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// LacksPCI reports whether the node's PCI devices could not be read. If so, it also records the node as unknown.
func LacksPCI(r *Result, n *facts.Node) bool {
	if n.Host == nil || len(n.Host.Probe.PCI) > 0 || n.Host.Probe.Unread["pci"] == "" {
		return false
	}
	r.Unknown(n.Object(), "its PCI devices were not read: %s", n.Host.Probe.Unread["pci"])
	return true
}

// EachSMI calls do for each GPU node with readable nvidia-smi output, and records the other GPU nodes as unknown.
func EachSMI(f *facts.Facts, r *Result, do func(n *facts.Node, v *facts.GPUView)) {
	r.EachHost(f, func(n *facts.Node, _ *api.Diagnosis) {
		v := n.GPUs()
		if v.SMI == nil {
			r.Unknown(n.Object(), "nvidia-smi printed no readable output: %s",
				cmp.Or(words.FirstLine(v.SMIError), "it was not run"))
			return
		}
		do(n, v)
	})
}

// LacksLog records a pod as unknown if its log is missing.
func LacksLog(f *facts.Facts, r *Result, pod *corev1.Pod) {
	if len(f.LogsOf(pod)) == 0 {
		r.Unknown(facts.PodObject(pod), "its log is missing: %s",
			cmp.Or(f.Missing("logs/"+pod.Namespace+"/"+pod.Name), f.Missing("logs"), "not collected"))
	}
}
