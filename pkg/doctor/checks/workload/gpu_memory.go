package workload

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// PyTorch's message contains the GPU's memory size, the free memory, and the memory that the process itself holds.
var (
	memoryTotal = regexp.MustCompile(`([\d.]+) ([MG])iB total capacity|total capac?i?ty of ([\d.]+) ([MG])iB`)
	memoryFree  = regexp.MustCompile(`([\d.]+) ([MG])iB (?:is )?free`)
	memoryOwn   = regexp.MustCompile(`([\d.]+) ([MG])iB reserved in total|this process has ([\d.]+) ([MG])iB`)
)

// sizeIn returns the size in GiB that a pattern finds in a text, and whether it finds one.
func sizeIn(pattern *regexp.Regexp, text string) (float64, bool) {
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	if len(m) > 3 && m[1] == "" {
		m = m[2:]
	}
	size, err := strconv.ParseFloat(m[1], 64)
	if m[2] == "M" {
		size /= 1024
	}
	return size, err == nil
}

// ownContext is the maximum GPU memory, in GiB, that CUDA itself uses for a process.
const ownContext = 1.0

// heldByOthers returns the GPU memory, in GiB, that other processes hold according to PyTorch's message. held is 0 if
// the message lacks the numbers, or if other processes hold so little that the process itself must need too much.
func heldByOthers(said string) (held, total float64) {
	total, known := sizeIn(memoryTotal, said)
	free, knowsFree := sizeIn(memoryFree, said)
	own, knowsOwn := sizeIn(memoryOwn, said)
	if held = total - free - own - ownContext; !known || !knowsFree || !knowsOwn || held < total/5 {
		return 0, total
	}
	return held, total
}

// checkFull reports a running pod whose program finds no GPU memory and does not do its work.
func checkFull(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	said, found := f.Unserved(pod, append(wordsOutOfMemory.texts(), "cudaMalloc failed: out of memory",
		"failed with error out of memory", "Failed to allocate memory for requested buffer"))
	if !found {
		return
	}
	issue := finding.Finding{
		Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: finding.Warning,
		Confidence: finding.Likely, Evidence: []finding.Evidence{said},
	}
	wordsOutOfMemory.describe(f, pod, f.Node(pod.Spec.NodeName), &issue)
	r.Add(issue)
}

// tenant describes the process that holds most of the memory of a node's only GPU, if the process is not part of the
// pod: neither the pod's settings nor its log name the program, and the pod does not run or its log shows that the
// memory was in use before.
func tenant(f *facts.Facts, pod *corev1.Pod, n *facts.Node) string {
	smi := n.GPUs().SMI
	if smi == nil || len(smi.GPUs) != 1 || smi.GPUs[0].MemoryTotal == nil {
		return ""
	}
	total := *smi.GPUs[0].MemoryTotal
	taken, said := total, ""
	for s := range facts.Statuses(pod) {
		if s.State.Running != nil {
			taken = 0
		}
	}
	for c := range facts.Containers(pod) {
		said += " " + strings.Join(slices.Concat(c.Command, c.Args), " ")
	}
	for _, l := range f.LogsOf(pod) {
		said += "\n" + l.Text
		for _, m := range freeBefore.FindAllStringSubmatch(l.Text, -1) {
			free, _ := strconv.ParseInt(m[1], 10, 64)
			taken = total - free
		}
	}
	for _, p := range smi.GPUs[0].Processes {
		program, _, _ := strings.Cut(p.Name, " ")
		name := path.Base(program)
		if p.MemoryUsed != nil && 2**p.MemoryUsed > total && *p.MemoryUsed <= taken &&
			!words.ContainsAny(said, []string{" " + name, "/" + name}) {
			return fmt.Sprintf("memory: process %d (%s) holds %d of %d MiB", p.PID, program, *p.MemoryUsed, total)
		}
	}
	return ""
}

// freeBefore matches llama.cpp's message about the free memory of a GPU before it loads a model.
var freeBefore = regexp.MustCompile(`using device CUDA.* - (\d+) MiB free`)

// describeMemory describes a failed GPU memory allocation: other processes hold or may hold the memory, or the pod
// alone needs too much. For the first two cases, the title and fix come from signatures.
func describeMemory(f *facts.Facts, pod *corev1.Pod, n *facts.Node, issue *finding.Finding) {
	issue.Title = "the GPU does not have enough free memory for the pod"
	issue.Fix.Text = "Run nvidia-smi on the node to check whether another process holds GPU memory. If not, use a " +
		"smaller batch or model, a lower share of memory (vLLM's --gpu-memory-utilization), or a GPU or MIG profile " +
		"with more memory. More GPUs help only if the program splits the model across them."
	issue.Fix.Commands = facts.EditCommands(pod)
	if n == nil {
		return
	}
	issue.Fix.Commands = append([]string{shell.OnHost(n.Name, "nvidia-smi")}, issue.Fix.Commands...)
	text := ""
	replicas := n.Labels["nvidia.com/gpu.replicas"]
	if held, total := heldByOthers(issue.Evidence[0].Text); held > 0 {
		text = fmt.Sprintf("memory: others hold %.0f of %.0f GiB", held, total)
	} else if replicas != "" && replicas != "1" {
		text = cmp.Or(tenant(f, pod, n), "memory: shared by "+replicas)
	} else {
		return
	}
	var others []string
	for _, other := range n.Pods {
		if other != pod && f.AsksForGPU(other) && !facts.Ended(other) {
			others = append(others, "Pod "+other.Namespace+"/"+other.Name)
		}
	}
	issue.Evidence = append(issue.Evidence, finding.Evidence{
		Source: "other pods with GPUs on Node " + n.Name,
		Text:   text + "; " + cmp.Or(strings.Join(others[:min(len(others), 4)], ", "), "none"),
	})
}
