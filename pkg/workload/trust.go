package workload

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Whoever may write the ledger's ConfigMaps must not get, by a record, the rights of whoever reverts it. So the data may only say what an
// Injection could have written, of the object that the record shows as the step's target.

// checkTarget refuses data of another object than the step's. ReadData has compared all but a UID that the step does not name.
func (d *Data) checkTarget(target ledger.Target) error {
	switch {
	case d.Kind != target.Kind || d.Namespace != target.Namespace || d.Name != target.Name:
		return fmt.Errorf("it is about %s in namespace %s, and its step about %s", d.Ref(), d.Namespace, target)
	case target.UID != "" && d.UID != target.UID:
		return fmt.Errorf("it is about the %s with the UID %s, and its step about that with %s", d.Ref(), d.UID, target.UID)
	}
	return nil
}

// checkUndo refuses what may be read, but not be undone: workloads out of bounds, and objects that are not what the data says.
func (d *Data) checkUndo(target ledger.Target, ledgerNamespace string) error {
	if d.UID != target.UID {
		return errors.New("its step does not name the object's UID")
	}
	if d.Kind == "Pod" {
		return errors.New("a pod has no template")
	}
	if err := fault.CheckNamespace(target, d.Namespace, cmp.Or(ledgerNamespace, ledger.DefaultNamespace)); err != nil {
		return err
	}
	if d.Recreated == nil {
		return nil
	}
	original := &unstructured.Unstructured{}
	if err := original.UnmarshalJSON(d.Recreated.Original); err != nil {
		return fmt.Errorf("the object as it was cannot be read: %w", err)
	}
	if !d.is(original) || original.GetNamespace() != d.Namespace || original.GetName() != d.Name {
		return fmt.Errorf("it holds %s in namespace %s", refOf(original), original.GetNamespace())
	}
	if len(Templates(original)) == 0 {
		return fmt.Errorf("it holds a %s, which has no pod template", original.GetKind())
	}
	return nil
}

// is whether an object has the type that the data says: the resource alone could be another's.
func (d *Data) is(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind() == schema.GroupVersionKind{Group: d.Group, Version: d.Version, Kind: d.Kind}
}

// checkShim refuses values that no Injection puts in.
func (d *Data) checkShim() error {
	file, ours := strings.CutPrefix(strings.Replace(d.Preload, "/$PLATFORM/", "/", 1), LibraryDir+"/")
	if !ours || file == "" || strings.ContainsAny(file, "/: $") {
		return fmt.Errorf("%s is no library of ours", d.Preload)
	}
	if d.Variable != PreloadVar && d.Variable != AuditVar {
		return fmt.Errorf("%s is no variable by which it is loaded", d.Variable)
	}
	if len(d.Pin) == 0 {
		return nil
	}
	value, err := decode(d.Pin)
	expr, _ := value.(map[string]any)
	values, _ := expr["values"].([]any)
	if err != nil || len(expr) != 3 || expr["key"] != corev1.LabelHostname || expr["operator"] != "In" || len(values) == 0 {
		return errors.New("its node pin makes no sense")
	}
	return nil
}

// checkEdit refuses an edit that no Injection makes: another place in a template, or a value that is not there because of us.
func (d *Data) checkEdit(e Edit) error {
	ours, err := decode(e.Ours)
	if err != nil || ours == nil {
		return fmt.Errorf("%s: its values make no sense", e.Path)
	}
	var was any
	if len(e.Was) > 0 {
		if was, err = decode(e.Was); err != nil || was == nil {
			return fmt.Errorf("%s: its values make no sense", e.Path)
		}
	}
	_, what := e.template()
	if e.Element != (what == placePreferred) || was != nil && what != placeLabel && what != placeValue && what != placeRequired {
		what = placeNone
	}
	switch what {
	case placeLabel: // a label of our own name, perhaps of a run of long ago
		_, isText := was.(string)
		if was == nil || isText {
			return nil
		}
	case placeVolume, placeMount:
		return nil
	case placeVariable, placeValue:
		if last := e.Path[len(e.Path)-1]; last == element("name", NodeVar) {
			return nil
		}
		return d.checkPreload(e, ours, was)
	case placeRequired, placePreferred:
		return d.checkPin(e, ours, was)
	}
	return fmt.Errorf("%s is no place that is ever changed so", e.Path)
}

// checkPreload wants that the value of ours is the former one with our library: then taking it back takes nothing else away.
func (d *Data) checkPreload(e Edit, ours, was any) error {
	name, value := e.Path[len(e.Path)-1], ours
	if name == field("value") {
		name = e.Path[len(e.Path)-2]
	} else {
		variable, _ := ours.(map[string]any)
		value = variable["value"]
		if variable["valueFrom"] != nil {
			value = nil
		}
	}
	text, _ := value.(string)
	rest, found := unchain(text, d.Preload)
	former, isText := was.(string)
	switch {
	case name != element("name", d.Variable):
		return fmt.Errorf("%s is not the variable %s", e.Path, d.Variable)
	case !found:
		return fmt.Errorf("%s: our library is not in %s", e.Path, e.Ours)
	case was != nil && (!isText || rest != former && strings.Trim(rest+former, ": ") != ""):
		return fmt.Errorf("%s: it was not %s before our library came in", e.Path, e.Was)
	}
	return nil
}

// checkPin wants that the value of ours is the former one with our requirement.
func (d *Data) checkPin(e Edit, ours, was any) error {
	expr, err := decode(orNull(d.Pin))
	if err != nil || expr == nil {
		return fmt.Errorf("%s: there is no node pin", e.Path)
	}
	var want any = map[string]any{"weight": int64(100), "preference": map[string]any{"matchExpressions": []any{expr}}}
	if !e.Element {
		terms, isList := was.([]any)
		if was != nil && !isList {
			return fmt.Errorf("%s: it cannot have been %s", e.Path, e.Was)
		}
		want, _ = pinned(terms, expr)
	}
	if !covers(ours, want) {
		return fmt.Errorf("%s: it is not the former value with the node pin", e.Path)
	}
	return nil
}

// editPlace is what of a template an edit changes.
type editPlace int

const (
	placeNone      editPlace = iota
	placeLabel               // the run's label of the pods
	placeVolume              // one of our volumes
	placeMount               // where one is mounted
	placeVariable            // an environment variable
	placeValue               // its value
	placeRequired            // the terms of the node affinity
	placePreferred           // one preference more
)

// template is the path of the pod spec that an edit changes, or of the pods' metadata, and what it changes there.
func (e Edit) template() (Path, editPlace) {
	p := e.Path
	ends := func(n int, last ...Step) bool {
		return len(p) > n+len(last) && slices.Equal(p[len(p)-len(last):], last)
	}
	cut := func(n int) Path { return p[:len(p)-n] }
	if ends(1, field("labels"), field(ledger.LabelRun)) {
		return cut(2), placeLabel
	}
	for _, name := range []string{volumeLib, volumeRun} {
		if ends(1, field("volumes"), element("name", name)) {
			return cut(2), placeVolume
		}
	}
	for _, dir := range []string{LibraryDir, RunDir} {
		if ends(1, field("volumeMounts"), element("mountPath", dir)) {
			return containerSpec(cut(2), placeMount)
		}
	}
	for _, name := range []string{NodeVar, PreloadVar, AuditVar} {
		switch {
		case ends(1, field("env"), element("name", name)):
			return containerSpec(cut(2), placeVariable)
		case name != NodeVar && ends(1, field("env"), element("name", name), field("value")):
			return containerSpec(cut(3), placeValue)
		}
	}
	if required := requiredTerms(nil); ends(0, required...) {
		return cut(len(required)), placeRequired
	}
	if preferred := preferredTerms(nil); ends(0, preferred...) {
		return cut(len(preferred)), placePreferred
	}
	return nil, placeNone
}

// containerSpec is the pod spec around a container.
func containerSpec(container Path, what editPlace) (Path, editPlace) {
	n := len(container)
	switch {
	case n > 1 && container[n-1] == field("mainContainer"): // of NVIDIA Dynamo
		return container[:n-1], what
	case n > 2 && container[n-1].Key == "name" && (container[n-2] == field("containers") || container[n-2] == field("initContainers")):
		return container[:n-2], what
	}
	return nil, placeNone
}

// within is whether an edit is in one of the templates.
func (e Edit) within(templates []Template) bool {
	at, what := e.template()
	return slices.ContainsFunc(templates, func(t Template) bool {
		if what == placeLabel {
			return t.meta != nil && t.meta.String() == at.String()
		}
		return what != placeNone && t.spec.String() == at.String()
	})
}

// sumOriginal is what the run's ConfigMap, which lies with the workload, keeps of the object that may be created again.
func (r *Recreated) sumOriginal() string {
	value, err := decode(r.Original)
	if err != nil {
		return ""
	}
	return patch.Sum(encode(value))
}
