package facts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// The API groups of batch schedulers.
const (
	kueueGroup   = "kueue.x-k8s.io"
	volcanoGroup = "scheduling.volcano.sh"
	kaiGroup     = "scheduling.run.ai"
)

// Queued is GPU work that waits in a queue: a Workload of Kueue, or a PodGroup of Volcano or KAI Scheduler. Often it
// has no pods yet.
type Queued struct {
	Object finding.Object
	Pods   []string // "namespace/name" of the pods that it holds back
	// Full is true if all it waits for is quota that other work uses.
	Full bool
	// Said is what it and its queues say about it, and what a comparison of both shows, the most specific first.
	Said []finding.Evidence
}

// Waits reports whether a Workload or PodGroup waits in a queue. Of all other objects, it reports true.
func Waits(object *unstructured.Unstructured) bool {
	switch object.GetKind() {
	case "Workload":
		return !isTrue(object, "Finished") && !isTrue(object, "Admitted")
	case "PodGroup":
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		return !slices.Contains([]string{"Running", "Completed", "Succeeded", "Failed"}, phase)
	}
	return true
}

// Queued returns the GPU work that waits in queues.
func (f *Facts) Queued() []Queued { return Once(f, findQueued) }

func findQueued(f *Facts) []Queued {
	var all []Queued
	for i := range f.Snapshot.Queued {
		object := &f.Snapshot.Queued[i]
		if !Waits(object) {
			continue
		}
		pods := f.podsOf(object)
		wants := requestsOf(object)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(wants)), LooksLikeGPU) &&
			!slices.ContainsFunc(pods, f.AsksForGPU) {
			continue
		}
		q := Queued{Object: finding.Object{
			Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName(),
		}}
		for _, pod := range pods {
			q.Pods = append(q.Pods, pod.Namespace+"/"+pod.Name)
		}
		q.Said = slices.Concat(
			f.compareQueue(object, wants), conditionsOf(object, q.Object), f.neverSeen(object, q.Object),
		)
		for _, e := range f.EventsOf(q.Object.Kind, q.Object.Namespace, q.Object.Name) {
			if len(q.Said) < finding.Most {
				quoted := Quote(e)
				quoted.Text = words.Cut(quoted.Text)
				q.Said = append(q.Said, quoted)
			}
		}
		q.Full = slices.ContainsFunc(q.Said, func(e finding.Evidence) bool { return busy.MatchString(e.Text) }) &&
			!slices.ContainsFunc(q.Said, func(e finding.Evidence) bool { return broken.MatchString(e.Text) })
		all = append(all, q)
	}
	return all
}

// busy matches what tells that other work uses the quota, and broken what also tells a problem of the work itself.
var (
	busy   = regexp.MustCompile(`insufficient unused quota for|^queues\.\S+ \S+: allocated `)
	broken = regexp.MustCompile(`PodsReady timeout|maximum number of re-queuing retries|is deactivated|Can't admit new`)
)

// groupKeys are the annotations and labels by which pods name their group, by the API group of the PodGroup.
var groupKeys = map[string][]string{
	kueueGroup:   {"kueue.x-k8s.io/pod-group-name"},
	volcanoGroup: {"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"},
	kaiGroup:     {"pod-group-name"},
}

// podsOf returns the pods that are not placed and belong to a Workload or PodGroup.
func (f *Facts) podsOf(object *unstructured.Unstructured) []*corev1.Pod {
	group, _, _ := strings.Cut(object.GetAPIVersion(), "/")
	owns := func(pod *corev1.Pod) bool {
		controller := metav1.GetControllerOf(pod)
		for _, owner := range object.GetOwnerReferences() {
			if owner.UID != "" && (owner.UID == pod.UID || controller != nil && owner.UID == controller.UID) {
				return true
			}
		}
		return slices.ContainsFunc(groupKeys[group], func(key string) bool {
			return pod.Annotations[key] == object.GetName() || pod.Labels[key] == object.GetName()
		})
	}
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Namespace == object.GetNamespace() && Unscheduled(pod) && owns(pod) {
			all = append(all, pod)
		}
	}
	return all
}

// requestsOf returns what a Workload or PodGroup requests at least, to start.
func requestsOf(object *unstructured.Unstructured) map[corev1.ResourceName]int64 {
	all := map[corev1.ResourceName]int64{}
	add := func(amounts map[string]any, times int64) {
		for name := range amounts {
			if n, ok := amountIn(amounts, corev1.ResourceName(name)); ok {
				all[corev1.ResourceName(name)] += n * times
			}
		}
	}
	least, _, _ := unstructured.NestedMap(object.Object, "spec", "minResources")
	add(least, 1)
	sets, _, _ := unstructured.NestedSlice(object.Object, "spec", "podSets")
	for _, set := range sets {
		set, _ := set.(map[string]any)
		count, found, _ := unstructured.NestedInt64(set, "count")
		if !found {
			count = 1
		}
		containers, _, _ := unstructured.NestedSlice(set, "template", "spec", "containers")
		for _, c := range containers {
			c, _ := c.(map[string]any)
			limits, _, _ := unstructured.NestedMap(c, "resources", "limits")
			requests, _, _ := unstructured.NestedMap(c, "resources", "requests")
			if limits == nil {
				limits = map[string]any{}
			}
			maps.Copy(limits, requests) // a request without a value is the limit
			add(limits, count)
		}
	}
	return all
}

// conditionsOf returns the messages of the conditions and admission checks that keep an object from starting.
func conditionsOf(object *unstructured.Unstructured, of finding.Object) []finding.Evidence {
	var all []finding.Evidence
	for _, field := range []string{"conditions", "schedulingConditions", "admissionChecks"} {
		for _, c := range maplist(object, "status", field) {
			name, state := fmt.Sprint(c["type"]), fmt.Sprint(c["status"])
			if field == "admissionChecks" {
				name, state = fmt.Sprint(c["name"]), fmt.Sprint(c["state"])
			}
			message, _ := c["message"].(string)
			// These tell a problem when they are true, others when they are not.
			bad := slices.Contains([]string{
				"Unschedulable", "UnschedulableOnNodePool", "Evicted", "DeactivationTarget",
			}, name)
			if message == "" || (state == "True" || state == "Ready") != bad {
				continue
			}
			all = append(all, finding.Evidence{
				Source: fmt.Sprintf("%s .status.%s[%s]", of, field, name), Time: changed(c), Text: words.Cut(message),
			})
		}
	}
	return all
}

func changed(condition map[string]any) time.Time {
	text, _ := condition["lastTransitionTime"].(string)
	at, _ := time.Parse(time.RFC3339, text) // the zero time is unknown
	return at
}

// processed is how long a controller may take to say something about new work.
const processed = 5 * time.Minute

// neverSeen reports work that its controller has not touched since it was created.
//
//	no status, though the Workload was created AGE ago
func (f *Facts) neverSeen(object *unstructured.Unstructured, of finding.Object) []finding.Evidence {
	created := object.GetCreationTimestamp().Time
	status, _, _ := unstructured.NestedMap(object.Object, "status")
	if age := f.Now.Sub(created); len(status) == 0 && !created.IsZero() && age > processed {
		return []finding.Evidence{{
			Source: of.String() + " .status",
			Text:   fmt.Sprintf("no status, though the %s was created %s ago", of.Kind, words.AgeText(age)),
		}}
	}
	return nil
}

// compareQueue compares work with its queue, if the queues were read. What a result means is in the signatures.
func (f *Facts) compareQueue(
	object *unstructured.Unstructured, wants map[corev1.ResourceName]int64,
) []finding.Evidence {
	group, _, _ := strings.Cut(object.GetAPIVersion(), "/")
	switch group {
	case kueueGroup:
		return f.compareKueue(object)
	case volcanoGroup:
		name, _, _ := unstructured.NestedString(object.Object, "spec", "queue")
		return f.QueueProblem(volcanoGroup, name, wants)
	case kaiGroup:
		name, _, _ := unstructured.NestedString(object.Object, "spec", "queue")
		return f.QueueProblem(kaiGroup, name, nil)
	}
	return nil
}

// compareKueue returns what keeps the LocalQueue and the ClusterQueue of a Workload from taking it, in Kueue's own
// words.
func (f *Facts) compareKueue(object *unstructured.Unstructured) []finding.Evidence {
	name, _, _ := unstructured.NestedString(object.Object, "spec", "queueName")
	read := func(kind string) bool {
		return slices.ContainsFunc(f.Snapshot.Queues, func(q unstructured.Unstructured) bool {
			return q.GetKind() == kind
		})
	}
	missing := func(kind, name, where string) []finding.Evidence {
		return []finding.Evidence{{Source: where, Text: fmt.Sprintf("%s %s doesn't exist", kind, name)}}
	}
	local := f.queue(kueueGroup, "LocalQueue", object.GetNamespace(), name)
	if local == nil {
		if name == "" || !read("LocalQueue") {
			return nil
		}
		return missing("LocalQueue", name, "LocalQueues of namespace "+object.GetNamespace())
	}
	of := finding.Object{Kind: "LocalQueue", Namespace: object.GetNamespace(), Name: name}
	all := conditionsOf(local, of)
	name, _, _ = unstructured.NestedString(local.Object, "spec", "clusterQueue")
	cluster := f.queue(kueueGroup, "ClusterQueue", "", name)
	if cluster == nil {
		if name == "" || !read("ClusterQueue") {
			return all
		}
		return append(missing("ClusterQueue", name, of.String()+" .spec.clusterQueue"), all...)
	}
	return append(conditionsOf(cluster, finding.Object{Kind: "ClusterQueue", Name: name}), all...)
}

func (f *Facts) queue(group, kind, namespace, name string) *unstructured.Unstructured {
	for i := range f.Snapshot.Queues {
		q := &f.Snapshot.Queues[i]
		if q.GetKind() == kind && q.GetNamespace() == namespace && q.GetName() == name &&
			strings.HasPrefix(q.GetAPIVersion(), group+"/") {
			return q
		}
	}
	return nil
}

// QueueProblem compares a queue of Volcano or KAI Scheduler with the others and with what work in it requests. What a
// result means is in the signatures.
//
//	queues.GROUP NAME: does not exist
//	queues.GROUP NAME: is the parent of NAME
//	queues.GROUP NAME: has no parentQueue
//	queues.GROUP NAME: state Closed
//	queues.GROUP NAME: capability RESOURCE: 4, the work requests at least 8
//	queues.GROUP NAME: allocated RESOURCE: 6 of 8, the work requests at least 4
func (f *Facts) QueueProblem(group, name string, wants map[corev1.ResourceName]int64) []finding.Evidence {
	tell := func(field, format string, args ...any) []finding.Evidence {
		return []finding.Evidence{{
			Source: "Queue " + name + field, Text: "queues." + group + " " + name + ": " + fmt.Sprintf(format, args...),
		}}
	}
	parentField := map[string]string{kaiGroup: "parentQueue", volcanoGroup: "parent"}[group]
	read := false
	for i := range f.Snapshot.Queues {
		q := &f.Snapshot.Queues[i]
		if !strings.HasPrefix(q.GetAPIVersion(), group+"/") {
			continue
		}
		read = true
		if parent, _, _ := unstructured.NestedString(q.Object, "spec", parentField); parent == name && name != "" {
			return tell("", "is the parent of %s", q.GetName())
		}
	}
	if !read || name == "" {
		return nil
	}
	q := f.queue(group, "Queue", "", name)
	if q == nil {
		return tell("", "does not exist")
	}
	parent, _, _ := unstructured.NestedString(q.Object, "spec", parentField)
	if group == kaiGroup && parent == "" {
		return tell(" .spec.parentQueue", "has no parentQueue")
	}
	if state, _, _ := unstructured.NestedString(q.Object, "status", "state"); state != "" && state != "Open" {
		return tell(" .status.state", "state %s", state)
	}
	capability, _, _ := unstructured.NestedMap(q.Object, "spec", "capability")
	allocated, _, _ := unstructured.NestedMap(q.Object, "status", "allocated")
	var full []finding.Evidence
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		has, bounded := amountIn(capability, name)
		used, _ := amountIn(allocated, name)
		switch want := wants[name]; {
		case bounded && has < want:
			return tell(" .spec.capability", "capability %s: %s, the work requests at least %s", name,
				words.InWords(name, has), words.InWords(name, want))
		case bounded && has-used < want && full == nil:
			full = tell(" .status.allocated", "allocated %s: %s of %s, the work requests at least %s", name,
				words.InWords(name, used), words.InWords(name, has), words.InWords(name, want))
		}
	}
	return full
}

func amountIn(amounts map[string]any, name corev1.ResourceName) (int64, bool) {
	q, err := resource.ParseQuantity(fmt.Sprint(amounts[string(name)]))
	return amount(name, q), err == nil
}

func isTrue(object *unstructured.Unstructured, condition string) bool {
	return slices.ContainsFunc(maplist(object, "status", "conditions"), func(c map[string]any) bool {
		return c["type"] == condition && c["status"] == "True"
	})
}

// maplist returns the maps in a list field; what has another shape is left out.
func maplist(object *unstructured.Unstructured, fields ...string) []map[string]any {
	list, _, _ := unstructured.NestedSlice(object.Object, fields...)
	var all []map[string]any
	for _, item := range list {
		if m, is := item.(map[string]any); is {
			all = append(all, m)
		}
	}
	return all
}
