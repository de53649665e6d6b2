package facts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// untolerated returns evidence that Kueue finds no node in a topology, because each GPU node has a taint whose key is
// in no toleration. Kueue 0.9.0 and 0.9.1 ignore the tolerations of ResourceFlavors.
//
//	no toleration for TAINT of the GPU nodes, such as NAME
func (f *comparer) untolerated(object *unstructured.Unstructured) (all []finding.Evidence) {
	of := fmt.Sprint(object.Object["spec"])
	read := false
	for i := range f.Snapshot.Queues {
		if q := &f.Snapshot.Queues[i]; q.GetKind() == "ResourceFlavor" {
			read = true
			of += fmt.Sprint(mapsIn(q.Object, "spec", "tolerations"))
		}
	}
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; strings.HasPrefix(pod.Name, "kueue-") &&
			words.ContainsAny(ImageOf(pod, "manager"), []string{"kueue:v0.9.0", "kueue:v0.9.1"}) {
			of = fmt.Sprint(object.Object["spec"])
		}
	}
	for _, n := range f.GPUNodes {
		at := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.Contains(of, "key:"+t.Key)
		})
		if at < 0 || !read || words.ContainsAny(of, []string{"[operator:Exists", "e operator:Exists"}) { // all taints
			return nil
		}
		all = []finding.Evidence{{
			Source: "podSets, ResourceFlavors and nodes",
			Text:   "no toleration for " + TaintText(&n.Spec.Taints[at]) + " of the GPU nodes, such as " + n.Name,
		}}
	}
	return all
}

// cordonedRoom returns evidence that a flavor's nodes would have room for a Workload if none of them was cordoned.
//
//	flavor NAME of ClusterQueue NAME has RESOURCE: 8 free on cordoned nodes: NAMES
func (f *comparer) cordonedRoom(
	cluster *unstructured.Unstructured, resource corev1.ResourceName, want int64,
) []finding.Evidence {
	for _, q := range quotasOf(cluster) {
		flavor := f.queueOf(kueueGroup, "ResourceFlavor", "", fmt.Sprint(q.flavor))
		if flavor == nil || q.resource != resource || q.nominal < want {
			continue
		}
		selects, _, _ := unstructured.NestedStringMap(flavor.Object, "spec", "nodeLabels")
		var open, cordoned int64
		var names []string
		for _, n := range f.GPUNodes {
			if !labels.SelectorFromSet(selects).Matches(labels.Set(n.Labels)) {
				continue
			}
			free := n.Allocatable(resource)
			for _, pod := range n.Pods {
				if !Ended(pod) {
					free -= Demand(pod)[resource]
				}
			}
			if !n.Spec.Unschedulable {
				open += free
			} else if free > 0 {
				cordoned += free
				names = append(names, n.Name)
			}
		}
		if cordoned > 0 && open < want && open+cordoned >= want {
			return []finding.Evidence{{
				Source: "ResourceFlavor " + flavor.GetName() + " .spec.nodeLabels, and the nodes",
				Text: fmt.Sprintf("flavor %s of ClusterQueue %s has %s: %s free on cordoned nodes: %s",
					flavor.GetName(), cluster.GetName(), resource, words.InWords(resource, cordoned),
					words.Joined(names)),
			}}
		}
	}
	return nil
}

// heldByOthers returns evidence that Kueue excludes nodes from a topology only because of pods that use no GPU there.
//
//	cpu of 3 nodes with free GPUs is held by pods without GPUs: NAMESPACE/NAMES
func (f *comparer) heldByOthers(
	object *unstructured.Unstructured, wants map[corev1.ResourceName]int64,
) []finding.Evidence {
	sets := mapsIn(object.Object, "spec", "podSets")
	m := excludedBy.FindStringSubmatch(fmt.Sprint(object.Object["status"]))
	if len(sets) != 1 || m == nil {
		return nil
	}
	members, _, _ := unstructured.NestedInt64(sets[0], "count")
	resource := corev1.ResourceName(m[1])
	var holders []string
	for _, n := range f.GPUNodes {
		lacks, most, holder := wants[resource]/max(members, 1)-n.Allocatable(resource), int64(0), ""
		for _, pod := range n.Pods {
			if Ended(pod) {
				continue
			}
			used := Demand(pod)[resource]
			lacks += used
			if f.UsesGPU(pod) {
				lacks = -1 << 62 // not all GPUs are free
			} else if used > most {
				most, holder = used, pod.Namespace+"/"+pod.Name
			}
		}
		if lacks > 0 && lacks <= most {
			holders = append(holders, holder)
		}
	}
	if len(holders) == 0 {
		return nil
	}
	return []finding.Evidence{{Source: "GPU nodes and their pods", Text: fmt.Sprintf(
		"%s of %s with free GPUs is held by pods without GPUs: %s", resource, count.Of(len(holders), "node"),
		words.Joined(holders))}}
}

// excludedBy matches Kueue's message about a topology whose nodes lack CPU or memory.
var excludedBy = regexp.MustCompile(`excluded: .*?resource "(cpu|memory)"`)

// gatedFor is the time during which a pod may still have Kueue's scheduling gate after the admission of the pod's
// Workload.
const gatedFor = 10 * time.Minute

// admitted is true for the namespaces with a Workload that Kueue has admitted.
type admitted map[string]bool

func findAdmitted(f *Facts) admitted {
	all := admitted{}
	for i := range f.Snapshot.Queued {
		if w := &f.Snapshot.Queued[i]; w.GetKind() == "Workload" && isTrue(w, "Admitted") && !IsFinished(w) {
			all[w.GetNamespace()] = true
		}
	}
	return all
}

// AdmittedButGated returns evidence that Kueue has admitted a pod's Workload, which has room for the pod, but has not
// removed the pod's scheduling gate. It returns nothing while another Workload for the pod, such as the next slice of
// an elastic job, is not admitted.
func (f *Facts) AdmittedButGated(pod *corev1.Pod) (all []finding.Evidence) {
	if f.Age(pod) < gatedFor || !slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool {
		return strings.HasPrefix(g.Name, kueueGroup+"/")
	}) || !Once(f, findAdmitted)[pod.Namespace] {
		return nil
	}
	const workload, podset = kueueGroup + "/workload", kueueGroup + "/podset"
	owner := metav1.GetControllerOfNoCopy(pod)
	names := pod.Annotations[workload]
	members := int64(0)
	for i := range f.Snapshot.Pods {
		other := &f.Snapshot.Pods[i]
		by := metav1.GetControllerOfNoCopy(other)
		if other == pod || owner != nil && by != nil && owner.UID == by.UID {
			names += " " + other.Annotations[workload]
			if !Ended(other) && other.Labels[podset] == pod.Labels[podset] {
				members++
			}
		}
	}
	for i := range f.Snapshot.Queued {
		w := &f.Snapshot.Queued[i]
		if w.GetKind() != "Workload" || w.GetNamespace() != pod.Namespace || IsFinished(w) {
			continue
		}
		own := slices.Contains(strings.Fields(names), w.GetName())
		related := own
		for _, o := range w.GetOwnerReferences() {
			own = own || o.UID == pod.UID || owner != nil && owner.UID == o.UID
			related = related || own || strings.HasPrefix(pod.Name, o.Name+"-")
		}
		if related && (!isTrue(w, "Admitted") || isTrue(w, "Evicted")) {
			return nil
		}
		if !own {
			continue
		}
		var room int64
		for _, a := range mapsIn(w.Object, "status", "admission", "podSetAssignments") {
			if set := pod.Labels[podset]; set == "" || a["name"] == set {
				n, _, _ := unstructured.NestedInt64(a, "count")
				room += n
			}
		}
		for _, c := range mapsIn(w.Object, "status", "conditions") {
			if c["type"] == "Admitted" && f.Now.Sub(changed(c)) > gatedFor && room >= members {
				all = append(all, finding.Evidence{
					Source: "Workload " + w.GetNamespace() + "/" + w.GetName() + " .status.conditions[Admitted]",
					Time:   changed(c),
					Text: fmt.Sprintf("%v; admitted for this group: %s, existing: %d", c["message"],
						count.Of(int(room), "pod"), members),
				})
			}
		}
	}
	return all
}
