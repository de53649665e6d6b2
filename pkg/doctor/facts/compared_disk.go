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

// wrote matches the amount of data that a container, according to an eviction message, has written to its node's disk
// outside its volumes.
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

// fillsDisk reports a container in an evicted pod if the container had written at least half of the node's disk
// capacity.
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

// perWorker reports a setting of LMCache or vLLM that may exceed the space on the node's disk, or that exceeds the host
// memory of the node or container. The setting, in GiB, applies to each worker.
func (f *Facts) perWorker(pod *corev1.Pod, n *Node) (source, text string) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all := wordsOf(c)
		setting := func(names ...string) string {
			return cmp.Or(strings.Join(EnvOf(c.Env, names[0]), ""), argument(all, names...))
		}
		for _, name := range []string{
			"LMCACHE_MAX_LOCAL_DISK_SIZE", "LMCACHE_MAX_LOCAL_CPU_SIZE", "--swap-space", "--cpu-offload-gb",
		} {
			space, of := n.Allocatable(corev1.ResourceMemory), "the node has "
			if limit := c.Resources.Limits.Memory().Value(); limit > 0 && limit < space {
				space, of = limit, "the memory limit is "
			}
			most := space
			if strings.Contains(name, "_DISK_") {
				dir := strings.TrimPrefix(setting("LMCACHE_LOCAL_DISK"), "file://")
				if dir == "" || strings.HasPrefix(volumeAt(pod, c, dir), "claim ") {
					continue
				}
				space, of = n.Allocatable(corev1.ResourceEphemeralStorage), "the node has "
				most = space - space/5
			}
			size, _ := strconv.ParseFloat(setting(name), 64) // 0 if it is not set
			workers := 1.0
			for _, names := range [][]string{
				{"--tensor-parallel-size", "--tensor_parallel_size", "-tp"}, {"--pipeline-parallel-size", "-pp"},
			} {
				if count, err := strconv.ParseFloat(setting(names...), 64); err == nil {
					workers *= max(count, 1)
				}
			}
			if whole := int64(size*workers) << 30; whole > most && space > 0 {
				return pathSource(pod, c) + ", and .status.allocatable of " + n.Object().String(),
					fmt.Sprintf("conflict: %s=%g x %g workers is %s, %s%s", name, size, workers, gib(whole), of,
						gib(space))
			}
		}
	}
	return "", ""
}
