package cudashim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What somebody changed while the fault was in place stays, and the report says where, theirs and ours; all else of
// ours goes.
func TestUndoIsThreeWay(t *testing.T) {
	t.Parallel()
	spec := path("spec", "template", "spec")
	main := spec.then(field("containers"), element("name", "main"))
	preload := main.then(field("env"), element("name", "LD_PRELOAD"))
	for name, test := range map[string]struct {
		change func(p *patcher) error
		kept   []string // parts of the report
		has    []string // of the object afterwards
		hasNot []string
	}{
		"nothing": {func(*patcher) error { return nil }, nil, []string{"libtcmalloc"}, nil},
		"preload changed": {
			func(p *patcher) error { return p.write("replace", preload.then(field("value")), "/theirs.so") },
			[]string{
				`spec.template.spec.containers[name=main].env[name=LD_PRELOAD].value: somebody changed it meanwhile: theirs "/theirs.so", ours "/gpu-fault/lib/libgpufault.so:/usr/lib/libtcmalloc.so"`,
			},
			[]string{"/theirs.so"}, []string{"libtcmalloc"},
		},
		"preload extended": {
			func(p *patcher) error {
				return p.write("replace", preload.then(field("value")), "/gpu-fault/lib/libgpufault.so:/theirs.so")
			},
			[]string{"our library was taken out of it"}, []string{`"LD_PRELOAD","value":"/theirs.so"`}, nil,
		},
		"preload removed": {
			func(p *patcher) error { return p.remove(preload) },
			[]string{`theirs "/first.so", ours`}, []string{"/first.so"}, []string{"libtcmalloc"}, // it was given twice
		},
		"restored by hand": {func(p *patcher) error {
			return p.write("replace", preload.then(field("value")), "/usr/lib/libtcmalloc.so")
		}, nil, []string{"libtcmalloc"}, nil},
		"container renamed": {
			func(p *patcher) error { return p.write("replace", main.then(field("name")), "other") },
			[]string{"somebody removed it", "our library was taken out"},
			[]string{`"other"`, "/usr/lib/libtcmalloc.so"}, nil,
		},
		"container removed": {
			func(p *patcher) error { return p.remove(main) }, []string{"somebody removed it"}, []string{"exporter"},
			[]string{"libtcmalloc"},
		},
		"container added": {func(p *patcher) error {
			_, err := p.set(spec.then(field("containers"), element("name", "new")), map[string]any{"name": "new"})
			return err
		}, nil, []string{`"new"`}, nil},
		"containers swapped": {
			func(p *patcher) error {
				list := getList(p.object, spec.then(field("containers")))
				return p.write("replace", spec.then(field("containers")), []any{list[1], list[0]})
			}, nil, []string{"libtcmalloc"}, nil,
		},
		"mount changed": {
			func(p *patcher) error {
				return p.write("replace",
					main.then(field("volumeMounts"), element("mountPath", LibraryDir), field("readOnly")), false)
			},
			[]string{
				"volumeMounts[mountPath=/gpu-fault/lib]: somebody changed it",
				"volumes[name=gpu-fault-lib]: it is still mounted, at /gpu-fault/lib; it was left",
			},
			[]string{`"readOnly":false`, Name(run)}, []string{"gpu-fault-run", "GPU_FAULT_NODE"},
		},
		"volume changed": {
			func(p *patcher) error {
				return p.write("replace", spec.then(field("volumes"), element("name", volumeRun)),
					map[string]any{"name": volumeRun, "emptyDir": map[string]any{}})
			},
			[]string{"volumes[name=gpu-fault-run]: somebody changed it"},
			[]string{`"emptyDir":{},"name":"gpu-fault-run"`}, nil,
		},
		"term added": {
			func(p *patcher) error {
				_, err := p.add(requiredTerms(spec),
					map[string]any{"matchExpressions": []any{map[string]any{"key": "theirs", "operator": "Exists"}}})
				return err
			},
			[]string{"nodeSelectorTerms: somebody changed it"}, []string{`"theirs"`, `"zone"`, `"metadata.name"`},
			[]string{"hostname"},
		},
		"pinned elsewhere": {
			func(p *patcher) error {
				return p.write("replace", requiredTerms(spec), []any{map[string]any{"matchExpressions": []any{
					map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []any{"n2"}},
				}}})
			},
			[]string{"nodeSelectorTerms: somebody changed it"}, []string{`"n2"`}, nil,
		},
		"label changed": {
			func(p *patcher) error {
				return p.write("replace", path("spec", "template", "metadata", "labels", "gpufault.dev/run"), "x")
			},
			[]string{`labels["gpufault.dev/run"]: somebody changed it`}, []string{`"gpufault.dev/run":"x"`}, nil,
		},
		"more in a list of ours": {
			func(p *patcher) error {
				_, err := p.add(spec.then(field("volumes")), map[string]any{"name": "new"})
				return err
			}, nil, []string{`"name":"new"`}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := kind(t, "deployment")
			with, d := injected(t, w, Selection{}, true)
			p := &patcher{object: with.Object.Object}
			if err := test.change(p); err != nil {
				t.Fatal(err)
			}
			removed, err := fromLedger(t, d).removeEdits(&unstructured.Unstructured{Object: p.object}, run)
			if err != nil {
				t.Fatal(err)
			}
			report, after := strings.Join(removed.kept, "\n"), string(encode(removed.object))
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
			again, err := d.removeEdits(&unstructured.Unstructured{Object: removed.object}, run)
			if err != nil || len(again.ops) > 0 {
				t.Errorf("once more it still changes: %s, %v", encode(again.ops), err)
			}
		})
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
			return json.RawMessage(strings.ReplaceAll(text, "E]", string(encode(expr))+"]"))
		}
		full2 := func(text string) json.RawMessage {
			return json.RawMessage(strings.ReplaceAll(text, "[E", "["+string(encode(expr))))
		}
		w := kind(t, "statefulset")
		spec := w.Templates[0].spec
		at := preferredTerms(spec)
		if test.hard {
			at = requiredTerms(spec)
		}
		if test.terms != "null" {
			terms, err := decode(full2(test.terms))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := (&patcher{object: w.Object.Object}).set(at, terms); err != nil {
				t.Fatal(err)
			}
		}
		before := string(encode(w.Object.Object))
		in := &Injection{Libraries: map[string][]byte{"amd64": nil}}
		a := in.newAdditions(run)
		a.expr, a.hard = expr, test.hard
		p, edits, _, err := in.put(w, a)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := get(p.object, at); !same(got, full(test.pinned)) {
			t.Errorf("%s: pinned to %s, not %s", name, encode(got), full(test.pinned))
		}
		d := &Data{Edits: edits, Variable: a.variable, Preload: a.preload, Pin: encode(expr), ConfigMap: Name(run)}
		removed, err := d.removeEdits(&unstructured.Unstructured{Object: p.object}, run)
		if err != nil || string(encode(removed.object)) != before || len(removed.kept) > 0 {
			t.Errorf("%s: after the undo %s, kept %v, %v", name, encode(removed.object), removed.kept, err)
		}
	}
	w := kind(t, "statefulset")
	getMap(w.Object.Object, w.Templates[0].spec)["nodeName"] = "n2"
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
	p, _, _, err := in.put(w, in.newAdditions(run))
	if err != nil {
		t.Fatal(err)
	}
	got := applyPatch(t, w.Object.DeepCopy().Object, p.ops)
	if string(encode(got)) != string(encode(p.object)) {
		t.Errorf("in memory %s\nby patch %s", encode(p.object), encode(got))
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
