package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Patterns of output that programs print at startup if they compute on the CPU. Each was found in public logs:
//   - "Using device: cpu", "Using cpu device": PyTorch's quick start, and Stable-Baselines3;
//   - "Use CPU": Informer, Autoformer, and their derivatives (exp_basic.py);
//   - "Process rank: -1, device: cpu, n_gpu: 0": transformers examples;
//   - "Device set to use cpu": transformers pipelines;
//   - "Use pytorch device_name: cpu": sentence-transformers;
//   - "GPU available: False, used: False", "GPU available: True (cuda), used: False": Lightning;
//   - "No GPU/TPU found, falling back to CPU.", "a CUDA-enabled jaxlib is not installed. Falling back to cpu.": JAX
//     (jax#6805);
//   - "Cannot dlopen some GPU libraries.", "Skipping registering GPU devices": TensorFlow (gpu_device.cc);
//   - "No visible GPU is found, setting device to CPU.": XGBoost (context.cc);
//   - "FP16 is not supported on CPU; using FP32 instead": Whisper (transcribe.py);
//   - "no usable GPU found, --gpu-layers option will be ignored": llama.cpp (arg.cpp).
//
// The output must be at the beginning of the line, after an optional logger prefix. This excludes settings, such as
// "device": "cpu" for DeepSpeed's offloading, and indented YAML.
const (
	logPrefix = `(?:\[[^\]]*\]\s*|[0-9][-0-9/:.,TZ+]*\s+|(?:debug|info|warn|warning|notice)\b[]:\s]*|\w+(?:\.\w+)+:|[\w./-]+:\d+:\s*|[\w.<>]+(?::[\w.<>]+)*(?::\d+)?\s*[-:|]\s+|[-|*>#=+✓]+\s*)*`
	onCPU     = `(?:process rank: -?\d+, |(?:we are |now )?(?:using|use|selected|current|training|compute|torch|pytorch|default|running on)\s+(?:pytorch |torch |the )?)?` +
		`device(?:_name| type)?\s*(?::|is|=>?)\s*(?:torch\.device\(|device\(type=)?['"]?cpu['"]?\)?\s*(?:$|[,.;(])`
)

var (
	computesOnCPU = regexp.MustCompile(`(?i)^` + logPrefix + `(?:` + onCPU +
		`|us(?:e|ing) (?:the )?cpu(?: device)?[.!]?\s*$|using cpu device\b|device set to use cpu\b|gpu available: (?:false|true \(cuda\)), used: false|no gpu/tpu found, falling back to cpu` +
		`|no visible gpu is found, setting device to cpu)|cuda-enabled jaxlib is not installed|cannot dlopen some gpu libraries|skipping registering gpu devices` +
		`|fp16 is not supported on cpu; using fp32|no usable gpu found, --gpu-layers`)
	// computesOnGPU matches output from programs that use a GPU, possibly in addition to the CPU.
	computesOnGPU = regexp.MustCompile(
		`(?i)\b(?:device|using|use|on|to)\b[a-z_ :=>'"(.]{0,24}\b(?:cuda|gpu:?\d)\b(?: |$|[:,.;)'"])|\bcuda:\d|cudadevice\(|device:gpu:\d|nccl (?:info|version)|, used: true`,
	)
)

// cpuLine returns the log line that shows that a program computes only on the CPU.
func cpuLine(text string) (line string, found bool) {
	// A fallback to the CPU may affect only part of the program.
	none := slices.DeleteFunc(wordsNoGPU.texts(),
		func(text string) bool { return strings.EqualFold(text, "falling back to CPU") })
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\r\n")
		switch cpu := computesOnCPU.MatchString(l) || words.ContainsAny(l, none); {
		case cpu && line == "":
			line = strings.TrimSpace(l)
		case !cpu && computesOnGPU.MatchString(l):
			return "", false
		}
	}
	return line, line != ""
}

// hides reports whether a variable's value hides all GPUs from the program. devices is the container's number of GPUs,
// or 0 if unknown.
func hides(name, value string, devices int64) bool {
	value = strings.TrimSpace(value)
	switch name {
	case "CUDA_VISIBLE_DEVICES":
		// An invalid entry hides itself and all later entries. A container numbers its GPUs from 0, regardless of their
		// numbers on the node.
		first, _, _ := strings.Cut(value, ",")
		index, err := strconv.ParseInt(strings.TrimSpace(first), 10, 64)
		return value == "" || strings.HasPrefix(value, "-1") || strings.EqualFold(value, "NoDevFiles") ||
			strings.EqualFold(value, "none") || err == nil && (index < 0 || devices > 0 && index >= devices)
	case "NVIDIA_VISIBLE_DEVICES":
		return value == "" || value == "void" || value == "none"
	}
	return false
}

func checkCPUMode(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		if pod.Status.Phase == corev1.PodFailed && f.History(pod) {
			continue
		}
		troubles := f.Troubles(pod)
		if evidence := hidden(f, pod); len(evidence) > 0 {
			severity := finding.Warning
			if ownReason(f, pod, troubles) {
				severity = finding.Info // the pod fails for a reason of its own
			} else if len(troubles) > 0 {
				severity = finding.Error
			}
			issue := finding.Finding{
				Title: "an environment variable hides the pod's GPUs from the program", Object: facts.PodObject(pod),
				Nodes: facts.OnNode(pod), Severity: severity, Evidence: evidence, Own: true,
				Confidence: finding.Likely, // CDI injects GPUs regardless of NVIDIA_VISIBLE_DEVICES
				Fix: finding.Fix{
					Text: "If the program should use its GPUs, remove the variable: without it, the program sees the " +
						"GPUs that are allocated to the pod.",
					Commands: facts.EditCommands(pod),
				},
			}
			if launcher(pod) {
				issue.Title = "the MPI operator hides the GPUs from the launcher of an MPIJob"
				issue.Cause = "The operator sets NVIDIA_VISIBLE_DEVICES to an empty value in every launcher, " +
					"regardless of the manifest."
				issue.Fix = finding.Fix{
					Text: "Request the GPUs in the workers, and use them there. To use GPUs in the launcher, set " +
						"spec.runLauncherAsWorker: true (MPI operator v0.5 or later).",
				}
			}
			r.Add(issue)
			continue
		}
		if len(troubles) > 0 {
			if w, e, found := wordsOf(f, pod, troubles); found && w == wordsNoGPU {
				issue := blind(f, pod, e, finding.Error)
				issue.Failed = failedAt(f, pod, troubles)
				r.Add(issue)
			} else if why := f.Unread(pod, troubles); !found && why != "" {
				r.Unknown(facts.PodObject(pod), "%s", why)
			}
			continue
		}
		if e, found := quoteCPU(f, pod); found {
			r.Add(blind(f, pod, e, finding.Warning))
		}
	}
	withoutGPU(f, r)
}

// quoteCPU returns the line at the beginning or end of a log in which a container with GPUs reports that it computes on
// the CPU.
func quoteCPU(f *facts.Facts, pod *corev1.Pod) (finding.Evidence, bool) {
	if pod.Status.Phase != corev1.PodRunning {
		return finding.Evidence{}, false
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if !HoldsGPUs(pod, c) {
			continue
		}
		var text string
		var from *snapshot.Log
		for _, l := range slices.Concat(f.HeadsOf(pod), f.LogsOf(pod)) {
			if l.Container == c.Name && !l.Previous {
				text, from = text+l.Text+"\n", cmp.Or(from, l)
			}
		}
		if line, found := cpuLine(text); found {
			return finding.Evidence{Source: facts.LogSource(from), Text: words.Clip(line)}, true
		}
	}
	return finding.Evidence{}, false
}

// HoldsGPUs reports whether the pod's GPUs are assigned to the container.
func HoldsGPUs(pod *corev1.Pod, c *corev1.Container) bool {
	return len(pod.Spec.ResourceClaims) > 0 || gpuLimit(c) > 0
}

// gpuLimit returns the number of GPUs or GPU partitions in a container's resource limits.
func gpuLimit(c *corev1.Container) (count int64) {
	for name, quantity := range c.Resources.Limits {
		if facts.IsGPUResource(name) {
			count += quantity.Value()
		}
	}
	return count
}

// launcher reports whether the pod is the launcher of an MPIJob.
// https://github.com/kubeflow/mpi-operator/blob/master/pkg/controller/mpi_job_controller.go
func launcher(pod *corev1.Pod) bool {
	for _, label := range []string{"training.kubeflow.org/job-role", "mpi-job-role", "mpi_role_type"} {
		if pod.Labels[label] == "launcher" {
			return true
		}
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && (owner.Kind == "MPIJob" || owner.Kind == "Job") && strings.Contains(pod.Name, "-launcher") &&
		pod.Labels["training.kubeflow.org/job-name"]+pod.Labels["mpi-job-name"] != ""
}

// hidden returns the variables that hide GPUs from the containers to which they are assigned.
func hidden(f *facts.Facts, pod *corev1.Pod) []finding.Evidence {
	var all []finding.Evidence
	n := f.Node(pod.Spec.NodeName)
	injected := len(pod.Spec.ResourceClaims) > 0 || n != nil && n.Distribution == facts.GKE // not by NVIDIA's runtime
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if !HoldsGPUs(pod, c) {
			continue
		}
		count := gpuLimit(c)
		if len(pod.Spec.ResourceClaims) > 0 || seesMore(c) {
			count = 0
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil && hides(e.Name, e.Value, count) &&
				(e.Name != "NVIDIA_VISIBLE_DEVICES" || !injected) {
				all = append(all, finding.Evidence{
					Source: facts.PodObject(pod).String() + ", container " + c.Name + " .env",
					Text:   fmt.Sprintf("%s=%q", e.Name, e.Value),
				})
				if !hides(e.Name, e.Value, 0) { // hidden only because of the device index
					all = append(all, finding.Evidence{
						Source: facts.PodObject(pod).String() + ", container " + c.Name + " .resources.limits",
						Text:   fmt.Sprintf("GPUs: %d; the container numbers them from 0", count),
					})
				}
			}
		}
	}
	return all
}

// seesMore reports whether a container may see GPUs on its node that it did not request, because it is privileged or
// sets NVIDIA_VISIBLE_DEVICES.
func seesMore(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged ||
		slices.ContainsFunc(c.Env,
			func(e corev1.EnvVar) bool { return e.Name == "NVIDIA_VISIBLE_DEVICES" && !hides(e.Name, e.Value, 0) })
}

func blind(f *facts.Facts, pod *corev1.Pod, e finding.Evidence, severity finding.Severity) finding.Finding {
	issue := finding.Finding{
		Title: "the program finds no GPU, although its pod has " +
			"one", Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
		Severity: severity, Confidence: finding.Likely, Evidence: []finding.Evidence{e},
		Fix: finding.Fix{
			Text: "Run nvidia-smi in the container to check whether it has the GPU. If not, the runtime did not " +
				"inject the GPU (RuntimeClass nvidia, CDI). If it does, the program is a CPU-only build, or hides " +
				"the GPUs itself.",
			Commands: []string{shell.Command("kubectl -n %s exec %s -- nvidia-smi -L", pod.Namespace, pod.Name)},
		},
	}
	if name := facts.MainContainer(pod); facts.Stopped(pod, name) {
		issue.Fix.Commands = []string{shell.Command(
			"kubectl -n %s debug %s -it --copy-to=%s-debug --container=%s -- nvidia-smi -L # the copy needs a free GPU",
			pod.Namespace, pod.Name, pod.Name, name,
		)}
	}
	n := f.Node(pod.Spec.NodeName)
	switch {
	case n != nil && n.Distribution == facts.GKE && !setsLibraryPath(pod):
		issue.Fix = finding.Fix{
			Text: "Set LD_LIBRARY_PATH=/usr/local/nvidia/lib64 in the image or in the pod, unless the image is based " +
				"on nvidia/cuda, which already sets it: GKE mounts the driver's libraries in this directory and does " +
				"not register them with the linker. If the variable is already set, the program is a CPU-only build, " +
				"or hides the GPUs itself.",
			Commands: facts.EditCommands(pod),
		}
	case pod.Spec.RuntimeClassName == nil && n != nil && n.Distribution != facts.GKE && f.RuntimeClass("nvidia") != nil:
		issue.Fix.Text = "Run nvidia-smi in the container to check whether it has the GPU. If not, the node's " +
			"default runtime is not NVIDIA's: set runtimeClassName: nvidia in the pod template; the cluster has this " +
			"RuntimeClass. If it does, the program is a CPU-only build, or hides the GPUs itself."
	}
	if computesOnCPU.MatchString(e.Text) {
		issue.Title = "the program reports that it computes on the CPU, although its pod has a GPU"
		issue.Fix = onCPUFix(pod)
		issue.Evidence = append(issue.Evidence, toldCPU(pod)...)
	}
	if strings.Contains(e.Text, "Torch not compiled with CUDA enabled") {
		issue.Title = "the program is a CPU-only build"
		issue.Fix = finding.Fix{
			Text: "Install the CUDA build of PyTorch in the image.", Commands: facts.EditCommands(pod),
		}
	}
	return issue
}

// setsLibraryPath reports whether a container in the pod sets the linker's search path itself.
func setsLibraryPath(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "LD_LIBRARY_PATH" })
	})
}

// onCPUFix returns a fix that explains how to find the setting that makes a program compute on the CPU. A snapshot does
// not contain the ConfigMaps that workloads use.
func onCPUFix(pod *corev1.Pod) finding.Fix {
	fix := finding.Fix{
		Text: "Find out what selects the CPU: the program's arguments, its settings, or a variable " +
			"(CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES, JAX_PLATFORMS). Variables from a ConfigMap (envFrom) are " +
			"not in the snapshot. If nothing selects the CPU, run nvidia-smi in the container to check whether it " +
			"has the GPU, and check whether its libraries are CPU-only builds.",
		Commands: []string{shell.Command("kubectl -n %s exec %s -- env", pod.Namespace, pod.Name)},
	}
	for _, c := range pod.Spec.Containers {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				fix.Commands = append(fix.Commands,
					shell.Command("kubectl -n %s get configmap %s -o yaml", pod.Namespace, from.ConfigMapRef.Name))
			}
		}
	}
	fix.Commands = append(fix.Commands[:min(len(fix.Commands), words.Few)], facts.EditCommands(pod)...)
	return fix
}

// cpuArgument matches arguments that select the CPU, such as --device=cpu, or a separate cpu after -device.
var cpuArgument = regexp.MustCompile(
	`(?i)^(?:--?[\w.-]*(?:device|accelerator|platform|backend)[\w.-]*[= ])?["']?cpu["']?$|^--?(?:no-cuda|no_cuda|use-cpu|use_cpu|cpu|force-cpu)(?:=true)?$`,
)

// toldCPU quotes the pod's settings that may make its program compute on the CPU.
func toldCPU(pod *corev1.Pod) []finding.Evidence {
	var all []finding.Evidence
	for _, c := range pod.Spec.Containers {
		args := slices.Concat(c.Command, c.Args)
		for i, arg := range args {
			if !cpuArgument.MatchString(arg) {
				continue
			}
			if !strings.HasPrefix(arg, "-") && i > 0 {
				arg = args[i-1] + " " + arg
			}
			all = append(all,
				finding.Evidence{Source: facts.PodObject(pod).String() + ", container " + c.Name +
					" .args", Text: words.Clip(arg)})
		}
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				all = append(all, finding.Evidence{
					Source: facts.PodObject(pod).String() + ", container " + c.Name + " .envFrom",
					Text:   "ConfigMap " + from.ConfigMapRef.Name,
				})
			}
		}
	}
	return all[:min(len(all), words.Few)]
}

// quoteInsufficient returns a log line that the program in a running pod prints if it has no driver.
func quoteInsufficient(f *facts.Facts, pod *corev1.Pod) (finding.Evidence, bool) {
	return facts.LogEvidence(f, pod, "CUDA driver version is insufficient for CUDA runtime version",
		"Found no NVIDIA driver on your system", "No CUDA GPUs are available")
}

// fallsBack contains messages from programs that also run without a GPU.
var fallsBack = []string{
	"will not be used", "not find cuda drivers", "alling back to", "vailable: False",
}

// withoutGPU reports pods that need a GPU but do not request one: failing pods, and running pods with NVIDIA's
// RuntimeClass whose program finds no driver.
func withoutGPU(f *facts.Facts, r *engine.Result) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if f.AsksForGPU(pod) || facts.ComponentOf(pod.Labels, &pod.Spec) != "" || len(f.LogsOf(pod)) == 0 {
			continue
		}
		troubles := f.Troubles(pod)
		class := f.NVIDIAClass()
		asks := class != nil && pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName == class.Name
		failing := len(troubles) > 0
		if !failing && (!asks || facts.Ended(pod)) {
			continue
		}
		w, e, found := wordsOf(f, pod, troubles)
		if !failing {
			e, found = quoteInsufficient(f, pod)
			w = wordsNoGPU
		}
		// CUDA also returns the error code for an old driver if the container has no driver.
		if !found || w != wordsNoGPU && !(asks && w == wordsTooNew) || !asks && words.ContainsAny(e.Text, fallsBack) {
			continue
		}
		noRequest := finding.Finding{
			Title: "the program needs a GPU, but the pod requests none", Object: facts.PodObject(pod),
			Nodes:    facts.OnNode(pod),
			Severity: finding.Warning, Confidence: finding.Likely, Evidence: []finding.Evidence{e},
			Fix: finding.Fix{
				Text:   "Request a GPU in the container's limits.",
				Values: "resources:\n  limits:\n    nvidia.com/gpu: 1\n", Commands: facts.EditCommands(pod),
			},
		}
		if class != nil && pod.Spec.RuntimeClassName == nil {
			noRequest.Title += " and has no RuntimeClass"
			noRequest.Fix.Text = fmt.Sprintf("Request a GPU in the container's limits, and set runtimeClassName: %s, unless it is "+
				"the default runtime of the nodes or CDI is enabled.", class.Name)
			noRequest.Fix.Values = "runtimeClassName: " + class.Name + "\n" + noRequest.Fix.Values
		}
		r.Add(noRequest)
	}
}
