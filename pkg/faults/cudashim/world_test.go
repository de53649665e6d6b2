package cudashim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// parseYAML reads an object as the API server's answers are read: whole numbers are int64.
func parseYAML(t testing.TB, document string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSONStrict([]byte(document))
	if err == nil {
		err = object.UnmarshalJSON(raw)
	}
	if err != nil {
		t.Fatalf("%v in:\n%s", err, document)
	}
	return object
}

// kind reads a workload of testdata/kinds.
func kind(t testing.TB, name string) *Workload {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "kinds", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return workloadOf(parseYAML(t, string(text)))
}

func workloadOf(object *unstructured.Unstructured) *Workload {
	gvk := object.GroupVersionKind()
	return &Workload{
		Object: object, Templates: Templates(object),
		Resource: schema.GroupVersionResource{
			Group: gvk.Group, Version: gvk.Version, Resource: strings.ToLower(gvk.Kind) + "s",
		},
	}
}

const run = "cuda-abc234"

// injected puts a run's additions into a copy of an object in memory, pinned hard where pin is set.
func injected(t testing.TB, w *Workload, s Selection, pin bool) (*Workload, *Data) {
	t.Helper()
	in := &Injection{
		Libraries: map[string][]byte{"amd64": nil}, Preloads: map[string]string{"torch": "/image.so"}, Selection: s,
	}
	a := in.newAdditions(run)
	if pin {
		a.expr, a.hard = map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []any{"n1"}}, true
	}
	object, edits, _, err := in.put(w, a)
	if err != nil {
		t.Fatal(err)
	}
	d := &Data{
		Group: w.Resource.Group, Version: w.Resource.Version, Resource: w.Resource.Resource, Kind: w.Object.GetKind(),
		Namespace: "team", Name: "web", UID: "u1",
		ConfigMap: Name(run), Edits: edits, Variable: a.variable, Preload: a.preload, Before: sum(w.Object),
		Replaced: w.Replacement(),
	}
	if pin {
		d.Pin = kubeedit.Encode(a.expr)
	}
	if err := d.validate(); err != nil {
		t.Fatal(err)
	}
	return workloadOf(&unstructured.Unstructured{Object: object}), d
}
