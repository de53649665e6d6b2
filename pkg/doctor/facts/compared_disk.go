package facts

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// wrote matches the amount of data, in an eviction message, that a container has written to its node's disk outside its
// volumes.
var wrote = regexp.MustCompile(`ephemeral-storage.*[Cc]ontainer (\S+) was using (\d+\w*)`)

// FillsDisk reports whether a GPU pod was evicted because it filled its node's disk and its owner has no healthy newer
// pod.
func (f *Facts) FillsDisk(pod *corev1.Pod) bool {
	n := f.Node(pod.Spec.NodeName)
	if n == nil || !f.AsksForGPU(pod) || f.Now.Sub(f.EndedAt(pod)) > endedCounts || f.History(pod) {
		return false
	}
	_, text := f.fillsDisk(pod, n)
	return text != ""
}

// fillsDisk reports a container in an evicted pod that had written at least half of its node's disk capacity.
func (f *Facts) fillsDisk(pod *corev1.Pod, n *Node) (source, text string) {
	if pod.Status.Reason != "Evicted" {
		return "", ""
	}
	said := []string{pod.Status.Message}
	for _, e := range f.EventsOfPod(pod) {
		if e.Reason == "Evicted" {
			said = append(said, e.Message)
		}
	}
	disk := n.Capacity(corev1.ResourceEphemeralStorage)
	m := wrote.FindStringSubmatch(strings.Join(said, "\n"))
	if m == nil || disk == 0 {
		return "", ""
	}
	q, err := resource.ParseQuantity(m[2])
	if err != nil || q.Value() < disk/2 {
		return "", ""
	}
	return PodObject(pod).String() + " .status.message, and .status.capacity of " + n.Object().String(),
		fmt.Sprintf("fills the disk: container %s wrote %s of the %s of the node", m[1], gib(q.Value()), gib(disk))
}

func gib(n int64) string { return fmt.Sprintf("%d GiB", n>>30) }

// diskPerWorker reports an LMCache limit that may exceed the space on the node's disk. The limit, in GiB, applies to
// each worker.
func (f *Facts) diskPerWorker(pod *corev1.Pod, n *Node) (source, text string) {
	const bound = "LMCACHE_MAX_LOCAL_DISK_SIZE"
	disk := n.Allocatable(corev1.ResourceEphemeralStorage)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		dir := strings.TrimPrefix(setting(c, "LMCACHE_LOCAL_DISK"), "file://")
		if dir == "" || disk == 0 || strings.HasPrefix(volumeAt(pod, c, dir), "claim ") {
			continue
		}
		if text = perWorker(c, bound, disk-disk/5); text != "" {
			return perWorkerSource(pod, c, n), text + ", the node has " + gib(disk)
		}
	}
	return "", ""
}

// memoryPerWorker reports a buffer in the host's memory that exceeds the container's memory limit or the node's memory.
// The size of the buffer, in GiB, applies to each worker.
func (f *Facts) memoryPerWorker(pod *corev1.Pod, n *Node) (source, text string) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		memory, of := n.Allocatable(corev1.ResourceMemory), "the node has "
		if limit := c.Resources.Limits.Memory().Value(); limit > 0 && limit < memory {
			memory, of = limit, "the memory limit is "
		}
		buffers := []string{"--swap-space", "--cpu-offload-gb"} // of vLLM
		if !strings.EqualFold(setting(c, "LMCACHE_LOCAL_CPU"), "false") {
			buffers = append(buffers, "LMCACHE_MAX_LOCAL_CPU_SIZE")
		}
		for _, name := range buffers {
			if text = perWorker(c, name, memory); text != "" && memory > 0 {
				return perWorkerSource(pod, c, n), text + ", " + of + gib(memory)
			}
		}
	}
	return "", ""
}

func perWorkerSource(pod *corev1.Pod, c *corev1.Container, n *Node) string {
	return PodObject(pod).String() + ", container " + c.Name + " .env, .args and .resources, and " +
		".status.allocatable of " + n.Object().String()
}

// setting returns the value of an environment variable, which a container's env or shell command sets, or of a flag.
func setting(c *corev1.Container, name string) string {
	return cmp.Or(strings.Join(EnvOf(c.Env, name), ""), argument(wordsOf(c), name))
}

// perWorker compares a setting in GiB, times the number of workers, with the available bytes.
func perWorker(c *corev1.Container, name string, available int64) string {
	size, err := strconv.ParseFloat(setting(c, name), 64)
	if err != nil {
		return ""
	}
	workers, all := 1.0, wordsOf(c)
	for _, names := range [][]string{
		{"--tensor-parallel-size", "--tensor_parallel_size", "-tp"}, {"--pipeline-parallel-size", "-pp"},
	} {
		if count, err := strconv.ParseFloat(argument(all, names...), 64); err == nil {
			workers *= max(count, 1)
		}
	}
	whole := int64(size*workers) << 30
	if whole <= available {
		return ""
	}
	return fmt.Sprintf("conflict: %s=%g x %g workers is %s", name, size, workers, gib(whole))
}
