package leftover

import (
	"fmt"
	"strings"
	"testing"
)

// fleet returns the Job of a fleet and its plan.
func fleet(id, condition string) string {
	const labels = "{app.kubernetes.io/managed-by: kubectl-gpu-fault, gpufault.dev/fleet: "
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s, namespace: gpu-fault, labels: %[2]s%[1]s}}
status: {conditions: [{type: %[3]s, status: "True"}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s, namespace: gpu-fault, labels: %[2]s%[1]s}}
`, id, labels, condition)
}

// The Job of a fleet whose client was killed is found after it has ended, with the command that removes it. While it
// runs, it is in use: its pods work on, even without their client.
func TestFleets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fleet("fleet-222222", "Complete")+"\n---\n"+fleet("fleet-333333", "Failed")+"\n---\n"+
		fleet("fleet-444444", "Suspended"))
	found := w.find()
	if found.InUse != 1 || len(found.Items) != 2 {
		t.Fatalf("%d in use, leftovers %+v", found.InUse, found.Items)
	}
	for i, id := range []string{"fleet-222222", "fleet-333333"} {
		left := found.Items[i]
		if left.Name != id || left.Remedy != Nobody || !strings.HasSuffix(left.Todo, "revert "+id) {
			t.Errorf("%+v", left)
		}
	}
}
