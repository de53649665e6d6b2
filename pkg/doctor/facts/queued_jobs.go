package facts

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// QueueLabel is the label with which a Job names its LocalQueue. Kueue suspends Jobs with this label.
const QueueLabel = kueueGroup + "/queue-name"

// IsHeld reports whether an object is a Job that Kueue should start.
func IsHeld(object *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(object.Object, "spec", "suspend")
	return object.GetKind() == "Job" && suspended && object.GetLabels()[QueueLabel] != ""
}

// withoutWorkload returns evidence that Kueue has created no Workload for a suspended Job.
//
//	no Workload for the Job of queue NAME(: namespace NAME does not match managedJobsNamespaceSelector SELECTOR)
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
		Text:   "no Workload for the Job of queue " + job.GetLabels()[QueueLabel],
	}
	namespace := f.MetaOf("namespace", "", job.GetNamespace())
	for i := range f.ConfigMaps {
		var config struct {
			ManagedJobsNamespaceSelector *metav1.LabelSelector `json:"managedJobsNamespaceSelector"`
		}
		text := f.ConfigMaps[i].Data["controller_manager_config.yaml"]
		if namespace == nil || !strings.Contains(text, kueueGroup) || yaml.Unmarshal([]byte(text), &config) != nil ||
			config.ManagedJobsNamespaceSelector == nil {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(config.ManagedJobsNamespaceSelector)
		if err == nil && !selector.Matches(labels.Set(namespace.GetLabels())) {
			e.Source += ", and ConfigMap " + f.ConfigMaps[i].Namespace + "/" + f.ConfigMaps[i].Name
			e.Text += ": namespace " + job.GetNamespace() + " does not match managedJobsNamespaceSelector " +
				strings.ReplaceAll(selector.String(), " ", "")
		}
	}
	return []finding.Evidence{e}
}

// requestsOf returns the minimum resources that a Workload or PodGroup requests to start.
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
	sets := mapsIn(object.Object, "spec", "podSets")
	if spec, found, _ := unstructured.NestedMap(object.Object, "spec"); found && object.GetKind() == "Job" {
		sets = []map[string]any{{"template": spec["template"]}}
	}
	for _, set := range sets {
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
