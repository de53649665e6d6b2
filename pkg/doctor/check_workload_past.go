package doctor

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// endedCounts is how long a pod that has failed is news: whoever waits for it has seen it by then, and its owner has
// made another if it does.
const endedCounts = time.Hour

// restartsCount is how many restarts of a pod that is not ready yet are more than an accident.
const restartsCount = 3

// past reports whether a pod has failed, and that is over: users' jobs fail every day, and nothing is wrong with the
// cluster for that.
func (f *Facts) past(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || ComponentOf(pod.Labels, pod.Spec) != "" {
		return false
	}
	ended := lastChange(pod)
	return f.replaced(pod) || !ended.IsZero() && f.Now.Sub(ended) > endedCounts
}

// weigh lowers findings about pods that are over, or that run again: they are told, and no alarm.
func weigh(f *Facts, r *Result) {
	for i := range r.findings {
		found := &r.findings[i]
		if found.Object.Kind != "Pod" || found.Severity == Info {
			continue
		}
		pod := f.Pod(found.Object.Namespace, found.Object.Name)
		switch {
		case pod == nil:
		case f.past(pod):
			found.Severity = Info
		case found.Severity == Error && found.Layer == LayerWorkload:
			found.Severity = worstOf(f.troubles(pod))
		}
	}
}

// worstOf returns how bad troubles can be: containers that run again may go on to run.
func worstOf(troubles []trouble) Severity {
	worst := Error
	for i, t := range troubles {
		severity := Error
		switch {
		case t.again && t.restarts < restartsCount:
			severity = Info
		case t.again:
			severity = Warning
		}
		if i == 0 || rank(severity) < rank(worst) {
			worst = severity
		}
	}
	return worst
}

// failedAt returns when the pod failed last; zero when it does not say, and when it says that hardware failed, which
// then was so whenever the log of the node has it.
func (f *Facts) failedAt(pod *corev1.Pod, troubles []trouble) (last time.Time) {
	if _, hardware := f.said(
		pod, troubles, "uncorrectable", "GPU is lost", "has fallen off the bus", "hardware error",
		"GPU has encountered",
	); hardware {
		return time.Time{}
	}
	for _, t := range troubles {
		if t.time.After(last) {
			last = t.time
		}
	}
	return last
}

// tellRestart tells of a pod that has just restarted, and is ready.
func tellRestart(f *Facts, r *Result, pod *corev1.Pod) {
	for _, c := range statuses(pod) {
		last := c.LastTerminationState.Terminated
		if c.State.Running == nil || last == nil || last.ExitCode == 0 ||
			f.Now.Sub(last.FinishedAt.Time) >= recentCrash {
			continue
		}
		t := exited(c.Name, last)
		t.text += ", " + count.Of(c.RestartCount, "restart")
		r.Add(Finding{
			Severity: Info, Title: "the GPU pod was restarted a moment ago, and is ready again", Object: PodObject(pod),
			Nodes:    onNode(pod),
			Evidence: []Evidence{quoteTrouble(pod, t)},
			Fix: Fix{
				Text: "If it happens again, see what the container said before.",
				Commands: []string{
					command("kubectl -n %s logs %s -c %s --previous --tail=50", pod.Namespace, pod.Name, c.Name),
				},
			},
		})
		return
	}
	r.Pass(PodObject(pod))
}

// ownReason reports whether a container that ran says itself why it failed, and neither that nor anything else in its
// log is about GPUs, the node or the network. Nothing that is wrong with its node explains it then. Where no log is
// there, nobody knows.
func (f *Facts) ownReason(pod *corev1.Pod, troubles []trouble) bool {
	if !slices.ContainsFunc(troubles, func(t trouble) bool { return t.ran }) {
		return false
	}
	if _, _, found := f.wordsOf(pod, troubles); found {
		return false
	}
	if _, found := f.GrepLogs(
		pod, "NCCL WARN", "NCCL error", "nccl", "NVML", "libcuda", "libnvidia", "/dev/nvidia",
	); found {
		return false
	}
	for _, t := range troubles {
		if !t.ran || t.exitCode >= 128 || t.exitCode == 0 { // a signal ended it, or the runtime did
			return false
		}
		reason := strings.ToLower(lastLine(t.message))
		if last, found := f.lastWords(pod, t.container); found {
			reason = strings.ToLower(last.Text)
		}
		if !containsAny(reason, applicationWords()) || containsAny(reason, surroundings()) {
			return false
		}
	}
	return true
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// applicationWords are, in lower case, how programs say that their own code, arguments or files are at fault.
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

// surroundings are, in lower case, what makes a reason one of the GPU, the node, its storage or the network.
func surroundings() []string {
	return []string{
		"cuda", "nvidia", "nvml", "nccl", "gpu", "cudnn", "cublas", "tensorrt", "libnv", "driver", "device", "xid",
		"ecc ", "rank ", "distributed", "infiniband", "rdma",
		"resolve", "resolution", "connection", "timeout", "timed out", "unreachable", "no route", "network", "proxy",
		"certificate", "/dev/", "/run/", "/sys/",
		"/proc/", "input/output error", "no space left", "read-only file system", "stale file handle", "memory",
	}
}
