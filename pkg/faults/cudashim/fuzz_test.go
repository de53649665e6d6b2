package cudashim

import (
	"encoding/json"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Whatever an object looks like, looking for templates does not panic, and what can be injected can be undone exactly.
func FuzzTemplates(f *testing.F) {
	files, err := os.ReadDir("testdata/kinds")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile("testdata/kinds/" + file.Name())
		if err != nil {
			f.Fatal(err)
		}
		if raw, err := yaml.YAMLToJSON(text); err == nil {
			f.Add(raw)
		}
	}
	f.Add([]byte(
		`{"kind":"X","apiVersion":"v1","spec":{"":{"spec":{"containers":[{"name":"a","image":"b"}]}},"a":[[{"containers":[{"name":"a","image":"b","env":null,"volumeMounts":{}}]}]]}}`,
	))
	f.Fuzz(func(t *testing.T, raw []byte) {
		object := &unstructured.Unstructured{}
		if json.Unmarshal(raw, &object.Object) != nil || object.Object == nil {
			return
		}
		object.Object, _ = kubeedit.Decode(raw).(map[string]any)
		w := &Workload{Object: object, Templates: Templates(object)}
		if len(w.Templates) == 0 {
			return
		}
		before := kubeedit.Encode(object.Object)
		in := &Injection{Libraries: map[string][]byte{"amd64": nil}}
		a := in.newAdditions(run)
		a.expr = map[string]any{"key": "k", "operator": "Exists"}
		o, edits, _, err := in.put(w, a)
		if err != nil || hasNull(object.Object) {
			return
		}
		d := &Data{
			Edits: edits, Variable: a.variable, Preload: a.preload, ConfigMap: Name(run), Pin: kubeedit.Encode(a.expr),
		}
		removed := d.removeEdits(&unstructured.Unstructured{Object: o}, run)
		if after := kubeedit.Encode(removed.object); string(after) != string(before) {
			t.Errorf("before %s\nafter  %s", before, after)
		}
	})
}

// hasNull reports whether an object has nulls, which the API server drops before it stores: they are not restored.
func hasNull(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		for _, v := range value {
			if hasNull(v) {
				return true
			}
		}
	case []any:
		for _, v := range value {
			if hasNull(v) {
				return true
			}
		}
	}
	return false
}

// Whatever a record says, it is refused or followed without a panic.
func FuzzUndoData(f *testing.F) {
	f.Add([]byte(
		`{"version":"v1","resource":"x","kind":"X","namespace":"n","name":"n","uid":"u","configMap":"c","variable":"LD_PRELOAD","preload":"/gpu-fault/lib/libgpufault.so","edits":[{"path":["spec","template","spec","volumes",{"name":"gpu-fault-lib"}],"ours":{"a":1},"made":3}]}`,
	))
	f.Add([]byte(
		`{"version":"v1","resource":"x","kind":"X","namespace":"n","name":"n","uid":"u","configMap":"c","variable":"LD_PRELOAD","preload":"/gpu-fault/lib/libgpufault.so","pin":null,"edits":[{"path":["spec","template"],"ours":null,"was":"x","element":true}],"owned":[{"fields":{"f:a":{".":{}}}}]}`,
	))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var read Data
		_ = json.Unmarshal(raw, &read)
		step := ledger.Step{Target: targetOf(&read), Undo: ledger.Undo{Kind: UndoKind, Data: raw}}
		d, err := ReadData(step)
		if err != nil || d == nil {
			return
		}
		w := kind(t, "deployment")
		removed := d.removeEdits(w.Object, run)
		_, _ = d.verdict(removed, w.Object)
		_ = removed.mountsConfigMap()
		giveBack(nil, d.Owned)
		_ = Undoer{}.Describe(step)
	})
}
