package workload

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func entry(manager, operation, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationType(operation), APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

// What managers lost to us they get back, and what another took meanwhile stays with that one; of us nothing is left.
func TestFieldsAreGivenBack(t *testing.T) {
	t.Parallel()
	users := `{"f:spec":{"f:env":{".":{},"k:{\"name\":\"LD_PRELOAD\"}":{".":{},"f:name":{},"f:value":{}}},"f:terms":{}}}`
	before := []metav1.ManagedFieldsEntry{entry("gitops", "Apply", users), entry("kubectl", "Update", `{"f:spec":{"f:terms":{}}}`)}
	after := []metav1.ManagedFieldsEntry{
		entry("gitops", "Apply", `{"f:spec":{"f:env":{".":{},"k:{\"name\":\"LD_PRELOAD\"}":{".":{},"f:name":{}}}}}`),
		entry(FieldManager, "Update", `{"f:spec":{"f:env":{"k:{\"name\":\"LD_PRELOAD\"}":{"f:value":{}}},"f:terms":{}}}`),
	}
	owned := lost(before, after)
	raw, err := json.Marshal(owned)
	if err != nil || len(owned) != 2 {
		t.Fatalf("lost %s, %v", raw, err)
	}
	for name, test := range map[string]struct {
		now  []metav1.ManagedFieldsEntry
		want []metav1.ManagedFieldsEntry
	}{
		"all":         {after, before},
		"nothing":     {before, before},
		"taken":       {append([]metav1.ManagedFieldsEntry{entry("thief", "Update", `{"f:spec":{"f:terms":{}}}`), after[0]}, entry(FieldManager, "Update", `{"f:spec":{"f:env":{"k:{\"name\":\"LD_PRELOAD\"}":{"f:value":{}}}}}`)), []metav1.ManagedFieldsEntry{entry("thief", "Update", `{"f:spec":{"f:terms":{}}}`), entry("gitops", "Apply", `{"f:spec":{"f:env":{".":{},"k:{\"name\":\"LD_PRELOAD\"}":{".":{},"f:name":{},"f:value":{}}}}}`)}},
		"only status": {[]metav1.ManagedFieldsEntry{{Manager: "c", Subresource: "status"}}, []metav1.ManagedFieldsEntry{{Manager: "c", Subresource: "status"}}},
	} {
		got, changed := giveBack(test.now, owned)
		if changed != (name == "all" || name == "taken") || len(got) != len(test.want) {
			t.Errorf("%s: changed %v, %v", name, changed, got)
			continue
		}
		for i := range got {
			if got[i].Manager != test.want[i].Manager || got[i].FieldsV1 != nil && !sameSet(got[i].FieldsV1.GetRawBytes(), test.want[i].FieldsV1.GetRawBytes()) {
				t.Errorf("%s: %s has %s, not %s", name, got[i].Manager, got[i].FieldsV1, test.want[i].FieldsV1)
			}
		}
	}
}

func sameSet(a, b []byte) bool {
	x, _ := decode(a)
	return same(x, b)
}
