package doctor

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// What the catalog has and these checks do not: the variables that an image itself sets (NVIDIA_REQUIRE_CUDA,
// NVIDIA_VISIBLE_DEVICES) are not in a snapshot, so that wl.cuda-vs-driver and wl.cpu-mode know only those of the pod;
// and use over time is not either, so that wl.idle-holder goes by one look, and wl.cpu-mode does not compare DCGM's
// numbers.

func workloadChecks() []Check {
	const logs = "logs of GPU pods that fail, messages of their containers, events"
	failing := []string{"wl.pod-failing"}
	return []Check{
		{
			ID: "wl.pod-failing", Layer: LayerWorkload, Title: "a GPU pod crashes, or does not start",
			Needs: []Need{NeedAPI, NeedLogs},
			Reads: "phase and container states of pods that ask for GPUs and are no GPU components, their events and the end of their logs",
			Why: "The symptom, told so that causes that no check knows are reported, too. A pod that is younger than 2 minutes and still starts, one that is being deleted, one that " +
				"failed more than a day ago, and one whose owner has a newer healthy pod are none. One that ended more than an hour ago, and one that is ready again, are Info. A pod that names a " +
				"reason of its own (an ImportError) does not follow from what is wrong with its node.",
			Run: checkFailing,
		},
		{
			ID: "wl.exec-format", Layer: LayerWorkload, Title: "an image is for another processor than the node has",
			Needs: []Need{NeedAPI, NeedLogs, NeedImages},
			Reads: logs + "; platforms of images in their registries; Node .status.nodeInfo.architecture",
			Why: "\"exec format error\" and \"no match for platform\" say so themselves. Before it fails: the image has no platform for the node, or for any GPU node that a pod that is not " +
				"yet placed may run on. A container that runs disproves it.",
			Explains: []string{
				"wl.pod-failing", "op.operand-failing", "op.init-chain", "dp.not-running", "img.not-found",
			},
			Doc:     "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-arch",
			Sources: []string{"seed 000", "gpu-operator#575", "node-problem-detector#797"},
			Run:     checkExecFormat,
		},
		{
			ID: "wl.cpu-mode", Layer: LayerWorkload, Title: "a pod that has a GPU does not use it, or cannot see it",
			Needs: []Need{NeedAPI, NeedLogs},
			Reads: "CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES in .spec.containers[].env; logs of GPU pods: their ends, and of some that run the beginnings",
			Why: "An empty list, -1, void and none hide all GPUs, and so does a list that begins with a number for which the container has no GPU. Without such a variable the program's own words count: " +
				"that there is no GPU (\"No CUDA GPUs are available\"), or that it computes on the CPU (\"Using device: cpu\", and the words of Lightning, JAX, TensorFlow, XGBoost and others), unless its log tells " +
				"of CUDA, too. Then the runtime may have given it none, which other checks find; values of ConfigMaps are not looked at. Error when the pod fails for it, else a warning.",
			Explains: []string{"wl.pod-failing", "wl.idle-holder"},
			Doc:      "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables",
			Sources:  []string{"seed 001, scenario 4", "pytorch#18690", "vllm#3019", "jax#6805", "thuml/Autoformer#25"},
			Run:      checkCPUMode,
		},
		{
			ID: "wl.cuda-vs-driver", Layer: LayerWorkload, Title: "a pod's CUDA needs a newer driver than the node has",
			Needs:    []Need{NeedAPI, NeedLogs},
			Reads:    logs + "; labels nvidia.com/cuda.driver-version.* and cuda.runtime-version.* of the node",
			Why:      "The program, or the hook that starts the container, says so. The labels tell which CUDA version the node's driver serves.",
			Explains: append([]string{"rt.sandbox-failed"}, failing...),
			Doc:      "https://docs.nvidia.com/deploy/cuda-compatibility/",
			Sources:  []string{"nvidia-docker#400", "nvidia-docker#536", "gpu-operator#176"},
			Run:      says(wordsTooNew),
		},
		{
			ID: "wl.cuda-oom", Layer: LayerWorkload, Title: "the GPU's memory is too small for what runs on it",
			Needs: []Need{NeedAPI, NeedLogs}, Reads: logs + "; label nvidia.com/gpu.memory; processes in nvidia-smi",
			Why: "CUDA's own words, in a pod that fails.", Explains: failing,
			Sources: []string{"seed 001, scenario 3", "k8s-device-plugin#323", "pytorch#40863"},
			Run:     says(wordsOutOfMemory),
		},
		{
			ID: "wl.oom-killed", Layer: LayerWorkload,
			Title: "a GPU pod was killed for using too much of the host's memory",
			Needs: []Need{NeedAPI}, Reads: "containers' states with the reason OOMKilled",
			Why:      "The kernel killed it at its memory limit, or because the node had none left. GPU memory has nothing to do with it.",
			Explains: failing, Doc: "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/",
			Run: checkOOMKilled,
		},
		{
			ID: "wl.shm", Layer: LayerWorkload, Title: "/dev/shm of a pod is too small for NCCL or for data loaders",
			Needs: []Need{NeedAPI, NeedLogs}, Reads: logs + "; volumes mounted at /dev/shm",
			Why: "Containers get 64 MiB there unless a memory volume is mounted.", Explains: failing,
			Sources: []string{"nccl#290", "nccl#342", "llm-d#352"},
			Run:     says(wordsSharedMemory),
		},
		{
			ID: "wl.cuda-error", Layer: LayerWorkload, Title: "a CUDA call failed in a GPU pod",
			Needs: []Need{NeedAPI, NeedLogs}, Reads: logs + "; XIDs in the kernel log of the node",
			Why:      "CUDA's own words, in a pod that fails. Its cause is in the program, or in the GPU: an XID in the kernel log at the same time tells which.",
			Explains: failing, Doc: "https://docs.nvidia.com/deploy/xid-errors/", Run: says(wordsCUDAError),
		},
		{
			ID: "wl.config-error", Layer: LayerWorkload,
			Title: "a GPU pod refers to a ConfigMap or Secret that is not there",
			Needs: []Need{NeedAPI}, Reads: "containers that wait with CreateContainerConfigError",
			Why: "The kubelet's message names what is missing.", Explains: failing, Run: checkConfigError,
		},
		{
			ID: "wl.probe-failing", Layer: LayerWorkload, Title: "a GPU pod runs, and its probes fail",
			Needs: []Need{NeedAPI}, Reads: "events Unhealthy and Killing, readiness of containers",
			Why:      "Loading a model takes minutes: a liveness probe that does not wait kills the container over and over. A pod that became ready is fine.",
			Explains: failing,
			Doc:      "https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/",
			Run:      checkProbes,
		},
		{
			ID: "wl.volume", Layer: LayerWorkload, Title: "a volume of a GPU pod cannot be attached or mounted",
			Needs: []Need{NeedAPI}, Reads: "events FailedMount and FailedAttachVolume",
			Why: "Only for pods that still wait, for more than 2 minutes.", Explains: failing, Run: checkVolumes,
		},
		{
			ID: "wl.evicted", Layer: LayerWorkload, Title: "the kubelet evicted a GPU pod",
			Needs: []Need{NeedAPI}, Reads: "Pod .status.reason Evicted",
			Why:      "The node ran short of disk, memory or process IDs. History once the owner has a newer healthy pod.",
			Explains: failing, Run: checkEvicted,
		},
		{
			ID: "wl.idle-holder", Layer: LayerWorkload, Title: "a pod holds GPUs that nothing runs on",
			Needs: []Need{NeedAPI, NeedNode},
			Reads: "nvidia-smi's processes, memory and utilization; pods that hold GPUs",
			Why: "Told when no GPU of the node has a process, memory in use or load, and the pod has run for half an hour: then none of its pods uses its GPUs. Which process belongs to which pod is not " +
				"known, so that single idle GPUs are not told. A warning when pods wait for GPUs, else Info.",
			Sources: []string{"seed 001, scenario 4"},
			Run:     checkIdle,
		},
	}
}

// checkFailing reports GPU pods that crash or do not start.
func checkFailing(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.workloads() {
		switch pod.Status.Reason {
		case "UnexpectedAdmissionError", "TopologyAffinityError", "Evicted", "Preempting", "Preempted", "NodeShutdown",
			"Terminated", "Shutdown":
			continue // told by other checks, or nobody's fault
		}
		troubles := f.troubles(pod)
		switch {
		case strings.HasPrefix(pod.Status.Reason, "OutOf"):
		case len(troubles) > 0:
			reportFailing(f, r, pod, troubles)
		case pod.Status.Phase == corev1.PodFailed && !f.history(pod):
			reportFailing(f, r, pod, []trouble{
				{text: "phase Failed", message: strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)},
			})
		case pod.Status.Phase == corev1.PodUnknown:
			reportFailing(f, r, pod, []trouble{{text: "phase Unknown", message: pod.Status.Message}})
		case isReady(pod):
			tellRestart(f, r, pod)
		default:
			checkStarting(f, r, pod)
		}
	}
}

func reportFailing(f *Facts, r *Result, pod *corev1.Pod, troubles []trouble) {
	finding := Finding{
		Title: "the GPU pod crashes", Object: PodObject(pod), Nodes: onNode(pod), failed: f.failedAt(pod, troubles),
		own: f.ownReason(pod, troubles),
		Fix: Fix{Text: "See what the container says, and its events.", Commands: []string{
			command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name),
			command("kubectl -n %s logs %s --all-containers --previous --tail=50", pod.Namespace, pod.Name),
		}},
	}
	if t := troubles[0]; !t.ran {
		finding.Title = "the GPU pod does not start"
	}
	for _, t := range troubles[:min(2, len(troubles))] {
		finding.Evidence = append(finding.Evidence, quoteTrouble(pod, t))
	}
	if e, found := f.lastWords(pod, troubles[0].container); found {
		finding.Evidence = append(finding.Evidence, e)
	} else if why := f.unread(pod, troubles); why != "" {
		r.Unknown(PodObject(pod), "%s", why)
	}
	for _, e := range f.EventsOfPod(pod) {
		if e.Type == corev1.EventTypeWarning && len(finding.Evidence) < few && e.Reason != "BackOff" {
			q := Quote(e)
			q.Text = cut(q.Text)
			finding.Evidence = append(finding.Evidence, q)
		}
	}
	r.Add(finding)
}

// lastWords returns the last lines of a container's log, of the run before when there is one: that is the run that
// failed.
func (f *Facts) lastWords(pod *corev1.Pod, container string) (Evidence, bool) {
	var found Evidence
	for _, l := range f.LogsOf(pod) {
		if l.Container != container && container != "" || strings.TrimSpace(l.Text) == "" {
			continue
		}
		text := strings.TrimRight(l.Text, "\r\n")
		lines := strings.Split(text[max(0, len(text)-2048):], "\n")
		e := Evidence{
			Source: "end of the log of " + PodObject(pod).String() + ", container " + l.Container,
			Text:   strings.ToValidUTF8(strings.Join(lines[max(0, len(lines)-3):], "\n"), ""),
		}
		if l.Previous {
			e.Source += ", its run before"
			return e, true
		}
		found = e
	}
	return found, found.Text != ""
}

// checkStarting reports a pod that is on a node and does not get on: something warns of it, or it takes too long.
func checkStarting(f *Facts, r *Result, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending {
		r.Pass(PodObject(pod))
		return
	}
	since := f.age(pod)
	if pod.Status.StartTime != nil {
		since = f.Now.Sub(pod.Status.StartTime.Time)
	}
	var warnings []Evidence
	for _, e := range f.EventsOfPod(pod) {
		if e.Type != corev1.EventTypeNormal && e.Reason != "FailedScheduling" && f.Now.Sub(EventTime(e)) < slowStart &&
			len(warnings) < few {
			q := Quote(e)
			q.Text = cut(q.Text)
			warnings = append(warnings, q)
		}
	}
	text := "waiting: ContainerCreating"
	for _, c := range statuses(pod) {
		if c.State.Waiting != nil {
			text = "waiting: " + strings.TrimSpace(c.State.Waiting.Reason+" "+c.State.Waiting.Message)
			break
		}
	}
	state := Evidence{Source: PodObject(pod).String() + " .status", Text: cut(text) + ", for " + ageText(since)}
	finding := Finding{
		Title: "the GPU pod does not start", Object: PodObject(pod), Nodes: onNode(pod),
		Evidence: append([]Evidence{state}, warnings...),
		Fix: Fix{
			Text:     "See the pod's events.",
			Commands: []string{command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name)},
		},
	}
	// A long download, perhaps
	running := len(pod.Status.InitContainerStatuses) > 0 && pod.Status.InitContainerStatuses[0].State.Running != nil
	switch {
	case since < startTime, running && len(warnings) == 0:
		r.Pass(PodObject(pod))
		return
	case len(warnings) > 0:
	case since < slowStart:
		if why := f.Missing("api/events"); why != "" {
			r.Unknown(PodObject(pod), "api/events: %s", why)
		}
		finding.Severity, finding.Confidence = Info, Possible
		finding.Title = "the GPU pod is still starting"
	default:
		finding.Severity, finding.Confidence = Warning, Possible
		finding.Title = "the GPU pod has been starting for long, and nothing says why"
	}
	r.Add(finding)
}

func checkOOMKilled(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.workloads() {
		for _, c := range statuses(pod) {
			killed := c.State.Terminated
			if killed == nil {
				killed = c.LastTerminationState.Terminated
			}
			if killed == nil || killed.Reason != "OOMKilled" || len(f.troubles(pod)) == 0 {
				continue
			}
			limit := "none"
			for _, spec := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
				if q, ok := spec.Resources.Limits[corev1.ResourceMemory]; ok && spec.Name == c.Name {
					limit = q.String()
				}
			}
			r.Add(Finding{
				Title:  "the kernel killed the container for using too much of the host's memory",
				Object: PodObject(pod), Nodes: onNode(pod),
				Evidence: []Evidence{
					{
						Source: PodObject(pod).String() + ", container " + c.Name + " .status",
						Time:   killed.FinishedAt.Time,
						Text: fmt.Sprintf("OOMKilled, exit code %d, %s", killed.ExitCode,
							count.Of(c.RestartCount, "restart")),
					},
					{
						Source: PodObject(pod).String() + ", container " + c.Name + " .resources.limits.memory",
						Text:   limit,
					},
				},
				Fix: Fix{
					Text:     "Raise the container's memory limit, or load less into the host's memory (data loader workers, weights that are loaded whole).",
					Commands: editCommands(pod),
				},
			})
		}
	}
}

func checkConfigError(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.workloads() {
		for _, t := range f.troubles(pod) {
			if t.reason != "CreateContainerConfigError" {
				continue
			}
			r.Add(Finding{
				Title:  "a container cannot be created: what its configuration refers to is not there",
				Object: PodObject(pod), Nodes: onNode(pod),
				Evidence: []Evidence{quoteTrouble(pod, t)},
				Fix: Fix{Text: "Create the ConfigMap, Secret or key that the message names, or correct its name in the pod.",
					Commands: []string{
						command("kubectl -n %s get configmaps,secrets", pod.Namespace),
					}},
			})
		}
	}
}

func checkVolumes(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/events") {
		return
	}
	for _, pod := range f.workloads() {
		if pod.Status.Phase != corev1.PodPending || f.age(pod) < startTime {
			continue
		}
		for _, e := range f.EventsOfPod(pod) {
			if e.Reason != "FailedMount" && e.Reason != "FailedAttachVolume" && e.Reason != "FailedMapVolume" {
				continue
			}
			q := Quote(e)
			q.Text = cut(q.Text)
			r.Add(Finding{
				Title: "a volume of the pod cannot be attached or mounted", Object: PodObject(pod), Nodes: onNode(pod),
				Evidence: []Evidence{q},
				Fix: Fix{Text: "See the message: the ConfigMap, Secret or claim must exist, and a volume that one node may have must be detached from the node before.",
					Commands: []string{
						command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name),
						command("kubectl -n %s get pvc,configmaps,secrets", pod.Namespace),
						"kubectl get volumeattachments",
					}},
			})
			break
		}
	}
}

func checkEvicted(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.workloads() {
		if pod.Status.Reason != "Evicted" || f.history(pod) {
			continue
		}
		severity := Warning
		if last := lastChange(pod); !last.IsZero() && f.Now.Sub(last) > evictedSince {
			severity = Info
		}
		r.Add(Finding{
			Title: "the kubelet evicted the GPU pod", Object: PodObject(pod), Nodes: onNode(pod), Severity: severity,
			Evidence: []Evidence{{
				Source: PodObject(pod).String() + " .status.message",
				Text:   cut(cmp.Or(pod.Status.Message, pod.Status.Reason)),
			}},
			Fix: Fix{Text: "Give the pod requests for what the node ran short of (ephemeral-storage, memory), and the node more of it; then delete the evicted pod.",
				Commands: []string{
					command("kubectl -n %s delete pod %s", pod.Namespace, pod.Name),
				}},
		})
	}
}

// checkProbes reports pods whose liveness probe kills them, and those that have not become ready.
func checkProbes(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/events") {
		return
	}
	for _, pod := range f.workloads() {
		if isReady(pod) || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		var killed, unhealthy Evidence
		for _, e := range f.EventsOfPod(pod) {
			q := Quote(e)
			q.Text = cut(q.Text)
			recent := f.Now.Sub(q.Time) < slowStart
			switch {
			case recent && killed.Text == "" && e.Reason == "Killing" &&
				containsAny(e.Message, []string{"failed liveness probe", "failed startup probe"}):
				killed = q
			case recent && unhealthy.Text == "" && e.Reason == "Unhealthy":
				unhealthy = q
			}
		}
		finding := Finding{Object: PodObject(pod), Nodes: onNode(pod), Confidence: Likely}
		switch {
		case killed.Text != "":
			finding.Title = "the container's probe fails, and the kubelet kills it for that"
			finding.Fix = Fix{
				Text:     "Give the container a startup probe that waits as long as the model takes to load (failureThreshold times periodSeconds).",
				Commands: editCommands(pod),
			}
			finding.Evidence = []Evidence{killed}
		case unhealthy.Text != "" && f.age(pod) > slowStart:
			finding.Title, finding.Severity = "the pod runs, and does not become ready: its probe fails", Warning
			finding.Fix = Fix{
				Text: "See why the program does not answer its probe.",
				Commands: []string{
					command("kubectl -n %s logs %s --all-containers --tail=50", pod.Namespace, pod.Name),
				},
			}
		default:
			continue
		}
		if unhealthy.Text != "" {
			finding.Evidence = append(finding.Evidence, unhealthy)
		}
		r.Add(finding)
	}
}
