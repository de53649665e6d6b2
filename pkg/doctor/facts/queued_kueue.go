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

// compareKueue returns what keeps the LocalQueue and the ClusterQueue of a Workload from taking it, in Kueue's own
// words, and what a comparison with the nodes and with admitted Workloads shows.
func (f *queue) compareKueue(
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
		if name == "" || !read("LocalQueue") {
			return nil
		}
		return missing("LocalQueue", name, "LocalQueues of namespace "+object.GetNamespace())
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
			for _, resource := range slices.Sorted(maps.Keys(wants)) {
				if string(resource) == m[1] || m[1] == "" && LooksLikeGPU(resource) {
					all = append(f.holders(cluster, resource, priorityOf(object), wants[resource]), all...)
				}
			}
		} else if m := noQuota.FindStringSubmatch(c.Text); m != nil {
			resource := corev1.ResourceName(m[1])
			all = append(f.idleQuota(cluster, resource, wants[resource]), all...)
		}
	}
	all = append(f.ahead(object, cluster, wants), all...)
	return append(conditionsOf(cluster, finding.Object{Kind: "ClusterQueue", Name: name}), all...)
}

// ahead tells which Workload holds back one that Kueue has not looked at, in a queue that keeps the order. It is a
// problem if a flavor has free quota for this one.
//
//	Workload NAMESPACE/NAME is ahead in ClusterQueue NAME, which is StrictFIFO, and waits: MESSAGE
//	...and waits (quota for this one is free): MESSAGE
func (f *queue) ahead(
	object, cluster *unstructured.Unstructured, wants map[corev1.ResourceName]int64,
) []finding.Evidence {
	strategy, _, _ := unstructured.NestedString(cluster.Object, "spec", "queueingStrategy")
	if strategy != "StrictFIFO" || len(conditionsOf(object, finding.Object{})) > 0 {
		return nil
	}
	for i := range f.Snapshot.Queued {
		other := &f.Snapshot.Queued[i]
		name, _, _ := unstructured.NestedString(other.Object, "spec", "queueName")
		local := f.queueOf(kueueGroup, "LocalQueue", other.GetNamespace(), name)
		if local == nil || !waits(other) {
			continue
		}
		of := finding.Object{Kind: "Workload", Namespace: other.GetNamespace(), Name: other.GetName()}
		into, _, _ := unstructured.NestedString(local.Object, "spec", "clusterQueue")
		if said := conditionsOf(other, of); into == cluster.GetName() && len(said) > 0 {
			free := ""
			for resource, want := range wants {
				if LooksLikeGPU(resource) && freeQuota(cluster, resource) >= want {
					free = " (quota for this one is free)"
				}
			}
			return []finding.Evidence{{
				Source: said[0].Source,
				Text: fmt.Sprintf("%s is ahead in ClusterQueue %s, which is StrictFIFO, and waits%s: %s", of,
					cluster.GetName(), free, said[0].Text),
			}}
		}
	}
	return nil
}

// What Kueue says if the nodes of a topology, or the quota, have no room for a resource.
var (
	noFit = regexp.MustCompile(`topology "[^"]+" (?:doesn't allow to fit any of|allows to fit only)` +
		`(?:.*resource "([^"]+)": \d)?`)
	noQuota = regexp.MustCompile(`insufficient unused quota for (\S+) in flavor`)
)

// holders tells who holds a resource of which the nodes have not enough for a Workload, if it would have room without
// them, and Kueue cannot or does not take it away: pods that Kueue does not manage, and Workloads of a lower priority.
//
//	pods outside of Kueue hold RESOURCE: 256 (namespace NAME, priority -1; the workload has 0)
//	quota of RESOURCE in ClusterQueue NAME: 1000000000, the nodes have 512
//	admitted workloads of lower priority hold RESOURCE: 504
//	admitted workloads of lower priority hold RESOURCE through flavor NAME, which gives no GPUs: 5624000m
func (f *queue) holders(
	cluster *unstructured.Unstructured, resource corev1.ResourceName, own, want int64,
) (all []finding.Evidence) {
	key := fmt.Sprint(cluster.GetName(), resource, own, " ", want)
	if known, ok := f.known[key]; ok {
		return known
	}
	defer func() { f.known[key] = all }()
	var capacity, free, outside int64
	by := map[string]int64{}
	managed := f.managedByKueue()
	for _, n := range f.GPUNodes {
		capacity += n.Allocatable(resource)
		free += n.Allocatable(resource)
		for _, pod := range n.Pods {
			holds := Demand(pod)[resource]
			if holds == 0 || Ended(pod) {
				continue
			}
			free -= holds
			if managed(pod) || ofDaemonSet(pod) {
				continue
			}
			outside += holds
			var priority int32
			if pod.Spec.Priority != nil {
				priority = *pod.Spec.Priority
			}
			by[fmt.Sprintf("namespace %s, priority %d; the workload has %d", pod.Namespace, priority, own)] += holds
		}
	}
	if outside > 0 && free+outside >= want {
		most := slices.MaxFunc(slices.Sorted(maps.Keys(by)), func(a, b string) int { return cmp.Compare(by[a], by[b]) })
		return []finding.Evidence{{
			Source: "the pods on the GPU nodes",
			Text: fmt.Sprintf("pods outside of Kueue hold %s: %s (%s)",
				resource, words.InWords(resource, by[most]), most),
		}}
	}
	lower := map[string]int64{} // by flavor
	for i := range f.Snapshot.Queued {
		other := &f.Snapshot.Queued[i]
		if priorityOf(other) >= own || !isTrue(other, "Admitted") {
			continue
		}
		for _, a := range maplist(other, "status", "admission", "podSetAssignments") {
			usage, _, _ := unstructured.NestedMap(a, "resourceUsage")
			flavor, _, _ := unstructured.NestedString(a, "flavors", string(resource))
			n, _ := amountIn(usage, resource)
			lower[flavor] += n
		}
	}
	var held int64
	for _, n := range lower {
		held += n
	}
	if held == 0 || free+held < want {
		return nil
	}
	flavor := slices.MaxFunc(slices.Sorted(maps.Keys(lower)), func(a, b string) int {
		return cmp.Compare(lower[a], lower[b])
	})
	if flavor != "" && !LooksLikeGPU(resource) && !givesGPUs(cluster, flavor) {
		return []finding.Evidence{{
			Source: "Workloads in queues of ClusterQueue " + cluster.GetName(),
			Text: fmt.Sprintf("admitted workloads of lower priority hold %s through flavor %s, which gives no GPUs: %s",
				resource, flavor, words.InWords(resource, lower[flavor])),
		}}
	}
	name := cluster.GetName()
	if quota := quotaOf(cluster, resource); quota > capacity {
		all = append(all, finding.Evidence{
			Source: "ClusterQueue " + name + " .spec.resourceGroups and the allocatable resources of the GPU nodes",
			Text: fmt.Sprintf("quota of %s in ClusterQueue %s: %s, the nodes have %s", resource, name,
				words.InWords(resource, quota), words.InWords(resource, capacity)),
		})
	}
	return append(all, finding.Evidence{
		Source: "Workloads in queues of ClusterQueue " + name,
		Text: fmt.Sprintf("admitted workloads of lower priority hold %s: %s",
			resource, words.InWords(resource, lower[flavor])),
	})
}

func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

func priorityOf(workload *unstructured.Unstructured) int64 {
	priority, _, _ := unstructured.NestedInt64(workload.Object, "spec", "priority")
	return priority
}

// managedByKueue returns a function that reports whether Kueue has admitted a pod.
func (f *queue) managedByKueue() func(*corev1.Pod) bool {
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

// OfKueue reports whether labels or annotations of a pod are from Kueue.
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

// givesGPUs reports whether a flavor of a ClusterQueue has quota for GPUs.
func givesGPUs(cluster *unstructured.Unstructured, name string) bool {
	for _, group := range maplist(cluster, "spec", "resourceGroups") {
		for _, flavor := range listIn(group, "flavors") {
			for _, r := range listIn(flavor, "resources") {
				resource := corev1.ResourceName(fmt.Sprint(r["name"]))
				n, _ := amountIn(map[string]any{string(resource): r["nominalQuota"]}, resource)
				if flavor["name"] == name && LooksLikeGPU(resource) && n > 0 {
					return true
				}
			}
		}
	}
	return false
}

// freeQuota returns the most of a resource that one flavor of a ClusterQueue has left.
func freeQuota(cluster *unstructured.Unstructured, resource corev1.ResourceName) (most int64) {
	used := map[any]int64{}
	for _, flavor := range maplist(cluster, "status", "flavorsReservation") {
		for _, r := range listIn(flavor, "resources") {
			if r["name"] == string(resource) {
				used[flavor["name"]], _ = amountIn(map[string]any{string(resource): r["total"]}, resource)
			}
		}
	}
	for _, group := range maplist(cluster, "spec", "resourceGroups") {
		for _, flavor := range listIn(group, "flavors") {
			for _, r := range listIn(flavor, "resources") {
				if r["name"] == string(resource) {
					n, _ := amountIn(map[string]any{string(resource): r["nominalQuota"]}, resource)
					most = max(most, n-used[flavor["name"]])
				}
			}
		}
	}
	return most
}

func quotaOf(cluster *unstructured.Unstructured, resource corev1.ResourceName) (quota int64) {
	for _, group := range maplist(cluster, "spec", "resourceGroups") {
		for _, flavor := range listIn(group, "flavors") {
			for _, r := range listIn(flavor, "resources") {
				if r["name"] == string(resource) {
					n, _ := amountIn(map[string]any{string(resource): r["nominalQuota"]}, resource)
					quota += n
				}
			}
		}
	}
	return quota
}

// idleQuota tells which admitted Workloads hold quota for which there are no pods, if that is enough for the work that
// waits.
//
//	admitted workloads hold quota of RESOURCE without pods: 18 (Workload NAMESPACE/NAME, of RayJob NAME)
func (f *queue) idleQuota(
	cluster *unstructured.Unstructured, resource corev1.ResourceName, want int64,
) []finding.Evidence {
	key := fmt.Sprint(cluster.GetName(), resource, "idle", want)
	if known, ok := f.known[key]; ok {
		return known
	}
	f.known[key] = nil
	var idle int64
	var names []string
	for i := range f.Snapshot.Queued {
		other := &f.Snapshot.Queued[i]
		queue, _, _ := unstructured.NestedString(other.Object, "status", "admission", "clusterQueue")
		if queue != cluster.GetName() || !isTrue(other, "Admitted") || f.hasPods(other) {
			continue
		}
		var holds int64
		for _, a := range maplist(other, "status", "admission", "podSetAssignments") {
			usage, _, _ := unstructured.NestedMap(a, "resourceUsage")
			n, _ := amountIn(usage, resource)
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
		f.known[key] = []finding.Evidence{{
			Source: "Workloads that ClusterQueue " + cluster.GetName() + " has admitted, and the pods of their " +
				"namespaces",
			Text: fmt.Sprintf("admitted workloads hold quota of %s without pods: %s (%s)", resource,
				words.InWords(resource, idle), strings.Join(names[:min(len(names), words.Few)], "; ")),
		}}
	}
	return f.known[key]
}

// hasPods reports whether an admitted Workload has, or may soon have, pods. The pods of a RayJob or JobSet belong to
// objects that it creates, whose names begin with its own.
func (f *queue) hasPods(workload *unstructured.Unstructured) bool {
	for _, c := range maplist(workload, "status", "conditions") {
		if c["type"] == "Admitted" && f.Now.Sub(changed(c)) < processed {
			return true
		}
	}
	owners := workload.GetOwnerReferences()
	for _, pod := range f.pods[workload.GetNamespace()] {
		for _, o := range owners {
			prefix := o.Name[:min(len(o.Name), 24)] // generated names cut long ones
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

// listIn returns the maps in a list field of a map.
func listIn(object map[string]any, field string) []map[string]any {
	return maplist(&unstructured.Unstructured{Object: object}, field)
}
