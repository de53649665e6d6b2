package cudashim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// plan is a change that passed a dry run on the API server.
type plan struct {
	object *unstructured.Unstructured // the object as read
	data   Data
	// changed is the object with the additions, without the API server's defaults.
	changed *unstructured.Unstructured
	notes   []string
	// additions are the parts that were added.
	additions additions
}

// plan reads the object again, applies the additions, and sends a dry run to the API server, which runs admission, sets
// defaults and shows which managers lose fields.
func (in *Injection) plan(ctx context.Context, run string) (*plan, error) {
	a := in.newAdditions(run)
	if in.Pin != nil {
		expr, err := in.Pin.expression(ctx, in.Cluster)
		if err != nil {
			return nil, err
		}
		a.expr, a.hard = expr, in.Pin.Hard
	}
	var p *plan
	err := retry(ctx, in.Cluster.conflicts(), in.Workload.Ref(), func() error {
		now, err := in.Cluster.again(ctx, in.Workload)
		if err != nil {
			return err
		}
		p, err = in.tryOut(ctx, now, a)
		if err == nil && p == nil { // retry without labels, because this kind drops them
			without := a
			without.noLabels = true
			p, err = in.tryOut(ctx, now, without)
			if err == nil && p == nil {
				err = fmt.Errorf("%s: the API server drops the additions", now.Ref())
			}
		}
		return err
	})
	return p, err
}

// again reads a workload again.
func (c *Cluster) again(ctx context.Context, w *Workload) (*Workload, error) {
	object, err := c.resource(w).Get(ctx, w.Object.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s was deleted since the command started", w.Ref())
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", w.Ref(), err)
	case object.GetUID() != w.Object.GetUID():
		return nil, fmt.Errorf("%s was deleted and recreated since the command started: try again", w.Ref())
	case object.GetDeletionTimestamp() != nil:
		return nil, fmt.Errorf("%s is being deleted", w.Ref())
	}
	now := *w
	now.Object, now.Templates = object, Templates(object)
	return &now, nil
}

func (c *Cluster) resource(w *Workload) dynamic.ResourceInterface {
	return c.Dynamic.Resource(w.Resource).Namespace(w.Object.GetNamespace())
}

// put returns the object with the additions.
func (in *Injection) put(w *Workload, a additions) (map[string]any, []kubeedit.Edit, []Chosen, error) {
	chosen, err := w.Select(in.Selection)
	if err != nil {
		return nil, nil, nil, err
	}
	if run := w.Run(); run != "" {
		return nil, nil, nil, &InjectedError{w.Ref(), run}
	}
	object := w.Object.DeepCopy().Object
	edits, err := a.into(object, w.Ref(), chosen)
	return object, edits, chosen, err
}

// tryOut sends the dry run. It returns nil without an error if the API server drops the labels from templates of this
// kind.
func (in *Injection) tryOut(ctx context.Context, w *Workload, a additions) (*plan, error) {
	object, edits, chosen, err := in.put(w, a)
	if err != nil {
		return nil, err
	}
	p := &plan{
		object: w.Object, changed: &unstructured.Unstructured{Object: object},
		notes:     envFromNotes(w, chosen, a.variable),
		additions: a,
		data: Data{
			Group: w.Resource.Group, Version: w.Resource.Version, Resource: w.Resource.Resource,
			Kind: w.Object.GetKind(), Namespace: w.Object.GetNamespace(),
			Name: w.Object.GetName(), UID: string(w.Object.GetUID()), ConfigMap: Name(a.run), Edits: edits,
			Variable: a.variable, Preload: a.preload,
			Replaced: w.Replacement(), Before: sum(w.Object),
		},
	}
	if a.expr != nil {
		p.data.Pin = kubeedit.Encode(a.expr)
	}
	if a.noLabels {
		p.notes = append(p.notes,
			"the API server drops labels from pods of this kind, so the pods are identified by their volume")
	}
	stored, err := in.dryRun(ctx, w, p)
	if err != nil {
		return nil, err
	}
	if p.data.Recreated == nil {
		p.data.Owned = lost(w.Object.GetManagedFields(), stored.GetManagedFields())
	}
	if dropped := p.data.adopt(stored); dropped != nil {
		for _, c := range chosen {
			if meta := c.Template.meta; meta != nil && !a.noLabels && dropped.HasPrefix(meta) {
				return nil, nil
			}
		}
		return nil, fmt.Errorf(
			"%s: this kind does not support the shim: the API server drops %s, which is not in the schema",
			w.Ref(), dropped,
		)
	}
	return p, nil
}

// dryRun returns the object that the API server would store.
func (in *Injection) dryRun(ctx context.Context, w *Workload, p *plan) (*unstructured.Unstructured, error) {
	what := "change " + w.Ref()
	if p.data.Replaced != Recreate {
		stored, err := in.Cluster.patch(ctx, w, p.changed, true)
		if !isImmutable(err) {
			return stored, explain(err, what, w.Object.GetNamespace())
		}
		p.data.Replaced = Recreate
	}
	if err := mayRecreate(w); err != nil {
		return nil, err
	}
	if !in.Recreate {
		return nil, fmt.Errorf("%s: %w", w.Ref(), ErrImmutable)
	}
	original := recreatable(p.object)
	p.data.Recreated, p.data.Before = &Recreated{Original: kubeedit.Encode(original.Object)}, sum(original)
	if n := len(p.data.Recreated.Original); n > maxOriginal {
		return nil,
			fmt.Errorf("%s is %d KiB, but the undo can save at most %d KiB", w.Ref(), n>>10, maxOriginal>>10)
	}
	p.changed = recreatable(p.changed)
	p.changed.SetManagedFields(nil)
	trial := p.changed.DeepCopy()
	trial.SetName("")
	trial.SetGenerateName("gpu-fault-trial-") // the object's own name is in use
	stored, err := in.Cluster.resource(w).Create(ctx, trial,
		metav1.CreateOptions{FieldManager: FieldManager, DryRun: []string{metav1.DryRunAll}})
	return stored, explain(err, "recreate "+w.Ref(), w.Object.GetNamespace())
}

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// replaceFields returns the JSON patch that converts one object to the other. If a top-level field differs, the patch
// replaces the entire field; usually, that is only the spec. The metadata and the status are not changed.
func replaceFields(from, to map[string]any) []operation {
	var ops []operation
	for _, name := range slices.Sorted(maps.Keys(to)) {
		if name != "metadata" && name != "status" && !reflect.DeepEqual(from[name], to[name]) {
			ops = append(ops, operation{Op: "add", Path: "/" + name, Value: kubeedit.Encode(to[name])})
		}
	}
	return ops
}

// patch changes the object into the given one (to) if the object has not changed since it was read. Testing only the
// generation allows the object's controller to write the status in the meantime.
func (c *Cluster) patch(
	ctx context.Context, w *Workload, to *unstructured.Unstructured, dryRun bool,
) (*unstructured.Unstructured, error) {
	tests := []operation{{Op: "test", Path: "/metadata/uid", Value: kubeedit.Encode(w.Object.GetUID())}}
	if w.Object.GetGeneration() > 0 {
		tests = append(tests,
			operation{Op: "test", Path: "/metadata/generation", Value: kubeedit.Encode(w.Object.GetGeneration())})
	} else if version := w.Object.GetResourceVersion(); version != "" {
		tests = append(tests,
			operation{Op: "test", Path: "/metadata/resourceVersion", Value: kubeedit.Encode(version)})
	}
	body, err := json.Marshal(append(tests, replaceFields(w.Object.Object, to.Object)...))
	if err != nil {
		return nil, fmt.Errorf("encode the change: %w", err)
	}
	// Ignore unknown fields without warnings, because adopt finds them.
	options := metav1.PatchOptions{FieldManager: FieldManager, FieldValidation: metav1.FieldValidationIgnore}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return c.resource(w).Patch(ctx, w.Object.GetName(), types.JSONPatchType, body, options)
}

// adopt adopts the values of the edits as stored by the API server. It returns the path of an edit that the API server
// does not store, or nil.
func (d *Data) adopt(stored *unstructured.Unstructured) kubeedit.Path {
	for i, e := range d.Edits {
		value, ok := kubeedit.Get(stored.Object, e.Path)
		ours := kubeedit.Decode(e.Ours)
		if e.Element {
			list, _ := value.([]any)
			if indexOf(list, e.Ours) < 0 {
				return e.Path
			}
			continue
		}
		if !ok || !covers(value, ours) {
			return e.Path
		}
		d.Edits[i].Ours = kubeedit.Encode(value)
	}
	return nil
}

// covers reports whether a value contains everything in ours. The API server may have added defaults.
func covers(value, ours any) bool {
	switch ours := ours.(type) {
	case map[string]any:
		m, ok := value.(map[string]any)
		if !ok {
			return false
		}
		for name, v := range ours {
			if !covers(m[name], v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := value.([]any)
		if !ok || len(l) != len(ours) {
			return false
		}
		for i := range ours {
			if !covers(l[i], ours[i]) {
				return false
			}
		}
		return true
	}
	return kubeedit.Same(value, kubeedit.Encode(ours))
}
