package workload

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// failedAt returns the time at which the pod last failed. It returns the zero time if the time is unknown. It also does
// so if the pod reports a hardware failure, because any error in the node's log can then be the explanation.
func failedAt(f *facts.Facts, pod *corev1.Pod, troubles []facts.Trouble) (last time.Time) {
	if _, hardware := f.Said(
		pod, troubles, "uncorrectable", "GPU is lost", "has fallen off the bus", "hardware error",
		"GPU has encountered",
	); hardware {
		return time.Time{}
	}
	for _, t := range troubles {
		if t.Time.After(last) {
			last = t.Time
		}
	}
	return last
}

// reportRestart reports a pod that restarted recently and is ready.
func reportRestart(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	for c := range facts.Statuses(pod) {
		last := c.LastTerminationState.Terminated
		if c.State.Running == nil || last == nil || last.ExitCode == 0 ||
			f.Now.Sub(last.FinishedAt.Time) >= facts.RecentCrash {
			continue
		}
		t := facts.Exited(c.Name, last)
		t.Text += ", " + count.Of(c.RestartCount, "restart")
		r.Add(finding.Finding{
			Severity: finding.Info, Title: "the GPU pod restarted recently and is ready again",
			Object:   facts.PodObject(pod),
			Nodes:    facts.OnNode(pod),
			Evidence: []finding.Evidence{quoteTrouble(pod, t)},
			Fix: finding.Fix{
				Text: "If this happens again, check the log of the previous instance.",
				Commands: []string{
					shell.Command("kubectl -n %s logs %s -c %s --previous --tail=50", pod.Namespace, pod.Name, c.Name),
				},
			},
		})
		return
	}
	r.Pass(facts.PodObject(pod))
}

// ownReason reports whether all failing containers log the reason for their failure themselves, and no log line is
// about GPUs, the node or the network. In that case, problems with the node do not explain the failure. It returns
// false if there is no log.
func ownReason(f *facts.Facts, pod *corev1.Pod, troubles []facts.Trouble) bool {
	if !slices.ContainsFunc(troubles, func(t facts.Trouble) bool { return t.Ran }) {
		return false
	}
	if _, _, found := wordsOf(f, pod, troubles); found {
		return false
	}
	if _, found := f.GrepLogs(
		pod, "NCCL WARN", "NCCL error", "nccl", "NVML", "libcuda", "libnvidia", "/dev/nvidia",
	); found {
		return false
	}
	for _, t := range troubles {
		if !t.Ran || t.ExitCode >= 128 || t.ExitCode == 0 { // terminated by a signal or by the container runtime
			return false
		}
		reason := strings.ToLower(words.LastLine(t.Message))
		if last, found := lastWords(f, pod, t.Container); found {
			reason = strings.ToLower(last.Text)
		}
		if !words.ContainsAny(reason, applicationWords()) || words.ContainsAny(reason, surroundings()) {
			return false
		}
	}
	return true
}

// applicationWords returns lowercase parts of error messages that are caused by a program's own code, arguments, or
// files.
func applicationWords() []string {
	return []string{
		"importerror", "modulenotfounderror", "syntaxerror", "indentationerror", "nameerror", "attributeerror",
		"typeerror", "valueerror", "keyerror",
		"indexerror", "assertionerror", "zerodivisionerror", "filenotfounderror", "notimplementederror",
		"unicodedecodeerror", "jsondecodeerror",
		"yaml.scanner", "unboundlocalerror", "no such file or directory", "can't open file", "no module named",
		"unrecognized arguments",
		"the following arguments are required", "invalid choice", "command not found", "not found in $path", "usage:",
		"unknown flag", "unknown option",
		"java.lang.", "panic: ", "no such option", "gatedrepoerror", "401 client error", "403 client error",
		"404 client error",
	}
}

// surroundings returns lowercase parts of error messages about the GPU, the node, its storage, or the network.
func surroundings() []string {
	return []string{
		"cuda", "nvidia", "nvml", "nccl", "gpu", "cudnn", "cublas", "tensorrt", "libnv", "driver", "device", "xid",
		"ecc ", "rank ", "distributed", "infiniband", "rdma",
		"resolve", "resolution", "connection", "timeout", "timed out", "unreachable", "no route", "network", "proxy",
		"certificate", "/dev/", "/run/", "/sys/",
		"/proc/", "input/output error", "no space left", "read-only file system", "stale file handle", "memory",
	}
}
