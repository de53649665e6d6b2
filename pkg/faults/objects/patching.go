package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Patching changes an existing object. On a Node, it can change labels, annotations, taints and unschedulable, and in
// the Node's status the number of GPUs and MIG devices.
type Patching struct {
	Dynamic dynamic.Interface
	Mapper  meta.RESTMapper

	APIVersion, Kind, Namespace, Name string
	// Subresource is "status" for the status of a Node, and empty otherwise.
	Subresource string
	// Merge is a JSON merge patch (RFC 7386). JSON is a JSON patch (RFC 6902). Exactly one must be set.
	Merge map[string]any
	JSON  []any
	// LedgerNamespace is a namespace in which nothing may be changed. Empty means ledger.DefaultNamespace.
	LedgerNamespace string
}

// Change returns the change for use in a fault.Plan. Check reports its errors in advance.
func (p *Patching) Change(action string) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}, Action: action,
		Undo: ledger.Undo{Kind: UndoKind}, Apply: p.apply,
	}
}

// Check returns the error that the change would cause. It is for use in Plan.Checks and changes nothing. A missing
// object is not an error, because an earlier change may create it.
func (p *Patching) Check(ctx context.Context) error {
	o, err := p.object()
	if err != nil {
		return err
	}
	err = retry(ctx, o, func() error {
		_, _, _, err := p.preview(ctx, o)
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// object returns the object, or an error if it must not be patched.
func (p *Patching) object() (Object, error) {
	if p.Dynamic == nil || p.Mapper == nil {
		return Object{}, errNoCluster
	}
	version, err := schema.ParseGroupVersion(p.APIVersion)
	if err != nil {
		return Object{}, fmt.Errorf("patch %s %s: %w", p.Kind, p.Name, err)
	}
	manifest := &unstructured.Unstructured{}
	manifest.SetGroupVersionKind(version.WithKind(p.Kind))
	manifest.SetNamespace(p.Namespace)
	manifest.SetName(p.Name)
	o, err := objectOf(p.Mapper, manifest)
	if err != nil {
		return o, err
	}
	o.Subresource = p.Subresource
	if len(p.Merge) > 0 == (len(p.JSON) > 0) {
		return o, fmt.Errorf("%s: specify either a merge patch or a JSON patch", o)
	}
	return o, o.mayBePatched(p.LedgerNamespace)
}

// errChanged reports that an object changed between two reads.
var errChanged = errors.New("other clients keep changing the object")

// preview returns the object before and after a dry run of the patch, with defaults, and the edits.
func (p *Patching) preview(
	ctx context.Context, o Object,
) (before, after *unstructured.Unstructured, edits []kubeedit.Edit, err error) {
	client := reach(p.Dynamic, o)
	if before, err = client.Get(ctx, o.Name, metav1.GetOptions{}); err != nil {
		return nil, nil, nil, fmt.Errorf("get %s: %w", o, err)
	}
	if !o.is(before) {
		return nil, nil, nil, fmt.Errorf("%s is a %s", o, before.GroupVersionKind())
	}
	kind, body := types.MergePatchType, kubeedit.Encode(p.Merge)
	if len(p.JSON) > 0 {
		kind, body = types.JSONPatchType, kubeedit.Encode(p.JSON)
	}
	after, err = client.Patch(ctx, o.Name, kind, body, metav1.PatchOptions{
		FieldManager: ManagerPatch, FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll},
	}, o.subresources()...)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("patch %s: %w", o, err)
	}
	if after.GetUID() != before.GetUID() || after.GetResourceVersion() != before.GetResourceVersion() {
		return before, after, nil, fmt.Errorf("patch %s: %w", o, errChanged)
	}
	if o.Subresource == fieldStatus {
		edits = kubeedit.DiffField(fieldStatus, before.Object, after.Object)
	} else {
		edits = kubeedit.Diff(before.Object, after.Object)
	}
	if len(edits) == 0 {
		return before, after, nil, fmt.Errorf("patch %s: the patch would change nothing", o)
	}
	for _, e := range edits {
		if err := errors.Join(e.Validate(), o.mayBeEdited(e)); err != nil {
			return before, after, nil, fmt.Errorf("patch %s: %w", o, err)
		}
	}
	if size := len(kubeedit.Encode(edits)); size > maxEdits {
		return before, after, nil,
			fmt.Errorf("patch %s: the undo requires %d KiB, but a record can contain at most %d KiB", o, size>>10, maxEdits>>10)
	}
	return before, after, edits, nil
}

// Number of attempts, and the pause between them, for a patch that conflicts with other clients. Many clients write to
// Nodes.
const (
	attempts     = 20
	attemptPause = 50 * time.Millisecond
)

// apply patches exactly the version of the object that the preview read. If another client writes first, apply starts
// again, so that the recorded undo always matches the change.
func (p *Patching) apply(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
	o, err := p.object()
	if err != nil {
		return nil, err
	}
	run := r.Run()
	previous := seal.Seal("")
	for attempt := 1; ; attempt++ {
		before, after, edits, err := p.preview(ctx, o)
		var owned *Ownership
		if err == nil {
			owned, err = foresee(ctx, p.Dynamic, o, before, after)
		}
		if err == nil {
			if previous != "" { // the data will be replaced
				if err := keeper(p.Dynamic).Drop(ctx, previous); err != nil {
					return nil, err
				}
			}
			o.UID = string(before.GetUID())
			d := &Data{Patched: &o, Edits: edits, Ownership: owned}
			d.Sealed = d.needsKeeper(namespaces(run))
			if previous, err = p.record(ctx, r, run, d); err != nil {
				return nil, err
			}
			if _, err = write(ctx, p.Dynamic, o, before, after); err == nil {
				return evidence(o, edits), nil
			}
		}
		if !errors.Is(err, errChanged) && !apierrors.IsConflict(err) || attempt == attempts {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("patch %s: %w", o, context.Cause(ctx))
		case <-time.After(attemptPause):
		}
	}
}

// record saves the undo data in the ledger, and keeps and returns the seal of the data. If the ledger has no room for
// the owners of the fields, the undo restores only the values.
func (p *Patching) record(ctx context.Context, r fault.Recorder, run ledger.Run, d *Data) (seal.Seal, error) {
	step := ""
	save := func() error {
		data := kubeedit.Encode(d)
		return r.Save(ctx, func(s *ledger.Step) { step, s.Undo.Data = s.ID, data })
	}
	err := save()
	if full := (*ledger.TooLargeError)(nil); errors.As(err, &full) && d.Ownership != nil {
		d.Ownership = nil
		err = save()
	}
	if err != nil {
		return "", err
	}
	if !d.Sealed {
		return "", nil
	}
	sealed := d.seal(run.ID, step)
	return sealed, keeper(p.Dynamic).Keep(ctx, sealed)
}

// write changes one object into the other if it has not changed since it was read: the resourceVersion in a merge patch
// is a precondition. It returns the stored object. With metav1.DryRunAll, the API server stores nothing.
func write(
	ctx context.Context, client dynamic.Interface, o Object, from, to *unstructured.Unstructured, dryRun ...string,
) (*unstructured.Unstructured, error) {
	before, after := map[string]any{}, map[string]any{}
	if o.Subresource == fieldStatus {
		before[fieldStatus], after[fieldStatus] = from.Object[fieldStatus], to.Object[fieldStatus]
	} else {
		to = to.DeepCopy()
		to.SetManagedFields(from.GetManagedFields()) // the API server sets the managed fields
		to.SetGeneration(from.GetGeneration())
		before, after = maps.Clone(from.Object), to.Object
		delete(before, fieldStatus)
		delete(after, fieldStatus)
	}
	body := kubeedit.MergePatch(before, after)
	return patchAsRead(ctx, client, o, from, body, dryRun...)
}

// patchAsRead sends a merge patch that applies only if the object has not changed since it was read.
func patchAsRead(
	ctx context.Context, client dynamic.Interface, o Object, read *unstructured.Unstructured, body map[string]any,
	dryRun ...string,
) (*unstructured.Unstructured, error) {
	around, _ := body["metadata"].(map[string]any)
	if around == nil {
		around = map[string]any{}
		body["metadata"] = around
	}
	around["resourceVersion"], around["uid"] = read.GetResourceVersion(), string(read.GetUID())
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", o, err)
	}
	now, err := reach(client, o).Patch(ctx, o.Name, types.MergePatchType, text,
		metav1.PatchOptions{FieldManager: ManagerPatch, DryRun: dryRun}, o.subresources()...)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", o, err)
	}
	return now, nil
}

// evidence returns the evidence for each edit stored by the API server.
func evidence(o Object, edits []kubeedit.Edit) []ledger.Evidence {
	var all []ledger.Evidence
	for _, e := range edits {
		all = append(all, ledger.Evidence{
			Source: o.String(), Time: time.Now().UTC(),
			Text: fmt.Sprintf("%s: was %s, is %s", e.Path, brief(e.Was), brief(e.Ours)),
		})
	}
	return all
}

// brief shortens a value for display.
func brief(text json.RawMessage) string {
	const most = 120
	switch {
	case len(text) == 0:
		return "nothing"
	case len(text) > most:
		return strings.ToValidUTF8(string(text[:most]), "") + "..."
	}
	return string(text)
}

// Permissions returns the permissions for the patch and its undo.
func (p *Patching) Permissions() ([]fault.Permission, error) {
	o, err := p.object()
	if err != nil {
		return nil, err
	}
	all := keeperPermissions()
	patched := strings.Join(append([]string{o.Resource}, o.subresources()...), "/")
	needs := []fault.Permission{
		{Verb: "get", Group: o.Group, Resource: o.Resource, Namespace: o.Namespace},
		{Verb: "patch", Group: o.Group, Resource: patched, Namespace: o.Namespace},
	}
	if o.Subresource != "" { // the owners of fields are restored through the object itself
		needs = append(needs, fault.Permission{
			Verb: "patch", Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Optional: true,
		})
	}
	return fault.Permissions(all, needs), nil
}
