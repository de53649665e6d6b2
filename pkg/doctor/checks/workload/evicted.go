package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func evictedCheck() engine.Check {
	return engine.Check{
		ID: "wl.evicted", Symptom: engine.Explained, Layer: finding.LayerWorkload,
		Title: "the kubelet evicted a GPU pod",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "Pod .status.reason Evicted and .status.message, Evicted events, and the pod's requests and limits",
		Why: "The node ran low on disk, memory or process IDs, or the pod exceeded a limit: the message shows which. " +
			"The finding is Info if the eviction was more than an hour ago; it is not reported once the owner has a " +
			"newer healthy pod. A pod that had filled half of its node's disk is the reason why the node is under " +
			"pressure.",
		Explains: []string{"wl.pod-failing"},
		ExplainsAs: map[string][]string{
			finding.FillsDisk: {"wl.pod-failing", "node.pressure", "sched.nodes-unavailable"},
		},
		Doc: "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/",
		Run: checkEvicted,
	}
}

// eviction contains the details in the kubelet's eviction message.
type eviction struct {
	resource corev1.ResourceName // "" if unknown; pids for process IDs
	// own is true if the pod exceeded its own limit. Otherwise, the node ran low on the resource.
	own                   bool
	container, used, asks string
}

var (
	lowOn     = regexp.MustCompile(`low on resource: \[?([\w-]+)|had condition: \[?(\w+)Pressure`)
	usage     = regexp.MustCompile(`[Cc]ontainer (\S+) was using (\w+), (?:request is|which exceeds its request of) (\w+)`)
	ownLimits = regexp.MustCompile(
		`exceeds the total limit of containers|exceeded its local ephemeral storage limit|[Uu]sage of EmptyDir volume`,
	)
)

func parseEviction(message string) (e eviction) {
	if m := lowOn.FindStringSubmatch(message); m != nil {
		switch name := strings.ToLower(m[1] + m[2]); {
		case name == "memory":
			e.resource = corev1.ResourceMemory
		case name == "pids", name == "pid":
			e.resource = "pids"
		case name == "disk", name == "ephemeral-storage", strings.HasSuffix(name, "fs"),
			strings.HasPrefix(name, "inodes"), strings.HasPrefix(name, "nodefs"), strings.HasPrefix(name, "imagefs"):
			e.resource = corev1.ResourceEphemeralStorage
		}
	}
	if ownLimits.MatchString(message) {
		e.resource, e.own = corev1.ResourceEphemeralStorage, true
	}
	if m := usage.FindStringSubmatch(message); m != nil {
		e.container, e.used, e.asks = m[1], m[2], m[3]
	}
	return e
}

// describe sets the title and the fix for an eviction that no signature explains.
func (e eviction) describe(found *finding.Finding) {
	switch {
	case e.own:
		found.Title = "the kubelet evicted the GPU pod, which exceeded its limit for data on the node's disk"
		found.Fix.Text = "Raise the limit (ephemeral-storage, or sizeLimit of the emptyDir volume), or write to a " +
			"PersistentVolumeClaim. Model caches (HF_HOME), checkpoints and data sets are the usual reason."
	case e.resource == corev1.ResourceMemory:
		found.Title = "the kubelet evicted the GPU pod, because its node ran low on memory"
		found.Fix.Text = "Set the container's memory request to the program's peak usage, and set the limit to the " +
			"same value, so that the scheduler chooses a node with enough memory. If no node has enough, use a " +
			"larger node, or a smaller batch or data set. GPU memory is not involved."
	case e.resource == corev1.ResourceEphemeralStorage:
		found.Title = "the kubelet evicted the GPU pod, because its node ran low on disk space"
		found.Fix.Text = "Use a larger disk for the node, set requests for ephemeral-storage, and put model and data " +
			"caches on a PersistentVolumeClaim."
	case e.resource == "pids":
		found.Title = "the kubelet evicted the GPU pod, because its node ran out of process IDs"
		found.Fix.Text = "Find the pod that starts too many processes or threads (including data loader workers), " +
			"and limit it. The kubelet's podPidsLimit protects the other pods."
	}
}

func checkEvicted(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		if pod.Status.Reason != "Evicted" || f.History(pod) {
			continue
		}
		severity := finding.Warning
		if last := f.EndedAt(pod); !last.IsZero() && f.Now.Sub(last) > evictedSince {
			severity = finding.Info
		}
		said := finding.Evidence{
			Source: facts.PodObject(pod).String() + " .status.message",
			Text:   words.Clip(cmp.Or(pod.Status.Message, pod.Status.Reason)),
		}
		told := parseEviction(pod.Status.Message)
		for _, event := range f.EventsOfPod(pod) {
			if more := parseEviction(event.Message); event.Reason == "Evicted" &&
				(told.resource == "" || told.used == "" && more.used != "") {
				told, said = more, finding.Clipped(facts.Quote(event))
			}
		}
		found := finding.Finding{
			Title: "the kubelet evicted the GPU pod", Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
			Severity: severity, Evidence: append([]finding.Evidence{said}, quoteAsked(pod, told)...),
			Fix: finding.Fix{Text: "Set the pod's requests for the resource that the node ran low on " +
				"(ephemeral-storage, memory), and provide more of this resource on the node; then delete the evicted " +
				"pod.",
				Commands: append(facts.EditCommands(pod),
					shell.Command("kubectl -n %s delete pod %s", pod.Namespace, pod.Name)),
			},
		}
		told.describe(&found)
		if f.FillsDisk(pod) {
			found.As = finding.FillsDisk
		}
		r.Add(found)
	}
}

// quoteAsked quotes the requests and limits for the resource in an evicted pod's containers.
func quoteAsked(pod *corev1.Pod, e eviction) []finding.Evidence {
	if e.resource == "" || e.resource == "pids" {
		return nil
	}
	var all []finding.Evidence
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if e.container != "" && c.Name != e.container || len(all) >= words.Few {
			continue
		}
		of := func(list corev1.ResourceList) string {
			if q, ok := list[e.resource]; ok {
				return q.String()
			}
			return "none"
		}
		all = append(all, finding.Evidence{
			Source: facts.PodObject(pod).String() + ", container " + c.Name + " .resources",
			Text:   fmt.Sprintf("%s: request %s, limit %s", e.resource, of(c.Resources.Requests), of(c.Resources.Limits)),
		})
	}
	return all
}
