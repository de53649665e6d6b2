// Package observability checks GPU metrics.
package observability

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Checks returns the checks for dcgm-exporter and its Prometheus scrape configuration.
//
// obs.dcgm-labels does not read :9400/metrics, because collecting a snapshot does not scrape metrics. Missing per-pod
// metrics for shared GPUs are expected and not reported.
func Checks() []engine.Check {
	return []engine.Check{dcgmLabelsCheck(), dcgmCrashCheck(), excludedCheck()}
}

func dcgmLabelsCheck() engine.Check {
	return engine.Check{
		ID: "obs.dcgm-labels", Layer: finding.LayerObservability,
		Title: "GPU metrics are not scraped, or have no pod labels",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "ServiceMonitors for dcgm-exporter, selectors of the Prometheus resources, labels of namespaces, and " +
			"the environment and volumes of dcgm-exporter's pods",
		Why: "The Prometheus operator configures scraping for the ServiceMonitors and namespaces that a Prometheus " +
			"resource selects. dcgm-exporter maps GPUs to pods only if DCGM_EXPORTER_KUBERNETES=true is set, the " +
			"kubelet's pod-resources directory is mounted, and the exporter uses the same kind of GPU IDs as the " +
			"node's device plugin. Other ways to scrape need no ServiceMonitor, so a missing one is not an error.",
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-telemetry/latest/kube-prometheus.html",
		Sources: []string{"gpu-operator#305", "gpu-operator#363", "gpu-operator#2009", "dcgm-exporter#85",
			"dcgm-exporter#138", "dcgm-exporter#150", "dcgm-exporter#342", "dcgm-exporter#27",
			"dcgm-exporter#363", "dcgm-exporter#529"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			exporters := f.Component(facts.DCGMExporter)
			if len(exporters) == 0 {
				return
			}
			if podutils.IsPodReady(exporters[0]) || !failing(f, exporters[0]) { // a crashing exporter has none anyway
				checkPodLabels(f, r, exporters[0])
			}
			if r.Lacks(f, "api/servicemonitors") || r.Lacks(f, "api/prometheuses") || len(f.Prometheuses) == 0 {
				return
			}
			checkMonitors(f, r, exporters[0])
		},
	}
}

// failing reports whether a pod is crashing or cannot start.
func failing(f *facts.Facts, pod *corev1.Pod) bool {
	t, bad := facts.OperandTrouble(f, pod)
	return bad && !t.Waits
}

// checkPodLabels reports an exporter that cannot map GPUs to pods. It checks only one pod, because all exporter pods
// are alike.
func checkPodLabels(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	mounted := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && strings.Contains(v.HostPath.Path, "pod-resources")
	})
	for _, c := range pod.Spec.Containers {
		on := slices.Contains(c.Args, "-k") || slices.Contains(c.Args, "--kubernetes") ||
			slices.Contains(c.Args, "--kubernetes=true")
		unknown := len(c.EnvFrom) > 0
		for _, e := range c.Env {
			on = on || e.Name == "DCGM_EXPORTER_KUBERNETES" && strings.EqualFold(e.Value, "true")
			unknown = unknown || e.Name == "DCGM_EXPORTER_KUBERNETES" && e.ValueFrom != nil
		}
		if !on && unknown {
			continue
		}
		if !strings.Contains(c.Name+c.Image, "dcgm-exporter") {
			continue
		}
		if on && mounted {
			if found, ok := otherIDs(f, pod, &c); ok {
				r.Add(found)
				return
			}
			continue
		}
		found := finding.Finding{Object: facts.PodObject(pod), Severity: finding.Info,
			Title: "dcgm-exporter is not configured to add pod labels to its metrics",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(
					facts.PodObject(pod), ".spec.containers["+c.Name+"].env", "no DCGM_EXPORTER_KUBERNETES=true",
				),
			},
			Fix: finding.Fix{
				Text: "Set DCGM_EXPORTER_KUBERNETES=true, and mount /var/lib/kubelet/pod-resources.",
				Commands: []string{
					shell.Command("kubectl set env %s -n %s DCGM_EXPORTER_KUBERNETES=true", facts.OwnerOf(pod),
						pod.Namespace),
				},
			},
		}
		if on {
			found.Severity, found.Title = finding.Warning,
				"dcgm-exporter cannot add pod labels to its metrics: it does not mount the kubelet's pod-resources "+
					"directory"
			found.Evidence = []finding.Evidence{
				finding.FieldEvidence(
					facts.PodObject(pod), ".spec.volumes", "no hostPath %s/pod-resources", kubeletRootOf(f, pod),
				),
			}
			found.Fix.Commands = []string{shell.Command("kubectl edit %s -n %s", facts.OwnerOf(pod), pod.Namespace)}
		}
		if ofOperator(pod) {
			found.Fix = finding.Fix{
				Text: "The GPU operator sets the variable and mount in the DaemonSet and reverts changes there. " +
					"Check dcgmExporter.env in the operator's values, and whether its release is incomplete or a " +
					"webhook changes the pods.",
			}
		}
		r.Add(found)
		return
	}
	r.Pass(facts.PodObject(pod))
}

// otherIDs reports an exporter that identifies GPUs by a different kind of ID than the node's device plugin: Google's
// plugin registers names of device files, such as nvidia0, and NVIDIA's plugin registers UUIDs.
func otherIDs(f *facts.Facts, pod *corev1.Pod, c *corev1.Container) (finding.Finding, bool) {
	const variable = "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE"
	n := f.Node(pod.Spec.NodeName)
	if n == nil || strings.HasPrefix(pod.Namespace, "gke-") || // Google's own exporter
		slices.ContainsFunc(c.Args, func(arg string) bool { return strings.Contains(arg, "gpu-id-type") }) {
		return finding.Finding{}, false
	}
	value := "uid"
	for _, e := range c.Env {
		if e.Name != variable {
			continue
		}
		if value = e.Value; e.ValueFrom != nil {
			return finding.Finding{}, false
		}
	}
	want, image := "", ""
	for _, plugin := range facts.Current(n, facts.DevicePlugin) {
		kind := ""
		for c := range facts.Containers(plugin) {
			switch {
			case strings.Contains(c.Image, "/nvidia-gpu-device-plugin"):
				kind, image = "device-name", c.Image
			case strings.Contains(c.Image, "nvidia/k8s-device-plugin"):
				kind, image = "uid", c.Image
			}
		}
		if kind == "" || want != "" && kind != want {
			return finding.Finding{}, false // the kind of ID is unknown, or both kinds are used
		}
		want = kind
	}
	if want == "" || value == want {
		return finding.Finding{}, false
	}
	how, instead := "by UUID, but Google's", "by device name"
	if want == "uid" {
		how, instead = "by device name, but NVIDIA's", "by UUID"
	}
	var commands []string
	if !ofOperator(pod) {
		commands = []string{shell.Command(
			"kubectl set env %s -n %s %s=%s", facts.OwnerOf(pod), pod.Namespace, variable, want,
		)}
	}
	return finding.Finding{
		Object: facts.PodObject(pod), Severity: finding.Warning,
		Title: "dcgm-exporter cannot add pod labels to its metrics: it looks up GPUs " + how +
			" device plugin registers them " + instead,
		Evidence: []finding.Evidence{
			finding.FieldEvidence(
				facts.PodObject(pod), ".spec.containers["+c.Name+"].env", "not %s=%s", variable, want,
			),
			finding.FieldEvidence(n.Object(), "device plugin pods", "image %s", image),
		},
		Fix: finding.Fix{
			Text: "Set " + variable + "=" + want + " in the environment of dcgm-exporter (extraEnv in its Helm " +
				"values, dcgmExporter.env in the GPU operator's). Do not install a second device plugin.",
			Commands: commands,
		},
	}, true
}

// ofOperator reports whether the GPU operator manages a pod's DaemonSet, and reverts changes to it that are not made
// through the operator.
func ofOperator(pod *corev1.Pod) bool { return pod.Labels["app"] == "nvidia-dcgm-exporter" }

func kubeletRootOf(f *facts.Facts, pod *corev1.Pod) string {
	if n := f.Node(pod.Spec.NodeName); n != nil {
		return facts.KubeletRoot(n)
	}
	return facts.DefaultKubeletRoot
}

func checkMonitors(f *facts.Facts, r *engine.Result, exporter *corev1.Pod) {
	var monitors []unstructured.Unstructured
	for _, m := range f.ServiceMonitors {
		selects, _, _ := unstructured.NestedMap(m.Object, "spec", "selector", "matchLabels")
		if strings.Contains(m.GetName(), "dcgm") || strings.Contains(fmt.Sprint(selects), "dcgm") {
			monitors = append(monitors, m)
		}
	}
	if len(monitors) == 0 {
		r.Add(finding.Finding{
			Severity: finding.Info, Confidence: finding.Possible, Object: facts.PodObject(exporter),
			Title: "no ServiceMonitor selects dcgm-exporter, so Prometheus has no GPU metrics unless something else " +
				"scrapes it (the GPU operator creates one with dcgmExporter.serviceMonitor.enabled=true)",
			Evidence: []finding.Evidence{finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "ServiceMonitors",
				"%d, none for dcgm-exporter",
				len(f.ServiceMonitors))},
			Fix: finding.Fix{
				Text:     "If nothing else scrapes dcgm-exporter, let the operator create a ServiceMonitor.",
				Commands: facts.ChangeOperator(f, "dcgmExporter.serviceMonitor.enabled", true),
			},
		})
		return
	}
	for _, m := range monitors {
		object := finding.Object{Kind: "ServiceMonitor", Namespace: m.GetNamespace(), Name: m.GetName()}
		var why []finding.Evidence
		selected := slices.ContainsFunc(f.Prometheuses, func(p unstructured.Unstructured) bool {
			reason, ok := scrapes(f, p, m)
			if !ok {
				why = append(why, reason)
			}
			return ok
		})
		if selected {
			r.Pass(object)
			continue
		}
		evidence := append(
			[]finding.Evidence{
				finding.FieldEvidence(
					object, ".metadata.labels", "%s", words.OrNone(labels.Set(m.GetLabels()).String()),
				),
			},
			why[:min(len(why), 3)]...,
		)
		fix := finding.Fix{Text: "Add to the ServiceMonitor the labels that the Prometheus resource selects."}
		wants, _, _ := unstructured.NestedStringMap(
			f.Prometheuses[0].Object, "spec", "serviceMonitorSelector", "matchLabels",
		)
		switch byLabels, text := selectorOf(f.Prometheuses[0], "serviceMonitorSelector"); {
		case byLabels.Matches(labels.Set(m.GetLabels())):
			wants = nil
			fix.Text = "The Prometheus resource selects the ServiceMonitor's labels, but not its namespace: extend " +
				"spec.serviceMonitorNamespaceSelector (prometheus.prometheusSpec in the values of " +
				"kube-prometheus-stack), or give the namespace a label that the selector matches."
		case text == "not set":
			fix.Text = "The Prometheus resource selects no ServiceMonitors: set its spec.serviceMonitorSelector."
		}
		if len(wants) > 0 {
			for _, key := range words.SortedKeys(wants) {
				fix.Commands = append(fix.Commands,
					shell.Command("kubectl label servicemonitor %s -n %s %s --overwrite", m.GetName(), m.GetNamespace(),
						key+"="+wants[key]))
				fix.Values += fmt.Sprintf("        %s: %s\n", key, wants[key])
			}
			fix.Values = "dcgmExporter:\n  serviceMonitor:\n    enabled: true\n    additionalLabels:\n" +
				strings.ReplaceAll(fix.Values, "        ", "      ")
			if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
				var set []string
				for _, key := range words.SortedKeys(wants) {
					set = append(set,
						"dcgmExporter.serviceMonitor.additionalLabels."+strings.ReplaceAll(key, ".", `\.`)+"="+
							wants[key])
				}
				fix.Text += " The operator resets the ServiceMonitor's labels, so set them in the Helm values."
				fix.Commands = []string{facts.HelmUpgrade(h, set...)}
			}
		}
		r.Add(finding.Finding{
			Severity: finding.Warning, Confidence: finding.Likely, // other agents also read ServiceMonitors
			Object:   object,
			Title:    "no Prometheus selects the ServiceMonitor of dcgm-exporter",
			Evidence: evidence, Fix: fix,
		})
	}
}

// scrapes reports whether a Prometheus selects a ServiceMonitor by its labels and namespace. If not, it also returns
// the selector that excludes the ServiceMonitor.
func scrapes(f *facts.Facts, p, m unstructured.Unstructured) (finding.Evidence, bool) {
	object := finding.Object{Kind: "Prometheus", Namespace: p.GetNamespace(), Name: p.GetName()}
	byLabels, text := selectorOf(p, "serviceMonitorSelector")
	if !byLabels.Matches(labels.Set(m.GetLabels())) {
		return finding.FieldEvidence(object, ".spec.serviceMonitorSelector", "%s", text), false
	}
	if _, set, _ := unstructured.NestedMap(p.Object, "spec", "serviceMonitorNamespaceSelector"); !set {
		if m.GetNamespace() == p.GetNamespace() {
			return finding.Evidence{}, true
		}
		return finding.FieldEvidence(object, ".spec.serviceMonitorNamespaceSelector", "not set: only namespace %s",
			p.GetNamespace()), false
	}
	byNamespace, text := selectorOf(p, "serviceMonitorNamespaceSelector")
	at := slices.IndexFunc(f.Namespaces, func(n corev1.Namespace) bool { return n.Name == m.GetNamespace() })
	if at < 0 || byNamespace.Matches(labels.Set(f.Namespaces[at].Labels)) {
		return finding.Evidence{}, true // treat an unknown namespace as selected
	}
	return finding.FieldEvidence(object, ".spec.serviceMonitorNamespaceSelector", "%s", text), false
}

// selectorOf returns a label selector and its string form. An unset selector selects nothing; an invalid one selects
// everything.
func selectorOf(u unstructured.Unstructured, field string) (labels.Selector, string) {
	m, found, err := unstructured.NestedMap(u.Object, "spec", field)
	if !found || err != nil {
		return labels.Nothing(), "not set"
	}
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &s); err != nil {
		return labels.Everything(), err.Error()
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return labels.Everything(), err.Error()
	}
	return selector, selector.String()
}

func dcgmCrashCheck() engine.Check {
	return engine.Check{
		ID: "obs.dcgm-crash", Symptom: engine.Explained, Layer: finding.LayerObservability,
		Title: "dcgm-exporter crashes for a known reason",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "logs, last state and memory limit of dcgm-exporter pods that are not ready",
		Why: "Typical reasons: profiling metrics (DCGM_FI_PROF_*) require a data center GPU that no other profiler " +
			"uses; a DCGM module is not loaded; many GPUs or MIG instances require more memory than the limit allows. " +
			"op.operand-failing reports other crashes.",
		Explains: []string{"op.operand-failing", "op.clusterpolicy"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-telemetry/latest/dcgm-exporter.html",
		Sources: []string{"dcgm-exporter#22", "dcgm-exporter#126", "dcgm-exporter#202", "dcgm-exporter#328",
			"dcgm-exporter#330", "gpu-monitoring-tools#119", "gpu-monitoring-tools#120",
			"gpu-monitoring-tools#141", "gpu-monitoring-tools#161"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, pod := range slices.Concat(f.Component(facts.DCGMExporter), f.Component(facts.DCGM)) {
				t, bad := facts.OperandTrouble(f, pod)
				if !bad || t.Init {
					r.Pass(facts.PodObject(pod))
					continue
				}
				checkDCGM(f, r, pod, t)
			}
		},
	}
}

func checkDCGM(f *facts.Facts, r *engine.Result, pod *corev1.Pod, t facts.PodTrouble) {
	found := finding.Finding{Severity: finding.Warning, Object: facts.PodObject(pod), Evidence: t.Evidence}
	if pod.Spec.NodeName != "" {
		found.Nodes = []string{pod.Spec.NodeName}
	}
	if killed, limit := dcgmOutOfMemory(pod); killed && limit != nil {
		part, values := "dcgm-exporter", "dcgmExporter"
		if facts.ComponentOf(pod.Labels, &pod.Spec) == facts.DCGM {
			part, values = "DCGM", "dcgm"
		}
		found.Title = part + " needs more memory than its limit"
		found.Cause = "The kernel killed the process when it reached the limit. It needs more memory for each GPU " +
			"and each metric."
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(
				facts.PodObject(pod), ".spec.containers[].resources.limits.memory", "%s", limit.String(),
			))
		more := fmt.Sprintf("%dGi", max(1, limit.Value()*2>>30))
		found.Fix = finding.Fix{
			Text: "Raise the memory limit in the values of the chart that installs " + part + ".",
			Commands: []string{shell.Command("kubectl set resources %s -n %s -c %s --limits=memory=%s",
				facts.OwnerOf(pod),
				pod.Namespace, facts.MainContainer(pod), more)},
		}
		if strings.HasPrefix(pod.Labels["app"], "nvidia-dcgm") {
			if change := facts.ChangeOperator(f, values+".resources.limits.memory", more); change != nil {
				found.Fix.Commands = change
			}
		}
		r.Add(found)
		return
	}
	for _, known := range []struct{ text, title, fix string }{
		{
			"third-party Profiling module", "dcgm-exporter cannot profile the GPU and exits",
			"Remove DCGM_FI_PROF_* from the metrics, or stop the GPU's other profiler (another DCGM, Nsight): only one can run.",
		},
		{
			"Profiling module returned an unrecoverable error", "dcgm-exporter cannot profile the GPU and exits",
			"Remove DCGM_FI_PROF_* from the metrics, or stop the GPU's other profiler (another DCGM, Nsight): only one can run.",
		},
		{
			"module of DCGM that is not currently loaded", "dcgm-exporter requires a DCGM module that is not loaded",
			"Remove the metrics that need the module (DCGM_FI_PROF_* on GPUs that are not data center GPUs), or use an image whose DCGM matches the driver.",
		},
	} {
		e, ok := facts.LogEvidence(f, pod, known.text)
		if !ok {
			continue
		}
		found.Title, found.Evidence = known.title, append([]finding.Evidence{e}, found.Evidence...)
		found.Fix = finding.Fix{Text: known.fix, Commands: []string{shell.Command(
			"kubectl describe %s -n %s # DCGM_EXPORTER_COLLECTORS names the metrics file", facts.OwnerOf(pod),
			pod.Namespace,
		)}}
		r.Add(found)
		return
	}
	engine.LacksLog(f, r, pod)
}

// dcgmOutOfMemory reports whether a container in the pod was OOM-killed, and returns its memory limit.
func dcgmOutOfMemory(pod *corev1.Pod) (killed bool, limit *resource.Quantity) {
	for _, s := range pod.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
			killed = killed || state.Terminated != nil && state.Terminated.Reason == "OOMKilled"
		}
	}
	for _, c := range pod.Spec.Containers {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && limit == nil {
			limit = &q
		}
	}
	return killed, limit
}
