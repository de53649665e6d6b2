package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// PendingPod is an unscheduled pod, with the reason why it is not scheduled.
type PendingPod struct {
	Pod *corev1.Pod
	verdict
}

// verdict is the reason why a pod cannot be scheduled.
type verdict struct {
	Id         string // ID of the check that reports the pod, or "" if a check in another layer reports it
	Severity   finding.Severity
	Confidence finding.Confidence
	Title      string
	Nodes      []string // nodes that could run the pod without this problem
	Evidence   []finding.Evidence
	Fix        finding.Fix
	Vague      bool // the reason is only in the message, so any signature for the message is better
	// Helper is the pod that should create a volume for this pod but is not scheduled itself, or nil if there is none.
	Helper *corev1.Pod
}

// Pending returns the unscheduled pods that request GPUs.
func Pending(f *facts.Facts) []PendingPod { return facts.Once(f, findPending) }

// Recently created pods are not reported, because the scheduler, the autoscaler and quotas need some time.
const (
	youngPending = 30 * time.Second
	scaleUpTime  = 15 * time.Minute
	noScheduler  = 2 * time.Minute
)

func findPending(f *facts.Facts) []PendingPod {
	s := New(f)
	// These problems do not resolve over time.
	timeless := []string{"sched.wrong-resource-name", "sched.bigger-than-any-node"}
	// A Job may have many identical pods, so the result is computed only once for all of them.
	known := map[string]verdict{}
	var all []PendingPod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil ||
			pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
			continue
		}
		if len(facts.GPUDemand(pod)) == 0 && !f.AsksForGPU(pod) {
			continue
		}
		message := scheduledMessage(f, pod)
		v, waits := s.waiting(pod)
		if !waits {
			key := likeness(pod, message.Text)
			var seen bool
			if v, seen = known[key]; !seen {
				v = s.evaluate(pod, message.Text)
				known[key] = v
			}
		}
		if f.Age(pod) < youngPending && v.Id != "" && !slices.Contains(timeless, v.Id) && v.Severity != finding.Info {
			v.Title += fmt.Sprintf(" (the pod is new; this becomes %s if the pod is still waiting after %s)",
				map[finding.Severity]string{
					finding.Error: "an error", finding.Warning: "a warning",
				}[v.Severity], youngPending)
			v.Severity = finding.Info
		}
		if message.Text != "" {
			v.Evidence = append([]finding.Evidence{message}, v.Evidence...)
		}
		all = append(all, PendingPod{pod, v})
	}
	return all
}

// likeness returns a key that is equal for all pods that the scheduler treats the same.
func likeness(pod *corev1.Pod, message string) string {
	_, generatedBy := facts.GeneratedBy(pod) // the commands in fixes contain this name
	var claims []corev1.Volume               // the findings contain their names
	if Unbound(message) || VolumeElsewhere(message) {
		claims = pod.Spec.Volumes
	}
	raw, err := json.Marshal([]any{
		facts.Demand(pod), pod.Spec.NodeSelector, pod.Spec.Affinity, pod.Spec.Tolerations, len(pod.Spec.ResourceClaims),
		pod.Spec.SchedulerName, message, generatedBy, claims,
	})
	if err != nil {
		return string(pod.UID) + pod.Namespace + "/" + pod.Name
	}
	return string(raw)
}

// scheduledMessage returns the scheduler's latest message about a pod. It is from the pod's condition, which is always
// the most recent, or else from an event.
func scheduledMessage(f *facts.Facts, pod *corev1.Pod) finding.Evidence {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return finding.Evidence{
				Source: facts.PodObject(pod).String() + " .status.conditions[PodScheduled].message",
				Time:   c.LastTransitionTime.Time, Text: words.Clip(c.Message),
			}
		}
	}
	for _, e := range f.EventsOfPod(pod) {
		if e.Reason == "FailedScheduling" {
			q := facts.Quote(e)
			q.Text = words.Clip(q.Text)
			return q
		}
	}
	return finding.Evidence{}
}

// Scheduler contains the scheduler's information about the GPU nodes.
type Scheduler struct {
	F     *facts.Facts
	nodes []*facts.Node // nodes with GPUs from any vendor
	used  map[*facts.Node]map[corev1.ResourceName]int64
	known map[*facts.Node]bool // cached results of poor
}

// New returns a Scheduler for the facts.
func New(f *facts.Facts) *Scheduler {
	s := &Scheduler{F: f, used: map[*facts.Node]map[corev1.ResourceName]int64{}, known: map[*facts.Node]bool{}}
	ours := map[*facts.Node]bool{}
	for _, n := range f.GPUNodes {
		ours[n] = true
	}
	for _, n := range f.Nodes {
		if ours[n] || len(Advertised(n)) > 0 {
			s.nodes = append(s.nodes, n)
		}
	}
	return s
}

// Use is like inUse, but caches the result for each node.
func (s *Scheduler) Use(n *facts.Node) map[corev1.ResourceName]int64 {
	if _, known := s.used[n]; !known {
		s.used[n] = inUse(n)
	}
	return s.used[n]
}

// Free returns the unrequested amount of a resource on a node. It is never negative, even if the node has lost devices
// that pods still hold.
func (s *Scheduler) Free(n *facts.Node, name corev1.ResourceName) int64 {
	return max(0, n.Allocatable(name)-s.Use(n)[name])
}

// Advertised returns a node's allocatable GPU resources, sorted.
func Advertised(n *facts.Node) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range n.Status.Allocatable {
		if facts.LooksLikeGPU(name) && n.Allocatable(name) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// waiting reports whether a pod is waiting without a problem: it is held back on purpose, or nodes are being freed or
// added for it.
func (s *Scheduler) waiting(pod *corev1.Pod) (verdict, bool) {
	v := verdict{Id: "sched.waiting", Severity: finding.Info, Confidence: finding.Certain}
	object := facts.PodObject(pod)
	switch {
	case len(pod.Spec.SchedulingGates) > 0:
		v.Title = "a scheduling gate is holding the pod back, because the controller that set the gate has not " +
			"removed it yet"
		v.Evidence = []finding.Evidence{
			{Source: object.String() + " .spec.schedulingGates", Text: pod.Spec.SchedulingGates[0].Name},
		}
		v.Fix = finding.Fix{
			Text: "Check the objects and the log of the controller that owns the gate to see what it is waiting for " +
				"(with Kueue, quota or an admission check). Do not remove the gate by hand.",
		}
		s.leftGated(pod, &v)
		return v, true
	case s.preempts(pod.Status.NominatedNodeName):
		v.Title = "the scheduler has chosen a node for the pod, and pods on that node are still terminating"
		v.Evidence = []finding.Evidence{
			{Source: object.String() + " .status.nominatedNodeName", Text: pod.Status.NominatedNodeName},
		}
		v.Nodes = []string{pod.Status.NominatedNodeName}
		v.Fix = finding.Fix{Text: "Wait until these pods have terminated."}
		return v, true
	}
	for _, e := range s.F.EventsOfPod(pod) {
		if isScaleUp(e) && s.F.Now.Sub(facts.EventTime(e)) < scaleUpTime && !s.arrived(pod, e) &&
			s.failedScaleUp(pod) == nil {
			v.Title, v.Confidence = "the autoscaler is adding a node for the pod", finding.Likely
			v.Evidence = []finding.Evidence{facts.Quote(e)}
			v.Fix = finding.Fix{
				Text: "Wait for the node; it takes several minutes before the driver and device plugin on a new GPU " +
					"node are ready.",
			}
			return v, true
		}
	}
	return verdict{}, false
}

// preempts reports whether pods are terminating on the node that a pod is nominated for. Schedulers and autoscalers
// also nominate nodes in other cases, and a nomination may be out of date.
func (s *Scheduler) preempts(node string) bool {
	if n := s.F.Node(node); n != nil {
		for _, pod := range n.Pods {
			if at := pod.DeletionTimestamp; at != nil && s.F.Now.Sub(at.Time) < scaleUpTime {
				return true
			}
		}
	}
	return false
}

// nominated matches the node name in a Karpenter event, which Karpenter repeats while the pod is waiting.
var nominated = regexp.MustCompile(`schedule on.*\bnode(?:/|: )([\w.-]+)`)

// arrived reports whether an event nominates a node that has been ready for so long that its GPUs should be advertised
// and its startup taints removed by now: the pod is waiting for this node in vain.
func (s *Scheduler) arrived(pod *corev1.Pod, e *corev1.Event) bool {
	m := nominated.FindStringSubmatch(e.Message)
	if m == nil {
		return false
	}
	n := s.F.Node(m[1])
	return n != nil && facts.Alive(n) && s.F.Now.Sub(n.Ready().LastTransitionTime.Time) >= scaleUpTime &&
		s.F.Now.Sub(n.CreationTimestamp.Time) >= scaleUpTime && (len(Advertised(n)) == 0 || untolerated(pod, n) != nil)
}

// isScaleUp reports whether an event shows that an autoscaler is adding a node for a pod.
func isScaleUp(e *corev1.Event) bool {
	return e.Reason == "TriggeredScaleUp" || e.Reason == "Nominated"
}

// failedScaleUp returns the event about an autoscaler's last attempt to add a node for the pod if this attempt failed,
// and nil otherwise.
func (s *Scheduler) failedScaleUp(pod *corev1.Pod) *corev1.Event {
	for _, e := range s.F.EventsOfPod(pod) {
		if e.Reason == "FailedScaleUp" {
			return e
		}
		if isScaleUp(e) {
			return s.notLaunched(pod, e)
		}
	}
	return nil
}

// claimed matches the NodeClaim in a Karpenter event about a pod.
var claimed = regexp.MustCompile(`nodeclaim/([\w.-]+)`)

// notLaunched returns the event that explains why the cloud did not provide a node for the NodeClaim in an event about
// a pod. It returns nil if there is no such event, or if the pod has not been waiting for long.
func (s *Scheduler) notLaunched(pod *corev1.Pod, e *corev1.Event) *corev1.Event {
	// If a cloud has no capacity, Karpenter tries again with another zone or instance type.
	if m := claimed.FindStringSubmatch(e.Message); m != nil && s.F.Age(pod) >= scaleUpTime {
		if about := s.F.EventsOf("NodeClaim", "", m[1]); len(about) > 0 { // newest first
			if last := about[0]; last.Type == corev1.EventTypeWarning && last.Reason == "InsufficientCapacityError" {
				return last
			}
		}
	}
	return nil
}

// NominatedTo reports whether a pod is or was waiting for a NodeClaim's node.
func (p PendingPod) NominatedTo(f *facts.Facts, claim string) bool {
	return p.Id == "sched.none-advertised" && slices.ContainsFunc(f.EventsOfPod(p.Pod), func(e *corev1.Event) bool {
		m := claimed.FindStringSubmatch(e.Message)
		return m != nil && m[1] == claim
	})
}

// noScaleUp returns an autoscaler's last event about the pod if the autoscaler reports that no new node would help, and
// nil otherwise.
func (s *Scheduler) noScaleUp(pod *corev1.Pod) *corev1.Event {
	for _, e := range s.F.EventsOfPod(pod) {
		switch {
		case e.Reason == "NotTriggerScaleUp":
			return e
		case isScaleUp(e):
			return nil
		}
	}
	return nil
}

// scales reports whether an autoscaler may add nodes for the pod although no suitable node exists now: an autoscaler
// event shows this, or the pod selects a label that only autoscaled node pools have.
func (s *Scheduler) scales(pod *corev1.Pod) (finding.Evidence, bool) {
	for _, e := range s.F.EventsOfPod(pod) {
		if isScaleUp(e) {
			return facts.Quote(e), true
		}
	}
	for _, key := range keysOf(pod) {
		if slices.Contains([]string{
			"cloud.google.com/gke-accelerator", "cloud.google.com/gke-nodepool", "karpenter.sh/nodepool",
			"karpenter.sh/capacity-type", "eks.amazonaws.com/nodegroup",
			"karpenter.k8s.aws/instance-gpu-name", "karpenter.k8s.aws/instance-gpu-count",
			"karpenter.k8s.aws/instance-family", "kubernetes.azure.com/agentpool", "agentpool",
		}, key) {
			return finding.Evidence{
				Source: facts.PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
				Text:   SelectorText(pod),
			}, true
		}
	}
	return finding.Evidence{}, false
}

// evaluate determines why a pod is unschedulable. Each step filters the nodes; the first step after which no node is
// left is the reason.
func (s *Scheduler) evaluate(pod *corev1.Pod, message string) verdict {
	switch {
	case aboutClaims(message):
		return ofScheduler(s.F, pod, message)
	case Unbound(message),
		strings.Contains(message, "persistentvolumeclaim"):
		return s.volume(pod, message, nil)
	}
	if v, down := s.schedulerDown(pod, message); down {
		return v
	}
	want := facts.GPUDemand(pod)
	if len(want) == 0 {
		return s.unrequested(pod, message)
	}
	base := s.nodes
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.ContainsFunc(base, func(n *facts.Node) bool { return n.Allocatable(name) > 0 }) {
			return s.notAdvertised(pod, name, base)
		}
	}
	selected := Keep(base, func(n *facts.Node) bool { return Selects(pod, n) })
	if len(selected) == 0 {
		return s.nodeSelector(pod, want)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.ContainsFunc(selected, func(n *facts.Node) bool { return n.Allocatable(name) > 0 }) {
			return s.notAdvertised(pod, name, selected)
		}
	}
	big := Keep(selected, func(n *facts.Node) bool { return covers(want, n.Allocatable) })
	if len(big) == 0 {
		return s.tooBig(pod, want, selected)
	}
	if v, ok := s.tooMuchElse(pod, big); ok {
		return v
	}
	open := Keep(big, func(n *facts.Node) bool { return untolerated(pod, n) == nil && facts.Available(n) })
	if len(open) == 0 {
		return s.closed(pod, big)
	}
	roomy := Keep(open, func(n *facts.Node) bool {
		return covers(want, func(name corev1.ResourceName) int64 { return s.Free(n, name) })
	})
	if len(roomy) == 0 {
		return s.full(pod, want, open, big, selected)
	}
	return s.otherwise(pod, message, roomy)
}

// Keep returns the nodes that satisfy a predicate.
func Keep(nodes []*facts.Node, when func(*facts.Node) bool) []*facts.Node {
	var kept []*facts.Node
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

// aboutClaims reports whether the scheduler's message is about resource claims. The DRA layer reports problems with
// claims.
func aboutClaims(message string) bool {
	return slices.ContainsFunc([]string{
		"cannot allocate all claims", "dra claims", "waiting for resource claim", "resourceclaim", "resource claim",
		"device class",
	}, func(text string) bool { return strings.Contains(strings.ToLower(message), text) })
}

// manyNodes is the maximum number of nodes in a finding about a pod. Additional nodes provide no information and are
// slow to process in large clusters.
const manyNodes = 256

// names returns the names of up to manyNodes nodes. If there are more, unavailable nodes and nodes that advertise too
// few GPUs come first, because these nodes are the causes. The slice is clipped, so findings that share it may append
// to it.
func (s *Scheduler) names(nodes []*facts.Node) []string {
	if len(nodes) > manyNodes {
		poor := Keep(nodes, s.poor)
		well := Keep(nodes, func(n *facts.Node) bool { return !s.poor(n) })
		nodes = append(poor, well...)[:manyNodes]
	}
	all := make([]string, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return slices.Clip(all)
}

// poor reports whether a node is unavailable or advertises too few GPUs. It caches the result for each node.
func (s *Scheduler) poor(n *facts.Node) bool {
	is, known := s.known[n]
	if !known {
		is = !facts.Available(n) || lacking(n)
		s.known[n] = is
	}
	return is
}

// lacking reports whether a node advertises no GPUs, or fewer than it has.
func lacking(n *facts.Node) bool {
	ours := Advertised(n)
	return len(ours) == 0 ||
		slices.ContainsFunc(ours, func(r corev1.ResourceName) bool { return n.Allocatable(r) < n.Capacity(r) })
}

// QuoteAllocatable returns the nodes' allocatable GPUs as evidence.
func QuoteAllocatable(nodes []*facts.Node) []finding.Evidence {
	var all []finding.Evidence
	for _, n := range nodes[:min(words.Few, len(nodes))] {
		var parts []string
		for name := range n.Status.Capacity {
			if facts.LooksLikeGPU(name) {
				parts = append(parts, fmt.Sprintf("%s: %d", name, n.Allocatable(name)))
			}
		}
		slices.Sort(parts)
		text := strings.Join(parts, ", ")
		if text == "" {
			text = "no GPU resource"
		}
		all = append(all, finding.Evidence{Source: n.Object().String() + " .status.allocatable", Text: text})
	}
	return all
}

// Awaited returns the nodes that could run pending pods if the nodes advertised all their GPUs. It skips pods that are
// held back on purpose or are waiting for GPUs that other pods use. more contains the IDs of additional reasons to
// include.
func Awaited(f *facts.Facts, more ...string) map[string]bool {
	all := map[string]bool{}
	for _, p := range Pending(f) {
		if reasons := append(
			[]string{"sched.none-advertised", "sched.nodes-unavailable", "sched.insufficient-gpu"}, more...,
		); slices.Contains(reasons, p.Id) {
			for _, n := range p.Nodes {
				all[n] = true
			}
		}
	}
	return all
}
