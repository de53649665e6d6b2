package cudashim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// What somebody changed while the fault was in place stays, and the report says where, theirs and ours; all else of
// ours goes.
func TestUndoIsThreeWay(t *testing.T) {
	t.Parallel()
	spec := kubeedit.Fields("spec", "template", "spec")
	main := spec.Then(kubeedit.Field("containers"), kubeedit.Element("name", "main"))
	preload := main.Then(kubeedit.Field("env"), kubeedit.Element("name", "LD_PRELOAD"))
	for name, test := range map[string]struct {
		change func(o map[string]any)
		kept   []string // parts of the report
		has    []string // of the object afterwards
		hasNot []string
	}{
		"nothing": {func(map[string]any) {}, nil, []string{"libtcmalloc"}, nil},
		"preload changed": {
			func(o map[string]any) { kubeedit.Replace(o, preload.Then(kubeedit.Field("value")), "/theirs.so") },
			[]string{
				`spec.template.spec.containers[name=main].env[name=LD_PRELOAD].value: not changed, because another client set it to "/theirs.so"; the injection had set it to "/gpu-fault/lib/libgpufault.so:/usr/lib/libtcmalloc.so"`,
			},
			[]string{"/theirs.so"}, []string{"libtcmalloc"},
		},
		"preload extended": {
			func(o map[string]any) {
				kubeedit.Replace(o, preload.Then(kubeedit.Field("value")), "/gpu-fault/lib/libgpufault.so:/theirs.so")
			},
			[]string{"only the shim was removed from the value"}, []string{`"LD_PRELOAD","value":"/theirs.so"`}, nil,
		},
		"preload removed": {
			func(o map[string]any) { kubeedit.Remove(o, preload) },
			// It was given twice
			[]string{`another client set it to "/first.so"; the injection`}, []string{"/first.so"},
			[]string{"libtcmalloc"},
		},
		"restored by hand": {func(o map[string]any) {
			kubeedit.Replace(o, preload.Then(kubeedit.Field("value")), "/usr/lib/libtcmalloc.so")
		}, nil, []string{"libtcmalloc"}, nil},
		"container renamed": {
			func(o map[string]any) { kubeedit.Replace(o, main.Then(kubeedit.Field("name")), "other") },
			[]string{"removed by another client", "only the shim was removed"},
			[]string{`"other"`, "/usr/lib/libtcmalloc.so"}, nil,
		},
		"container removed": {
			func(o map[string]any) { kubeedit.Remove(o, main) }, []string{
				"removed by another client",
			}, []string{"exporter"},
			[]string{"libtcmalloc"},
		},
		"container added": {func(o map[string]any) {
			put(t, o, spec.Then(kubeedit.Field("containers"), kubeedit.Element("name", "new")),
				map[string]any{"name": "new"})
		}, nil, []string{`"new"`}, nil},
		"containers swapped": {
			func(o map[string]any) {
				list := kubeedit.List(o, spec.Then(kubeedit.Field("containers")))
				kubeedit.Replace(o, spec.Then(kubeedit.Field("containers")), []any{list[1], list[0]})
			}, nil, []string{"libtcmalloc"}, nil,
		},
		"mount changed": {
			func(o map[string]any) {
				kubeedit.Replace(o,
					main.Then(kubeedit.Field("volumeMounts"), kubeedit.Element("mountPath", LibraryDir),
						kubeedit.Field("readOnly")), false)
			},
			[]string{
				"volumeMounts[mountPath=/gpu-fault/lib]: not changed, because another client set it to",
				"volumes[name=gpu-fault-lib]: not removed, because it is still mounted at /gpu-fault/lib",
			},
			[]string{`"readOnly":false`, Name(run)}, []string{"gpu-fault-run", "GPU_FAULT_NODE"},
		},
		"volume changed": {
			func(o map[string]any) {
				kubeedit.Replace(o, spec.Then(kubeedit.Field("volumes"), kubeedit.Element("name", volumeRun)),
					map[string]any{"name": volumeRun, "emptyDir": map[string]any{}})
			},
			[]string{"volumes[name=gpu-fault-run]: not changed, because another client set it to"},
			[]string{`"emptyDir":{},"name":"gpu-fault-run"`}, nil,
		},
		"term added": {
			func(o map[string]any) {
				add(t, o, requiredTerms(spec),
					map[string]any{"matchExpressions": []any{map[string]any{"key": "theirs", "operator": "Exists"}}})
			},
			[]string{"nodeSelectorTerms: not changed, because another client set it to"},
			[]string{`"theirs"`, `"zone"`, `"metadata.name"`},
			[]string{"hostname"},
		},
		"pinned elsewhere": {
			func(o map[string]any) {
				kubeedit.Replace(o, requiredTerms(spec), []any{map[string]any{"matchExpressions": []any{
					map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []any{"n2"}},
				}}})
			},
			[]string{"nodeSelectorTerms: not changed, because another client set it to"}, []string{`"n2"`}, nil,
		},
		"label changed": {
			func(o map[string]any) {
				kubeedit.Replace(o, kubeedit.Fields("spec", "template", "metadata", "labels", "gpufault.dev/run"), "x")
			},
			[]string{`labels["gpufault.dev/run"]: not changed, because another client set it to`},
			[]string{`"gpufault.dev/run":"x"`}, nil,
		},
		"more in a list of ours": {
			func(o map[string]any) {
				add(t, o, spec.Then(kubeedit.Field("volumes")), map[string]any{"name": "new"})
			}, nil, []string{`"name":"new"`}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := kind(t, "deployment")
			with, d := injected(t, w, Selection{}, true)
			test.change(with.Object.Object)
			removed := fromLedger(t, d).removeEdits(with.Object, run)
			report, after := strings.Join(removed.kept, "\n"), string(kubeedit.Encode(removed.object))
			if len(test.kept) == 0 && report != "" {
				t.Errorf("it reports %s", report)
			}
			for _, part := range test.kept {
				if !strings.Contains(report, part) {
					t.Errorf("the report lacks %q:\n%s", part, report)
				}
			}
			for _, part := range test.has {
				if !strings.Contains(after, part) {
					t.Errorf("%s is gone:\n%s", part, after)
				}
			}
			if len(test.kept) == 0 || name == "container renamed" {
				test.hasNot = append(test.hasNot, "gpu-fault", "GPU_FAULT", "gpufault", "hostname")
			}
			for _, part := range append(test.hasNot, "/gpu-fault/lib/libgpufault.so") {
				if strings.Contains(after, part) {
					t.Errorf("%s is left:\n%s", part, after)
				}
			}
			if again := d.removeEdits(&unstructured.Unstructured{Object: removed.object}, run); again.changed {
				t.Errorf("a second time it still changes the object: %s", kubeedit.Encode(again.object))
			}
		})
	}
}

func put(t *testing.T, object map[string]any, at kubeedit.Path, value any) {
	t.Helper()
	if _, err := kubeedit.Put(object, at, value); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, object map[string]any, at kubeedit.Path, value any) {
	t.Helper()
	if _, err := kubeedit.Append(object, at, value); err != nil {
		t.Fatal(err)
	}
}

// A term without conditions matches no node. Pinned, it must not begin to match ours; and a requirement that the user
// had before is not ours to take.
func TestPin(t *testing.T) {
	t.Parallel()
	expr := map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []any{"n1"}}
	for name, test := range map[string]struct {
		terms, pinned string
		hard          bool
	}{
		"none": {`null`, `[{"matchExpressions":[E]}]`, true},
		"each of them": {
			`[{"matchExpressions":[{"key":"a","operator":"Exists"}]},{"matchFields":[{"key":"f","operator":"In","values":["x"]}]}]`,
			`[{"matchExpressions":[{"key":"a","operator":"Exists"},E]},{"matchExpressions":[E],"matchFields":[{"key":"f","operator":"In","values":["x"]}]}]`,
			true,
		},
		"one without any": {
			`[{},{"matchExpressions":[{"key":"a","operator":"Exists"}]}]`,
			`[{},{"matchExpressions":[{"key":"a","operator":"Exists"},E]}]`, true,
		},
		"the user's equal": {`[{"matchExpressions":[E]}]`, `[{"matchExpressions":[E]}]`, true},
		"soft":             {`null`, `[{"preference":{"matchExpressions":[E]},"weight":100}]`, false},
		"soft, with others": {`[{"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]},"weight":1}]`,
			`[{"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]},"weight":1},{"preference":{"matchExpressions":[E]},"weight":100}]`,
			false},
	} {
		full := func(text string) json.RawMessage {
			return json.RawMessage(strings.ReplaceAll(text, "E]", string(kubeedit.Encode(expr))+"]"))
		}
		full2 := func(text string) json.RawMessage {
			return json.RawMessage(strings.ReplaceAll(text, "[E", "["+string(kubeedit.Encode(expr))))
		}
		w := kind(t, "statefulset")
		spec := w.Templates[0].spec
		at := preferredTerms(spec)
		if test.hard {
			at = requiredTerms(spec)
		}
		if test.terms != "null" {
			put(t, w.Object.Object, at, kubeedit.Decode(full2(test.terms)))
		}
		before := string(kubeedit.Encode(w.Object.Object))
		in := &Injection{Libraries: map[string][]byte{"amd64": nil}}
		a := in.newAdditions(run)
		a.expr, a.hard = expr, test.hard
		o, edits, _, err := in.put(w, a)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := kubeedit.Get(o, at); !kubeedit.Same(got, full(test.pinned)) {
			t.Errorf("%s: pinned to %s, not %s", name, kubeedit.Encode(got), full(test.pinned))
		}
		d := &Data{
			Edits: edits, Variable: a.variable, Preload: a.preload, Pin: kubeedit.Encode(expr), ConfigMap: Name(run),
		}
		removed := d.removeEdits(&unstructured.Unstructured{Object: o}, run)
		if string(kubeedit.Encode(removed.object)) != before || len(removed.kept) > 0 {
			t.Errorf("%s: after the undo %s, kept %v", name, kubeedit.Encode(removed.object), removed.kept)
		}
	}
	w := kind(t, "statefulset")
	kubeedit.Map(w.Object.Object, w.Templates[0].spec)["nodeName"] = "n2"
	in := &Injection{Libraries: map[string][]byte{"amd64": nil}}
	a := in.newAdditions(run)
	a.expr = expr
	if _, _, _, err := in.put(w, a); err == nil || !strings.Contains(err.Error(), "n2") {
		t.Errorf("a template that names its node: %v", err)
	}
}

// The patch sent is the change made in memory: applied to the object it gives the same, whatever the order of its
// lists.
func TestPatchIsWhatWasDoneInMemory(t *testing.T) {
	t.Parallel()
	w := kind(t, "deployment")
	in := &Injection{Libraries: map[string][]byte{"amd64": nil, "arm64": nil}}
	o, _, _, err := in.put(w, in.newAdditions(run))
	if err != nil {
		t.Fatal(err)
	}
	got := applyPatch(t, w.Object.DeepCopy().Object, replaceFields(w.Object.Object, o))
	if string(kubeedit.Encode(got)) != string(kubeedit.Encode(o)) {
		t.Errorf("in memory %s\nby patch %s", kubeedit.Encode(o), kubeedit.Encode(got))
	}
}

// applyPatch applies a JSON patch by its pointers alone, with code of its own.
func applyPatch(t *testing.T, object map[string]any, ops []operation) map[string]any {
	t.Helper()
	for _, o := range ops {
		var value any
		if o.Op != "remove" {
			if err := json.Unmarshal(o.Value, &value); err != nil {
				t.Fatal(err)
			}
		}
		object, _ = applyAt(t, object, strings.Split(o.Path, "/")[1:], o.Op, value).(map[string]any)
	}
	return object
}

func applyAt(t *testing.T, node any, steps []string, op string, value any) any {
	t.Helper()
	step := strings.NewReplacer("~1", "/", "~0", "~").Replace(steps[0])
	switch node := node.(type) {
	case map[string]any:
		switch {
		case len(steps) > 1:
			node[step] = applyAt(t, node[step], steps[1:], op, value)
		case op == "remove":
			delete(node, step)
		default:
			node[step] = value
		}
		return node
	case []any:
		if step == "-" {
			return append(node, value)
		}
		var i int
		if _, err := fmt.Sscan(step, &i); err != nil || i >= len(node) {
			t.Fatalf("no element %s", step)
		}
		switch {
		case len(steps) > 1:
			node[i] = applyAt(t, node[i], steps[1:], op, value)
		case op == "remove":
			return append(node[:i:i], node[i+1:]...)
		default:
			node[i] = value
		}
		return node
	}
	t.Fatalf("nothing at %s", step)
	return nil
}
