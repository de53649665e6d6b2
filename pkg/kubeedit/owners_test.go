package kubeedit_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

const us = "kubectl-gpu-fault"

func isUs(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == us }

func entry(manager, operation, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationType(operation), APIVersion: "apps/v1",
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}
}

// What managers lost to us they get back, and what another took meanwhile stays with that one; of us nothing is left.
func TestFieldsAreGivenBack(t *testing.T) {
	t.Parallel()
	users :=
		`{"f:spec":{"f:env":{".":{},"k:{\"name\":\"LD_PRELOAD\"}":{".":{},"f:name":{},"f:value":{}}},"f:terms":{}}}`
	before := []metav1.ManagedFieldsEntry{
		entry("gitops", "Apply", users), entry("kubectl", "Update", `{"f:spec":{"f:terms":{}}}`),
	}
	after := []metav1.ManagedFieldsEntry{
		entry("gitops", "Apply", `{"f:spec":{"f:env":{".":{},"k:{\"name\":\"LD_PRELOAD\"}":{".":{},"f:name":{}}}}}`),
		entry(us, "Update", `{"f:spec":{"f:env":{"k:{\"name\":\"LD_PRELOAD\"}":{"f:value":{}}},"f:terms":{}}}`),
	}
	owned := kubeedit.Lost(before, after, isUs)
	raw, err := json.Marshal(owned)
	if err != nil || len(owned) != 2 {
		t.Fatalf("lost %s, %v", raw, err)
	}
	for _, o := range owned {
		if err := o.Validate(); err != nil {
			t.Errorf("%s: %v", o.Manager, err)
		}
	}
	for name, test := range map[string]struct {
		now  []metav1.ManagedFieldsEntry
		want []metav1.ManagedFieldsEntry
	}{
		"all":     {after, before},
		"nothing": {before, before},
		"taken": {append(
			[]metav1.ManagedFieldsEntry{entry("thief", "Update", `{"f:spec":{"f:terms":{}}}`), after[0]},
			entry(us, "Update", `{"f:spec":{"f:env":{"k:{\"name\":\"LD_PRELOAD\"}":{"f:value":{}}}}}`),
		), []metav1.ManagedFieldsEntry{
			entry("thief", "Update", `{"f:spec":{"f:terms":{}}}`),
			entry("gitops", "Apply",
				`{"f:spec":{"f:env":{".":{},"k:{\"name\":\"LD_PRELOAD\"}":{".":{},"f:name":{},"f:value":{}}}}}`),
		}},
		"only status": {
			[]metav1.ManagedFieldsEntry{{Manager: "c", Subresource: "status"}},
			[]metav1.ManagedFieldsEntry{{Manager: "c", Subresource: "status"}},
		},
	} {
		got, changed := kubeedit.GiveBack(test.now, isUs, nil, owned)
		if changed != (name == "all" || name == "taken") || len(got) != len(test.want) {
			t.Errorf("%s: changed %v, %v", name, changed, got)
			continue
		}
		same(t, name, got, test.want)
	}
}

func same(t *testing.T, name string, got, want []metav1.ManagedFieldsEntry) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d entries, not %d: %v", name, len(got), len(want), got)
	}
	for i := range got {
		if got[i].Manager != want[i].Manager ||
			got[i].FieldsV1 != nil && !reflect.DeepEqual(parsed(t, got[i]), parsed(t, want[i])) {
			t.Errorf("%s: %s has %s, not %s", name, got[i].Manager, got[i].FieldsV1, want[i].FieldsV1)
		}
	}
}

func parsed(t *testing.T, entry metav1.ManagedFieldsEntry) (tree any) {
	t.Helper()
	if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// Who shares its name with somebody gives only what it says it gives, and keeps its entry as long as something is in
// it.
func TestOnlySomeIsGiven(t *testing.T) {
	t.Parallel()
	now := []metav1.ManagedFieldsEntry{
		entry(us, "Update", `{"f:a":{},"f:b":{"f:x":{},"f:y":{}},"f:c":{}}`), entry("gitops", "Apply", `{"f:d":{}}`),
	}
	owners := []kubeedit.Owned{{
		Manager: "gitops", Operation: "Apply", APIVersion: "apps/v1", Fields: []byte(`{"f:b":{"f:x":{}},"f:gone":{}}`),
	},
		{Manager: "controller", Operation: "Update", APIVersion: "apps/v1", Sub: "scale", Fields: []byte(`{"f:c":{}}`)}}
	got, changed := kubeedit.GiveBack(now, isUs,
		kubeedit.ParseFields([]byte(`{"f:a":{},"f:b":{"f:x":{}},"f:never":{}}`)),
		owners)
	if !changed || len(got) != 3 || got[2].Subresource != "scale" {
		t.Fatalf("%v %v", changed, got)
	}
	same(t, "some", got, []metav1.ManagedFieldsEntry{entry(us, "Update", `{"f:b":{"f:y":{}},"f:c":{}}`),
		entry("gitops", "Apply", `{"f:b":{"f:x":{}},"f:d":{}}`),
		entry("controller", "Update", `{"f:c":{}}`)})
	if again, changed := kubeedit.GiveBack(
		got, isUs, kubeedit.ParseFields([]byte(`{"f:a":{},"f:b":{"f:x":{}}}`)), owners,
	); changed {
		t.Errorf("once more: %v", again)
	}
	got, changed = kubeedit.GiveBack(now[:1], isUs,
		kubeedit.ParseFields([]byte(`{"f:a":{},"f:b":{"f:x":{},"f:y":{}},"f:c":{}}`)), nil)
	if request := kubeedit.EntriesForRequest(got); !changed || len(request) != 1 || request[0].Manager != "" {
		t.Errorf("nothing is left of it: %v", request)
	}
}

// What the API server puts together with another entry was not lost to us.
func TestWhatAnotherHasIsNoLoss(t *testing.T) {
	t.Parallel()
	before := []metav1.ManagedFieldsEntry{
		entry("old", "Update", `{"f:a":{},"f:b":{}}`), entry("both", "Update", `{"f:b":{}}`),
	}
	after := []metav1.ManagedFieldsEntry{
		entry("ancient-changes", "Update", `{"f:a":{}}`), entry("both", "Update", `{"f:b":{}}`),
		entry(us, "Update", `{"f:b":{}}`),
	}
	lost := kubeedit.Lost(before, after, isUs)
	if len(lost) != 1 || lost[0].Manager != "old" || string(lost[0].Fields) != `{"f:b":{}}` {
		t.Errorf("%+v", lost)
	}
}

// Fields lie in all that is on the way to them.
func TestAround(t *testing.T) {
	t.Parallel()
	got := string(kubeedit.EncodeFields(
		kubeedit.FieldsAround(kubeedit.ParseFields([]byte(`{"f:a":{"k:{\"name\":\"x\"}":{"f:b":{}}},"f:c":{}}`))),
	))
	if got != `{"f:a":{".":{},"k:{\"name\":\"x\"}":{}}}` {
		t.Error(got)
	}
}

// Records are read again as they were written, also those of former releases.
func TestRecordsKeepTheirForm(t *testing.T) {
	t.Parallel()
	const text = `[{"manager":"m","operation":"Apply","apiVersion":"v1","subresource":"status","time":"2026-05-04T11:00:00Z","fields":{"f:a":{}}}]`
	var owned []kubeedit.Owned
	if err := json.Unmarshal([]byte(text), &owned); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(owned); err != nil || string(again) != text {
		t.Errorf("%s, %v", again, err)
	}
}

// What no API server writes is refused. Odd fields that can be parsed are harmless, as every other forgery is when it
// is not validated first: GiveBack moves only fields that the entries have.
func TestForgedFields(t *testing.T) {
	t.Parallel()
	good := kubeedit.Owned{
		Manager: "m", Operation: "Update", APIVersion: "v1",
		Fields: []byte(`{"f:a":{".":{},"k:{\"name\":\"x\"}":{".":{},"v:1":{},"i:0":{}}}}`),
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	harmless := []string{"null value", "no name", "two names", "deep"}
	for name, change := range map[string]func(*kubeedit.Owned){
		"operation":   func(o *kubeedit.Owned) { o.Operation = "Own" },
		"version":     func(o *kubeedit.Owned) { o.APIVersion = "" },
		"manager":     func(o *kubeedit.Owned) { o.Manager = strings.Repeat("m", 129) },
		"subresource": func(o *kubeedit.Owned) { o.Sub = strings.Repeat("m", 257) },
		"none":        func(o *kubeedit.Owned) { o.Fields = nil },
		"empty":       func(o *kubeedit.Owned) { o.Fields = []byte(`{}`) },
		"null":        func(o *kubeedit.Owned) { o.Fields = []byte(`null`) },
		"list":        func(o *kubeedit.Owned) { o.Fields = []byte(`["f:a"]`) },
		"value":       func(o *kubeedit.Owned) { o.Fields = []byte(`{"f:a":1}`) },
		"null value":  func(o *kubeedit.Owned) { o.Fields = []byte(`{"f:a":null}`) },
		"step":        func(o *kubeedit.Owned) { o.Fields = []byte(`{"a":{}}`) },
		"no name":     func(o *kubeedit.Owned) { o.Fields = []byte(`{"f:":{}}`) },
		"two names":   func(o *kubeedit.Owned) { o.Fields = []byte(`{"f:a\u0000f:b":{}}`) },
		"below dot":   func(o *kubeedit.Owned) { o.Fields = []byte(`{".":{"f:a":{}}}`) },
		"deep": func(o *kubeedit.Owned) {
			o.Fields = []byte(strings.Repeat(`{"f:a":`, 200) + "{}" + strings.Repeat("}", 200))
		},
	} {
		forged := good
		change(&forged)
		if forged.Validate() == nil != slices.Contains(harmless, name) {
			t.Errorf("%s: Validate returns %v", name, forged.Validate())
		}
		now := []metav1.ManagedFieldsEntry{entry("other", "Update", `{"f:a":{}}`)}
		if got, changed := kubeedit.GiveBack(now, isUs, nil, []kubeedit.Owned{forged}); changed {
			t.Errorf("%s: fields that are not ours were given: %v", name, got)
		}
	}
}
