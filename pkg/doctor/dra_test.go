package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// claimPod returns a pod that is waiting for a claim.
func claimPod(claim string) corev1.Pod {
	pod := gpuPod("nvidia.com/gpu")
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	pod.Status.Conditions[0].Message = "0/1 nodes are available: 1 cannot allocate all claims."
	return pod
}

// claimFor returns a claim in the namespace default for one device of a class.
func claimFor(name, class string, edits ...func(*resourcev1.ResourceClaim)) resourcev1.ResourceClaim {
	c := resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	c.Spec.Devices.Requests = []resourcev1.DeviceRequest{
		{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class}},
	}
	for _, edit := range edits {
		edit(&c)
	}
	return c
}

func allocated(device string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{
				{Driver: facts.DRAForGPUs, Pool: "gpu-1", Device: device},
			}}}
	}
}

func selecting(expression string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
			{CEL: &resourcev1.CELDeviceSelector{Expression: expression}},
		}
	}
}

func deviceClass(name string) resourcev1.DeviceClass {
	return resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// preparing returns a pod on gpu-1 whose claim has not been prepared yet.
func preparing() corev1.Pod {
	pod := claimPod("c")
	pod.Spec.NodeName = "gpu-1"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	return pod
}

func prepareEvent(text string) []corev1.Event {
	e := sandboxEvent(preparing(), text)
	e.Reason = "FailedPrepareDynamicResources"
	return []corev1.Event{e}
}

// TestDRA verifies that the reason is reported if a claim is not allocated or not prepared, and that wrong
// ResourceSlices are reported.
func TestDRA(t *testing.T) {
	t.Parallel()
	draNode := gpuNode(withoutGPUs)
	classes := []resourcev1.DeviceClass{deviceClass(facts.DRAForGPUs)}
	oneSlice := []resourcev1.ResourceSlice{slice("s", facts.DRAForGPUs, "gpu-1")}
	running := preparing()
	running.Status.Conditions[0].Status = corev1.ConditionTrue
	domain := custom("ComputeDomain", "default", "d",
		map[string]any{"channel": map[string]any{"resourceClaimTemplate": map[string]any{"name": "d-channel"}}},
		map[string]any{"status": "NotReady", "nodes": []any{map[string]any{"name": "gpu-1", "status": "NotReady"}}})
	domainPod := preparing()
	template := "d-channel"
	domainPod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "channel", ResourceClaimTemplateName: &template}}
	templatePod := func(template string) corev1.Pod {
		pod := claimPod("")
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		return pod
	}
	runOperandCases(t, map[string]operandCase{
		"no DeviceClass": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")},
				ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", facts.DRAForGPUs)}, ResourceSlices: oneSlice,
			},
			want:     []string{"root dra.unallocatable error Pod default/train"},
			evidence: []string{"cannot allocate all claims", "gpu.nvidia.com"},
		},
		"GPUs are not enabled in the chart": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin(), claimPod("c")},
				ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", facts.DRAForGPUs)}, DeviceClasses: classes,
				HelmReleases: []snapshot.HelmRelease{
					{Namespace: "dra", Name: "dra", Chart: facts.ChartDRA, ChartVersion: "25.8.0", Status: "deployed"},
				}},
			want: []string{"root dra.unallocatable error Pod default/train"}, fix: []string{
				"helm upgrade dra nvidia-dra-driver-gpu --repo https://helm.ngc.nvidia.com/nvidia -n dra --version 25.8.0 --reuse-values --set resources.gpus.enabled=true",
			},
		},
		"all devices are in use": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")},
				DeviceClasses: classes, ResourceSlices: oneSlice,
				ResourceClaims: []resourcev1.ResourceClaim{
					claimFor("c", facts.DRAForGPUs), claimFor("other", facts.DRAForGPUs, allocated("gpu-0")),
				}},
			want: []string{"root dra.unallocatable warning Pod default/train"},
		},
		"a free device does not fit": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")}, DeviceClasses: classes,
				ResourceSlices: oneSlice, ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", facts.DRAForGPUs)},
			},
			want: []string{"root dra.unallocatable error Pod default/train"},
			fix:  []string{"kubectl get resourceclaim c -n default -o yaml"},
		},
		"no device has the selected attribute": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")}, DeviceClasses: classes,
				ResourceSlices: oneSlice, ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", facts.DRAForGPUs,
					selecting(`device.driver == "gpu.nvidia.com" && `+
						`device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'`))},
			},
			want:     []string{"root dra.unallocatable error Pod default/train"},
			evidence: []string{"no device of gpu.nvidia.com has productName=NVIDIA B200; 1 device with: "},
		},
		"alternatives in a selector are not evaluated": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")}, DeviceClasses: classes,
				ResourceSlices: oneSlice, ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", facts.DRAForGPUs,
					selecting(`device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200' || true`))},
			},
			want:     []string{"root dra.unallocatable error Pod default/train"},
			evidence: []string{"1 device of gpu.nvidia.com, 1 not allocated"},
		},
		"the claim is made from a template, and the pod does not name it": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), templatePod("single-gpu")},
				ResourceSlices: oneSlice,
				ResourceClaims: []resourcev1.ResourceClaim{claimFor("train-gpu-x", facts.DRAForGPUs,
					func(c *resourcev1.ResourceClaim) {
						c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "train"}}
					})}},
			want: []string{"root dra.unallocatable error Pod default/train"},
		},
		"a DRA driver that offers nothing, and nobody asks": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod()}},
		},
		"the claim is allocated": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")}, DeviceClasses: classes,
				ResourceSlices: oneSlice,
				ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", facts.DRAForGPUs, allocated("gpu-0"))},
			},
		},
		"claims cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), claimPod("c")}, DeviceClasses: classes,
				ResourceSlices: oneSlice, Missing: []snapshot.Missing{{What: "api/resourceclaims", Why: "forbidden"}},
			},
			want: []string{"unknown dra.unallocatable Cluster"},
		},
		"the driver is not registered": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), preparing()},
				ResourceSlices: oneSlice,
				Events: prepareEvent(
					"Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu.nvidia.com is not registered",
				)},
			want:     []string{"root dra.prepare error Pod default/train"},
			fix:      []string{"kubectl delete pod nvidia-dra-driver-gpu-kubelet-plugin-x -n gpu-operator"},
			evidence: []string{"is not registered"},
		},
		"an event about a pod that runs is history": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), running}, ResourceSlices: oneSlice,
				Events: prepareEvent("DRA driver gpu.nvidia.com is not registered"),
			},
		},
		"events cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod(), preparing()}, ResourceSlices: oneSlice,
				Missing: []snapshot.Missing{{What: "api/events", Why: "forbidden"}},
			},
			want: []string{"unknown dra.prepare Cluster"},
		},
		"slices are missing from a pool": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod()},
				ResourceSlices: []resourcev1.ResourceSlice{
					slice("s", facts.DRAForGPUs, "gpu-1",
						func(s *resourcev1.ResourceSlice) { s.Spec.Pool.ResourceSliceCount = 2 })}},
			want:     []string{"root dra.slice-stale warning ResourceSlice s"},
			evidence: []string{"resourceSliceCount 2; 1 found"},
		},
		"slices are still coming": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod()},
				ResourceSlices: []resourcev1.ResourceSlice{slice("s", facts.DRAForGPUs, "gpu-1",
					func(s *resourcev1.ResourceSlice) {
						s.Spec.Pool.ResourceSliceCount = 2
						s.CreationTimestamp = operandAgo(time.Minute)
					})}},
		},
		"a slice of a node that is gone": {
			s:    snapshot.Snapshot{Nodes: []corev1.Node{plainNode("cpu-1")}, ResourceSlices: oneSlice},
			want: []string{"root dra.slice-stale warning ResourceSlice s"},
			fix:  []string{"kubectl delete resourceslice s"},
		},
		"a slice without a driver": {
			s:    snapshot.Snapshot{Nodes: []corev1.Node{draNode}, ResourceSlices: oneSlice},
			want: []string{"root dra.slice-stale warning ResourceSlice s"},
		},
		"a tainted device": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod()},
				ResourceSlices: []resourcev1.ResourceSlice{slice("s", facts.DRAForGPUs, "gpu-1",
					func(s *resourcev1.ResourceSlice) {
						s.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{
							{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourcev1.DeviceTaintEffectNoSchedule},
						}
					})}},
			want:     []string{"root dra.slice-stale warning ResourceSlice s"},
			evidence: []string{"gpu.nvidia.com/xid=79:NoSchedule"},
		},
		"slices cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin()},
				Missing: []snapshot.Missing{{What: "api/resourceslices", Why: "forbidden"}},
			},
			want: []string{"unknown dra.double-advertise Cluster", "unknown dra.slice-stale Cluster"},
		},
		"slices cannot be read, and a DRA driver is there": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{draNode}, Pods: []corev1.Pod{draPod()},
				Missing: []snapshot.Missing{{What: "api/resourceslices", Why: "forbidden"}},
			},
			want: []string{
				"unknown dp.none Cluster", "unknown dra.double-advertise Cluster", "unknown dra.slice-stale Cluster",
			},
		},
		"GPUs are given away twice": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin(), draPod()},
				ResourceSlices: oneSlice,
			},
			want: []string{"root dra.double-advertise warning Node gpu-1"},
		},
		"the host's IMEX daemon is in the way of a domain": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()},
				Pods:           []corev1.Pod{standalonePlugin(), draPod(), domainPod},
				ComputeDomains: []unstructured.Unstructured{domain},
				Hosts: map[string]*api.Diagnosis{"gpu-1": {Probe: api.Probe{
					Units: []api.Unit{{Name: "nvidia-imex.service", PID: 42}},
				},
					KernelLog: []api.KernelRecord{
						{Sequence: 7, Text: "NVRM: Failed to allocate Imex session: NV_ERR_IN_USE"},
					}}}},
			want: []string{"root imex.domain error Node gpu-1"}, fix: []string{"systemctl disable --now nvidia-imex"},
			evidence: []string{"PID 42", "sequence 7"},
		},
		"a domain is not ready for an unknown reason": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin(), draPod(), domainPod},
				ComputeDomains: []unstructured.Unstructured{domain},
			},
			want: []string{"root imex.domain error ComputeDomain default/d"}, evidence: []string{"gpu-1: NotReady"},
		},
		"a domain's daemon says that the session is taken": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()},
				Pods:           []corev1.Pod{standalonePlugin(), draPod(), domainPod},
				ComputeDomains: []unstructured.Unstructured{domain},
				Logs: []snapshot.Log{
					logOf(draPod(), "[ERROR] [tid 19] Failed to allocate Imex session: NV_ERR_IN_USE\n"),
				},
				Hosts: map[string]*api.Diagnosis{
					"gpu-1": {Probe: api.Probe{Processes: map[string][]int{"nvidia-imex": {2201}}}},
				}},
			want:     []string{"root imex.domain error ComputeDomain default/d"},
			evidence: []string{"NV_ERR_IN_USE", "2201"}, fix: []string{"systemctl disable --now nvidia-imex"},
		},
		"domains cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin()},
				Missing: []snapshot.Missing{{What: "api/computedomains", Why: "forbidden"}},
			},
			want: []string{"unknown imex.domain Cluster"},
		},
	})
}
