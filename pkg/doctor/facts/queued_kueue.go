package facts

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// compareKueue returns the reasons why a Workload's LocalQueue and ClusterQueue do not admit it, in Kueue's own words,
// and the results of comparing the Workload with the nodes and with admitted Workloads.
func (f *comparer) compareKueue(
	object *unstructured.Unstructured, wants map[corev1.ResourceName]int64,
) []finding.Evidence {
	name, _, _ := unstructured.NestedString(object.Object, "spec", "queueName")
	read := func(kind string) bool {
		return slices.ContainsFunc(f.Snapshot.Queues, func(q unstructured.Unstructured) bool {
			return q.GetKind() == kind
		})
	}
	missing := func(kind, name, where string) []finding.Evidence {
		return []finding.Evidence{{Source: where, Text: fmt.Sprintf("%s %s doesn't exist", kind, name)}}
	}
	local := f.queueOf(kueueGroup, "LocalQueue", object.GetNamespace(), name)
	if local == nil {
		if name == "" && (read("LocalQueue") || read("ClusterQueue")) {
			return f.unnamedQueue(object)
		}
		if name == "" || !read("LocalQueue") {
			return nil
		}
		return missing("LocalQueue", name, "LocalQueues in namespace "+object.GetNamespace())
	}
	of := finding.Object{Kind: "LocalQueue", Namespace: object.GetNamespace(), Name: name}
	all := conditionsOf(local, of)
	name, _, _ = unstructured.NestedString(local.Object, "spec", "clusterQueue")
	cluster := f.queueOf(kueueGroup, "ClusterQueue", "", name)
	if cluster == nil {
		if name == "" || !read("ClusterQueue") {
			return all
		}
		return append(missing("ClusterQueue", name, of.String()+" .spec.clusterQueue"), all...)
	}
	for _, c := range conditionsOf(object, finding.Object{}) {
		if m := noFit.FindStringSubmatch(c.Text); m != nil {
			all = append(f.untolerated(object), all...)
			for _, resource := range slices.Sorted(maps.Keys(wants)) {
				if string(resource) == m[1] || m[1] == "" && LooksLikeGPU(resource) {
					all = slices.Concat(f.cordonedRoom(cluster, resource, wants[resource]),
						f.holders(cluster, resource, priorityOf(object), wants[resource]), all)
				}
			}
		} else if m := noQuota.FindStringSubmatch(c.Text); m != nil {
			resource := corev1.ResourceName(m[1])
			all = append(f.idleQuota(cluster, resource, wants[resource]), all...)
		}
	}
	all = append(f.behindHead(object, cluster, wants), all...)
	return append(conditionsOf(cluster, finding.Object{Kind: "ClusterQueue", Name: name}), all...)
}

// unnamedQueue returns evidence about the LocalQueues that are available to work without a queue name.
//
//	no queueName: namespace NAME has no LocalQueue
//	no queueName: namespace NAME has the LocalQueues NAMES
func (f *comparer) unnamedQueue(object *unstructured.Unstructured) []finding.Evidence {
	has := " has no LocalQueue"
	var names []string
	for i := range f.Snapshot.Queues {
		if q := &f.Snapshot.Queues[i]; q.GetKind() == "LocalQueue" && q.GetNamespace() == object.GetNamespace() {
			names = append(names, q.GetName())
		}
	}
	if len(names) > 0 {
		has = " has the LocalQueues " + words.Joined(names)
	}
	return []finding.Evidence{{
		Source: "Workload " + object.GetNamespace() + "/" + object.GetName() + " .spec.queueName, and the LocalQueues",
		Text:   "no queueName: namespace " + object.GetNamespace() + has,
	}}
}

// behindHead returns evidence that another Workload in a strictly ordered queue blocks a Workload that Kueue has not
// evaluated. This is a problem only if a flavor has enough free quota.
//
//	Workload NAMESPACE/NAME is ahead in ClusterQueue NAME, which is StrictFIFO, and is waiting: MESSAGE
//	...and is waiting (a flavor has enough free quota): MESSAGE
func (f *comparer) behindHead(
	object, cluster *unstructured.Unstructured, wants map[corev1.ResourceName]int64,
) []finding.Evidence {
	strategy, _, _ := unstructured.NestedString(cluster.Object, "spec", "queueingStrategy")
	if strategy != strictFIFO || len(conditionsOf(object, finding.Object{})) > 0 {
		return nil
	}
	free := ""
	for resource, want := range wants {
		if LooksLikeGPU(resource) && freeQuota(cluster, resource) >= want {
			free = " (a flavor has enough free quota)"
		}
	}
	for i := range f.Snapshot.Queued {
		other := &f.Snapshot.Queued[i]
		name, _, _ := unstructured.NestedString(other.Object, "spec", "queueName")
		local := f.queueOf(kueueGroup, "LocalQueue", other.GetNamespace(), name)
		if local == nil || !waits(other) {
			continue
		}
		into, _, _ := unstructured.NestedString(local.Object, "spec", "clusterQueue")
		of := finding.Object{Kind: "Workload", Namespace: other.GetNamespace(), Name: other.GetName()}
		if reasons := conditionsOf(other, of); into == cluster.GetName() && len(reasons) > 0 {
			return []finding.Evidence{{
				Source: reasons[0].Source,
				Text: fmt.Sprintf("%s is ahead in ClusterQueue %s, which is StrictFIFO, and is waiting%s: %s", of,
					cluster.GetName(), free, reasons[0].Text),
			}}
		}
	}
	return nil
}

// strictFIFO is the queueing strategy in which the first Workload in a ClusterQueue blocks the others.
const strictFIFO = "StrictFIFO"

// These patterns match Kueue's messages about insufficient resources on a topology's nodes, or about insufficient
// quota.
var (
	noFit = regexp.MustCompile(`topology "[^"]+" (?:doesn't allow to fit any of|allows to fit only)` +
		`(?:.*resource "([^"]+)": \d)?`)
	noQuota = regexp.MustCompile(`insufficient unused quota for (\S+) in flavor`)
)

// holders returns evidence about what holds a resource on the nodes that a Workload needs: pods that Kueue does not
// manage, or Workloads with a lower priority that Kueue does not preempt. It returns evidence only if the Workload
// would fit without them.
func (f *comparer) holders(
	cluster *unstructured.Unstructured, resource corev1.ResourceName, priority, want int64,
) []finding.Evidence {
	key := cacheKey{"holders", cluster.GetName(), resource, priority, want}
	if known, ok := f.cache[key]; ok {
		return known
	}
	capacity, free, outside, text := f.unmanaged(resource, priority)
	if outside > 0 && free+outside >= want {
		f.cache[key] = []finding.Evidence{{Source: "pods on the GPU nodes", Text: text}}
	} else {
		f.cache[key] = f.lowerPriority(cluster, resource, priority, want-free, capacity)
	}
	return f.cache[key]
}

// unmanaged returns a resource's capacity on the GPU nodes, the free amount, the amount held by pods that Kueue does
// not manage, and a description of the group of pods that holds the largest part.
//
//	pods outside of Kueue hold RESOURCE: 256 (namespace NAME, priority -1; the workload has 0)
func (f *comparer) unmanaged(
	resource corev1.ResourceName, own int64,
) (capacity, free, outside int64, text string) {
	type group struct {
		namespace string
		priority  int32
	}
	by := map[group]int64{}
	managed := f.managedByKueue()
	for _, n := range f.GPUNodes {
		capacity += n.Allocatable(resource)
		for _, pod := range n.Pods {
			holds := Demand(pod)[resource]
			if holds == 0 || Ended(pod) {
				continue
			}
			free -= holds
			if managed(pod) || OfDaemonSet(pod) {
				continue
			}
			g := group{namespace: pod.Namespace}
			if pod.Spec.Priority != nil {
				g.priority = *pod.Spec.Priority
			}
			by[g] += holds
			outside += holds
		}
	}
	free += capacity
	var most group
	for g, holds := range by {
		if cmp.Or(cmp.Compare(holds, by[most]), cmp.Compare(most.namespace, g.namespace),
			cmp.Compare(most.priority, g.priority)) > 0 {
			most = g
		}
	}
	return capacity, free, outside, fmt.Sprintf("pods outside of Kueue hold %s: %s (namespace %s, priority %d; the "+
		"workload has %d)", resource, words.InWords(resource, by[most]), most.namespace, most.priority, own)
}

// lowerPriority returns evidence that admitted Workloads with a lower priority hold the resources that a Workload
// lacks.
//
//	quota of RESOURCE in ClusterQueue NAME: 1000000000, the nodes have 512
//	admitted workloads of lower priority hold RESOURCE: 504
//	admitted workloads of lower priority hold RESOURCE through flavor NAME, which provides no GPUs: 5624000m
func (f *comparer) lowerPriority(
	cluster *unstructured.Unstructured, resource corev1.ResourceName, priority, lacks, capacity int64,
) (all []finding.Evidence) {
	var held int64
	by := map[string]int64{} // by flavor
	for i := range f.Snapshot.Queued {
		other := &f.Snapshot.Queued[i]
		if priorityOf(other) >= priority || !isTrue(other, "Admitted") {
			continue
		}
		for flavor, n := range usageOf(other, resource) {
			by[flavor] += n
			held += n
		}
	}
	if held == 0 || held < lacks {
		return nil
	}
	flavor := slices.MaxFunc(slices.Sorted(maps.Keys(by)), func(a, b string) int { return cmp.Compare(by[a], by[b]) })
	source := "Workloads in queues of ClusterQueue " + cluster.GetName()
	if flavor != "" && !LooksLikeGPU(resource) && !providesGPUs(cluster, flavor) {
		return []finding.Evidence{{
			Source: source,
			Text: fmt.Sprintf("admitted workloads of lower priority hold %s through flavor %s, which provides no "+
				"GPUs: %s",
				resource, flavor, words.InWords(resource, by[flavor])),
		}}
	}
	var quota int64
	for _, q := range quotasOf(cluster) {
		if q.resource == resource {
			quota += q.nominal
		}
	}
	if quota > capacity {
		all = append(all, finding.Evidence{
			Source: "ClusterQueue " + cluster.GetName() + " .spec.resourceGroups and the allocatable resources of " +
				"the GPU nodes",
			Text: fmt.Sprintf("quota of %s in ClusterQueue %s: %s, the nodes have %s", resource, cluster.GetName(),
				words.InWords(resource, quota), words.InWords(resource, capacity)),
		})
	}
	return append(all, finding.Evidence{
		Source: source,
		Text: fmt.Sprintf("admitted workloads of lower priority hold %s: %s",
			resource, words.InWords(resource, held)),
	})
}

// OfDaemonSet reports whether a DaemonSet controls the pod.
func OfDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

func priorityOf(workload *unstructured.Unstructured) int64 {
	priority, _, _ := unstructured.NestedInt64(workload.Object, "spec", "priority")
	return priority
}

// managedByKueue returns a function that reports whether Kueue has admitted a pod.
func (f *comparer) managedByKueue() func(*corev1.Pod) bool {
	owners := map[string]bool{}
	for i := range f.Snapshot.Queued {
		for _, o := range f.Snapshot.Queued[i].GetOwnerReferences() {
			owners[string(o.UID)] = true
		}
	}
	return func(pod *corev1.Pod) bool {
		if owners[string(pod.UID)] {
			return true
		}
		for _, o := range pod.OwnerReferences {
			if owners[string(o.UID)] {
				return true
			}
		}
		return OfKueue(pod)
	}
}

// SelectedByKueue returns the keys of the labels that Kueue added to a pod's node selector on admission, the
// ResourceFlavors that contain these labels, and the name of the pod's Workload.
func (f *Facts) SelectedByKueue(pod *corev1.Pod) (keys, flavors []string, workload string) {
	for i := range f.Snapshot.Queued {
		w := &f.Snapshot.Queued[i]
		if w.GetNamespace() != pod.Namespace || !slices.ContainsFunc(w.GetOwnerReferences(),
			func(o metav1.OwnerReference) bool {
				return o.UID == pod.UID || hasValue(pod.Labels, o.Name) || slices.ContainsFunc(pod.OwnerReferences,
					func(of metav1.OwnerReference) bool { return of.UID == o.UID })
			}) {
			continue
		}
		for _, assigned := range slices.Concat(mapsIn(w.Object, "status", "admission", "podSetAssignments"),
			mapsIn(w.Object, "spec", "admission", "podSetFlavors")) {
			of, _, _ := unstructured.NestedStringMap(assigned, "flavors")
			flavors = slices.AppendSeq(flavors, maps.Values(of))
		}
		own := map[string]string{}
		sets := mapsIn(w.Object, "spec", "podSets")
		for _, set := range sets {
			for _, at := range [][]string{{"template", "spec", "nodeSelector"}, {"spec", "nodeSelector"}} {
				selector, _, _ := unstructured.NestedStringMap(set, at...)
				maps.Copy(own, selector)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
			if _, ok := own[key]; !ok && len(sets) > 0 && len(flavors) > 0 {
				keys = append(keys, key)
			}
		}
		slices.Sort(flavors)
		return keys, slices.Compact(flavors), w.GetName()
	}
	return nil, nil, ""
}

// OfKueue reports whether Kueue set any of the pod's labels or annotations.
func OfKueue(pod *corev1.Pod) bool {
	for _, keys := range []map[string]string{pod.Labels, pod.Annotations} {
		for key := range keys {
			if strings.HasPrefix(key, kueueGroup+"/") {
				return true
			}
		}
	}
	return false
}

// quota is the quota for one resource in one flavor of a ClusterQueue.
type quota struct {
	flavor   any
	resource corev1.ResourceName
	nominal  int64
}

func quotasOf(cluster *unstructured.Unstructured) []quota {
	var all []quota
	for _, group := range mapsIn(cluster.Object, "spec", "resourceGroups") {
		for _, flavor := range mapsIn(group, "flavors") {
			for _, r := range mapsIn(flavor, "resources") {
				resource := corev1.ResourceName(fmt.Sprint(r["name"]))
				n, _ := amountIn(map[string]any{string(resource): r["nominalQuota"]}, resource)
				all = append(all, quota{flavor["name"], resource, n})
			}
		}
	}
	return all
}

// providesGPUs reports whether a flavor in a ClusterQueue has a quota for GPUs.
func providesGPUs(cluster *unstructured.Unstructured, flavor string) bool {
	return slices.ContainsFunc(quotasOf(cluster), func(q quota) bool {
		return q.flavor == flavor && LooksLikeGPU(q.resource) && q.nominal > 0
	})
}

// freeQuota returns the largest unreserved quota for a resource in any flavor of a ClusterQueue.
func freeQuota(cluster *unstructured.Unstructured, resource corev1.ResourceName) (most int64) {
	reserved := map[any]int64{}
	for _, flavor := range mapsIn(cluster.Object, "status", "flavorsReservation") {
		for _, r := range mapsIn(flavor, "resources") {
			if r["name"] == string(resource) {
				reserved[flavor["name"]], _ = amountIn(map[string]any{string(resource): r["total"]}, resource)
			}
		}
	}
	for _, q := range quotasOf(cluster) {
		if q.resource == resource {
			most = max(most, q.nominal-reserved[q.flavor])
		}
	}
	return most
}

// usageOf returns an admitted Workload's usage of a resource, by flavor.
func usageOf(workload *unstructured.Unstructured, resource corev1.ResourceName) map[string]int64 {
	by := map[string]int64{}
	for _, a := range mapsIn(workload.Object, "status", "admission", "podSetAssignments") {
		usage, _, _ := unstructured.NestedMap(a, "resourceUsage")
		flavor, _, _ := unstructured.NestedString(a, "flavors", string(resource))
		n, _ := amountIn(usage, resource)
		by[flavor] += n
	}
	return by
}

// idleQuota returns evidence that admitted Workloads without pods hold enough quota for the waiting work.
//
//	admitted workloads hold quota of RESOURCE without pods: 18 (Workload NAMESPACE/NAME, of RayJob NAME)
func (f *comparer) idleQuota(
	cluster *unstructured.Unstructured, resource corev1.ResourceName, want int64,
) []finding.Evidence {
	key := cacheKey{"idle quota", cluster.GetName(), resource, 0, want}
	if known, ok := f.cache[key]; ok {
		return known
	}
	f.cache[key] = nil
	var idle int64
	var names []string
	for i := range f.Snapshot.Queued {
		other := &f.Snapshot.Queued[i]
		queue, _, _ := unstructured.NestedString(other.Object, "status", "admission", "clusterQueue")
		if queue != cluster.GetName() || !isTrue(other, "Admitted") || f.hasPods(other) {
			continue
		}
		var holds int64
		for _, n := range usageOf(other, resource) {
			holds += n
		}
		if holds == 0 {
			continue
		}
		idle += holds
		name := "Workload " + other.GetNamespace() + "/" + other.GetName()
		if owners := other.GetOwnerReferences(); len(owners) > 0 {
			name += ", of " + owners[0].Kind + " " + owners[0].Name
		}
		names = append(names, name)
	}
	if idle >= max(want, 1) {
		f.cache[key] = []finding.Evidence{{
			Source: "Workloads that ClusterQueue " + cluster.GetName() + " has admitted, and the pods in their " +
				"namespaces",
			Text: fmt.Sprintf("admitted workloads hold quota of %s without pods: %s (%s)", resource,
				words.InWords(resource, idle), strings.Join(names[:min(len(names), words.Few)], "; ")),
		}}
	}
	return f.cache[key]
}

// hasPods reports whether an admitted Workload has pods, or was admitted recently. The pods of a RayJob or JobSet
// belong to objects that the RayJob or JobSet creates; the names of these objects begin with its name.
func (f *comparer) hasPods(workload *unstructured.Unstructured) bool {
	for _, c := range mapsIn(workload.Object, "status", "conditions") {
		if c["type"] == "Admitted" && f.Now.Sub(changed(c)) < processed {
			return true
		}
	}
	owners := workload.GetOwnerReferences()
	for _, pod := range f.pods[workload.GetNamespace()] {
		for _, o := range owners {
			prefix := o.Name[:min(len(o.Name), 24)] // long names are truncated in generated names
			if o.UID == pod.UID || strings.HasPrefix(pod.Name, prefix) || hasValue(pod.Labels, o.Name) {
				return true
			}
		}
	}
	return len(owners) == 0
}

func hasValue(all map[string]string, wanted string) bool {
	for _, value := range all {
		if value == wanted {
			return true
		}
	}
	return false
}

var requeuedLine = regexp.MustCompile(`"Workload re-queued","workload":\{"name":"[^"]+"`)

// requeued returns evidence that Kueue keeps trying another Workload instead of this one: its log names no other
// Workload as re-queued.
func (f *comparer) requeued(of finding.Object) (e finding.Evidence) {
	for i := range f.Snapshot.Logs {
		l := &f.Snapshot.Logs[i]
		if !placesWork(l.Pod) || l.Namespace == of.Namespace {
			continue
		}
		all := requeuedLine.FindAllString(l.Text, -1)
		times := len(all)
		if times < 10 || len(slices.Compact(all)) > 1 {
			continue
		}
		if name := strings.Split(all[0], `"`)[7]; name != of.Name {
			e = finding.Evidence{Source: LogSource(l), Text: fmt.Sprintf(
				"no status, and Kueue has re-queued %d times only the Workload %s", times, name)}
		}
	}
	return e
}
