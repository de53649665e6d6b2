package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
		"the next slice of the elastic job waits for quota": {
			"kueue-9986", func(s *snapshot.Snapshot) {
				next := s.Queued[0].DeepCopy()
				next.SetName(next.GetName() + "-next")
				delete(next.Object, "status")
				s.Queued = append(s.Queued, *next)
			}, "", "admitted the pod's Workload",
		},
		"Kueue has admitted fewer pods": {
			"kueue-9986", func(s *snapshot.Snapshot) {
				sets, _, _ := unstructured.NestedSlice(s.Queued[0].Object, "status", "admission", "podSetAssignments")
				sets[1].(map[string]any)["count"] = int64(1)
				_ = unstructured.SetNestedSlice(s.Queued[0].Object, sets, "status", "admission", "podSetAssignments")
			}, "", "admitted the pod's Workload",
		},
		"the zone's only node for the pod is cordoned": {
			"2i2c-infrastructure-7822", func(s *snapshot.Snapshot) {
				n := &s.Nodes[len(s.Nodes)-1]
				n.Spec.Taints, n.Spec.Unschedulable = nil, true
				n.Labels["hub.jupyter.org/node-purpose"] = "core"
			}, "wl.message/cluster-autoscaler-volume-zone", "recreate it",
		},
		"a channel is free": {
			"grove-485", func(s *snapshot.Snapshot) {
				for i := range s.ResourceClaims {
					s.ResourceClaims[i].Status = resourcev1.ResourceClaimStatus{}
				}
			}, "dra.unallocatable", "only one ComputeDomain channel",
		},
		"the controller mounts nothing that slurmd lacks": {
			"slurm-operator-13", func(s *snapshot.Snapshot) {
				for i := range s.Pods {
					if s.Pods[i].Name == "slurm-controller-0" {
						s.Pods[i].Spec.Volumes = nil
					}
				}
			}, "wl.message/slurmd-ignores-gpus", "slurm-config",
		},
		"slurmd logs no reason": {
			"slurm-operator-13", func(s *snapshot.Snapshot) {
				s.Logs = slices.DeleteFunc(s.Logs, func(l snapshot.Log) bool { return l.Container == "slurmd" })
			}, "wl.message/slurm-gres-count-low", "slurmctld -- nvidia-smi",
		},
		"the volume has room for two files": {
			"vllm-54002", func(s *snapshot.Snapshot) {
				large := resource.MustParse("64Gi")
				for i := range s.Pods {
					for j := range s.Pods[i].Spec.Volumes {
						if e := s.Pods[i].Spec.Volumes[j].EmptyDir; e != nil && e.SizeLimit != nil {
							e.SizeLimit = &large
						}
					}
				}
			}, "wl.pod-failing", "former containers",
		},
		"HAMi has allocated the first NPUs": {
			"HAMi-1894", func(s *snapshot.Snapshot) {
				for key, value := range s.Nodes[0].Annotations {
					s.Nodes[0].Annotations[key] = strings.NewReplacer(`"index":3`, `"index":0`, `"index":4`,
						`"index":1`).Replace(value)
				}
			}, "wl.other-accelerator", "ASCEND_RT_VISIBLE_DEVICES",
		},
		"a node without a driver has an AMD GPU": {
			"ROCm-k8s-device-plugin-175", func(s *snapshot.Snapshot) {
				s.Nodes[2].Labels["feature.node.kubernetes.io/pci-1200_1002.present"] = "true"
			}, "wl.message/amd-plugin-driver-not-loaded", "Restrict",
		},
		"the plugin has one name for all partitions": {
			"ROCm-gpu-operator-382", func(s *snapshot.Snapshot) {
				delete(s.Nodes[1].Status.Allocatable, "amd.com/spx_nps1")
				s.Nodes[1].Status.Allocatable["amd.com/gpu"] = resource.MustParse("64")
			}, "wl.other-accelerator/scheduler-other-vendor-insufficient", "partitioned",
		},
		"the GPUs were not partitioned": {
			"ROCm-gpu-operator-382", func(s *snapshot.Snapshot) {
				s.Nodes[1].Labels["dcm.amd.com/gpu-config-profile-state"] = "failure"
			}, "wl.other-accelerator/scheduler-other-vendor-insufficient", "partitioned",
		},
		"NVIDIA's plugin is older than the MIG instances": {
			"gpu-operator-1692", func(s *snapshot.Snapshot) {
				s.Nodes[0].Labels["nvidia.com/mig.strategy"] = "mixed"
			}, "sched.wrong-resource-name/device-plugin-older-than-partitions", "mig.strategy",
		},
		"Talos with the driver where programs search for it": {
			"dra-driver-nvidia-gpu-605", func(s *snapshot.Snapshot) {
				for i := range s.Nodes {
					s.Nodes[i].Status.NodeInfo.OSImage = "Talos (v1.13.0)"
				}
			}, "op.operand-failing/dra-driver-not-in-host-root", "Upgrade the nodes",
		},
		"the only device of its kind cannot be prepared": {
			"dra-driver-nvidia-gpu-1480", func(s *snapshot.Snapshot) {
				for i := range s.Events {
					s.Events[i].Message = strings.ReplaceAll(s.Events[i].Message, "Not Supported", "Unknown Error")
				}
				s.Logs = nil
			}, "dra.prepare", "so that another device is allocated",
		},
		"no node runs containerd": {
			"home-ops-11760", func(s *snapshot.Snapshot) {
				for i := range s.Nodes {
					s.Nodes[i].Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.35.1"
				}
			}, "rt.wrong-instance", "container-toolkit=false",
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
