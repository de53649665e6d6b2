package snapshot

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/redact"
)

// Redacted replaces a secret.
const Redacted = redact.Mark

// Redact removes the secrets that package redact finds in the snapshot. It changes the snapshot in place, and counts
// the secrets in Meta.Redacted. It also removes managed fields and kubectl's copy of the last applied manifest, because
// both repeat the values of the object. Write also redacts; redacting a snapshot a second time changes nothing.
func Redact(s *Snapshot) {
	w := redact.NewWalker()
	w.Shared = true
	redactAll(w, "nodes", s.Nodes)
	redactAll(w, "namespaces", s.Namespaces)
	redactAll(w, "pods", s.Pods)
	redactAll(w, "events", s.Events)
	redactAll(w, "daemonsets", s.DaemonSets)
	redactAll(w, "runtimeclasses", s.RuntimeClasses)
	redactAll(w, "resourcequotas", s.ResourceQuotas)
	redactAll(w, "limitranges", s.LimitRanges)
	redactAll(w, "configmaps", s.ConfigMaps)
	redactAll(w, "networkpolicies", s.NetworkPolicies)
	redactAll(w, "services", s.Services)
	redactAll(w, "persistentvolumes", s.PersistentVolumes)
	redactAll(w, "persistentvolumeclaims", s.PersistentVolumeClaims)
	redactAll(w, "resourceslices", s.ResourceSlices)
	redactAll(w, "resourceclaims", s.ResourceClaims)
	redactAll(w, "deviceclasses", s.DeviceClasses)
	redactAll(w, "clusterpolicies", s.ClusterPolicies)
	redactAll(w, "nvidiadrivers", s.NVIDIADrivers)
	redactAll(w, "computedomains", s.ComputeDomains)
	redactAll(w, "servicemonitors", s.ServiceMonitors)
	redactAll(w, "prometheuses", s.Prometheuses)
	redactAll(w, "queues", s.Queues)
	redactAll(w, "queued", s.Queued)
	s.HelmReleases = redactHelm(w, s.HelmReleases)
	s.Images = redactImages(w, s.Images)
	s.Missing = redactMissing(w, s.Missing)
	s.Runs = redactRuns(w, s.Runs)
	for i := range s.Logs {
		s.Logs[i].Text = w.Text("logs", s.Logs[i].Text)
	}
	for name, host := range s.Hosts {
		if host != nil {
			s.Hosts[name] = redactHost(w, host)
		}
	}
	s.Meta.Server, s.Meta.Context = w.Text("meta", s.Meta.Server), w.Text("meta", s.Meta.Context)
	s.Meta.count(w.Removed)
}

// count adds the numbers of removed secrets.
func (m *Meta) count(removed map[string]int) {
	for place, n := range removed {
		if m.Redacted == nil {
			m.Redacted = map[string]int{}
		}
		m.Redacted[place] += n
	}
}

// redactAll redacts Kubernetes objects.
func redactAll[T any, P interface {
	*T
	metav1.Object
}](w *redact.Walker, place string, all []T) {
	for i := range all {
		redactObject(w, place, P(&all[i]))
	}
}

func redactObject(w *redact.Walker, place string, object metav1.Object) {
	shorten(object)
	switch o := object.(type) {
	case *unstructured.Unstructured:
		w.Walk(place, &o.Object)
		return
	case *appsv1.DaemonSet:
		shorten(&o.Spec.Template)
	case *corev1.ConfigMap:
		o.BinaryData = nil
	case *resourcev1.ResourceClaim:
		for i := range o.Status.Devices {
			o.Status.Devices[i].Data = nil // written by the driver
		}
	}
	w.Walk(place, object)
}

// dropped is an annotation that repeats the object's manifest, including its secrets.
const dropped = "kubectl.kubernetes.io/last-applied-configuration"

// shorten removes the metadata that repeats an object's values.
func shorten(object metav1.Object) {
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	if _, ok := annotations[dropped]; ok {
		delete(annotations, dropped)
		object.SetAnnotations(annotations)
	}
}

// RedactCommand returns the command without secrets.
func RedactCommand(command []string) []string { return redact.Arguments(command) }

func redactHelm(w *redact.Walker, all []HelmRelease) []HelmRelease {
	all = slices.Clone(all)
	for i := range all {
		all[i].Values = runtime.DeepCopyJSON(all[i].Values)
		w.Walk("helm", &all[i].Values)
	}
	return all
}

func redactImages(w *redact.Walker, all map[string]Image) map[string]Image {
	clean := make(map[string]Image, len(all))
	for name, image := range all {
		image.Error = w.Text("images", image.Error)
		clean[w.Text("images", name)] = image
	}
	if all == nil {
		return nil
	}
	return clean
}

// RedactMissing redacts entries of Missing, because a reason may quote a server's response.
func RedactMissing(all []Missing) []Missing { return redactMissing(redact.NewWalker(), all) }

func redactMissing(w *redact.Walker, all []Missing) []Missing {
	all = slices.Clone(all)
	for i := range all {
		all[i].Why, all[i].NotStarted = w.Text("missing", all[i].Why), w.Text("missing", all[i].NotStarted)
	}
	return all
}

func redactRuns(w *redact.Walker, all []Run) []Run {
	all = slices.Clone(all)
	for i := range all {
		all[i].Summary = w.Text("runs", all[i].Summary)
		all[i].Targets = slices.Clone(all[i].Targets)
		for j := range all[i].Targets {
			target := &all[i].Targets[j]
			target.Evidence = slices.Clone(target.Evidence)
			for k := range target.Evidence {
				target.Evidence[k].Text = w.Text("runs", target.Evidence[k].Text)
			}
		}
	}
	return all
}

// AddHost adds data read on a node, without secrets.
func (s *Snapshot) AddHost(name string, host *api.Diagnosis) {
	if s.Hosts == nil {
		s.Hosts = map[string]*api.Diagnosis{}
	}
	w := redact.NewWalker()
	s.Hosts[name] = redactHost(w, host)
	s.Meta.count(w.Removed)
}

// redactHost returns a redacted copy. The copy and the original share no data that is redacted or that takeFiles
// changes.
func redactHost(w *redact.Walker, host *api.Diagnosis) *api.Diagnosis {
	const place = "nodes "
	h := *host
	h.Runtime = redact.Clone(h.Runtime)
	if h.Runtime.Instance != nil {
		redactInstance(w, h.Runtime.Instance)
	}
	for i := range h.Runtime.Decoys {
		redactInstance(w, &h.Runtime.Decoys[i])
	}
	w.WalkTexts(place+"runtime", &h.Runtime)
	h.Probe, h.Info = redact.Clone(h.Probe), redact.Clone(h.Info)
	h.Probe.ToolkitConfig = w.Config(place+"files", h.Probe.ToolkitConfig)
	w.WalkTexts(place+"probe", &h.Probe)
	w.WalkTexts(place+"probe", &h.Info)
	h.SMI = w.Text(place+"nvidia-smi", h.SMI) // contains command lines of processes
	h.KernelLog = slices.Clone(h.KernelLog)
	for i := range h.KernelLog {
		h.KernelLog[i].Text = w.Text(place+"kernel log", h.KernelLog[i].Text)
	}
	h.Journals = maps.Clone(h.Journals)
	for unit, text := range h.Journals {
		h.Journals[unit] = w.Text(place+"journals", text)
	}
	return &h
}

func redactInstance(w *redact.Walker, instance *api.Instance) {
	instance.Args = w.Arguments("nodes args", instance.Args)
	for i := range instance.Files {
		if data := instance.Files[i].Data; data != nil {
			instance.Files[i].Data = []byte(w.Config("nodes files", string(data)))
		}
	}
	if instance.CRI != nil && len(instance.CRI.Config) > 0 {
		instance.CRI.Config = redactJSON(w, instance.CRI.Config)
	}
}

// redactJSON redacts containerd's active configuration. It returns nil for invalid JSON.
func redactJSON(w *redact.Walker, raw json.RawMessage) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var config any
	if decoder.Decode(&config) != nil {
		return nil
	}
	before := w.Total()
	hideUsers(w, config)
	w.Walk("nodes runtime", &config)
	if w.Total() == before {
		return raw
	}
	redacted, err := json.Marshal(config)
	if err != nil {
		return nil
	}
	return redacted
}

// hideUsers redacts the names of registry users, which are half of a credential.
func hideUsers(w *redact.Walker, tree any) {
	switch v := tree.(type) {
	case []any:
		for _, inner := range v {
			hideUsers(w, inner)
		}
	case map[string]any:
		for key, inner := range v {
			if text, ok := inner.(string); ok && strings.EqualFold(key, "username") && text != "" && text != Redacted {
				v[key] = Redacted
				w.Removed["nodes runtime"]++
				continue
			}
			hideUsers(w, inner)
		}
	}
}
