package workload

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// wordKind is a kind of error message that programs print when they fail on a GPU.
type wordKind int

// The kinds are in order of precedence. A log often contains several, because one error causes the next.
const (
	wordsSharedMemory wordKind = iota
	wordsTooNew
	wordsOutOfMemory
	wordsNoGPU
	wordsCUDAError
	kindsOfWords
)

func (w wordKind) texts() []string {
	switch w {
	case wordsSharedMemory:
		return []string{
			"posix_fallocate failed : No space left on device", "failed to extend /dev/shm/",
			"Error while creating shared memory segment", "insufficient shared memory (shm)",
			"unable to allocate shared memory(shm)", "No space left on device: '/dev/shm",
		}
	case wordsTooNew:
		return []string{
			"CUDA driver version is insufficient for CUDA runtime version", "unsatisfied condition: cuda",
			"unsatisfied condition: driver", "The NVIDIA driver on your system is too old",
			"cudaErrorInsufficientDriver", "forward compatibility was attempted on non supported HW",
			"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
			"PTX was compiled with an unsupported toolchain", "cudaErrorUnsupportedPtxVersion",
			"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
		}
	case wordsOutOfMemory:
		return []string{
			"CUDA out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA error: out of memory", "cudaErrorMemoryAllocation",
			"No available memory for the cache blocks",
			"less than desired GPU memory utilization", "CUBLAS_STATUS_ALLOC_FAILED",
		}
	case wordsNoGPU:
		return []string{
			"No CUDA GPUs are available", "Found no NVIDIA driver on your system", "no CUDA-capable device is detected",
			"CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice",
			"torch.cuda.is_available(): False", "torch.cuda.is_available() False", "torch.cuda.is_available() = False",
			"torch.cuda.is_available() is False",
			"torch.cuda.is_available() returned False", "torch.cuda.is_available() returns False",
			"CUDA available: False", "cuda available: False",
			"Torch not compiled with CUDA enabled", "Failed to infer device type", "GPU will not be used",
			"Could not find cuda drivers", "falling back to CPU",
			"Falling back to cpu", "CUDA is not available",
		}
	case wordsCUDAError:
		return []string{
			"uncorrectable ECC", "GPU is lost", "has fallen off the bus", "an illegal memory access",
			"unspecified launch failure", "device-side assert triggered",
			"no kernel image is available", "system not yet initialized", "CUDA error:", "CUDA_ERROR_", "cudaError",
			"unhandled cuda error", "CUDNN_STATUS_", "CUBLAS_STATUS_",
			"Failed to initialize NVML", "misaligned address", "CUDA driver error",
		}
	}
	return nil
}

// wordsOf returns the kind of error message with the highest precedence that a failing pod logs, and quotes the
// message.
func wordsOf(f *facts.Facts, pod *corev1.Pod, troubles []facts.Trouble) (wordKind, finding.Evidence, bool) {
	for w := range kindsOfWords {
		if e, found := f.Said(pod, troubles, w.texts()...); found {
			return w, e, true
		}
	}
	return 0, finding.Evidence{}, false
}

// reportKind returns the Run function for a check of one kind of error message.
func reportKind(kind wordKind) func(*facts.Facts, *engine.Result) {
	return func(f *facts.Facts, r *engine.Result) {
		if r.Lacks(f, "api/pods") {
			return
		}
		for _, pod := range f.Workloads() {
			troubles := f.Troubles(pod)
			if len(troubles) == 0 {
				switch kind {
				case wordsCUDAError:
					checkBroken(f, r, pod)
				case wordsOutOfMemory:
					checkFull(f, r, pod)
				}
				continue
			}
			w, e, found := wordsOf(f, pod, troubles)
			if !found {
				if why := f.Unread(pod, troubles); why != "" {
					r.Unknown(facts.PodObject(pod), "%s", why)
				}
				continue
			}
			if w != kind {
				continue
			}
			n := f.Node(pod.Spec.NodeName)
			issue := finding.Finding{
				Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Confidence: finding.Likely,
				Evidence: []finding.Evidence{e},
				Failed:   failedAt(f, pod, troubles),
			}
			kind.describe(f, pod, n, &issue)
			r.Add(issue)
		}
	}
}

// checkBroken reports a running pod whose log ends with an error after which a process can no longer use its GPU.
func checkBroken(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	broken := []string{
		"uncorrectable ECC", "GPU is lost", "has fallen off the bus", "an illegal memory access",
		"unspecified launch failure", "device-side assert triggered", "misaligned address",
	}
	if _, found := f.GrepLogs(pod, broken...); !found {
		return
	}
	for _, line := range f.LastErrors(pod) {
		if !words.ContainsAny(line.Evidence.Text, broken) {
			continue
		}
		issue := finding.Finding{
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: finding.Warning,
			Confidence: finding.Likely, Evidence: []finding.Evidence{line.Evidence},
		}
		wordsCUDAError.describe(f, pod, f.Node(pod.Spec.NodeName), &issue)
		issue.Title += "; the pod is still running"
		issue.Fix.Text += " The process can no longer use the GPU: restart the pod."
		r.Add(issue)
		return
	}
}

// describe sets the finding's title and fix, and adds evidence. n may be nil.
func (w wordKind) describe(f *facts.Facts, pod *corev1.Pod, n *facts.Node, issue *finding.Finding) {
	switch w {
	case wordsSharedMemory:
		describeShared(pod, issue)
	case wordsTooNew:
		issue.Title = "the image's CUDA version requires a newer driver than the node has"
		issue.Fix = finding.Fix{
			Text: "Use an image with a CUDA version that the node's driver supports, or install a newer driver on " +
				"the node. " +
				newerDriver(n),
			Commands: facts.EditCommands(pod),
		}
		compareCUDA(f, pod, n, issue)
		issue.Evidence = append(issue.Evidence, quoteLabels(n, "nvidia.com/cuda.driver-version.full",
			"nvidia.com/cuda.driver.major", "nvidia.com/cuda.runtime-version.full", "nvidia.com/cuda.runtime.major")...)
		issue.Evidence = append(issue.Evidence, quoteEnv(pod, "NVIDIA_REQUIRE_CUDA", "CUDA_VERSION")...)
	case wordsOutOfMemory:
		describeMemory(f, pod, n, issue)
		issue.Evidence = append(issue.Evidence,
			quoteLabels(n, "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas")...)
	case wordsCUDAError:
		describeCUDA(n, issue)
	}
}

// newerDriver describes how to install a newer driver on the node.
func newerDriver(n *facts.Node) string {
	if n != nil {
		if p, ok := platform.Of(string(n.Distribution)); ok && p.Driver.Newer != "" {
			return p.Driver.Newer
		}
	}
	return "If the GPU operator installs the driver, set driver.version in its Helm values."
}

func describeShared(pod *corev1.Pod, issue *finding.Finding) {
	issue.Title = "/dev/shm in the pod is too small"
	issue.Fix = finding.Fix{
		Text:     "Mount a memory-backed volume at /dev/shm: its size counts against the container's memory limit.",
		Values:   "volumes:\n- name: shm\n  emptyDir: {medium: Memory, sizeLimit: 16Gi}\n# in the container:\nvolumeMounts:\n- {name: shm, mountPath: /dev/shm}\n",
		Commands: facts.EditCommands(pod),
	}
	text := "no volume is mounted at /dev/shm, so it has 64 MiB by default"
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if strings.TrimRight(m.MountPath, "/") == "/dev/shm" {
				text = "volume " + m.Name + " is mounted at /dev/shm"
				issue.Fix.Values = ""
				issue.Fix.Text = "Raise the volume's sizeLimit and the container's memory limit."
				for _, v := range pod.Spec.Volumes {
					if v.Name == m.Name && v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
						text += ", sizeLimit " + v.EmptyDir.SizeLimit.String()
					}
				}
			}
		}
	}
	issue.Evidence = append(issue.Evidence,
		finding.Evidence{Source: facts.PodObject(pod).String() + " .spec.containers[].volumeMounts", Text: text})
}

func describeCUDA(n *facts.Node, issue *finding.Finding) {
	said := issue.Evidence[0].Text
	issue.Title = "a CUDA call in the program failed"
	issue.Fix = finding.Fix{
		Text: "Check whether the node's kernel log contains an XID from that time. If so, see the finding about the " +
			"GPU. If not, the program is at fault (run it with CUDA_LAUNCH_BLOCKING=1).",
	}
	switch {
	case words.ContainsAny(said, []string{"uncorrectable ECC", "GPU is lost", "fallen off the bus"}):
		issue.Title = "the program lost its GPU, probably to a hardware error"
		issue.Fix.Text = "If the kernel log confirms the error, drain the node, reset the GPU or reboot, and replace " +
			"the GPU if the error recurs."
	case strings.Contains(said, "system not yet initialized"):
		issue.Title = "CUDA cannot start, probably because the GPUs' NVLink fabric is not initialized"
		issue.Fix.Text = "On a node with NVSwitches, start a Fabric Manager that has the same version as the driver."
	case strings.Contains(said, "no kernel image is available"):
		issue.Title = "the image's CUDA code is not built for the node's GPU"
		issue.Fix.Text =
			"Use a build of the program that supports the GPU's compute capability (a newer PyTorch, or " +
				"TORCH_CUDA_ARCH_LIST)."
	case words.ContainsAny(
		said, []string{"an illegal memory access", "device-side assert triggered", "misaligned address"},
	):
		issue.Title = "CUDA code that the program runs failed"
		issue.Fix.Text =
			"Run the program with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer. A bug in the program appears " +
				"as XID 13 or 31 in the kernel log; any other XID indicates a GPU problem."
	}
	if n == nil {
		return
	}
	issue.Fix.Commands = []string{shell.Command("kubectl gpu-fault doctor --node %s", n.Name)}
	issue.Evidence = append(issue.Evidence, quoteLabels(n, "nvidia.com/gpu.product")...)
	if n.Host == nil {
		return
	}
	for _, record := range slices.Backward(n.Host.KernelLog) {
		if strings.Contains(record.Text, "Xid (") && len(issue.Evidence) < words.Few+1 {
			issue.Evidence = append(issue.Evidence, finding.Evidence{
				Source: fmt.Sprintf("nodes/%s/kernel.log sequence %d", n.Name, record.Sequence), Time: record.Time,
				Text: words.Clip(record.Text),
			})
		}
	}
}

func quoteLabels(n *facts.Node, labels ...string) []finding.Evidence {
	var all []finding.Evidence
	for _, label := range labels {
		if n != nil && n.Labels[label] != "" {
			all = append(all,
				finding.Evidence{Source: n.Object().String() + " .metadata.labels", Text: label + "=" +
					n.Labels[label]})
		}
	}
	return all
}

// quoteEnv quotes the given environment variables in a pod's containers.
func quoteEnv(pod *corev1.Pod, want ...string) []finding.Evidence {
	var all []finding.Evidence
	for c := range facts.Containers(pod) {
		for _, e := range c.Env {
			if slices.Contains(want, e.Name) && e.ValueFrom == nil {
				all = append(all, finding.Evidence{
					Source: facts.PodObject(pod).String() + ", container " + c.Name + " .env",
					Text:   words.Clip(fmt.Sprintf("%s=%q", e.Name, e.Value)),
				})
			}
		}
	}
	return all
}
