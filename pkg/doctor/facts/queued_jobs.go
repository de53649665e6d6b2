package facts

import (
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// QueueLabel is the label with which a Job specifies its LocalQueue. Kueue suspends Jobs with this label.
const QueueLabel = kueueGroup + "/queue-name"

// IsHeld reports whether an object is a Job that Kueue is expected to start.
func IsHeld(object *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(object.Object, "spec", "suspend")
	return object.GetKind() == "Job" && suspended && object.GetLabels()[QueueLabel] != ""
}

// managedNamespaces matches the label of the namespaces that Kueue's configuration selects.
var managedNamespaces = regexp.MustCompile(
	`\n {0,2}managedJobsNamespaceSelector:\s+matchLabels:\s+["']?([\w./-]+)["']?: ["']?([\w.-]+)`,
)

// withoutWorkload returns evidence that Kueue has created no Workload for a suspended Job.
//
//	no Workload for the Job in queue NAME(: namespace NAME does not match managedJobsNamespaceSelector LABEL)
func (f *comparer) withoutWorkload(job *unstructured.Unstructured) []finding.Evidence {
	if slices.ContainsFunc(f.Snapshot.Queued, func(w unstructured.Unstructured) bool {
		return slices.ContainsFunc(w.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
			return o.Name == job.GetName() && w.GetNamespace() == job.GetNamespace()
		})
	}) {
		return nil
	}
	e := finding.Evidence{
		Source: "Job " + job.GetNamespace() + "/" + job.GetName() + " .metadata.labels and .spec.suspend, and the Workloads",
		Text:   "no Workload for the Job in queue " + job.GetLabels()[QueueLabel],
	}
	for i := range f.ConfigMaps {
		m := managedNamespaces.FindStringSubmatch(f.ConfigMaps[i].Data["controller_manager_config.yaml"])
		if o := f.MetaOf("namespace", "", job.GetNamespace()); m != nil && o != nil && o.GetLabels()[m[1]] != m[2] {
			e.Source += ", and ConfigMap " + f.ConfigMaps[i].Namespace + "/" + f.ConfigMaps[i].Name
			e.Text += ": namespace " + job.GetNamespace() + " does not match managedJobsNamespaceSelector " + m[1] +
				"=" + m[2]
		}
	}
	return []finding.Evidence{e}
}

// requestsOf returns the minimum resources that a Workload or PodGroup must get to start.
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
	job, _ := object.Object["spec"].(map[string]any) // has a template, like a podSet
	for _, set := range append(mapsIn(object.Object, "spec", "podSets"), job) {
		count, found, _ := unstructured.NestedInt64(set, "count")
		if !found {
			count = 1
		}
		for _, c := range mapsIn(set, "template", "spec", "containers") {
			limits, _, _ := unstructured.NestedMap(c, "resources", "limits")
			requests, _, _ := unstructured.NestedMap(c, "resources", "requests")
			if limits == nil {
				limits = map[string]any{}
			}
			maps.Copy(limits, requests) // a request that is not set defaults to the limit
			add(limits, count)
		}
	}
	return all
}
