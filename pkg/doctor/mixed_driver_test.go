package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// TestMixedAtBoot verifies that a reboot is reported as useless only if the versions of the driver's libraries and
// module already differed when the module was loaded, and that a node that Karpenter created on AKS gets the fix for
// AKS.
func TestMixedAtBoot(t *testing.T) {
	t.Parallel()
	const name = "karpenter-provider-azure-1787-two-drivers-in-node-image.txtar"
	for _, c := range []struct {
		name      string
		later     time.Duration // when programs fail
		error     string        // of nvidia-smi
		want, fix string
	}{
		{"at boot", 0, "", "dp.not-running/driver-versions-mixed-at-boot", "karpenter-provider-azure"},
		{"upgraded later", 24 * time.Hour, "", "dp.not-running/nvml-library-version-mismatch", "recreate"},
		{"nvidia-smi fails too", 0, "Failed to initialize NVML: Driver/library version mismatch", "drv.lib-mismatch",
			"A reboot does not help"},
	} {
		field := readField(t, filepath.Join("testdata", "field", name))
		host := field.snapshot.Hosts["aks-gpu-t4-x7k2p"]
		host.Probe.SMIError = c.error
		first := slices.IndexFunc(host.KernelLog, func(k api.KernelRecord) bool {
			return strings.Contains(k.Text, "API mismatch")
		})
		for i := first; i < len(host.KernelLog); i++ {
			host.KernelLog[i].Uptime += c.later
		}
		report := Examine(field.snapshot, Options{})
		got := fieldRoots(report)
		if !slices.Equal(got, []string{c.want}) || !strings.Contains(report.Roots()[0].Fix.Text, c.fix) {
			t.Errorf("%s: the roots are %v, want %s with %q\n%s", c.name, got, c.want, c.fix, describe(report))
		}
	}
}
