package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNominatedNode verifies that a pod is waiting without a problem while Karpenter's node is new, but not if the node
// has been ready for a long time without advertising GPUs.
func TestNominatedNode(t *testing.T) {
	t.Parallel()
	for ready, want := range map[time.Duration][]string{5 * time.Minute: {}, time.Hour: {"dp.none"}} {
		c := readField(t, filepath.Join("testdata", "field", "karpenter-provider-aws-3862-no-device-plugin.txtar"))
		for i := range c.snapshot.Nodes {
			n := &c.snapshot.Nodes[i]
			if strings.HasPrefix(n.Labels["node.kubernetes.io/instance-type"], "g4dn") {
				n.CreationTimestamp = metav1.NewTime(toldAt().Add(-ready))
			}
		}
		if got := fieldRoots(Examine(c.snapshot, Options{})); !slices.Equal(got, want) {
			t.Errorf("ready for %s: the roots are %v, want %v", ready, got, want)
		}
	}
}

// TestDriverAbsentInKernelLog verifies that a kernel log proves that no driver was loaded only if the log begins at
// boot.
func TestDriverAbsentInKernelLog(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "eksctl-7794-g6-standard-ami.txtar"))
	for _, host := range c.snapshot.Hosts {
		host.KernelLog = host.KernelLog[1:]
	}
	want := []string{"dp.nvml-missing"}
	if got := fieldRoots(Examine(c.snapshot, Options{})); !slices.Equal(got, want) {
		t.Errorf("the roots are %v, want %v", got, want)
	}
}

// TestPluginLostGPUs verifies that an XID takes precedence over the device rules of the plugin's container.
func TestPluginLostGPUs(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field",
		"k8s-device-plugin-426-unhealthy-after-daemon-reload.txtar"))
	for _, host := range c.snapshot.Hosts {
		host.KernelLog = append(host.KernelLog,
			hwLine(9, "NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus."))
	}
	got := fieldRoots(Examine(c.snapshot, Options{}))
	if slices.Contains(got, "rt.nvml-unknown-error") || len(got) == 0 {
		t.Errorf("the roots are %v", got)
	}
}

// TestDriverWorksInValidation verifies that doctor does not recommend installing a driver that the validation has just
// used.
func TestDriverWorksInValidation(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "gpu-operator-569-dev-char-unknown-audio-device.txtar"))
	for i := range c.snapshot.Logs {
		l := &c.snapshot.Logs[i]
		l.Text = strings.ReplaceAll(l.Text, "error creating symlinks", "an unknown step failed")
	}
	for _, found := range Examine(c.snapshot, Options{}).Roots() {
		if found.ID == "op.init-chain" && !strings.Contains(found.Fix.Text, "Installing another driver does not help") {
			t.Errorf("the fix is %q", found.Fix.Text)
		}
	}
}
