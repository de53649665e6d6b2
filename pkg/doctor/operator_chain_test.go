package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

func sandboxEvent(pod corev1.Pod, message string) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}, Type: "Warning",
		Reason:  "FailedCreatePodSandBox",
		Message: message, LastTimestamp: metav1.NewTime(operandNow().Add(-time.Minute)),
	}
}

// TestInitChain verifies that only the first failing component in the operator's chain is a root cause, and that all
// pods that are waiting for it are consequences.
func TestInitChain(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	waitingRest := func() []corev1.Pod {
		return []corev1.Pod{
			pluginPod(waitsIn("toolkit-validation", hour)), discoveryPod(waitsIn("toolkit-validation", hour)),
			exporterPod(waitsIn("toolkit-validation", hour)),
		}
	}
	noRuntime :=
		`Failed to create pod sandbox: rpc error: code = Unknown desc = unable to get OCI runtime for sandbox "1": no runtime for "nvidia" is configured`
	consequences := []string{
		"dp.capacity-zero Node gpu-1", "dp.not-running Pod gpu-operator/nvidia-device-plugin-daemonset-x",
		"op.operand-failing Pod gpu-operator/gpu-feature-discovery-x",
		"op.operand-failing Pod gpu-operator/nvidia-dcgm-exporter-x",
		"op.operand-failing Pod gpu-operator/nvidia-operator-validator-x",
	}
	broken := plainNode("gpu-1", nodeLabel("feature.node.kubernetes.io/pci-10de.present=true"))
	stuckDriver := driverPod(crashes("Could not resolve Linux kernel version"))
	runOperandCases(t, map[string]operandCase{
		"the operator's driver crashes": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{broken}, Pods: append(waitingRest(), stuckDriver,
				toolkitPod(waitsIn("driver-validation", hour)), validatorPod(waitsIn("driver-validation", hour))),
				Logs: []snapshot.Log{logOf(stuckDriver, "a\nCould not resolve Linux kernel version\n")},
				Hosts: map[string]*api.Diagnosis{
					"gpu-1": {Probe: api.Probe{Validations: []string{".driver-ctr-starting"}}},
				}},
			want: append([]string{
				"root op.init-chain error Node gpu-1", "op.operand-failing Pod gpu-operator/nvidia-driver-daemonset-x",
				"op.operand-failing Pod gpu-operator/nvidia-container-toolkit-daemonset-x",
			}, consequences...),
			fix:      []string{"kubectl logs nvidia-driver-daemonset-x -n gpu-operator -c nvidia-driver-ctr"},
			evidence: []string{"CrashLoopBackOff", "Could not resolve Linux kernel version", ".driver-ctr-starting"},
		},
		"the host has no driver and the operator installs none": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{broken}, Pods: append(waitingRest(),
				toolkitPod(waitsIn("driver-validation", hour)), validatorPod(waitsIn("driver-validation", hour)))},
			want: append([]string{
				"root op.init-chain error Node gpu-1",
				"op.operand-failing Pod gpu-operator/nvidia-container-toolkit-daemonset-x",
			}, consequences...),
			fix: []string{"the node must have one"},
		},
		"the toolkit crashes": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{broken}, Pods: append(waitingRest(), driverPod(),
				toolkitPod(crashes("unable to load config")), validatorPod(waitsIn("toolkit-validation", hour)))},
			want: append([]string{
				"root op.init-chain error Node gpu-1",
				"op.operand-failing Pod gpu-operator/nvidia-container-toolkit-daemonset-x",
			}, consequences...),
			evidence: []string{"unable to load config"},
		},
		"the runtime does not know the handler": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{broken},
				Pods: []corev1.Pod{
					driverPod(), toolkitPod(), pluginPod(creating(hour)), validatorPod(creating(hour)),
				},
				Events: []corev1.Event{sandboxEvent(pluginPod(), noRuntime), sandboxEvent(validatorPod(), noRuntime)}},
			want: []string{
				"root op.init-chain error Node gpu-1", "dp.capacity-zero Node gpu-1",
				"dp.not-running Pod gpu-operator/nvidia-device-plugin-daemonset-x",
				"op.operand-failing Pod gpu-operator/nvidia-operator-validator-x",
			},
			evidence: []string{`no runtime for "nvidia" is configured`},
		},
		"no sandbox for another reason is not the toolkit's": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()},
				Pods: []corev1.Pod{driverPod(), toolkitPod(), pluginPod(), validatorPod(creating(hour))},
				Events: []corev1.Event{
					sandboxEvent(validatorPod(),
						"plugin type=\"calico\" failed (add): error getting ClusterInformation"),
				}},
			want: []string{"root op.operand-failing error Pod gpu-operator/nvidia-operator-validator-x"},
		},
		"CUDA does not work": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()},
				Pods: []corev1.Pod{
					driverPod(), toolkitPod(), pluginPod(), validatorPod(waitsIn("cuda-validation", hour)),
				},
			},
			want: []string{
				"root op.init-chain error Node gpu-1",
				"op.operand-failing Pod gpu-operator/nvidia-operator-validator-x",
			},
			fix: []string{"Fabric Manager"},
		},
		"the validator gets no GPU although the plugin works": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()},
				Pods: []corev1.Pod{
					driverPod(), toolkitPod(), pluginPod(), validatorPod(waitsIn("plugin-validation", hour)),
				},
			},
			want: []string{
				"root op.init-chain warning Node gpu-1",
				"op.operand-failing Pod gpu-operator/nvidia-operator-validator-x",
			},
		},
		"the validator waits for a plugin that crashes": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode(withoutGPUs)}, Pods: []corev1.Pod{
				driverPod(), toolkitPod(), pluginPod(crashes("oops")), validatorPod(waitsIn("plugin-validation", hour)),
			}},
			want: []string{"root dp.not-running error Pod gpu-operator/nvidia-device-plugin-daemonset-x",
				"dp.capacity-zero Node gpu-1", "op.operand-failing Pod gpu-operator/nvidia-operator-validator-x",
				"unknown dp.nvml-missing Pod gpu-operator/nvidia-device-plugin-daemonset-x"},
		},
		"the driver is being compiled": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{broken}, Pods: append(waitingRest(),
				driverPod(startsFor(10*time.Minute)), toolkitPod(waitsIn("driver-validation", 10*time.Minute)),
				validatorPod(waitsIn("driver-validation", 10*time.Minute)))},
			want: append([]string{
				"root op.init-chain info Node gpu-1",
				"op.operand-failing Pod gpu-operator/nvidia-container-toolkit-daemonset-x",
			}, consequences...),
		},
		"pods have just been made": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{broken}, Pods: []corev1.Pod{driverPod(startsFor(time.Minute)),
				toolkitPod(waitsIn("driver-validation", time.Minute)),
				pluginPod(waitsIn("toolkit-validation", time.Minute)),
				validatorPod(waitsIn("driver-validation", time.Minute))}},
			want: []string{"root op.init-chain info Node gpu-1"},
		},
		"a peer memory module alone does not break the driver": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()},
				Pods: []corev1.Pod{peermemFails(), toolkitPod(), pluginPod(), validatorPod()},
				Logs: []snapshot.Log{{
					Namespace: "gpu-operator", Pod: "nvidia-driver-daemonset-x", Container: "nvidia-peermem-ctr",
					Text: "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\n",
				}}},
			want: []string{
				"root rdma.peermem error Node gpu-1", "op.operand-failing Pod gpu-operator/nvidia-driver-daemonset-x",
			},
			fix: []string{"kubectl delete pod nvidia-driver-daemonset-x -n gpu-operator"},
		},
		"a node that does not report": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(notReadyNode)},
				Pods:  []corev1.Pod{toolkitPod(unready), pluginPod(unready)},
			},
			want: []string{"unknown dp.capacity-zero Node gpu-1", "unknown dp.none Node gpu-1",
				"unknown dp.not-running Pod gpu-operator/nvidia-device-plugin-daemonset-x",
				"unknown dp.unhealthy Node gpu-1",
				"unknown op.init-chain Node gpu-1",
				"unknown op.operand-failing Pod gpu-operator/nvidia-container-toolkit-daemonset-x"},
		},
	})
}

// peermemFails returns a driver pod whose driver works but whose container for nvidia_peermem fails.
func peermemFails() corev1.Pod {
	return driverPod(func(pod *corev1.Pod) {
		pod.Spec.Containers = append(pod.Spec.Containers,
			corev1.Container{Name: "nvidia-peermem-ctr", Image: "nvcr.io/nvidia/driver:580"})
		pod.Status.Conditions[0].Status = corev1.ConditionFalse
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: "nvidia-peermem-ctr", RestartCount: 4,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		})
	})
}

// TestFailedTestPod verifies that a failed CUDA validation is explained by the log of the test pod that the operator
// created.
func TestFailedTestPod(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field",
		"gpu-driver-container-735-fabricmanager-of-another-version.txtar"))
	c.snapshot.Logs = slices.DeleteFunc(c.snapshot.Logs, func(l snapshot.Log) bool {
		return strings.HasPrefix(l.Pod, "nvidia-driver-daemonset") || l.Namespace == "training"
	})
	report := Examine(c.snapshot, Options{})
	for _, found := range report.Roots() {
		if found.ID == "op.init-chain" && strings.Contains(found.Title, "NVSwitch") {
			return
		}
	}
	t.Errorf("the validation is not explained\n%s", describe(report))
}
