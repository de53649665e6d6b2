package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestInstancesGoneWithoutNode verifies that a missing NVML is not reported for a device plugin that finds no devices
// if the node had a MIG resource, even if the node was not read.
func TestInstancesGoneWithoutNode(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "k8s-device-plugin-225-mig-instances-gone-after-reboot.txtar"))
	c.snapshot.Hosts = nil
	got := fieldRoots(Examine(c.snapshot, Options{}))
	if want := []string{"mig.strategy-mismatch"}; !slices.Equal(got, want) {
		t.Errorf("the roots are %v, want %v", got, want)
	}
}

// TestInstancesNotListed verifies that GPUs are reported as lacking MIG instances only if nvidia-smi lists none.
func TestInstancesNotListed(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "gpu-operator-287-mig-mode-without-instances.txtar"))
	for _, host := range c.snapshot.Hosts {
		host.SMI = strings.NewReplacer("<mig_devices>", "<other>", "</mig_devices>", "</other>").Replace(host.SMI)
	}
	for _, found := range Examine(c.snapshot, Options{}).Items {
		for _, e := range found.Evidence {
			if strings.Contains(e.Text, "mig_devices") {
				t.Errorf("%s quotes %q, which nvidia-smi did not print", found.ID, e.Text)
			}
		}
	}
}
