package snapshot

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Redacted replaces a secret.
const Redacted = "REDACTED"

// Redact removes secrets from the snapshot, in place: values of variables, flags and keys whose names suggest a
// secret, strings that look like credentials, and registry credentials in configurations of container runtimes.
// It also removes managed fields and kubectl's copy of the last applied manifest, which repeat the values.
// Write redacts too; redacting twice changes nothing.
func Redact(s *Snapshot) {
	each(s.Nodes, redactMeta)
	each(s.Namespaces, redactMeta)
	redactPods(s.Pods)
	each(s.Events, redactEvent)
	each(s.DaemonSets, redactDaemonSet)
	each(s.RuntimeClasses, redactMeta)
	each(s.ResourceQuotas, redactMeta)
	each(s.LimitRanges, redactMeta)
	each(s.ConfigMaps, redactConfigMap)
	each(s.NetworkPolicies, redactMeta)
	each(s.Services, redactMeta)
	each(s.ResourceSlices, redactMeta)
	each(s.ResourceClaims, redactClaim)
	each(s.DeviceClasses, redactMeta)
	for _, all := range [][]unstructured.Unstructured{
		s.ClusterPolicies, s.NVIDIADrivers, s.ComputeDomains, s.ServiceMonitors, s.Prometheuses,
	} {
		each(all, redactCustom)
	}
	s.HelmReleases = redactHelm(s.HelmReleases)
	s.Images = redactImages(s.Images)
	s.Missing = RedactMissing(s.Missing)
	s.Runs = redactRuns(s.Runs)
	for i := range s.Logs {
		s.Logs[i].Text = redactText(s.Logs[i].Text)
	}
	for name, host := range s.Hosts {
		if host != nil {
			s.Hosts[name] = RedactHost(host)
		}
	}
}

func each[T any, P interface{ *T }](all []T, do func(P)) {
	for i := range all {
		do(&all[i])
	}
}

// dropped is an annotation that repeats the object's manifest, including its secrets.
const dropped = "kubectl.kubernetes.io/last-applied-configuration"

func redactMeta[P metav1.Object](object P) {
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	delete(annotations, dropped)
	for name, value := range annotations {
		annotations[name] = redactSetting(name[strings.LastIndexByte(name, '/')+1:], value)
	}
}

func redactEvent(e *corev1.Event) {
	redactMeta(e)
	e.Message = redactText(e.Message)
}

func redactConfigMap(cm *corev1.ConfigMap) {
	redactMeta(cm)
	cm.BinaryData = nil
	for name, value := range cm.Data {
		cm.Data[name] = redactConfig(redactSetting(name, value))
	}
}

func redactDaemonSet(ds *appsv1.DaemonSet) {
	redactMeta(ds)
	redactMeta(&ds.Spec.Template)
	redactSpec(&ds.Spec.Template.Spec, redactContainer)
}

// redactClaim redacts credentials in the parameters of drivers.
func redactClaim(claim *resourcev1.ResourceClaim) {
	redactMeta(claim)
	for i := range claim.Status.Devices {
		claim.Status.Devices[i].Data = nil
	}
}

// redactPods redacts each container once: pods of the same template share their containers, so 50,000 pods have
// only a few.
func redactPods(pods []corev1.Pod) {
	done := map[*corev1.Container]bool{}
	once := func(c *corev1.Container) {
		if !done[c] {
			done[c] = true
			redactContainer(c)
		}
	}
	each(pods, func(pod *corev1.Pod) { redactPodWith(pod, once) })
}

func redactPod(pod *corev1.Pod) { redactPodWith(pod, redactContainer) }

func redactPodWith(pod *corev1.Pod, container func(*corev1.Container)) {
	redactMeta(pod)
	redactSpec(&pod.Spec, container)
	pod.Status.Message = redactText(pod.Status.Message)
	for _, all := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range all {
			redactState(&all[i].State)
			redactState(&all[i].LastTerminationState)
		}
	}
}

func redactState(state *corev1.ContainerState) {
	if state.Waiting != nil {
		state.Waiting.Message = redactText(state.Waiting.Message)
	}
	if state.Terminated != nil {
		state.Terminated.Message = redactText(state.Terminated.Message)
	}
}

func redactSpec(spec *corev1.PodSpec, container func(*corev1.Container)) {
	each(spec.InitContainers, container)
	each(spec.Containers, container)
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		redactContainer(&c)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
}

func redactContainer(c *corev1.Container) {
	for i := range c.Env {
		c.Env[i].Value = redactVariable(c.Env[i].Name, c.Env[i].Value)
	}
	redactArgs(c.Command)
	redactArgs(c.Args)
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			redactAction(probe.Exec, probe.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, handler := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if handler != nil {
				redactAction(handler.Exec, handler.HTTPGet)
			}
		}
	}
}

func redactAction(exec *corev1.ExecAction, get *corev1.HTTPGetAction) {
	if exec != nil {
		redactArgs(exec.Command)
	}
	if get != nil {
		for i := range get.HTTPHeaders {
			get.HTTPHeaders[i].Value = Redacted // not needed
		}
	}
}

// redactArgs also handles flags whose value is the next argument.
func redactArgs(args []string) {
	for i, arg := range args {
		args[i] = redactText(arg)
		if i > 0 && strings.HasPrefix(args[i-1], "-") && !strings.ContainsAny(args[i-1], "= ") &&
			!strings.HasPrefix(arg, "-") {
			args[i] = redactVariable(strings.TrimLeft(args[i-1], "-"), args[i])
		}
		if i > 0 && (args[i-1] == "-u" || args[i-1] == "--user") && strings.Contains(arg, ":") { // curl
			args[i] = Redacted
		}
	}
}

// RedactCommand returns the command with credentials redacted. If a credential is detected only across
// arguments, as in curl -u USER:PASSWORD, the command becomes a single string.
func RedactCommand(command []string) []string {
	args := slices.Clone(command)
	redactArgs(args)
	text := strings.Join(args, " ")
	if all := redactText(text); all != text {
		return []string{all}
	}
	return args
}

func redactCustom(object *unstructured.Unstructured) {
	redactMeta(object)
	if annotations := object.GetAnnotations(); annotations != nil {
		delete(annotations, dropped)
		object.SetAnnotations(annotations)
	}
	for name, value := range object.Object {
		if name != "metadata" {
			object.Object[name] = redactTree(name, value)
		}
	}
}

func redactHelm(all []HelmRelease) []HelmRelease {
	all = slices.Clone(all)
	for i := range all {
		if values, ok := redactTree("values", all[i].Values).(map[string]any); ok {
			all[i].Values = values
		}
	}
	return all
}

func redactImages(all map[string]Image) map[string]Image {
	all = maps.Clone(all)
	for name, image := range all {
		image.Error = redactText(image.Error)
		all[name] = image
	}
	return all
}

// RedactMissing redacts entries of Missing: a reason may quote the response of a server.
func RedactMissing(all []Missing) []Missing {
	all = slices.Clone(all)
	for i := range all {
		all[i].Why, all[i].NotStarted = redactText(all[i].Why), redactText(all[i].NotStarted)
	}
	return all
}

func redactRuns(all []Run) []Run {
	all = slices.Clone(all)
	for i := range all {
		all[i].Summary = redactText(all[i].Summary)
		all[i].Targets = slices.Clone(all[i].Targets)
		for j := range all[i].Targets {
			target := &all[i].Targets[j]
			target.Evidence = slices.Clone(target.Evidence)
			for k := range target.Evidence {
				target.Evidence[k].Text = redactText(target.Evidence[k].Text)
			}
		}
	}
	return all
}

// redactTree returns a redacted copy of a tree of settings, such as Helm values or a custom resource.
func redactTree(name string, value any) any {
	switch v := value.(type) {
	case string:
		return redactSetting(name, v)
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = redactTree(name, v[i])
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for key, inner := range v {
			all[key] = redactTree(key, inner)
		}
		variable, named := v["name"].(string)
		if text, ok := v["value"].(string); named && ok { // env: [{name: NGC_API_KEY, value: ...}]
			all["value"] = redactVariable(variable, text)
		}
		return all
	}
	return value
}

// RedactHost redacts what was read on one node. It returns a copy that shares nothing that was redacted or that
// takeFiles changes.
func RedactHost(host *api.Diagnosis) *api.Diagnosis {
	h := *host
	if h.Runtime.Instance != nil {
		instance := redactedInstance(*h.Runtime.Instance)
		h.Runtime.Instance = &instance
	}
	h.Runtime.Decoys = slices.Clone(h.Runtime.Decoys)
	for i, decoy := range h.Runtime.Decoys {
		h.Runtime.Decoys[i] = redactedInstance(decoy)
	}
	h.Probe.ToolkitConfig = redactConfig(h.Probe.ToolkitConfig)
	h.Probe.Cmdline = redactText(h.Probe.Cmdline)
	h.Probe.SMIError = redactText(h.Probe.SMIError)
	h.SMI = redactText(h.SMI) // contains command lines of processes
	h.Probe.Unread = maps.Clone(h.Probe.Unread)
	for field, why := range h.Probe.Unread {
		h.Probe.Unread[field] = redactText(why)
	}
	h.Info.Warnings = slices.Clone(h.Info.Warnings)
	for i, warning := range h.Info.Warnings {
		h.Info.Warnings[i] = redactText(warning)
	}
	h.KernelLog = slices.Clone(h.KernelLog)
	for i := range h.KernelLog {
		h.KernelLog[i].Text = redactText(h.KernelLog[i].Text)
	}
	h.Journals = maps.Clone(h.Journals)
	for unit, text := range h.Journals {
		h.Journals[unit] = redactText(text)
	}
	return &h
}

func redactedInstance(instance api.Instance) api.Instance {
	instance.Args = slices.Clone(instance.Args)
	redactArgs(instance.Args)
	instance.Files = slices.Clone(instance.Files)
	for i := range instance.Files {
		if data := instance.Files[i].Data; data != nil {
			instance.Files[i].Data = []byte(redactConfig(string(data)))
		}
	}
	if instance.CRI != nil && len(instance.CRI.Config) > 0 {
		info := *instance.CRI
		info.Config = redactJSON(info.Config)
		instance.CRI = &info
	}
	return instance
}
