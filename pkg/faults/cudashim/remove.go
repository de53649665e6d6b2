package cudashim

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// removal removes a run's edits from the current version of an object.
type removal struct {
	object  map[string]any // a copy
	changed bool
	data    *Data
	run     string
	kept    []string // descriptions of what others changed since the injection
}

// removeEdits removes the edits that are still in place from a copy of an object. Values that others have changed since
// the injection are kept and reported.
func (d *Data) removeEdits(object *unstructured.Unstructured, run string) *removal {
	r := &removal{object: object.DeepCopy().Object, data: d, run: run}
	templates := Templates(&unstructured.Unstructured{Object: r.object})
	var edits []kubeedit.Edit
	for _, e := range slices.Backward(d.Edits) {
		if isWithin(e, templates) {
			edits = append(edits, e)
		} else if _, exists := kubeedit.Get(r.object, e.Path); exists {
			r.keep("%s: not changed, because it is no longer in a pod template", e.Path)
		} else if len(e.Was) > 0 {
			r.keep("%s: removed by another client; the value was %s before the injection", e.Path, e.Was)
		}
	}
	for _, e := range edits {
		if !isVolume(e) {
			r.takeBack(e)
		}
	}
	// Edits that moved because a container or a service was renamed still belong to the run.
	for _, t := range templates {
		r.sweep(t)
	}
	for _, e := range edits { // volumes last, when they are no longer mounted
		if isVolume(e) && !r.isMounted(e) {
			r.takeBack(e)
		}
	}
	for _, e := range edits {
		r.note(e.Prune(r.object))
	}
	return r
}

func isVolume(e kubeedit.Edit) bool {
	last := e.Path[len(e.Path)-1]
	return last.Key == "name" && (last.Field == volumeLib || last.Field == volumeRun) && len(e.Path) > 1 &&
		e.Path[len(e.Path)-2] == kubeedit.Field("volumes")
}

// takeBack reverts one edit if the object still has the edit's value.
func (r *removal) takeBack(e kubeedit.Edit) {
	now, exists := kubeedit.Get(r.object, e.Path)
	changed, theirs := e.TakeBack(r.object)
	r.note(changed)
	switch {
	case !theirs:
	case e.Element || (!exists || now == nil) && len(e.Was) == 0: // the edit is no longer in place
	case !exists || now == nil:
		r.keep("%s: removed by another client; the value was %s before the injection", e.Path, e.Was)
	default:
		r.keep("%s: not changed, because another client set it to %s; the injection had set it to %s", e.Path,
			kubeedit.Encode(now), e.Ours)
	}
}

func (r *removal) note(changed bool) { r.changed = r.changed || changed }

func (r *removal) keep(format string, args ...any) {
	r.kept = append(r.kept, fmt.Sprintf(format, args...))
}

func (r *removal) remove(at kubeedit.Path) { r.note(kubeedit.Remove(r.object, at)) }

func (r *removal) replace(at kubeedit.Path, value any) { r.note(kubeedit.Replace(r.object, at, value)) }

// sweep removes from a template everything that certainly belongs to the run, at any location.
func (r *removal) sweep(t Template) {
	if t.meta != nil {
		at := t.meta.Then(kubeedit.Fields("labels", ledger.LabelRun)...)
		if kubeedit.Text(r.object, at) == r.run {
			r.remove(at)
		}
	}
	for _, c := range t.Containers {
		r.sweepContainer(c)
	}
	if len(r.data.Pin) > 0 {
		r.sweepPin(t)
	}
	for _, e := range r.data.Edits {
		at := t.spec.Then(kubeedit.Field("volumes"), e.Path[len(e.Path)-1])
		if !isVolume(e) || at.String() == e.Path.String() {
			continue
		}
		if volume, ok := kubeedit.Get(r.object, at); ok && kubeedit.Same(volume, e.Ours) {
			r.remove(at)
		}
	}
}

func (r *removal) sweepContainer(c Container) {
	for _, e := range r.data.Edits {
		last := e.Path[len(e.Path)-1]
		list := kubeedit.Field("env")
		if last.Key == "mountPath" {
			list = kubeedit.Field("volumeMounts")
		}
		if last.Key == "" || isVolume(e) || len(e.Was) > 0 {
			continue
		}
		at := c.path.Then(list, last)
		if now, ok := kubeedit.Get(r.object, at); ok && kubeedit.Same(now, e.Ours) {
			r.remove(at)
		}
	}
	variable := c.path.Then(kubeedit.Field("env"), kubeedit.Element("name", r.data.Variable))
	value := variable.Then(kubeedit.Field("value"))
	rest, found := unchain(kubeedit.Text(r.object, value), r.data.Preload)
	switch {
	case !found:
	case rest == "":
		r.remove(variable)
	default:
		r.keep("%s: only the shim was removed from the value", variable)
		r.replace(value, rest)
	}
}

// sweepPin removes the run's node pin from an affinity that others have changed since the injection.
func (r *removal) sweepPin(t Template) {
	at := requiredTerms(t.spec)
	left, found := unpin(kubeedit.List(r.object, at), kubeedit.Decode(r.data.Pin))
	switch {
	case !found || !r.pinned(at):
	case len(left) == 0: // an empty list would match no node
		r.remove(at[:len(at)-1])
	default:
		r.replace(at, left)
	}
}

// pinned reports whether the run changed the terms at a path. If it did not, an equal requirement belongs to the user.
func (r *removal) pinned(at kubeedit.Path) bool {
	for _, e := range r.data.Edits {
		now, _ := kubeedit.Get(r.object, at)
		if e.Path.String() == at.String() && !kubeedit.Same(now, orNull(e.Was)) {
			return true
		}
	}
	return false
}

func orNull(text []byte) []byte {
	if len(text) == 0 {
		return []byte("null")
	}
	return text
}

// isMounted reports whether a container still mounts one of the run's volumes. The volume must then stay, because the
// object would be invalid without it.
func (r *removal) isMounted(e kubeedit.Edit) bool {
	spec, name := e.Path[:len(e.Path)-2], e.Path[len(e.Path)-1].Field
	all := slices.Concat(kubeedit.List(r.object, spec.Then(kubeedit.Field("containers"))),
		kubeedit.List(r.object, spec.Then(kubeedit.Field("initContainers"))))
	all = append(all, kubeedit.Map(r.object, spec.Then(kubeedit.Field("mainContainer"))))
	for _, c := range all {
		for _, m := range kubeedit.List(c, kubeedit.Fields("volumeMounts")) {
			if mount, _ := m.(map[string]any); mount["name"] == name {
				r.keep("%s: not removed, because it is still mounted at %v", e.Path, mount["mountPath"])
				return true
			}
		}
	}
	return false
}

// mountsConfigMap reports whether a volume of the object is still the run's ConfigMap.
func (r *removal) mountsConfigMap() bool {
	for _, spec := range r.data.specs() {
		for _, v := range kubeedit.List(r.object, spec.Then(kubeedit.Field("volumes"))) {
			if kubeedit.Text(v, kubeedit.Fields("configMap", "name")) == r.data.ConfigMap {
				return true
			}
		}
	}
	return false
}

// sum returns the SHA-256 checksum of an object's pod templates.
func sum(object *unstructured.Unstructured) string {
	var all []any
	for _, t := range Templates(object) {
		value, _ := kubeedit.Get(object.Object, t.Path)
		all = append(all, t.Path.String(), value)
	}
	return patch.Sum(kubeedit.Encode(all))
}
