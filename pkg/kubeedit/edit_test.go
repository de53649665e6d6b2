package kubeedit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func parse(t testing.TB, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	object, _ := Decode(raw).(map[string]any)
	if object == nil {
		object = map[string]any{}
	}
	return object
}

// recorded is edits as they come back from the ledger.
func recorded(t testing.TB, edits []Edit) (back []Edit) {
	t.Helper()
	text, err := json.Marshal(edits)
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range back {
		if err := e.Validate(); err != nil {
			t.Fatalf("a true edit is not believed: %v", err)
		}
	}
	return back
}

// takeAllBack undoes edits in an object, and says which were somebody else's.
func takeAllBack(object map[string]any, edits []Edit) (theirs []string) {
	for _, e := range slices.Backward(edits) {
		if _, others := e.TakeBack(object); others {
			theirs = append(theirs, e.Path.String())
		}
	}
	return theirs
}

// What somebody else has changed meanwhile stays, and what is ours goes, in each kind of field.
func TestTakeBackIsThreeWay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after, now, want, theirs string }{
		"nothing else changed": {
			"{spec: {a: 1, b: 2}}", "{spec: {a: 9, c: 3}}", "{spec: {a: 9, c: 3}}", "{spec: {a: 1, b: 2}}", "",
		},
		"another field": {
			"{spec: {a: 1}}", "{spec: {a: 9}}", "{spec: {a: 9, z: 1}}", "{spec: {a: 1, z: 1}}", "",
		},
		"our field":         {"{spec: {a: 1}}", "{spec: {a: 9}}", "{spec: {a: 5}}", "{spec: {a: 5}}", "spec.a"},
		"put back already":  {"{spec: {a: 1}}", "{spec: {a: 9}}", "{spec: {a: 1}}", "{spec: {a: 1}}", ""},
		"the field we took": {"{spec: {a: 1}}", "{spec: {}}", "{spec: {a: 7}}", "{spec: {a: 7}}", "spec.a"},
		"first labels": {
			"{metadata: {name: x}}", "{metadata: {name: x, labels: {a: b}}}",
			"{metadata: {name: x, labels: {a: b, c: d}}}", "{metadata: {name: x, labels: {c: d}}}", "",
		},
		"labels that we made": {
			"{metadata: {name: x}}", "{metadata: {name: x, labels: {a: b}}}", "{metadata: {name: x, labels: {a: b}}}",
			"{metadata: {name: x}}", "",
		},
		"last label": {
			"{metadata: {labels: {a: b}}}", "{metadata: {}}", "{metadata: {labels: {c: d}}}",
			"{metadata: {labels: {a: b, c: d}}}", "",
		},
		"a taint beside ours": {
			"{spec: {}}", "{spec: {taints: [{key: a}]}}", "{spec: {taints: [{key: b}, {key: a}]}}",
			"{spec: {taints: [{key: b}]}}", "",
		},
		"the only taint": {
			"{spec: {}}", "{spec: {taints: [{key: a}]}}", "{spec: {taints: [{key: a}]}}", "{spec: {}}", "",
		},
		"our taint taken off": {"{spec: {}}", "{spec: {taints: [{key: a}]}}", "{spec: {}}", "{spec: {}}", ""},
		"a taint that we took": {
			"{spec: {taints: [{key: a}, {key: b}, {key: c}]}}", "{spec: {taints: [{key: a}, {key: c}]}}",
			"{spec: {taints: [{key: a}, {key: c}, {key: d}]}}",
			"{spec: {taints: [{key: a}, {key: b}, {key: c}, {key: d}]}}", "",
		},
		"a subject": {
			"{subjects: [{kind: SA, name: x, namespace: a}]}", "{subjects: [{kind: SA, name: x, namespace: b}]}",
			"{subjects: [{kind: SA, name: x, namespace: b}, {kind: SA, name: y, namespace: b}]}",
			"{subjects: [{kind: SA, name: x, namespace: a}, {kind: SA, name: y, namespace: b}]}", "",
		},
		"a rule": {
			"{rules: [{verbs: [get]}, {verbs: [list]}]}", "{rules: [{verbs: [get]}, {verbs: [watch]}]}",
			"{rules: [{verbs: [get, create]}, {verbs: [watch]}]}", "{rules: [{verbs: [get, create]}, {verbs: [list]}]}",
			"",
		},
		"a rule changed by others": {
			"{rules: [{verbs: [get]}]}", "{rules: [{verbs: [watch]}]}", "{rules: [{verbs: [create]}]}",
			"{rules: [{verbs: [create]}]}", "rules",
		},
		"a container's image": {
			"{spec: {containers: [{name: a, image: x}, {name: b, image: y}]}}",
			"{spec: {containers: [{name: a, image: z}, {name: b, image: y}]}}",
			"{spec: {containers: [{name: n, image: n}, {name: a, image: z, tty: true}]}}",
			"{spec: {containers: [{name: n, image: n}, {name: a, image: x, tty: true}]}}", "",
		},
		"a container that is gone": {
			"{spec: {containers: [{name: a, image: x}, {name: b}]}}",
			"{spec: {containers: [{name: a, image: z}, {name: b}]}}", "{spec: {containers: [{name: b}]}}",
			"{spec: {containers: [{name: b}]}}", "spec.containers[name=a].image",
		},
		"a container that we took": {
			"{spec: {containers: [{name: a}, {name: b}]}}", "{spec: {containers: [{name: b}]}}",
			"{spec: {containers: [{name: b}]}}", "{spec: {containers: [{name: a}, {name: b}]}}", "",
		},
		"arguments are one value": {
			"{spec: {args: [a, b]}}", "{spec: {args: [a, c]}}", "{spec: {args: [a, c, d]}}",
			"{spec: {args: [a, c, d]}}", "spec.args",
		},
		"another order": {
			"{spec: {l: [{a: 1}, {a: 2}]}}", "{spec: {l: [{a: 2}, {a: 1}]}}", "{spec: {l: [{a: 2}, {a: 1}]}}",
			"{spec: {l: [{a: 1}, {a: 2}]}}", "",
		},
		"an empty object": {
			"{spec: {}}", "{spec: {emptyDir: {}}}", "{spec: {emptyDir: {}}}", "{spec: {}}", "",
		},
		"another kind of value": {
			"{spec: {a: [1]}}", "{spec: {a: {b: 1}}}", "{spec: {a: {b: 1}}}", "{spec: {a: [1]}}", "",
		},
		"the API server's fields": {
			"{metadata: {resourceVersion: '1', generation: 1}, status: {a: 1}, spec: {a: 1}}",
			"{metadata: {resourceVersion: '2', generation: 2}, status: {a: 2}, spec: {a: 2}}",
			"{metadata: {resourceVersion: '3'}, spec: {a: 2}}", "{metadata: {resourceVersion: '3'}, spec: {a: 1}}", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			edits := recorded(t, Diff(parse(t, test.before), parse(t, test.after)))
			if len(edits) == 0 {
				t.Fatal("no difference was seen")
			}
			now := parse(t, test.now)
			theirs := takeAllBack(now, edits)
			if diff := cmp.Diff(parse(t, test.want), now); diff != "" || strings.Join(theirs, " ") != test.theirs {
				t.Errorf("theirs %v, edits %s\n%s", theirs, Encode(edits), diff)
			}
			if again := takeAllBack(now, edits); cmp.Diff(parse(t, test.want), now) != "" {
				t.Errorf("to undo twice is not the same: %v, %v", again, now)
			}
		})
	}
}

// random makes values as Kubernetes has them: lists of objects with and without names, maps, texts, numbers.
type random struct{ *rand.Rand }

func (r random) value(depth int) any {
	switch n := r.IntN(8); {
	case depth == 0 || n < 2:
		return []any{"a", "b", int64(1), int64(2), true, "c"}[r.IntN(6)]
	case n < 5:
		m := map[string]any{}
		for range r.IntN(4) {
			m[string(rune('a'+r.IntN(5)))] = r.value(depth - 1)
		}
		return m
	default:
		list := []any{}
		kind := r.IntN(3)
		for i := range r.IntN(4) {
			switch kind {
			case 0:
				list = append(list, fmt.Sprint(r.IntN(3)))
			case 1:
				list = append(list, map[string]any{"name": fmt.Sprint((i*2 + r.IntN(2))), "v": r.value(depth - 1)})
			default:
				list = append(list, map[string]any{"key": fmt.Sprint(r.IntN(4)), "v": r.value(0)})
			}
		}
		return list
	}
}

// mutated returns a value that differs here and there.
func (r random) mutated(value any, depth int) any {
	switch v := value.(type) {
	case map[string]any:
		m := map[string]any{}
		for name, e := range v {
			if r.IntN(5) > 0 {
				m[name] = r.mutated(e, depth-1)
			}
		}
		if r.IntN(3) == 0 {
			m[string(rune('a'+r.IntN(5)))] = r.value(max(depth-1, 0))
		}
		return m
	case []any:
		list := []any{}
		for _, e := range v {
			if r.IntN(4) > 0 {
				list = append(list, r.mutated(e, depth-1))
			}
		}
		if r.IntN(8) == 0 {
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		return list
	}
	if r.IntN(4) == 0 {
		return r.value(0)
	}
	return value
}

// pruned returns a value without what is empty: the API server makes no difference for most fields, and the undo makes
// none.
func pruned(value any) any {
	switch v := value.(type) {
	case map[string]any:
		m := map[string]any{}
		for name, e := range v {
			if p := pruned(e); !isEmpty(p, Step{}) {
				m[name] = p
			}
		}
		return m
	case []any:
		list := make([]any, 0, len(v))
		for _, e := range v {
			list = append(list, pruned(e))
		}
		return list
	}
	return value
}

// GPUs that were advertised on a node without any go, whatever its kubelet has made of them meanwhile; those of a
// device plugin stay, and are told.
func TestAdvertisedGPUsAreTakenBack(t *testing.T) {
	t.Parallel()
	edits := diffValues(Fields("status"), parse(t, `{capacity: {cpu: "4"}, allocatable: {cpu: "3"}}`),
		parse(t, `{capacity: {cpu: "4", nvidia.com/gpu: "2"}, allocatable: {cpu: "3", nvidia.com/gpu: "2"}}`), 0)
	for name, test := range map[string]struct {
		now, want string
		theirs    int
	}{
		"as they were advertised":        {`{cpu: "4", nvidia.com/gpu: "2"}`, `{cpu: "4"}`, 0},
		"zeroed by the kubelet":          {`{cpu: "4", nvidia.com/gpu: "0"}`, `{cpu: "4"}`, 0},
		"gone":                           {`{cpu: "4"}`, `{cpu: "4"}`, 0},
		"those of a device plugin":       {`{cpu: "4", nvidia.com/gpu: "8"}`, `{cpu: "4", nvidia.com/gpu: "8"}`, 2},
		"beside another number of cores": {`{cpu: "2", nvidia.com/gpu: "2"}`, `{cpu: "2"}`, 0},
	} {
		now := map[string]any{
			"status": map[string]any{"capacity": parse(t, test.now), "allocatable": parse(t, test.now)},
		}
		theirs := takeAllBack(now, edits)
		want := map[string]any{
			"status": map[string]any{"capacity": parse(t, test.want), "allocatable": parse(t, test.want)},
		}
		if diff := cmp.Diff(want, now); diff != "" || len(theirs) != test.theirs {
			t.Errorf("%s: %d of others\n%s", name, len(theirs), diff)
		}
	}
}

// Whatever a patch does to whatever object, taking it back makes the object as it was; and the merge patch that is sent
// does that.
func TestWhateverIsPatchedIsPutBack(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5000) {
		r := random{rand.New(rand.NewPCG(seed, 7))}
		before := map[string]any{"spec": r.value(4), "data": r.value(3)}
		after, _ := r.mutated(before, 4).(map[string]any)
		edits := recorded(t, Diff(before, after))
		now := runtime.DeepCopyJSON(after)
		theirs := takeAllBack(now, edits)
		if diff := cmp.Diff(pruned(before), pruned(now)); diff != "" || len(theirs) > 0 {
			t.Fatalf("seed %d: theirs %v\nbefore %s\nafter  %s\nedits  %s\n%s", seed, theirs, Encode(before),
				Encode(after), Encode(edits), diff)
		}
		if got := merged(after, MergePatch(after, now)); cmp.Diff(pruned(now), pruned(got)) != "" {
			t.Fatalf("seed %d: the merge patch %s makes %s of %s", seed, Encode(MergePatch(after, now)), Encode(got),
				Encode(after))
		}
	}
}

// merged applies a JSON merge patch as RFC 7386 has it.
func merged(target any, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	m, _ := runtime.DeepCopyJSONValue(target).(map[string]any)
	if m == nil {
		m = map[string]any{}
	}
	for name, value := range p {
		if value == nil {
			delete(m, name)
		} else {
			m[name] = merged(m[name], value)
		}
	}
	return m
}

// FuzzTakeBack holds that no record makes an undo panic, whatever it says of whatever object.
func FuzzTakeBack(f *testing.F) {
	f.Add([]byte(`[{"path":["spec","taints"],"element":true,"ours":{"key":"a"},"made":1}]`),
		[]byte(`{"spec":{"taints":[{"key":"a"}]}}`))
	f.Add([]byte(`[{"path":["spec","containers",{"name":"a"},"image"],"was":"x","ours":"y"}]`),
		[]byte(`{"spec":{"containers":[{"name":"a","image":"y"}]}}`))
	f.Add([]byte(`[{"path":["spec","containers",{"name":"a"}],"was":{"name":"a"},"at":7}]`),
		[]byte(`{"spec":{"containers":{}}}`))
	f.Fuzz(func(t *testing.T, record, live []byte) {
		var edits []Edit
		object, ok := Decode(live).(map[string]any)
		if !ok || json.Unmarshal(record, &edits) != nil {
			return
		}
		for _, e := range edits {
			if e.Validate() != nil {
				return
			}
		}
		takeAllBack(object, edits)
		if _, err := json.Marshal(&unstructured.Unstructured{Object: object}); err != nil && object["kind"] != nil &&
			object["apiVersion"] != nil {
			t.Errorf("it makes no object any more: %v", err)
		}
	})
}
