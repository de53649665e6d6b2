package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// owners returns the fields of each entry, by its name.
func owners(t *testing.T, object *unstructured.Unstructured) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, e := range object.GetManagedFields() {
		var fields any
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err != nil {
			t.Fatal(err)
		}
		all[strings.Join([]string{e.Manager, string(e.Operation), e.APIVersion, e.Subresource}, " ")] = fields
	}
	return all
}

// owned returns a Deployment that Argo CD applies, that a controller updates and scales, and that somebody has patched
// with kubectl.
func (s *server) owned() Object {
	o := s.has(
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: team, annotations: {nobodys: "1"}}}`,
	)
	s.sends("argocd", types.ApplyPatchType, o, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"team","labels":{"team":"a"}},"spec":{
		"replicas":2,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[
		{"name":"main","image":"a:1","env":[{"name":"A","value":"1"}],"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}}}`)
	s.sends("controller", types.MergePatchType, o, `{"metadata":{"annotations":{"seen":"1"}}}`)
	s.sends("controller", types.MergePatchType, o, `{"status":{"replicas":2}}`, fieldStatus)
	s.sends(ManagerPatch, types.MergePatchType, o,
		`{"metadata":{"annotations":{"mine":"1","both":"1"}},"spec":{"paused":false}}`)
	if got := owners(s.T, s.get(o)); len(got) != 5 { // before-first-apply is the fifth
		s.Fatalf("the server does not tell owners: %v", got)
	}
	return o
}

// ours returns a patch that takes fields from all of them.
func (s *server) ours() *Patching {
	return &Patching{Dynamic: s, Mapper: s.mapper, APIVersion: "apps/v1", Kind: "Deployment", Namespace: "team",
		Name: "web", Merge: map[string]any{
			"metadata": map[string]any{
				"labels":      map[string]any{"team": nil},
				"annotations": map[string]any{"seen": "2", "mine": nil, "both": "2", "new": "x", "nobodys": nil},
			},
			"spec": map[string]any{"replicas": int64(0),
				"template": map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{"gpu": "none"},
					"containers": []any{
						map[string]any{
							"name": "main", "image": "a:2",
							"resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "2"}},
						}}}}},
		}}
}

// breaks applies a patch, and returns its record.
func (s *server) breaks(p *Patching) *book {
	s.Helper()
	b := &book{
		run: ledger.Run{ID: "scenario-bcdfgh", Steps: []ledger.Step{{ID: "1", Undo: ledger.Undo{Kind: UndoKind}}}},
	}
	if _, err := p.apply(s.Context(), b); err != nil {
		s.Fatal(err)
	}
	return b
}

func (s *server) undo(b *book) (ledger.State, string) {
	s.Helper()
	state, said, err := Undoer{Dynamic: s}.Undo(s.Context(), b.run, b.run.Steps[0])
	if err != nil {
		s.Fatal(err)
	}
	return state, said
}

func (s *server) same(o Object, want map[string]any) {
	s.Helper()
	if diff := cmp.Diff(want, owners(s.T, s.get(o))); diff != "" {
		s.Errorf("its fields are not owned as before:\n%s", diff)
	}
}

// After the undo each field is owned by who owned it before, also what kubectl had patched before; and nothing is left
// of us.
func TestOwnershipIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	before := s.get(o)
	b := s.breaks(s.ours())
	if cmp.Equal(owners(t, before), owners(t, s.get(o))) {
		t.Fatal("nobody has lost anything")
	}
	data, err := ReadData(b.run.Steps[0])
	if err != nil || data.Ownership == nil || len(data.Ownership.Lost) < 2 {
		t.Fatalf("%v: %s", err, b.run.Steps[0].Undo.Data)
	}
	t.Logf("%s", kubeedit.Encode(data.Ownership))
	if state, said := s.undo(b); state != ledger.StateReverted || strings.Contains(said, "own") {
		t.Errorf("%s: %s", state, said)
	}
	s.same(o, owners(t, before))
	after := s.get(o)
	for _, object := range []*unstructured.Unstructured{before, after} {
		object.SetResourceVersion("")
		object.SetManagedFields(nil) // their times differ
	}
	if diff := cmp.Diff(before.Object, after.Object); diff != "" {
		t.Errorf("the object is not as before:\n%s", diff)
	}
	writes := len(s.writes)
	if state, said := s.undo(b); state != ledger.StateReverted || len(s.writes) != writes {
		t.Errorf("once more: %s, %s, %d writes", state, said, len(s.writes)-writes)
	}
}

// The entry that kubectl had before keeps its time, when nothing else is in it.
func TestAnEarlierPatchKeepsItsTime(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	long := metav1.Date(2020, 1, 2, 3, 4, 5, 0, metav1.Now().Location())
	live := s.get(o)
	fields := live.GetManagedFields()
	is := slices.IndexFunc(fields, o.ours().Is)
	fields[is].Time = &long
	live.SetManagedFields(fields)
	if err := s.Tracker().Update(o.GVR(), live, o.Namespace); err != nil {
		t.Fatal(err)
	}
	b := s.breaks(s.ours())
	s.undo(b)
	fields = s.get(o).GetManagedFields()
	if is = slices.IndexFunc(fields, o.ours().Is); is < 0 || !fields[is].Time.Equal(&long) {
		t.Errorf("%v", fields)
	}
}

// What others have taken since stays with them: a field with another value, one with the former value, one that they
// own beside us; and what somebody has patched with kubectl meanwhile stays kubectl's.
func TestWhatOthersHaveTakenStaysWithThem(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	want := owners(t, s.get(o))
	b := s.breaks(s.ours())
	s.sends("thief", types.MergePatchType, o, `{"metadata":{"annotations":{"seen":"3"}},"spec":{"replicas":2}}`)
	s.sends("sharer", types.ApplyPatchType, o,
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"nodeSelector":{"gpu":"none"}}}}}`)
	s.sends(ManagerPatch, types.MergePatchType, o, `{"metadata":{"annotations":{"meanwhile":"1"}}}`)
	state, said := s.undo(b)
	if state != ledger.StateSuperseded || !strings.Contains(said, "seen") {
		t.Errorf("%s: %s", state, said)
	}
	dig := func(of string, path ...string) map[string]any {
		m, _ := want[of].(map[string]any)
		for _, step := range path {
			m, _ = m[step].(map[string]any)
		}
		return m
	}
	delete(want, "controller Update apps/v1 ") // it had only this annotation
	delete(dig("argocd Apply apps/v1 ", "f:spec"), "f:replicas")
	dig(ManagerPatch+" Update apps/v1 ", "f:metadata", "f:annotations")["f:meanwhile"] = map[string]any{}
	want["thief Update apps/v1 "] = parse(t,
		`{"f:metadata":{"f:annotations":{"f:seen":{}}},"f:spec":{"f:replicas":{}}}`)
	s.same(o, want)
}

// A candidate who mends a value with kubectl patch has used our very name: what stays of that is kubectl's.
func TestWhatKubectlHasMendedIsItsOwn(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	want := owners(t, s.get(o))
	b := s.breaks(s.ours())
	s.sends(ManagerPatch, types.MergePatchType, o, `{"spec":{"replicas":5}}`)
	if state, said := s.undo(b); state != ledger.StateSuperseded || !strings.Contains(said, "replicas") {
		t.Errorf("%s: %s", state, said)
	}
	delete(want["argocd Apply apps/v1 "].(map[string]any)["f:spec"].(map[string]any), "f:replicas")
	own := want[ManagerPatch+" Update apps/v1 "].(map[string]any)
	if own["f:spec"] == nil {
		own["f:spec"] = map[string]any{}
	}
	own["f:spec"].(map[string]any)["f:replicas"] = map[string]any{}
	s.same(o, want)
}

// Who dies between the two writes of an undo leaves the fields to the next one.
func TestALostSecondWriteIsMadeUpFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	want := owners(t, s.get(o))
	patch := s.ours()
	// Only who puts it back knows of it
	delete(patch.Merge["metadata"].(map[string]any)["annotations"].(map[string]any), "nobodys")
	b := s.breaks(patch)
	dies := true
	s.before = func(p clienttesting.PatchActionImpl) error {
		if dies && strings.Contains(string(p.Patch), "managedFields") {
			return errors.New("killed")
		}
		return nil
	}
	if _, _, err := (Undoer{Dynamic: s}).Undo(t.Context(), b.run, b.run.Steps[0]); err == nil {
		t.Fatal("it says nothing")
	}
	if cmp.Equal(want, owners(t, s.get(o))) {
		t.Fatal("it was given back already")
	}
	dies = false
	if state, said := s.undo(b); state != ledger.StateReverted {
		t.Errorf("%s: %s", state, said)
	}
	s.same(o, want)
}

// Others come between the two writes; a refusal of the second is said, and the values count.
func TestTheSecondWriteMeetsOthers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"conflict": nil,
		"forbidden": apierrors.NewForbidden(
			Object{Resource: "deployments", Group: "apps"}.GVR().GroupResource(), "web", errors.New("no"),
		),
		"a webhook that is down": apierrors.NewInternalError(errors.New("failed calling webhook")),
		"conflicts without end": apierrors.NewConflict(
			Object{Resource: "deployments", Group: "apps"}.GVR().GroupResource(), "web", errors.New("no"),
		),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			o := s.owned()
			want := owners(t, s.get(o))
			b := s.breaks(s.ours())
			asked := 0
			s.before = func(p clienttesting.PatchActionImpl) error {
				if !strings.Contains(string(p.Patch), "managedFields") {
					return nil
				}
				if asked++; asked == 1 && answer == nil {
					s.before = nil
					s.sends("controller", types.MergePatchType, o, `{"status":{"readyReplicas":2}}`, fieldStatus)
				}
				return answer
			}
			state, said := s.undo(b)
			if state != ledger.StateReverted || strings.Contains(said, "could not be restored") != (answer != nil) {
				t.Errorf("%s: %s", state, said)
			}
			if answer == nil {
				status := want["controller Update apps/v1 status"].(map[string]any)["f:status"].(map[string]any)
				status["f:readyReplicas"] = map[string]any{}
				s.same(o, want)
			}
		})
	}
}

// Of a Node's status the entries are those of the subresource, and are given back by the object.
func TestOwnershipOfANodesStatus(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.has(`{apiVersion: v1, kind: Node, metadata: {name: n1}}`)
	s.sends("somebody", types.ApplyPatchType, o, `{"apiVersion":"v1","kind":"Node","metadata":{"labels":{"a":"b"}}}`)
	s.sends("kubelet", types.MergePatchType, o,
		`{"status":{"capacity":{"cpu":"2","nvidia.com/gpu":"8"},"allocatable":{"cpu":"2"}}}`, fieldStatus)
	s.sends(ManagerPatch, types.MergePatchType, o, `{"metadata":{"labels":{"mine":"1"}}}`)
	want := owners(t, s.get(o))
	p := &Patching{Dynamic: s, Mapper: s.mapper, APIVersion: "v1", Kind: kindNode, Name: "n1", Subresource: fieldStatus,
		Merge: map[string]any{
			"status": map[string]any{
				"capacity": map[string]any{gpuResource: "4"}, "allocatable": map[string]any{gpuResource: "4"},
			}}}
	b := s.breaks(p)
	if _, is := owners(t, s.get(o))[ManagerPatch+" Update v1 status"]; !is {
		t.Fatalf("%v", owners(t, s.get(o)))
	}
	if state, said := s.undo(b); state != ledger.StateReverted {
		t.Errorf("%s: %s", state, said)
	}
	s.same(o, want)
	needs, err := p.Permissions()
	if err != nil || !slices.Contains(needs, fault.Permission{Verb: "patch", Resource: "nodes", Optional: true}) {
		t.Errorf("%v %v", needs, err)
	}
}

// A record without a seal moves nothing, and a forged one is not followed.
func TestForgedOwnership(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	b := s.breaks(s.ours())
	s.undo(b) // its seal is gone
	mine := owners(t, s.get(o))
	d, err := ReadData(b.run.Steps[0])
	if err != nil {
		t.Fatal(err)
	}
	honest := d.Ownership
	d.Ownership = &Ownership{Gained: json.RawMessage(`{"f:metadata":{"f:annotations":{"f:mine":{}}}}`)}
	b.run.Steps[0].Undo.Data = kubeedit.Encode(d)
	if _, said := s.undo(b); !strings.Contains(said, "does not have the record's seal") {
		t.Errorf("%s", said)
	}
	s.same(o, mine)
	if d.seal("r", "1") == (&Data{Patched: d.Patched, Edits: d.Edits, Ownership: honest}).seal("r", "1") {
		t.Error("another ownership has the same seal")
	}
	for name, forged := range map[string]*Ownership{
		"gained": {Gained: json.RawMessage(`[]`)}, "own": {Own: json.RawMessage(`{"a":{}}`)}, "sum": {Sum: "x"},
		"large":  {Gained: json.RawMessage(fmt.Sprintf(`{"f:%s":{}}`, strings.Repeat("x", maxOwnership)))},
		"nobody": {Lost: slices.Clone(honest.Lost[:1])},
	} {
		if name == "nobody" {
			forged.Lost[0].Operation = ""
		}
		d.Ownership = forged
		if _, err := ReadData(ledger.Step{Undo: ledger.Undo{Data: kubeedit.Encode(d)}}); err == nil {
			t.Errorf("%s is believed", name)
		}
	}
	created := Data{
		Created:   []Object{{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "a", Name: "x"}},
		Ownership: honest,
	}
	if _, err := ReadData(ledger.Step{Undo: ledger.Undo{Data: kubeedit.Encode(created)}}); err == nil {
		t.Error("ownership of what was created is believed")
	}
}

// Where it has no room, the ownership is left out, and the patch is made and undone without.
func TestOwnershipThatHasNoRoom(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.owned()
	b := &book{
		run: ledger.Run{ID: "scenario-bcdfgh", Steps: []ledger.Step{{ID: "1", Undo: ledger.Undo{Kind: UndoKind}}}},
	}
	b.save = func(step *ledger.Step) error {
		if strings.Contains(string(step.Undo.Data), "ownership") {
			return fmt.Errorf("save: %w", &ledger.TooLargeError{ID: "x"})
		}
		return nil
	}
	if _, err := s.ours().apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if state, said := s.undo(b); state != ledger.StateReverted || s.get(o).GetLabels()["team"] != "a" {
		t.Errorf("%s: %s", state, said)
	}
	wide := s.has(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: wide, namespace: team}}`)
	labels := map[string]any{}
	for i := range 600 {
		labels[fmt.Sprintf("example.com/%030d", i)] = nil
	}
	text := strings.ReplaceAll(string(
		kubeedit.Encode(
			map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"labels": labels}},
		),
	), "null", `"1"`)
	s.sends("argocd", types.ApplyPatchType, wide, text)
	patch := s.ours()
	patch.Name, patch.Merge = "wide", map[string]any{"metadata": map[string]any{"labels": labels}}
	if d, err := ReadData(s.breaks(patch).run.Steps[0]); err != nil || d.Ownership != nil {
		t.Errorf("%v, %+v", err, d)
	}
}
