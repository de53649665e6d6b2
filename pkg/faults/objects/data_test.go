package objects

import (
	"encoding/json"
	"testing"

	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// noCluster is for what asks no cluster.
type noCluster struct{ dynamic.Interface }

// The seal of a step is that of what the ledger gives back, whatever is in it, and no other's.
func TestTheSealSurvivesTheLedger(t *testing.T) {
	t.Parallel()
	d := &Data{
		Patched: &Object{Version: "v1", Resource: "nodes", Kind: "Node", Name: "a", UID: "1"}, Sealed: true,
		Edits: kubeedit.Diff(parse(t, `{spec: {a: "<&>", b: [1, 2.5], c: {z: 1, a: "ü\u2028"}}}`),
			parse(t, `{spec: {a: "x>y", b: [2], c: {z: "&"}}}`)),
	}
	want := d.seal("scenario-bcdfgh", "1")
	raw, err := json.MarshalIndent(
		ledger.Run{Steps: []ledger.Step{{ID: "1", Undo: ledger.Undo{Kind: UndoKind, Data: kubeedit.Encode(d)}}}}, "",
		" ",
	)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = json.Marshal(json.RawMessage(raw)); err != nil { // as the ledger stores it
		t.Fatal(err)
	}
	var run ledger.Run
	if err := json.Unmarshal(raw, &run); err != nil {
		t.Fatal(err)
	}
	back, err := ReadData(run.Steps[0])
	if err != nil || back.seal("scenario-bcdfgh", "1") != want {
		t.Errorf("%v: %s, not %s", err, back.seal("scenario-bcdfgh", "1"), want)
	}
	for name, other := range map[string]seal.Seal{
		"run": back.seal("scenario-bcdfgj", "1"), "step": back.seal("scenario-bcdfgh", "2"),
	} {
		if other == want {
			t.Errorf("another %s has the same seal", name)
		}
	}
	back.Edits[0].Was = []byte(`"other"`)
	if back.seal("scenario-bcdfgh", "1") == want {
		t.Error("other values have the same seal")
	}
	made := &Data{
		Created: []Object{{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "a", Name: "x"}},
	}
	before := made.seal("r", "1")
	made.Created[0].UID = "known later"
	if made.seal("r", "1") != before || made.Created[0].mark(before) == string(before) ||
		made.Created[0].mark(before) == (Object{Name: "y"}).mark(before) {
		t.Error("the seal depends on UIDs, or objects share their marks")
	}
}

// Data that no Creation and no Patching writes is not followed.
func TestDataThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`[]`, `{}`, `{"created":[]}`, `{"created":[{}]}`, `{"created":[{"version":"v1","resource":"x","kind":"X"}]}`,
		`{"created":[{"version":"v1","resource":"x","kind":"X","name":"x"}],"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"}}`,
		`{"created":[{"version":"v1","resource":"x","kind":"X","name":"x"}],"edits":[{"path":["a"],"ours":1}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"}}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x"},"edits":[{"path":["a"],"ours":1}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":[],"ours":1}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":["a"]}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":["a"],"ours":null}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":[""],"ours":1}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":[{"name":"a"}],"ours":1}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":[7],"ours":1}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":["a"],"ours":1,"made":9}]}`,
		`{"patched":{"version":"v1","resource":"x","kind":"X","name":"x","uid":"1"},"edits":[{"path":["metadata"],"ours":1}]}`,
	} {
		step := ledger.Step{ID: "1", Undo: ledger.Undo{Kind: UndoKind, Data: []byte(text)}}
		if d, err := ReadData(step); err == nil {
			t.Errorf("%s is believed: %+v", text, d)
		}
		if said := (Undoer{}).Describe(step); said == "" {
			t.Errorf("%s: nothing is said of it", text)
		}
		if got := Objects(ledger.Run{ID: "r"}, step); len(got) > 0 {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// What an undo would do is told in few words, also of many objects.
func TestDescribe(t *testing.T) {
	t.Parallel()
	own := Data{Created: []Object{{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: "a"},
		{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "a", Name: "x"}}}
	for range 10 {
		own.Created = append(own.Created,
			Object{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "b", Name: "y"})
	}
	patch := Data{Patched: &Object{Version: "v1", Resource: "nodes", Kind: "Node", Name: "a", UID: "1"},
		Edits: []kubeedit.Edit{{Path: kubeedit.Fields("metadata", "labels", "a.b/c"), Ours: []byte(`"x"`)}}}
	for want, data := range map[string]json.RawMessage{
		"delete Namespace a with everything in it, ConfigMap b/y, ConfigMap b/y, ConfigMap b/y, ConfigMap b/y, ConfigMap b/y and 5 more": kubeedit.Encode(own),
		`restore metadata.labels["a.b/c"] of Node a unless other clients have changed it`: kubeedit.Encode(
			patch,
		),
		"nothing was changed yet": nil,
	} {
		if got := (Undoer{}).Describe(ledger.Step{Undo: ledger.Undo{Kind: UndoKind, Data: data}}); got != want {
			t.Errorf("%s", got)
		}
	}
}
