package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestObservability covers metrics: whether they are scraped, their pod labels, and exporter crashes.
func TestObservability(t *testing.T) {
	t.Parallel()
	prometheus := func(spec map[string]any) []unstructured.Unstructured {
		return []unstructured.Unstructured{custom("Prometheus", "monitoring", "k8s", spec, nil)}
	}
	byLabel := map[string]any{
		"serviceMonitorSelector":          map[string]any{"matchLabels": map[string]any{"release": "prom"}},
		"serviceMonitorNamespaceSelector": map[string]any{},
	}
	monitor := func(labels map[string]string) []unstructured.Unstructured {
		m := custom("ServiceMonitor", "gpu-operator", "nvidia-dcgm-exporter",
			map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "nvidia-dcgm-exporter"}}},
			nil)
		m.SetLabels(labels)
		return []unstructured.Unstructured{m}
	}
	base := func(exporter corev1.Pod) snapshot.Snapshot {
		return snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod(), exporter},
			Namespaces: []corev1.Namespace{
				{ObjectMeta: metav1.ObjectMeta{Name: "gpu-operator", Labels: map[string]string{"team": "infra"}}},
			}}
	}
	scraped := func(spec map[string]any, labels map[string]string) snapshot.Snapshot {
		s := base(exporterPod())
		s.Prometheuses, s.ServiceMonitors = prometheus(spec), monitor(labels)
		return s
	}
	none := scraped(byLabel, nil)
	none.ServiceMonitors = nil
	released := scraped(byLabel, nil)
	released.HelmReleases = []snapshot.HelmRelease{operatorRelease()}
	forbidden := scraped(byLabel, nil)
	forbidden.Missing = []snapshot.Missing{{What: "api/servicemonitors", Why: "forbidden"}}
	logged := func(text string, edits ...podEdit) snapshot.Snapshot {
		exporter := exporterPod(append([]podEdit{crashes("")}, edits...)...)
		s := base(exporter)
		if text != "" {
			s.Logs = []snapshot.Log{logOf(exporter, text)}
		}
		return s
	}
	killed := logged("", func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			Reason: "OOMKilled", ExitCode: 137,
		}
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("128Mi")}
	})
	byFlux := killed
	byFlux.HelmReleases = []snapshot.HelmRelease{operatorRelease()}
	byFlux.ClusterPolicies = []unstructured.Unstructured{
		custom("ClusterPolicy", "", "cluster-policy", map[string]any{}, map[string]any{"state": "ready"}),
	}
	byFlux.ClusterPolicies[0].SetLabels(map[string]string{"helm.toolkit.fluxcd.io/name": "gpus"})
	unlimited := logged("", func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			Reason: "OOMKilled", ExitCode: 137,
		}
	})
	failing := "op.operand-failing Pod gpu-operator/nvidia-dcgm-exporter-x"
	runOperandCases(t, map[string]operandCase{
		"the labels fit": {s: scraped(byLabel, map[string]string{"release": "prom"})},
		"an empty selector takes all": {s: scraped(map[string]any{
			"serviceMonitorSelector": map[string]any{}, "serviceMonitorNamespaceSelector": map[string]any{},
		}, nil)},
		"nobody uses the operator for it": {s: base(exporterPod())},
		"the labels do not fit": {
			s:        scraped(byLabel, nil),
			want:     []string{"root obs.dcgm-labels warning ServiceMonitor gpu-operator/nvidia-dcgm-exporter"},
			fix:      []string{"kubectl label servicemonitor nvidia-dcgm-exporter -n gpu-operator release=prom"},
			evidence: []string{"release=prom"},
		},
		"the labels do not fit, and Helm owns them": {
			s:    released,
			want: []string{"root obs.dcgm-labels warning ServiceMonitor gpu-operator/nvidia-dcgm-exporter"},
			fix: []string{
				"--reuse-values --set dcgmExporter.serviceMonitor.additionalLabels.release=prom", "      release: prom",
			},
		},
		"no selector takes none": {
			s:    scraped(map[string]any{}, nil),
			fix:  []string{"set its spec.serviceMonitorSelector"},
			want: []string{"root obs.dcgm-labels warning ServiceMonitor gpu-operator/nvidia-dcgm-exporter"},
		},
		"only the own namespace": {
			s:        scraped(map[string]any{"serviceMonitorSelector": map[string]any{}}, nil),
			want:     []string{"root obs.dcgm-labels warning ServiceMonitor gpu-operator/nvidia-dcgm-exporter"},
			fix:      []string{"serviceMonitorNamespaceSelector"},
			evidence: []string{"only namespace monitoring"},
		},
		"another namespace": {
			s: scraped(map[string]any{
				"serviceMonitorSelector":          map[string]any{},
				"serviceMonitorNamespaceSelector": map[string]any{"matchLabels": map[string]any{"team": "web"}},
			}, nil),
			want:     []string{"root obs.dcgm-labels warning ServiceMonitor gpu-operator/nvidia-dcgm-exporter"},
			evidence: []string{"team=web"},
		},
		"no monitor": {
			s: none, want: []string{"root obs.dcgm-labels info Pod gpu-operator/nvidia-dcgm-exporter-x"},
		},
		"monitors cannot be read": {s: forbidden, want: []string{"unknown obs.dcgm-labels Cluster"}},
		"pods are not asked for": {
			s:    base(exporterPod(func(pod *corev1.Pod) { pod.Spec.Containers[0].Env = nil })),
			want: []string{"root obs.dcgm-labels info Pod gpu-operator/nvidia-dcgm-exporter-x"},
		},
		"the kubelet cannot be asked": {
			s:    base(exporterPod(func(pod *corev1.Pod) { pod.Spec.Volumes = nil })),
			want: []string{"root obs.dcgm-labels warning Pod gpu-operator/nvidia-dcgm-exporter-x"},
		},
		"the device plugin is Google's": {
			s: func() snapshot.Snapshot {
				s := base(exporterPod())
				s.Pods[0].Spec.Containers[0].Image = "gke.gcr.io/nvidia-gpu-device-plugin:v1"
				return s
			}(),
			want: []string{"root obs.dcgm-labels warning Pod gpu-operator/nvidia-dcgm-exporter-x"},
		},
		"the device plugin is NVIDIA's, and names are asked for": {
			s: func() snapshot.Snapshot {
				s := base(exporterPod(func(pod *corev1.Pod) {
					pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
						corev1.EnvVar{Name: "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", Value: "device-name"})
				}))
				s.Pods[0].Spec.Containers[0].Image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"
				return s
			}(),
			want: []string{"root obs.dcgm-labels warning Pod gpu-operator/nvidia-dcgm-exporter-x"},
		},
		"profiling fails": {
			s: logged(
				"fatal: Failed to watch metrics: Error watching fields: The third-party Profiling module returned an unrecoverable error\n",
			),
			want: []string{"root obs.dcgm-crash warning Pod gpu-operator/nvidia-dcgm-exporter-x", failing},
		},
		"a module is not loaded": {
			s:    logged("This request is serviced by a module of DCGM that is not currently loaded\n"),
			want: []string{"root obs.dcgm-crash warning Pod gpu-operator/nvidia-dcgm-exporter-x", failing},
		},
		"out of memory": {
			s: killed, want: []string{"root obs.dcgm-crash warning Pod gpu-operator/nvidia-dcgm-exporter-x", failing},
			evidence: []string{"128Mi"}, fix: []string{"--limits=memory=1Gi"},
		},
		"out of memory, and Flux owns the limit": {
			s: byFlux, want: []string{"root obs.dcgm-crash warning Pod gpu-operator/nvidia-dcgm-exporter-x", failing},
			fix: []string{"kubectl patch clusterpolicy"}, // which the engine replaces with a note about Flux
		},
		"out of memory without a limit": {s: unlimited, want: []string{
			"root op.operand-failing warning Pod gpu-operator/nvidia-dcgm-exporter-x",
			"unknown obs.dcgm-crash Pod gpu-operator/nvidia-dcgm-exporter-x",
		}},
		"it crashes for another reason": {
			s:        logged("panic\n"),
			want:     []string{"root op.operand-failing warning Pod gpu-operator/nvidia-dcgm-exporter-x"},
			evidence: []string{"panic"},
		},
		"it crashes and its log is gone": {s: logged(""), want: []string{
			"root op.operand-failing warning Pod gpu-operator/nvidia-dcgm-exporter-x",
			"unknown obs.dcgm-crash Pod gpu-operator/nvidia-dcgm-exporter-x",
		}},
	})
}
