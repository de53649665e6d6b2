package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestVariants verifies what doctor reports for clusters that differ from an incident in one respect: it names another
// root cause, or does not suggest what would not help there.
func TestVariants(t *testing.T) {
	t.Parallel()
	without := func(part string) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return strings.Contains(p.Name, part) })
			s.Logs = slices.DeleteFunc(s.Logs, func(l snapshot.Log) bool { return strings.Contains(l.Pod, part) })
		}
	}
	for name, c := range map[string]struct {
		file  string
		edit  func(*snapshot.Snapshot)
		roots string
		not   string // must not be in any title or fix
	}{
		"KMM has not built the module yet": {
			"ROCm-gpu-operator-550", without("-build-"), "dp.selects-none wl.message/amd-operand-waits-for-driver",
			"kubectl label",
		},
		"the build fails for another reason": {
			"ROCm-gpu-operator-550", func(s *snapshot.Snapshot) {
				for i := range s.Logs {
					s.Logs[i].Text = strings.ReplaceAll(s.Logs[i].Text, "Status code: 404", "Status code: 503")
				}
			}, "wl.message/amd-operand-waits-for-driver wl.message/kmm-build-failed", "kubectl label",
		},
		"the events of KMM have expired": {
			"ROCm-gpu-operator-66", func(s *snapshot.Snapshot) { s.Events = nil }, "wl.message/amd-plugin-finds-no-gpu",
			"was replaced",
		},
		"no pod waits for an AMD GPU": {"ROCm-gpu-operator-66", without("granite"), "", "reboot"},
		"nothing creates MIG instances": {
			"instaslice-operator-1033", without("das-"), "mig.strategy-mismatch", "mig.config=all-enabled",
		},
		"the journal of nvidia-cdi-refresh is empty": {
			"kaito-2326", func(s *snapshot.Snapshot) {
				for _, h := range s.Hosts {
					h.Journals = nil
				}
			}, "dp.nvml-missing", "cannot find the NVML library",
		},
		"the other node has no device": {
			"projectbluefin-lab-595", func(s *snapshot.Snapshot) {
				delete(s.Nodes[0].Labels, "feature.node.kubernetes.io/pci-0380_1002.present")
			}, "sched.node-selector", "the device plugin does not run",
		},
	} {
		paths, _ := filepath.Glob(filepath.Join("testdata", "field", c.file+"-*.txtar"))
		if len(paths) != 1 {
			t.Fatalf("%s: %d files", c.file, len(paths))
		}
		s := readField(t, paths[0]).snapshot
		c.edit(s)
		report := Examine(s, Options{})
		if got := strings.Join(fieldRoots(report), " "); got != c.roots {
			t.Errorf("%s: the roots are %s, want %s\n%s", name, got, c.roots, describe(report))
		}
		for _, f := range report.Items {
			for _, text := range append([]string{f.Title, f.Fix.Text}, f.Fix.Commands...) {
				if strings.Contains(text, c.not) {
					t.Errorf("%s: %s says %q", name, f.ID, text)
				}
			}
		}
	}
}
