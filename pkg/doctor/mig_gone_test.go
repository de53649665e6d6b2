package doctor

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestInstancesGoneWithoutNode protects that a device plugin which finds no devices is not said to lack NVML where the
// node had a MIG resource, also if nobody read the node.
func TestInstancesGoneWithoutNode(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "k8s-device-plugin-225-mig-instances-gone-after-reboot.txtar"))
	c.snapshot.Hosts = nil
	got := fieldRoots(Examine(c.snapshot, Options{}))
	if want := []string{"mig.strategy-mismatch"}; !slices.Equal(got, want) {
		t.Errorf("the roots are %v, want %v", got, want)
	}
}
