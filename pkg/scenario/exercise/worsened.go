package exercise

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// worsened adds a note to differences that cause the next problem: the workload runs now, but its next pod, the next
// rollout or the next drain of its node fails. No permission of a scenario covers such a difference.
func worsened(
	differences []baseline.Difference, namespaces []string, may func(scenario.Ref) bool,
	begin, now func(scenario.Ref) map[string]any,
) {
	for i := range differences {
		d := &differences[i]
		is := now(d.Ref)
		if is == nil || d.Note != "" {
			continue
		}
		inside := slices.Contains(namespaces, d.Ref.Namespace)
		switch {
		case d.Kind == baseline.Created && may(d.Ref) && len(finalizersOf(is)) > 0:
			d.Note = baseline.HeldNote(finalizersOf(is)[0])
		case d.Ref.Kind == kindNode && may(d.Ref):
			d.Note = commanded(begin(d.Ref), is)
		case inside && slices.Contains(workloads, d.Ref.Kind):
			d.Note = cmp.Or(nextPodsFail(begin(d.Ref), is), tied(begin(d.Ref), is))
		case inside && slices.Contains([]string{"Service", "NetworkPolicy"}, d.Ref.Kind):
			d.Note = ofRevision(begin(d.Ref), is)
		case inside && d.Ref.Kind == "PodDisruptionBudget":
			d.Note = noEviction(is)
		case inside && d.Ref.Kind == kindSecret && d.Kind == baseline.Created &&
			is["type"] == string(corev1.SecretTypeServiceAccountToken):
			d.Note = "a token that does not expire"
		}
	}
}

func finalizersOf(object map[string]any) []string {
	return (&unstructured.Unstructured{Object: object}).GetFinalizers()
}

// commanded returns a note if a node has new annotations that controllers obey, or "".
func commanded(was, is map[string]any) string {
	before, now := (&unstructured.Unstructured{Object: was}).GetAnnotations(),
		(&unstructured.Unstructured{Object: is}).GetAnnotations()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if baseline.Obeyed(name) && now[name] != before[name] {
			return "controllers obey the annotation " + name
		}
	}
	return ""
}

// noEviction returns a note if a PodDisruptionBudget allows no eviction at all, or "".
func noEviction(budget map[string]any) string {
	spec, _, _ := unstructured.NestedMap(budget, "spec")
	most, least := fmt.Sprint(spec["maxUnavailable"]), fmt.Sprint(spec["minAvailable"])
	if most == "0" || most == "0%" || least == "100%" {
		return "it allows no eviction, so no node with its pods can be drained"
	}
	return ""
}

// nextPodsFail returns a note if pods that a workload creates later may fail to start, do not get the workload's
// template, or are evicted. Otherwise, it returns "".
func nextPodsFail(was, is map[string]any) string {
	strategy, _, _ := unstructured.NestedMap(is, "spec", "updateStrategy")
	before, _, _ := unstructured.NestedMap(was, "spec", "updateStrategy")
	if strategy["type"] == "OnDelete" && before["type"] != "OnDelete" {
		return "spec.updateStrategy is OnDelete, so changes have no effect on its pods"
	}
	partition, _, _ := unstructured.NestedInt64(strategy, "rollingUpdate", "partition")
	if old, _, _ := unstructured.NestedInt64(before, "rollingUpdate", "partition"); partition > old {
		return fmt.Sprintf("spec.updateStrategy.rollingUpdate.partition is %d, so changes have no effect on its pods",
			partition)
	}
	for _, list := range []string{"initContainers", "containers"} {
		had, has := containersIn(was, list), containersIn(is, list)
		for _, name := range slices.Sorted(maps.Keys(has)) {
			if has[name]["imagePullPolicy"] == string(corev1.PullNever) &&
				had[name]["imagePullPolicy"] != string(corev1.PullNever) {
				return "container " + name + ": imagePullPolicy is Never, so its pods start only on nodes that have " +
					"the image"
			}
			if bad := unreasonable(had[name], has[name]); bad != "" {
				return "container " + name + ": " + bad
			}
		}
	}
	return ""
}

// bounds are the ranges of values that are reasonable, in addition to the previous value. A limit below its minimum
// kills the pod or slows it down as soon as it does any work; a request above its maximum reserves much of a node for a
// pod that does not need it.
var bounds = []struct {
	list, resource string
	least, most    string
}{
	{"limits", "cpu", "100m", ""},
	{"limits", "memory", "128Mi", ""},
	{"limits", "ephemeral-storage", "128Mi", ""},
	{"requests", "cpu", "", "1"},
	{"requests", "memory", "", "8Gi"},
	{"requests", "ephemeral-storage", "", "10Gi"},
}

// unreasonable describes the first resource value of a container that is out of bounds and that the container did not
// have before. If there is no such value, it returns "".
func unreasonable(was, is map[string]any) string {
	for _, b := range bounds {
		value, has := amountOf(is, b.list, b.resource)
		old, had := amountOf(was, b.list, b.resource)
		if !has {
			continue
		}
		bad := ""
		if b.least != "" && value.Cmp(apiresource.MustParse(b.least)) < 0 && (!had || value.Cmp(old) < 0) {
			bad = "too little for it to keep working"
		}
		if b.most != "" && value.Cmp(apiresource.MustParse(b.most)) > 0 && (!had || value.Cmp(old) > 0) {
			bad = "more than it needs"
		}
		if bad != "" {
			return fmt.Sprintf("resources.%s.%s is %s (before: %s), %s", b.list, b.resource, value.String(),
				cmp.Or(map[bool]string{true: old.String()}[had], "none"), bad)
		}
	}
	return ""
}

// amountOf returns a value of a container's resources.
func amountOf(container map[string]any, list, name string) (apiresource.Quantity, bool) {
	value, found, _ := unstructured.NestedFieldNoCopy(container, "resources", list, name)
	if !found {
		return apiresource.Quantity{}, false
	}
	q, err := apiresource.ParseQuantity(fmt.Sprint(value))
	return q, err == nil
}

// containersOf returns the containers of a workload's pod template, by name.
func containersOf(workload map[string]any) map[string]map[string]any {
	return containersIn(workload, "containers")
}

// containersIn returns the containers in a list of a workload's template, such as initContainers, by name.
func containersIn(workload map[string]any, field string) map[string]map[string]any {
	list, _, _ := unstructured.NestedSlice(workload, "spec", "template", "spec", field)
	all := map[string]map[string]any{}
	for _, each := range list {
		container, _ := each.(map[string]any)
		if name, _ := container["name"].(string); name != "" {
			all[name] = container
		}
	}
	return all
}
