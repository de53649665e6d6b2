package cluster

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// memoryCheck returns the check for nodes that ran out of memory, although no container reached its limit.
func memoryCheck() engine.Check {
	return engine.Check{
		ID: "node.out-of-memory", Layer: finding.LayerCluster,
		Title: "a node ran out of memory, and a GPU pod may use much more memory than it requests",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "the kubelet's events SystemOOM; the memory that containers request, and their limits; the processes " +
			"in the node's kernel log",
		Why: "The scheduler places pods by their requests. If a pod uses more, the kernel kills processes of any pod " +
			"on the node, which then fail with exit code 137 although they are below their own limits. The finding " +
			"names the GPU pod whose limit exceeds its request most, and is an error if the kernel log shows its use.",
		Sources: []string{"Tanguille/cluster#3650"},
		Run:     checkMemory,
	}
}

const (
	recentOOM = time.Hour
	gib       = 1 << 30
)

func checkMemory(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/events") {
		return
	}
	for _, n := range f.Nodes {
		var evidence []finding.Evidence
		for _, e := range f.EventsOf("Node", "", n.Name) {
			if e.Reason == "SystemOOM" && f.Now.Sub(facts.EventTime(e)) < recentOOM && len(evidence) < words.Few {
				evidence = append(evidence, facts.Quote(e))
			}
		}
		if len(evidence) == 0 {
			continue
		}
		pod, c, excess := most(f, n)
		if pod == nil {
			continue
		}
		request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
		bound := "no limit"
		if !limit.IsZero() {
			bound = "limit " + limit.String()
		}
		found := finding.Finding{
			Object: n.Object(), Nodes: []string{n.Name}, Severity: finding.Warning, Confidence: finding.Possible,
			Title: fmt.Sprintf("the node ran out of memory; container %s of pod %s requests only %s of memory (%s)",
				c.Name, pod.Name, request, bound),
			Evidence: evidence,
			Fix: finding.Fix{
				Text: "Raise the container's memory request to what it uses, so that the scheduler places less on the " +
					"node, and keep its limit. Do not raise the limits of the killed pods, which did not reach them.",
				Commands: append([]string{"kubectl top pods -A --sort-by=memory"}, facts.EditCommands(pod)...),
			},
		}
		if used, line := resident(n, request.Value()); used > request.Value()+min(excess, gib) {
			found.Severity, found.Confidence = finding.Error, finding.Likely
			found.Title = fmt.Sprintf("the node ran out of memory, because container %s of pod %s uses %.0fGi, but "+
				"requests only %s", c.Name, pod.Name, float64(used)/gib, request)
			found.Evidence = append(found.Evidence, line)
		}
		r.Add(found)
	}
}

// most returns the container on a node that may exceed its memory request most, of the pods that use GPUs, and by how
// much. It returns nil if none may use a fourth of the node's memory more than it requests.
func most(f *facts.Facts, n *facts.Node) (pod *corev1.Pod, c *corev1.Container, excess int64) {
	capacity := n.Status.Capacity.Memory().Value()
	for _, p := range n.Pods {
		if facts.Ended(p) || !f.UsesGPU(p) && !facts.LooksForGPU(p) && facts.OtherAccelerator(p) == "" {
			continue
		}
		for one := range facts.Containers(p) {
			most := min(one.Resources.Limits.Memory().Value(), capacity)
			if most == 0 {
				most = capacity
			}
			if over := most - one.Resources.Requests.Memory().Value(); over > max(excess, capacity/4) {
				pod, c, excess = p, one, over
			}
		}
	}
	return pod, c, excess
}

// process matches a row in the kernel's table of processes: the resident pages, the score and the name.
var process = regexp.MustCompile(`^\[ *\d+\] +\d+ +\d+ +\d+ +(\d+) .* (-?\d+) (\S+)$`)

// resident returns the memory of the largest process, in the kernel's tables, whose score is that of a container with
// the request. The kubelet derives the score from the request and the capacity, which may have been slightly different.
func resident(n *facts.Node, request int64) (used int64, line finding.Evidence) {
	capacity := n.Status.Capacity.Memory().Value()
	if n.Host == nil || capacity == 0 || request == 0 {
		return 0, finding.Evidence{}
	}
	score := 1000 - 1000*request/capacity
	for _, k := range n.Host.KernelLog {
		m := process.FindStringSubmatch(k.Text)
		if m == nil {
			continue
		}
		pages, err := strconv.ParseInt(m[1], 10, 64)
		its, _ := strconv.ParseInt(m[2], 10, 64)
		if err == nil && max(its-score, score-its) <= 10 && pages<<12 > used {
			used = pages << 12
			line = finding.Evidence{
				Source: fmt.Sprintf("nodes/%s/kernel.log sequence %d: resident pages, and the oom_score_adj of the request",
					n.Name, k.Sequence),
				Time: k.Time, Text: strings.Join(strings.Fields(words.Clip(k.Text)), " "),
			}
		}
	}
	return used, line
}
