// Package workload checks GPU pods.
package workload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// wl.cuda-vs-driver and wl.cpu-mode use only the variables in the pod spec, because a snapshot does not contain
// variables that are set in an image (NVIDIA_REQUIRE_CUDA, NVIDIA_VISIBLE_DEVICES). A snapshot does not contain GPU
// usage over time either. Therefore, wl.idle-holder uses a single sample, and wl.cpu-mode does not use DCGM metrics.

// Checks returns the checks for GPU pods.
func Checks() []engine.Check {
	const logs = "logs and container messages of failing GPU pods, events"
	failing := []string{"wl.pod-failing"}
	return append([]engine.Check{
		{
			ID: "wl.pod-failing", Symptom: engine.Unexplained, Layer: finding.LayerWorkload,
			Title: "a GPU pod crashes or does not start",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: "phase and container states of pods that request GPUs and are not GPU components, with their " +
				"events and the ends of their logs",
			Why: "This is a symptom, reported so that failures with unknown causes are not missed. Not reported: " +
				"pods younger than 2 minutes that are still starting, pods that are being deleted or failed more " +
				"than a day ago, and pods whose owner has a newer healthy pod. Pods that finished more than an hour " +
				"ago or are ready again are Info. Problems with the node do not explain the failure of a pod that " +
				"reports a reason of its own (such as an ImportError).",
			Run: checkFailing,
		},
		{
			ID: "wl.completes", Layer: finding.LayerWorkload,
			Title: "a container's program exits without an error and is restarted again and again",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "exit codes and reasons of containers in failing GPU pods, and .spec.restartPolicy",
			Why: "All failing containers exit with code 0, and restartPolicy Always restarts them with a growing " +
				"delay (CrashLoopBackOff). Not reported if the kubelet stops them because of a failed probe or hook.",
			Explains: failing, Doc: "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy",
			Sources: []string{"k8s-device-plugin#106"},
			Run:     checkCompletes,
		},
		{
			ID: "wl.sidecar-runs-on", Layer: finding.LayerWorkload,
			Title: "a job's pod has finished its work, but a service mesh sidecar keeps it running",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "states of containers in GPU pods with a restartPolicy other than Always",
			Why: "A pod completes when all its containers have completed. An injected proxy does not exit by itself, " +
				"unless it is a native sidecar. The pod keeps its GPUs, and the job never completes.",
			Doc:     "https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/",
			Sources: []string{"istio#6324", "istio#11045"},
			Run:     checkRunsOn,
		},
		{
			ID: "wl.exec-format", Layer: finding.LayerWorkload,
			Title: "an image does not support the node's architecture",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs, engine.NeedImages},
			Reads: logs + "; platforms of images in their registries; Node .status.nodeInfo.architecture",
			Why: "The errors \"exec format error\" and \"no match for platform\" prove this. The problem is also " +
				"reported before a failure, if the image does not support the platform of the node, or of a GPU node " +
				"that an unscheduled pod may run on. A running container disproves it.",
			Explains: []string{
				"wl.pod-failing", "op.operand-failing", "op.init-chain", "dp.not-running", "img.not-found",
			},
			Doc:     "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-arch",
			Sources: []string{"seed 000", "gpu-operator#575", "node-problem-detector#797"},
			Run:     checkExecFormat,
		},
		{
			ID: "wl.cpu-mode", Symptom: engine.Explained, Layer: finding.LayerWorkload,
			Title: "a pod does not use its GPU, or cannot see it",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: "CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES in .spec.containers[].env; the ends of GPU pods' " +
				"logs, and for some running pods the beginnings",
			Why: "An empty list, -1, void and none hide all GPUs, as does a list that begins with a number for which " +
				"the container has no GPU. Without such a variable, the check uses the program's log: the log " +
				"reports that there is no GPU (\"No CUDA GPUs are available\"), or that the program computes on the " +
				"CPU (\"Using device: cpu\", and messages from Lightning, JAX, TensorFlow, XGBoost and others) and " +
				"does not mention CUDA. Other checks detect that the runtime did not inject the GPU. Values from " +
				"ConfigMaps are not checked. This is an error if the pod fails because of it, otherwise a warning.",
			Explains: []string{"wl.pod-failing", "wl.idle-holder"},
			Doc:      "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables",
			Sources: []string{
				"seed 001, scenario 4",
				"pytorch#18690",
				"vllm#3019",
				"jax#6805",
				"thuml/Autoformer#25",
			},
			Run: checkCPUMode,
		},
		{
			ID: "wl.cuda-vs-driver", Symptom: engine.Precise, Layer: finding.LayerWorkload,
			Title: "a pod's CUDA version requires a newer driver than the node has",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: logs + "; the node labels nvidia.com/cuda.driver-version.* and cuda.runtime-version.*; CUDA " +
				"versions in the pod's variables and images",
			Why: "The program, or the hook that starts the container, reports this. \"CUDA driver version is " +
				"insufficient\" may also mean that the container has no driver libraries: the versions, if known, " +
				"distinguish the two cases.",
			Explains: append([]string{"rt.sandbox-failed"}, failing...),
			Doc:      "https://docs.nvidia.com/deploy/cuda-compatibility/",
			Sources:  []string{"nvidia-docker#400", "nvidia-docker#536", "gpu-operator#176"},
			Run:      reportKind(wordsTooNew),
		},
		{
			ID: "wl.cuda-oom", Symptom: engine.Precise, Layer: finding.LayerWorkload,
			Title: "the GPU's memory is too small for its workload",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: logs + "; the node label nvidia.com/gpu.memory; processes that nvidia-smi lists",
			Why: "CUDA reports this in a failing pod, or in a running pod that then fails to load a model or to handle a " +
				"request.",
			Explains: append([]string{"wl.probe-failing", "wl.message"}, failing...),
			Sources:  []string{"seed 001, scenario 3", "k8s-device-plugin#323", "pytorch#40863"},
			Run:      reportKind(wordsOutOfMemory),
		},
		{
			ID: "wl.oom-killed", Symptom: engine.Precise, Layer: finding.LayerWorkload,
			Title: "a GPU pod was killed for using too much of the host's memory",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "container states with the reason OOMKilled, and their memory limits",
			Why: "The kernel killed the container because it reached its memory limit or because the node ran out of " +
				"memory. GPU memory is unrelated.",
			Explains: failing, Doc: "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/",
			Run: checkOOMKilled,
		},
		{
			ID: "wl.shm", Layer: finding.LayerWorkload,
			Title: "/dev/shm in a pod is too small for NCCL or data loaders",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs}, Reads: logs + "; volumes mounted at /dev/shm",
			Why: "The size of /dev/shm is 64 MiB unless a memory-backed volume is mounted there.", Explains: failing,
			Sources: []string{"nccl#290", "nccl#342", "llm-d#352"},
			Run:     reportKind(wordsSharedMemory),
		},
		{
			ID: "wl.cuda-error", Symptom: engine.Explained, Layer: finding.LayerWorkload,
			Title: "a CUDA call failed in a GPU pod",
			Needs: []engine.Need{
				engine.NeedAPI,
				engine.NeedLogs,
			}, Reads: logs + "; the ends of logs of running GPU pods; XIDs in the node's kernel log",
			Why: "CUDA reports this in a failing pod, or at the end of the log of a running pod. The cause is either " +
				"the program or the GPU: it is the GPU if the kernel log contains an XID from the same time.",
			Explains: append([]string{"wl.probe-failing"}, failing...),
			Doc:      "https://docs.nvidia.com/deploy/xid-errors/", Run: reportKind(wordsCUDAError),
		},
		{
			ID: "wl.config-error", Layer: finding.LayerWorkload,
			Title: "a GPU pod refers to a ConfigMap or Secret that does not exist",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "containers waiting with the reason CreateContainerConfigError",
			Why:   "The kubelet's message names what is missing.", Explains: failing, Run: checkConfigError,
		},
		{
			ID: "wl.probe-failing", Symptom: engine.Explained, Layer: finding.LayerWorkload,
			Title: "a GPU pod is running, but its probes fail",
			Needs: []engine.Need{engine.NeedAPI}, Reads: "Unhealthy and Killing events, container readiness, " +
				"the time of the last log line",
			Why: "Loading a model takes minutes: if the liveness probe does not wait, the kubelet kills the " +
				"container repeatedly. A pod that has become ready is healthy. Pods that request another vendor's " +
				"accelerator are checked, too.",
			Explains: append([]string{"wl.other-accelerator"}, failing...),
			Doc:      "https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/",
			Run:      checkProbes,
		},
		{
			ID: "wl.volume", Symptom: engine.Explained, Layer: finding.LayerWorkload,
			Title: "a GPU pod's volume cannot be attached or mounted",
			Needs: []engine.Need{engine.NeedAPI}, Reads: "FailedMount and FailedAttachVolume events",
			Why: "Reported only for pods that have been pending for more than 2 " +
				"minutes.", Explains: failing, Run: checkVolumes,
		},
		evictedCheck(),
		{
			ID: "wl.idle-holder", Layer: finding.LayerWorkload, Title: "a pod holds idle GPUs",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Reads: "nvidia-smi's processes, memory and utilization; pods that hold GPUs",
			Why: "Reported if no GPU on the node has a process, memory in use or load, and the pod has been running " +
				"for half an hour: in that case, no pod on the node is using its GPUs. It is unknown which process " +
				"belongs to which pod, so individual idle GPUs are not reported. This is a warning if pods are " +
				"waiting for GPUs, otherwise Info.",
			Sources: []string{"seed 001, scenario 4"},
			Run:     checkIdle,
		},
		sharedFileCheck(), restartsCheck(), agentCheck(),
	}, messageChecks()...)
}

func checkOOMKilled(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		for c := range facts.Statuses(pod) {
			killed := c.State.Terminated
			if killed == nil {
				killed = c.LastTerminationState.Terminated
			}
			if killed == nil || killed.Reason != "OOMKilled" || len(f.Troubles(pod)) == 0 {
				continue
			}
			limit, less := "none", "load less into the host's memory (fewer data loader workers, weights loaded in parts)."
			fix := "The container has no limit, so the node ran out of memory: request what the program needs, or " +
				"" + less
			for _, spec := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
				if q, ok := spec.Resources.Limits[corev1.ResourceMemory]; ok && spec.Name == c.Name {
					limit = q.String()
					fix = "Raise the container's memory limit, if the node has enough memory, or " + less
				}
			}
			r.Add(finding.Finding{
				Title:  "the kernel killed the container for using too much of the host's memory",
				Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), As: signatures.Killed,
				Evidence: []finding.Evidence{
					{
						Source: facts.PodObject(pod).String() + ", container " + c.Name + " .status",
						Time:   killed.FinishedAt.Time,
						Text: fmt.Sprintf("OOMKilled, exit code %d, %s", killed.ExitCode,
							count.Of(c.RestartCount, "restart")),
					},
					{
						Source: facts.PodObject(pod).String() + ", container " + c.Name + " .resources.limits.memory",
						Text:   limit,
					},
				},
				Fix: finding.Fix{Text: fix, Commands: facts.EditCommands(pod)},
			})
		}
	}
}

func checkConfigError(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		for _, t := range f.Troubles(pod) {
			if t.Reason != "CreateContainerConfigError" {
				continue
			}
			issue := finding.Finding{
				Title: "a container cannot be created, because its configuration refers to an object that does not " +
					"exist",
				Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
				Evidence: []finding.Evidence{quoteTrouble(pod, t)},
				Fix: finding.Fix{
					Text: "Create the ConfigMap, Secret or key that the message names, or correct the name in the pod.",
					Commands: []string{
						shell.Command("kubectl -n %s get configmaps,secrets", pod.Namespace),
					},
				},
			}
			switch {
			case strings.Contains(t.Message, "runAsNonRoot"), strings.Contains(t.Message, "non-numeric user"):
				issue.Title = "a container cannot be created, because runAsNonRoot is set and the image specifies " +
					"root or a non-numeric user"
				issue.Fix = finding.Fix{
					Text: "Set runAsUser to a numeric user ID that works with the image, or set one in the image " +
						"(USER 1000). If the program requires root, remove runAsNonRoot; a policy in the namespace " +
						"may set it.",
					Commands: facts.EditCommands(pod),
				}
			case !words.ContainsAny(t.Message, []string{"not found", "find key", "doesn't exist", "does not exist"}):
				issue.Title = "a container cannot be created: " + words.Clip(t.Message)
				issue.Confidence = finding.Likely
				issue.Fix.Text = "In the pod template, correct the setting that the message names."
				issue.Fix.Commands = facts.EditCommands(pod)
			}
			r.Add(issue)
		}
	}
}

func checkVolumes(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/events") {
		return
	}
	for _, pod := range f.Workloads() {
		if pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, e := range f.EventsOfPod(pod) {
			if e.Reason != "FailedMount" && e.Reason != "FailedAttachVolume" && e.Reason != "FailedMapVolume" ||
				f.Age(pod) < startTime && !refused(e) {
				continue
			}
			q := facts.Quote(e)
			q.Text = words.Clip(q.Text)
			r.Add(finding.Finding{
				Title: "the pod's volume cannot be attached or mounted", Object: facts.PodObject(pod),
				Nodes:    facts.OnNode(pod),
				Evidence: []finding.Evidence{q},
				Fix: finding.Fix{
					Text: "Check the message: the ConfigMap, Secret or claim must exist, and a volume for a single " +
						"node must be detached from its previous node.",
					Commands: []string{
						shell.Command("kubectl -n %s describe pod %s", pod.Namespace, pod.Name),
						shell.Command("kubectl -n %s get pvc,configmaps,secrets", pod.Namespace),
						"kubectl get volumeattachments",
					},
				},
			})
			break
		}
	}
}

// refused reports whether a volume was refused again and again because of a missing permission. Unlike a missing object
// or a slow attachment, this problem does not resolve itself while a pod starts.
func refused(e *corev1.Event) bool {
	return e.Count > 2 &&
		words.ContainsAny(e.Message, []string{"PermissionDenied", "permission denied", " 403 ", "denied on"})
}

// mayStart reports whether a pod's startup probe is failing but still gives the pod time to start, as is common for a
// server that downloads its model.
func mayStart(f *facts.Facts, pod *corev1.Pod, said string) bool {
	if !strings.Contains(said, "tartup probe") {
		return false
	}
	for _, c := range pod.Spec.Containers {
		p := c.StartupProbe
		if p == nil {
			continue
		}
		allowed := max(p.InitialDelaySeconds, 0) + max(p.PeriodSeconds, 10)*max(p.FailureThreshold, 3)
		for _, s := range pod.Status.ContainerStatuses {
			if s.Name == c.Name && s.State.Running != nil &&
				f.Now.Sub(s.State.Running.StartedAt.Time) < time.Duration(allowed)*time.Second {
				return true
			}
		}
	}
	return false
}

// crashes reports whether a container in the pod exited with an error and is waiting to be restarted.
func crashes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		now, last := s.State.Waiting, s.LastTerminationState.Terminated
		return now != nil && now.Reason == "CrashLoopBackOff" && last != nil && last.ExitCode != 0
	})
}

// endedLast reports whether the kubelet stopped a container in the pod at the given time, and the container has not
// failed in another way since.
func endedLast(pod *corev1.Pod, at time.Time) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		last := s.LastTerminationState.Terminated
		return !s.Ready && s.RestartCount > 1 && last != nil && last.FinishedAt.Sub(at).Abs() < startTime
	})
}

// checkProbes reports pods that fail their liveness probe or do not become ready.
func checkProbes(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/events") {
		return
	}
	for _, pod := range slices.Concat(f.Workloads(), f.Others()) {
		if facts.RunsReady(pod) || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		var killed, unhealthy finding.Evidence
		for _, e := range f.EventsOfPod(pod) {
			q := facts.Quote(e)
			q.Text = words.Clip(q.Text)
			recent := f.Now.Sub(q.Time) < slowStart
			switch {
			case killed.Text == "" && e.Reason == "Killing" && (recent || endedLast(pod, q.Time)) &&
				words.ContainsAny(e.Message, []string{"failed liveness probe", "failed startup probe"}):
				killed = q
			case recent && e.Reason == "Unhealthy" && (unhealthy.Text == "" ||
				strings.HasPrefix(unhealthy.Text, "Readiness") && !strings.HasPrefix(q.Text, "Readiness")):
				unhealthy = q // a failed readiness probe does not kill the container
			}
		}
		issue := finding.Finding{Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Confidence: finding.Likely}
		switch {
		case killed.Text != "":
			describeProbe(f, pod, killed.Text, &issue)
			issue.Evidence = append([]finding.Evidence{killed}, issue.Evidence...)
		case crashes(pod):
			continue // a consequence: no program responds while the container is waiting to be restarted
		case unhealthy.Text != "" && (f.Age(pod) > slowStart || waitsOn(f, pod)) &&
			!mayStart(f, pod, unhealthy.Text):
			describeUnready(f, pod, unhealthy, &issue)
		case unhealthy.Text != "":
			_, last := facts.Silent(f, pod)
			if last.Text == "" {
				continue
			}
			issue.Title = "the pod is not ready, and its program has logged nothing for " +
				words.AgeText(f.Now.Sub(last.Time))
			issue.Severity, issue.Confidence = finding.Warning, finding.Possible
			issue.Evidence = []finding.Evidence{last}
			issue.Fix = finding.Fix{
				Text: "The startup probe is still waiting. Find out what the program is waiting for: a download (is " +
					"the model's directory growing?), a slow volume, other ranks that do not connect, or a " +
					"compilation (is it using the CPU?).",
				Commands: []string{shell.Command("kubectl -n %s top pod %s", pod.Namespace, pod.Name)},
			}
		default:
			continue
		}
		if unhealthy.Text != "" {
			issue.Evidence = append(issue.Evidence, unhealthy)
		}
		r.Add(issue)
	}
}
