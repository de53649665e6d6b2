package cudashim

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// removal takes our edits out of an object as it is now.
type removal struct {
	*patcher
	data *Data
	run  string
	kept []string // what somebody else changed meanwhile, in words
}

// removeEdits makes the patch that undoes the edits: what still is ours is taken back, what somebody changed meanwhile
// stays and is told.
func (d *Data) removeEdits(object *unstructured.Unstructured, run string) (*removal, error) {
	r := &removal{patcher: &patcher{object: object.DeepCopy().Object}, data: d, run: run}
	templates := Templates(&unstructured.Unstructured{Object: r.object})
	var edits []Edit
	for _, e := range d.Edits {
		if e.within(templates) {
			edits = append(edits, e)
		} else if _, there := get(r.object, e.Path); there {
			r.keep("%s: it is in no pod template any more; it was left", e.Path)
		} else if len(e.Was) > 0 {
			r.keep("%s: somebody removed it meanwhile; it was %s before us", e.Path, e.Was)
		}
	}
	for i := len(edits) - 1; i >= 0; i-- {
		if !isVolume(edits[i]) {
			if err := r.undo(edits[i]); err != nil {
				return nil, err
			}
		}
	}
	// What moved with a container or a service that somebody renamed is still ours.
	for _, t := range templates {
		if err := r.sweep(t); err != nil {
			return nil, err
		}
	}
	for i := len(edits) - 1; i >= 0; i-- { // which nothing may mount any more
		if e := edits[i]; isVolume(e) && !r.isMounted(e) {
			if err := r.undo(e); err != nil {
				return nil, err
			}
		}
	}
	for i := len(edits) - 1; i >= 0; i-- {
		if err := r.prune(edits[i]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func isVolume(e Edit) bool {
	last := e.Path[len(e.Path)-1]
	return last.Key == "name" && (last.Field == volumeLib || last.Field == volumeRun) && len(e.Path) > 1 &&
		e.Path[len(e.Path)-2] == field("volumes")
}

// undo takes one edit back, where it still is as we left it.
func (r *removal) undo(e Edit) error {
	now, there := get(r.object, e.Path)
	there = there && now != nil
	if e.Element {
		list, _ := now.([]any)
		if i := indexOf(list, e.Ours); i >= 0 {
			return r.remove(e.Path.then(Step{Index: i}))
		}
		return nil // it has no key: changed and removed look alike
	}
	switch {
	case there && same(now, e.Ours) && len(e.Was) == 0:
		return r.remove(e.Path)
	case there && same(now, e.Ours):
		was, err := decode(e.Was)
		if err != nil {
			return fmt.Errorf("%s: the value before: %w", e.Path, err)
		}
		return r.write("replace", e.Path, was)
	case !there && len(e.Was) == 0, there && len(e.Was) > 0 && same(now, e.Was): // as before already
		return nil
	case !there:
		r.keep("%s: somebody removed it meanwhile; it was %s before us", e.Path, e.Was)
	default:
		r.keep("%s: somebody changed it meanwhile: theirs %s, ours %s; theirs was left", e.Path, encode(now), e.Ours)
	}
	return nil
}

func (r *removal) keep(format string, args ...any) {
	r.kept = append(r.kept, fmt.Sprintf(format, args...))
}

// sweep takes out of a template what certainly is ours, wherever it is by now.
func (r *removal) sweep(t Template) error {
	if t.meta != nil {
		at := t.meta.then(path("labels", ledger.LabelRun)...)
		if getText(r.object, at) == r.run {
			if err := r.remove(at); err != nil {
				return err
			}
		}
	}
	for _, c := range t.Containers {
		if err := r.sweepContainer(c); err != nil {
			return err
		}
	}
	if len(r.data.Pin) > 0 {
		if err := r.sweepPin(t); err != nil {
			return err
		}
	}
	for _, e := range r.data.Edits {
		at := t.spec.then(field("volumes"), e.Path[len(e.Path)-1])
		if !isVolume(e) || at.String() == e.Path.String() {
			continue
		}
		if volume, ok := get(r.object, at); ok && same(volume, e.Ours) {
			if err := r.remove(at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *removal) sweepContainer(c Container) error {
	for _, e := range r.data.Edits {
		last := e.Path[len(e.Path)-1]
		list := field("env")
		if last.Key == "mountPath" {
			list = field("volumeMounts")
		}
		if last.Key == "" || isVolume(e) || len(e.Was) > 0 {
			continue
		}
		at := c.path.then(list, last)
		if now, ok := get(r.object, at); ok && same(now, e.Ours) {
			if err := r.remove(at); err != nil {
				return err
			}
		}
	}
	variable := c.path.then(field("env"), element("name", r.data.Variable))
	rest, found := unchain(getText(r.object, variable.then(field("value"))), r.data.Preload)
	switch {
	case !found:
		return nil
	case rest == "":
		return r.remove(variable)
	default:
		r.keep("%s: our library was taken out of it", variable)
		return r.write("replace", variable.then(field("value")), rest)
	}
}

// sweepPin takes our node pin out of an affinity that somebody changed after us.
func (r *removal) sweepPin(t Template) error {
	expr, err := decode(r.data.Pin)
	if err != nil {
		return fmt.Errorf("the node pin: %w", err)
	}
	at := requiredTerms(t.spec)
	left, found := unpin(getList(r.object, at), expr)
	if !found || !r.pinned(at) {
		return nil
	}
	if len(left) == 0 { // an empty list would match no node
		return r.remove(at[:len(at)-1])
	}
	return r.write("replace", at, left)
}

// pinned reports whether we changed the terms at a path: else the same requirement there is the user's own.
func (r *removal) pinned(at Path) bool {
	for _, e := range r.data.Edits {
		if now, _ := get(r.object, at); e.Path.String() == at.String() && !same(now, orNull(e.Was)) {
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

// isMounted reports whether a container still mounts one of our volumes, which then must stay: without it the object
// would not be valid.
func (r *removal) isMounted(e Edit) bool {
	spec, name := e.Path[:len(e.Path)-2], e.Path[len(e.Path)-1].Field
	all := append(getList(r.object, spec.then(field("containers"))),
		getList(r.object, spec.then(field("initContainers")))...)
	all = append(all, getMap(r.object, spec.then(field("mainContainer"))))
	for _, c := range all {
		for _, m := range getList(c, path("volumeMounts")) {
			if mount, _ := m.(map[string]any); mount["name"] == name {
				r.keep("%s: it is still mounted, at %v; it was left", e.Path, mount["mountPath"])
				return true
			}
		}
	}
	return false
}

// prune takes out the objects and lists that we made around an edit, where nothing is left in them.
func (r *removal) prune(e Edit) error {
	at := e.Path
	if e.Element {
		at = e.Path.then(Step{})
	}
	for n := 1; n <= e.Made && n < len(at)-1; n++ {
		around := at[:len(at)-n]
		value, ok := get(r.object, around)
		if !ok || !isEmpty(value, around) {
			return nil
		}
		if err := r.remove(around); err != nil {
			return err
		}
	}
	return nil
}

// mountsConfigMap reports whether a volume of the object still is our ConfigMap.
func (r *removal) mountsConfigMap() bool {
	for _, spec := range r.data.specs() {
		for _, v := range getList(r.object, spec.then(field("volumes"))) {
			if getText(v, path("configMap", "name")) == r.data.ConfigMap {
				return true
			}
		}
	}
	return false
}

// sum returns the SHA-256 of the pod templates of an object.
func sum(object *unstructured.Unstructured) string {
	var all []any
	for _, t := range Templates(object) {
		value, _ := get(object.Object, t.Path)
		all = append(all, t.Path.String(), value)
	}
	return patch.Sum(encode(all))
}
