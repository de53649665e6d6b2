package facts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// incomplete returns evidence that a gang has fewer pods than its minimum, in which case no
// scheduler places any of them.
//
//	pods of the gang: 1, minimum: 2
func (f *comparer) incomplete(object *unstructured.Unstructured, pods []*corev1.Pod) []finding.Evidence {
	least, _, _ := unstructured.NestedInt64(object.Object, "spec", "minMember")
	age := f.Now.Sub(object.GetCreationTimestamp().Time)
	if len(pods) == 0 || int64(len(pods)) >= least || age < processed {
		return nil
	}
	return []finding.Evidence{{
		Source: "PodGroup " + object.GetNamespace() + "/" + object.GetName() + " .spec.minMember and its pods",
		Text:   fmt.Sprintf("pods of the gang: %d, minimum: %d", len(pods), least),
	}}
}

// lacking returns evidence that a gang of KAI Scheduler has no pods of some of its roles, which are its subgroups,
// while others of its pods have been waiting for them, and which autoscaler has scaled such a role to zero.
//
//	pods of the gang: 1, minimum: 3, no pods of NAME and NAME
//	scaled to zero: ScaledObject NAME: MESSAGE
func (f *comparer) lacking(object *unstructured.Unstructured, pods []*corev1.Pod) []finding.Evidence {
	if apiGroup(object) != kaiGroup || !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return Unscheduled(pod) && f.Age(pod) > processed
	}) {
		return nil
	}
	var names []string
	var scaled []finding.Evidence
	known := false // the pods have labels that name their role
	for _, group := range mapsIn(object.Object, "spec", "subGroups") {
		name, _ := group["name"].(string)
		has := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return slices.Contains(slices.Collect(maps.Values(pod.Labels)), name)
		})
		known = known || has
		if least, _ := group["minMember"].(int64); least == 0 || has {
			continue
		}
		names = append(names, name)
		for _, e := range f.Events {
			target := toZero.FindStringSubmatch(e.Message)
			if o := e.InvolvedObject; target != nil && o.Kind == "ScaledObject" &&
				o.Namespace == object.GetNamespace() && roleIn(name, target[1]) {
				quoted := Quote(e)
				quoted.Text = words.Clip("scaled to zero: " + o.Kind + " " + o.Name + ": " + e.Message)
				scaled = append(scaled, quoted)
				break
			}
		}
	}
	if len(names) == 0 || !known {
		return nil
	}
	least, _, _ := unstructured.NestedInt64(object.Object, "spec", "minMember")
	return append([]finding.Evidence{{
		Source: "PodGroup " + object.GetNamespace() + "/" + object.GetName() + " .spec.subGroups and its pods",
		Text: fmt.Sprintf("pods of the gang: %d, minimum: %d, no pods of %s", len(pods), least,
			strings.Join(names, " and ")),
	}}, scaled...)
}

// toZero matches the name of the object that KEDA has scaled to zero.
var toZero = regexp.MustCompile(`/([\w.-]+) from \d+ to 0$`)

// roleIn reports whether an object is that of a role: both end with the same name, such as NAME-0-ROLE and NAME-ROLE.
func roleIn(role, object string) bool {
	last := role[strings.LastIndex(role, "-")+1:]
	return last != "" && (object == last || strings.HasSuffix(object, "-"+last))
}
