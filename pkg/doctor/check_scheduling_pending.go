package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// pendingPod is a pod that the scheduler has placed nowhere, and why.
type pendingPod struct {
	pod *corev1.Pod
	verdict
}

// verdict is why a pod cannot be placed.
type verdict struct {
	id         string // of the check that reports it; empty when a check of another layer does
	severity   Severity
	confidence Confidence
	title      string
	nodes      []string // those that the pod could run on, were it not for this
	evidence   []Evidence
	fix        Fix
}

// pending returns the pods that ask for GPUs and are placed nowhere.
func (f *Facts) pending() []pendingPod { return f.unscheduled() }

// Young pods are not worth a word: the scheduler, the autoscaler and quota need a moment.
const (
	youngPending = 30 * time.Second
	scaleUpTime  = 15 * time.Minute
	noScheduler  = 2 * time.Minute
	skew         = 10 * time.Second // between the clocks of the client and of the API server
)

func (f *Facts) findPending() []pendingPod {
	s := newScheduler(f)
	timeless := []string{"sched.wrong-resource-name", "sched.bigger-than-any-node"} // what no time heals
	// Pods of one Job are many and alike: the arithmetic is done once for them.
	known := map[string]verdict{}
	var all []pendingPod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil ||
			pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
			continue
		}
		if len(gpuDemand(pod)) == 0 && !f.wantsGPU(pod) {
			continue
		}
		message := scheduledMessage(f, pod)
		v, waits := s.waiting(pod)
		if !waits {
			key := likeness(pod, message.Text)
			var seen bool
			if v, seen = known[key]; !seen {
				v = s.judge(pod, message.Text)
				known[key] = v
			}
		}
		if f.age(pod) < youngPending && v.id != "" && !slices.Contains(timeless, v.id) && v.severity != Info {
			v.title += fmt.Sprintf(" (the pod is new; this is %s if it still waits after %s)",
				map[Severity]string{Error: "an error", Warning: "a warning"}[v.severity], youngPending)
			v.severity = Info
		}
		if message.Text != "" {
			v.evidence = append([]Evidence{message}, v.evidence...)
		}
		all = append(all, pendingPod{pod, v})
	}
	return all
}

// age returns how old a pod was when the snapshot was made. One without a time counts as old, and so does one from the
// future: then the clock of the client is wrong, and its word must not excuse the pod.
func (f *Facts) age(pod *corev1.Pod) time.Duration {
	age := f.Now.Sub(pod.CreationTimestamp.Time)
	if pod.CreationTimestamp.IsZero() || age < -skew {
		return 24 * time.Hour
	}
	return age
}

// likeness is equal for pods that the scheduler treats alike.
func likeness(pod *corev1.Pod, message string) string {
	raw, err := json.Marshal([]any{
		demand(pod), pod.Spec.NodeSelector, pod.Spec.Affinity, pod.Spec.Tolerations, len(pod.Spec.ResourceClaims),
		pod.Spec.SchedulerName, message,
	})
	if err != nil {
		return string(pod.UID) + pod.Namespace + "/" + pod.Name
	}
	return string(raw)
}

// scheduledMessage returns what the scheduler says last about a pod: its condition, which is always the newest word, or
// an event.
func scheduledMessage(f *Facts, pod *corev1.Pod) Evidence {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return Evidence{
				Source: PodObject(pod).String() + " .status.conditions[PodScheduled].message",
				Time:   c.LastTransitionTime.Time, Text: cut(c.Message),
			}
		}
	}
	for _, e := range f.EventsOfPod(pod) {
		if e.Reason == "FailedScheduling" {
			q := Quote(e)
			q.Text = cut(q.Text)
			return q
		}
	}
	return Evidence{}
}

// gpuDemand returns what a pod asks for that is a GPU, or that its author took for one: amd.com/gpu, nvidia.com/gpus.
func gpuDemand(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	all := demand(pod)
	maps.DeleteFunc(all, func(name corev1.ResourceName, n int64) bool { return n == 0 || !looksLikeGPU(name) })
	return all
}

func looksLikeGPU(name corev1.ResourceName) bool {
	lower := strings.ToLower(string(name))
	domain, rest, qualified := strings.Cut(lower, "/")
	switch rest {
	case "gpumem", "gpucores", "gpumem-percentage", "priority", "gpu-mem", "gpu-core":
		// Of schedulers that share GPUs: they count these themselves
		return false
	}
	return IsGPUResource(name) ||
		qualified && (strings.Contains(rest, "gpu") || domain == "nvidia.com" && strings.HasPrefix(rest, "mig"))
}

// scheduler is what the scheduler knows of the nodes that have GPUs.
type scheduler struct {
	f     *Facts
	nodes []*Node // with GPUs, of any maker
	used  map[*Node]map[corev1.ResourceName]int64
	known map[*Node]bool // see poor
}

func newScheduler(f *Facts) *scheduler {
	s := &scheduler{f: f, used: map[*Node]map[corev1.ResourceName]int64{}, known: map[*Node]bool{}}
	ours := map[*Node]bool{}
	for _, n := range f.GPUNodes {
		ours[n] = true
	}
	for _, n := range f.Nodes {
		if ours[n] || len(advertised(n)) > 0 {
			s.nodes = append(s.nodes, n)
		}
	}
	return s
}

// use is inUse, once for each node.
func (s *scheduler) use(n *Node) map[corev1.ResourceName]int64 {
	if _, known := s.used[n]; !known {
		s.used[n] = inUse(n)
	}
	return s.used[n]
}

// free returns how much of a resource no pod has asked for. Never negative: a node may have lost devices that pods
// still hold.
func (s *scheduler) free(n *Node, name corev1.ResourceName) int64 {
	return max(0, n.allocatable(name)-s.use(n)[name])
}

// advertised returns the GPU resources that a node gives to pods, sorted.
func advertised(n *Node) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range n.Status.Allocatable {
		if looksLikeGPU(name) && n.allocatable(name) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// waiting returns the pods that nothing is wrong with: somebody holds them back on purpose, or room is being made for
// them.
func (s *scheduler) waiting(pod *corev1.Pod) (verdict, bool) {
	v := verdict{id: "sched.waiting", severity: Info, confidence: Certain}
	object := PodObject(pod)
	switch {
	case len(pod.Spec.SchedulingGates) > 0:
		v.title = "a scheduling gate holds the pod back: whoever set it has not yet released it"
		v.evidence = []Evidence{
			{Source: object.String() + " .spec.schedulingGates", Text: pod.Spec.SchedulingGates[0].Name},
		}
		v.fix = Fix{
			Text: "Wait for the owner of the gate (Kueue: the workload's queue has no room yet), and look at its own objects.",
		}
		return v, true
	case pod.Status.NominatedNodeName != "":
		v.title = "the scheduler makes room for the pod by preempting others"
		v.evidence = []Evidence{
			{Source: object.String() + " .status.nominatedNodeName", Text: pod.Status.NominatedNodeName},
		}
		v.nodes = []string{pod.Status.NominatedNodeName}
		v.fix = Fix{Text: "Wait until the preempted pods have ended."}
		return v, true
	}
	for _, e := range s.f.EventsOfPod(pod) {
		if isScaleUp(e) && s.f.Now.Sub(EventTime(e)) < scaleUpTime {
			v.title = "the autoscaler is adding a node for the pod"
			v.evidence = []Evidence{Quote(e)}
			v.fix = Fix{
				Text: "Wait for the node; a GPU node takes several minutes until its driver and device plugin are ready.",
			}
			return v, true
		}
	}
	return verdict{}, false
}

// isScaleUp reports whether an autoscaler says in an event that it adds a node for a pod.
func isScaleUp(e *corev1.Event) bool {
	return e.Reason == "TriggeredScaleUp" || e.Reason == "Nominated"
}

// scales reports whether nodes for the pod may come from an autoscaler that has none now: it said so of the pod, or the
// pod selects by what only autoscaled node pools have.
func (s *scheduler) scales(pod *corev1.Pod) (Evidence, bool) {
	for _, e := range s.f.EventsOfPod(pod) {
		if isScaleUp(e) {
			return Quote(e), true
		}
	}
	for _, key := range keysOf(pod) {
		if slices.Contains([]string{
			"cloud.google.com/gke-accelerator", "cloud.google.com/gke-nodepool", "karpenter.sh/nodepool",
			"karpenter.sh/capacity-type", "eks.amazonaws.com/nodegroup",
			"karpenter.k8s.aws/instance-gpu-name", "karpenter.k8s.aws/instance-gpu-count",
			"karpenter.k8s.aws/instance-family", "kubernetes.azure.com/agentpool", "agentpool",
		}, key) {
			return Evidence{
				Source: PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
				Text:   selectorText(pod),
			}, true
		}
	}
	return Evidence{}, false
}

// judge works out why a pod fits nowhere: each step keeps the nodes that pass it, and the first step that none passes
// is the reason.
func (s *scheduler) judge(pod *corev1.Pod, message string) verdict {
	switch {
	case aboutClaims(message):
		return verdict{}
	case strings.Contains(message, "unbound immediate PersistentVolumeClaims"),
		strings.Contains(message, "persistentvolumeclaim"):
		return s.volume(pod, message)
	}
	want := gpuDemand(pod)
	if len(want) == 0 {
		return s.claiming(message)
	}
	base := s.nodes
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.ContainsFunc(base, func(n *Node) bool { return n.allocatable(name) > 0 }) {
			return s.notAdvertised(pod, name, base)
		}
	}
	selected := keep(base, func(n *Node) bool { return selects(pod, n) })
	if len(selected) == 0 {
		return s.nodeSelector(pod, want)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.ContainsFunc(selected, func(n *Node) bool { return n.allocatable(name) > 0 }) {
			return s.notAdvertised(pod, name, selected)
		}
	}
	big := keep(selected, func(n *Node) bool { return covers(want, n.allocatable) })
	if len(big) == 0 {
		return s.tooBig(pod, want, selected)
	}
	open := keep(big, func(n *Node) bool { return untolerated(pod, n) == nil && available(n) })
	if len(open) == 0 {
		return s.closed(pod, big)
	}
	roomy := keep(open, func(n *Node) bool {
		return covers(want, func(name corev1.ResourceName) int64 { return s.free(n, name) })
	})
	if len(roomy) == 0 {
		return s.full(pod, want, open, big, selected)
	}
	return s.otherwise(pod, message, roomy)
}

// claiming returns the verdict on a pod that asks for GPUs by claims only: which devices fit is for the DRA layer, and
// the rest for the scheduler's own words.
func (s *scheduler) claiming(message string) verdict {
	if message == "" {
		return verdict{}
	}
	return verdict{
		id: "sched.unschedulable", severity: Error, confidence: Likely,
		title: "the scheduler places a pod with a claim for GPUs nowhere, for a reason that is not the claim",
		nodes: s.names(s.nodes),
		fix: Fix{
			Text: "See the scheduler's message: what the pod asks for beside its claims, its selectors, and the taints of the nodes.",
		},
	}
}

func keep(nodes []*Node, when func(*Node) bool) []*Node {
	var kept []*Node
	for _, n := range nodes {
		if when(n) {
			kept = append(kept, n)
		}
	}
	return kept
}

func covers(want map[corev1.ResourceName]int64, has func(corev1.ResourceName) int64) bool {
	for name, n := range want {
		if has(name) < n {
			return false
		}
	}
	return true
}

// available reports whether the kubelet of a node says that it is well; a node without the condition is taken for well.
func available(n *Node) bool {
	status := n.Ready().Status
	return (status == corev1.ConditionTrue || status == "") && !n.Spec.Unschedulable
}

// aboutClaims reports whether the scheduler's message is about resource claims, which the DRA layer reports.
func aboutClaims(message string) bool {
	return slices.ContainsFunc([]string{
		"cannot allocate all claims", "waiting for resource claim", "resourceclaim", "resource claim", "device class",
	}, func(text string) bool { return strings.Contains(strings.ToLower(message), text) })
}

// manyNodes is how many nodes a finding about a pod names. More say no more, and cost time in a cluster of thousands.
const manyNodes = 256

// names returns the nodes' names. Of very many, those come first that do not give all that they could: causes are on
// them. The slice is clipped: findings that share it may append to it.
func (s *scheduler) names(nodes []*Node) []string {
	if len(nodes) > manyNodes {
		poor := keep(nodes, s.poor)
		well := keep(nodes, func(n *Node) bool { return !s.poor(n) })
		nodes = append(poor, well...)[:manyNodes]
	}
	all := make([]string, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return slices.Clip(all)
}

// poor reports whether a node does not give all that it could, worked out once for each.
func (s *scheduler) poor(n *Node) bool {
	is, known := s.known[n]
	if !known {
		is = !available(n) || lacking(n)
		s.known[n] = is
	}
	return is
}

// lacking reports whether a node advertises no GPUs, or fewer than it has.
func lacking(n *Node) bool {
	ours := advertised(n)
	return len(ours) == 0 ||
		slices.ContainsFunc(ours, func(r corev1.ResourceName) bool { return n.allocatable(r) < n.capacity(r) })
}

// few is how many nodes or pods are quoted.
const few = 4

// quoteAllocatable quotes what nodes advertise of GPUs.
func quoteAllocatable(nodes []*Node) []Evidence {
	var all []Evidence
	for _, n := range nodes[:min(few, len(nodes))] {
		var parts []string
		for name := range n.Status.Capacity {
			if looksLikeGPU(name) {
				parts = append(parts, fmt.Sprintf("%s: %d", name, n.allocatable(name)))
			}
		}
		slices.Sort(parts)
		text := strings.Join(parts, ", ")
		if text == "" {
			text = "no GPU resource"
		}
		all = append(all, Evidence{Source: n.Object().String() + " .status.allocatable", Text: text})
	}
	return all
}

func demandText(want map[corev1.ResourceName]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, want[name]))
	}
	return strings.Join(parts, ", ")
}

func quoteDemand(pod *corev1.Pod, want map[corev1.ResourceName]int64) Evidence {
	return Evidence{Source: PodObject(pod).String() + " .spec.containers[].resources", Text: demandText(want)}
}

// awaited returns the nodes that pending pods could run on, if only their GPUs were offered. Pods that somebody holds
// back on purpose wait for none, nor do those that wait for GPUs which others use; more are IDs of reasons that count,
// too.
func (f *Facts) awaited(more ...string) map[string]bool {
	all := map[string]bool{}
	for _, p := range f.pending() {
		if reasons := append(
			[]string{"sched.none-advertised", "sched.nodes-unavailable", "sched.insufficient-gpu"}, more...,
		); slices.Contains(reasons, p.id) {
			for _, n := range p.nodes {
				all[n] = true
			}
		}
	}
	return all
}
