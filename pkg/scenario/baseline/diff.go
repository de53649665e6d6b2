package baseline

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Kind is the kind of a difference.
type Kind string

// Kinds of differences.
const (
	Created Kind = "created"
	Deleted Kind = "deleted"
	Changed Kind = "changed"
)

// notSet is shown instead of the value of a field that an object does not have.
const notSet = "not set"

// Difference is an object that differs from the baseline.
type Difference struct {
	Ref  scenario.Ref `json:"ref"`
	Kind Kind         `json:"kind"`
	// Fields are the fields that differ in a changed object, sorted: spec.replicas,
	// metadata.labels["example.com/team"], spec.containers[main].image. For objects that are not stored in full,
	// only the first two levels are compared. metadata.uid means that the object was deleted and recreated.
	Fields []string `json:"fields,omitempty"`
	// Before and After are the shortened old and new values; the values of Secrets are hidden.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Note is the reason why the object is not what it appears to be (for example, a controller's pod), or why it will
	// not remain as it is. Such an object is never covered by permissions to create or change objects.
	Note string `json:"note,omitempty"`

	edits []edit
}

// String returns the difference on one line: Deployment team/web changed: spec.replicas (2, now 0).
func (d Difference) String() string {
	name := d.Ref.Name
	if d.Ref.Namespace != "" {
		name = d.Ref.Namespace + "/" + name
	}
	if d.Note != "" {
		return d.Ref.Kind + " " + name + ": " + d.Note
	}
	text := d.Ref.Kind + " " + name + " " + string(d.Kind)
	if len(d.Fields) == 0 {
		return text
	}
	text += ": " + strings.Join(d.Fields, ", ")
	if len(d.Fields) == 1 && (d.Before != "" || d.After != "") {
		text += " (" + cmp.Or(d.Before, notSet) + ", now " + cmp.Or(d.After, notSet) + ")"
	}
	return text
}

// Diff returns the differences between two baselines, sorted, with deletions of namespaces first. It skips
// kinds that could not be listed on both sides.
func Diff(before, after *Baseline) []Difference {
	var found []Difference
	scaled := scaledBy(before, after)
	// If a webhook changes the pods in a namespace, they differ from their templates from the beginning.
	webhooks := before.mutatedIn()
	for k, was := range before.objects {
		if _, comparable := after.kinds[k.kind]; !comparable {
			continue
		}
		is := after.objects[k]
		switch {
		case was.note != "" && !strings.HasSuffix(was.note, strayed): // the controller may replace its objects
		case is == nil && !goesByItself(k, was):
			found = append(found, Difference{Ref: k.ref(was.version), Kind: Deleted})
		case is != nil && is.note != "" && was.note == "":
			if !(strings.HasPrefix(is.note, mutated) && webhooks[k.namespace]) {
				found = append(found, Difference{Ref: k.ref(is.version), Kind: Changed, Note: is.note})
			}
		case is != nil && is.version == was.version:
			if edits := slices.DeleteFunc(
				compareObjects(k.kind, was, is), func(e edit) bool { return scaled.explains(k, e) },
			); len(edits) > 0 {
				found = append(found, changed(k, was, edits))
			}
		}
	}
	for k, is := range after.objects {
		if strings.HasPrefix(is.note, mutated) && webhooks[k.namespace] {
			continue
		}
		if _, comparable := before.kinds[k.kind]; comparable && before.objects[k] == nil && !comesByItself(k, is) {
			found = append(found, Difference{Ref: k.ref(is.version), Kind: Created, Note: is.note})
		}
	}
	sorting.Func(found, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), keyOf(a.Ref).compare(keyOf(b.Ref)))
	})
	return found
}

// mutatedIn returns the namespaces with pods that differ from their owner's template.
func (b *Baseline) mutatedIn() map[string]bool {
	found := map[string]bool{}
	for k, o := range b.objects {
		if strings.HasPrefix(o.note, mutated) {
			found[k.namespace] = true
		}
	}
	return found
}

func rank(d Difference) int {
	if d.Kind == Deleted && d.Ref.Kind == "Namespace" && d.Ref.APIVersion == "v1" {
		return 0
	}
	return 1
}

// changed returns the difference for sorted edits.
func changed(k key, was *object, edits []edit) Difference {
	d := Difference{Ref: k.ref(was.version), Kind: Changed, edits: edits}
	var before, after []string
	for _, e := range edits {
		d.Fields = append(d.Fields, e.field)
		before, after = append(before, e.was), append(after, e.is)
	}
	d.Before, d.After = brief(d.Fields, before), brief(d.Fields, after)
	return d
}

// brief returns the first fields with their values.
func brief(fields, values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	const shown = 3
	var text []string
	for i, value := range values[:min(len(values), shown)] {
		text = append(text, fields[i]+": "+value)
	}
	if len(values) > shown {
		text = append(text, "...")
	}
	return strings.Join(text, ", ")
}

// goesByItself reports whether an object may be deleted without user action.
func goesByItself(k key, o *object) bool {
	if (k.kind == schema.GroupKind{Group: "batch", Kind: "Job"}) {
		return mapAt(o.body, "spec")["ttlSecondsAfterFinished"] != nil
	}
	return isDefaultAccount(k, o)
}

// comesByItself reports whether an object may be created without user action. For example, a cluster autoscaler creates
// nodes, which have a providerID.
func comesByItself(k key, o *object) bool {
	if k.kind == nodeKind {
		return mapAt(o.body, "spec")["providerID"] != nil
	}
	return isDefaultAccount(k, o)
}

// isDefaultAccount reports whether the object is the unmodified service account that is created in each namespace.
func isDefaultAccount(k key, o *object) bool {
	if k.kind != (schema.GroupKind{Kind: "ServiceAccount"}) || k.name != "default" || o.hashes != nil {
		return false
	}
	return o.body["imagePullSecrets"] == nil && o.body["automountServiceAccountToken"] == nil &&
		mapAt(o.body, "metadata", "annotations") == nil
}

// scalers are the objects that autoscalers scale, with their bounds.
type scalers map[key][2]int64

// scaledBy returns the objects that are scaled by a HorizontalPodAutoscaler that exists in both baselines. The replicas
// of these objects may change.
func scaledBy(before, after *Baseline) scalers {
	all := scalers{}
	for k, o := range before.objects {
		spec := mapAt(o.body, "spec")
		now := after.objects[k]
		if (k.kind != schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}) || now == nil ||
			spec == nil ||
			!maps.Equal(o.fieldHashes(), now.fieldHashes()) {
			continue
		}
		target := mapAt(spec, "scaleTargetRef")
		api, _ := target["apiVersion"].(string)
		kind, _ := target["kind"].(string)
		name, _ := target["name"].(string)
		least, set := spec["minReplicas"].(int64)
		if !set {
			least = 1
		}
		most, _ := spec["maxReplicas"].(int64)
		all[keyOf(
			scenario.Ref{APIVersion: api, Kind: kind, Namespace: k.namespace, Name: name},
		)] = [2]int64{least, most}
	}
	return all
}

// explains reports whether an autoscaler may have made the edit.
func (s scalers) explains(k key, e edit) bool {
	bounds, scaled := s[k]
	replicas, is := e.now.(int64)
	return scaled && is && e.field == "spec.replicas" && replicas >= bounds[0] && replicas <= bounds[1]
}
