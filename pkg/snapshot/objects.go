package snapshot

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// errNewer means that a newer version of this tool created the snapshot.
var errNewer = errors.New("use a newer version of this tool")

// apiParsers returns the parsers for JSON and YAML files outside nodes/.
func (r *reader) apiParsers() map[string]func(file) error {
	s := &r.s
	return map[string]func(file) error{
		"snapshot":       func(f file) error { return r.decodeMeta(f, &s.Meta) },
		"missing":        func(f file) error { return r.decode(f, &s.Missing) },
		"helm":           r.decodeHelm,
		"images":         func(f file) error { return r.decode(f, &s.Images) },
		"runs":           func(f file) error { return r.decode(f, &s.Runs) },
		"api/crds":       r.decodeNames,
		"api/nodes":      func(f file) error { return objects[corev1.Node](r, f, "Node", &s.Nodes) },
		"api/namespaces": func(f file) error { return objects[corev1.Namespace](r, f, "Namespace", &s.Namespaces) },
		"api/pods":       func(f file) error { return objects[corev1.Pod](r, f, "Pod", &s.Pods) },
		"api/events":     func(f file) error { return objects[corev1.Event](r, f, "Event", &s.Events) },
		"api/daemonsets": func(f file) error { return objects[appsv1.DaemonSet](r, f, "DaemonSet", &s.DaemonSets) },
		"api/runtimeclasses": func(f file) error {
			return objects[nodev1.RuntimeClass](r, f, "RuntimeClass", &s.RuntimeClasses)
		},
		"api/resourcequotas": func(f file) error {
			return objects[corev1.ResourceQuota](r, f, "ResourceQuota", &s.ResourceQuotas)
		},
		"api/limitranges": func(f file) error {
			return objects[corev1.LimitRange](r, f, "LimitRange", &s.LimitRanges)
		},
		"api/configmaps": func(f file) error { return objects[corev1.ConfigMap](r, f, "ConfigMap", &s.ConfigMaps) },
		"api/networkpolicies": func(f file) error {
			return objects[networkingv1.NetworkPolicy](r, f, "NetworkPolicy", &s.NetworkPolicies)
		},
		"api/services":          func(f file) error { return objects[corev1.Service](r, f, "Service", &s.Services) },
		"api/persistentvolumes": func(f file) error { return r.customObjects(f, &s.PersistentVolumes) },
		"api/persistentvolumeclaims": func(f file) error {
			return r.customObjects(f, &s.PersistentVolumeClaims)
		},
		"api/resourceslices": func(f file) error {
			return objects[resourcev1.ResourceSlice](r, f, "ResourceSlice", &s.ResourceSlices)
		},
		"api/resourceclaims": func(f file) error {
			return objects[resourcev1.ResourceClaim](r, f, "ResourceClaim", &s.ResourceClaims)
		},
		"api/deviceclasses": func(f file) error {
			return objects[resourcev1.DeviceClass](r, f, "DeviceClass", &s.DeviceClasses)
		},
		"api/clusterpolicies": func(f file) error { return r.customObjects(f, &s.ClusterPolicies) },
		"api/nvidiadrivers":   func(f file) error { return r.customObjects(f, &s.NVIDIADrivers) },
		"api/computedomains":  func(f file) error { return r.customObjects(f, &s.ComputeDomains) },
		"api/servicemonitors": func(f file) error { return r.customObjects(f, &s.ServiceMonitors) },
		"api/prometheuses":    func(f file) error { return r.customObjects(f, &s.Prometheuses) },
		"api/queues":          func(f file) error { return r.customObjects(f, &s.Queues) },
		"api/queued":          func(f file) error { return r.customObjects(f, &s.Queued) },
	}
}

// typed is a pointer to an API type.
type typed[T any] interface {
	*T
	metav1.Object
	runtime.Object
}

// objects decodes all objects in a file.
func objects[T any, P typed[T]](r *reader, f file, kind string, into *[]T) error {
	return r.each(f, func(raw []byte) error {
		var object T
		if err := json.Unmarshal(raw, &object); err != nil {
			return err
		}
		of := P(&object).GetObjectKind()
		if got := of.GroupVersionKind().Kind; got != "" && got != kind {
			return fmt.Errorf("found kind %q, expected %s", cut(got), kind)
		}
		of.SetGroupVersionKind(schema.GroupVersionKind{}) // like client-go, which leaves it empty
		if r.named(f.name, P(&object).GetNamespace(), P(&object).GetName()) {
			*into = append(*into, object)
		}
		return nil
	})
}

// beta marks claims and slices in a version whose fields fromBeta moves.
var beta = []byte("resource.k8s.io/v1beta1")

// fromBeta moves the fields of a claim or slice to where v1 has them.
func fromBeta(raw []byte) []byte {
	var content map[string]any
	if utiljson.Unmarshal(raw, &content) != nil {
		return raw
	}
	requests, _, _ := unstructured.NestedFieldNoCopy(content, "spec", "devices", "requests")
	all, _ := requests.([]any)
	for _, item := range all {
		if request, _ := item.(map[string]any); request["deviceClassName"] != nil {
			request["exactly"] = maps.Clone(request)
		}
	}
	devices, _, _ := unstructured.NestedFieldNoCopy(content, "spec", "devices")
	all, _ = devices.([]any)
	for _, item := range all {
		device, _ := item.(map[string]any)
		basic, _ := device["basic"].(map[string]any)
		maps.Copy(device, basic)
	}
	if moved, err := json.Marshal(content); err == nil {
		return moved
	}
	return raw
}

func (r *reader) customObjects(f file, into *[]unstructured.Unstructured) error {
	return r.each(f, func(raw []byte) error {
		var content map[string]any
		if err := utiljson.Unmarshal(raw, &content); err != nil {
			return err
		}
		object := unstructured.Unstructured{Object: content}
		if r.named(f.name, object.GetNamespace(), object.GetName()) {
			*into = append(*into, object)
		}
		return nil
	})
}

// named reports whether the names are valid in Kubernetes. If not, it records an entry in Missing. Names become part of
// commands that users paste into a shell.
func (r *reader) named(what string, names ...string) bool {
	for _, name := range names {
		asFlag := name != "" && !isAlphanumeric(rune(name[0])) // kubectl parses "--all" as a flag
		if asFlag || strings.ContainsFunc(name, func(c rune) bool { return !isNameRune(c) }) || len(name) > 253 {
			r.s.Missing = append(r.s.Missing, Missing{
				What: what,
				Why:  "skipped an object with an invalid name: the snapshot was modified",
			})
			return false
		}
	}
	return true
}

func isNameRune(c rune) bool {
	return isAlphanumeric(c) || strings.ContainsRune(".:_-", c)
}

func isAlphanumeric(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// each calls the function do for each object in a file, including those in lists.
func (r *reader) each(f file, add func(raw []byte) error) error {
	do := func(raw []byte) error {
		if bytes.Contains(raw, beta) {
			raw = fromBeta(raw)
		}
		return add(raw)
	}
	return r.eachDocument(f, func(document []byte) error {
		var list struct {
			Items *json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(document, &list); err != nil {
			return err
		}
		if list.Items == nil {
			return do(document)
		}
		items := json.NewDecoder(bytes.NewReader(*list.Items))
		if token, err := items.Token(); err != nil || token != json.Delim('[') {
			return errors.New("items is not a list")
		}
		for i := 0; items.More(); i++ {
			var item json.RawMessage
			err := items.Decode(&item)
			if err == nil {
				err = do(item)
			}
			if err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	})
}

// eachDocument calls the function do for each document in a file, converted to JSON. YAML and JSON files may contain
// several documents.
func (r *reader) eachDocument(f file, do func([]byte) error) error {
	if f.yaml {
		return r.eachYAML(f.data, do)
	}
	data := bytes.TrimPrefix(f.data, []byte("\ufeff"))
	if err := r.count(data); err != nil {
		return err
	}
	documents := json.NewDecoder(bytes.NewReader(data))
	for {
		var document json.RawMessage
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("invalid JSON: %w", err)
		}
		if string(document) == "null" {
			continue
		}
		if err := do(document); err != nil {
			return err
		}
	}
}

func (r *reader) eachYAML(data []byte, do func([]byte) error) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("invalid YAML: %w", err)
		}
		asJSON, err := yaml.YAMLToJSON(document)
		if err != nil {
			return fmt.Errorf("invalid YAML: %w", err)
		}
		if string(bytes.TrimSpace(asJSON)) == "null" { // the document contains only comments
			continue
		}
		if err := r.count(asJSON); err != nil {
			return err
		}
		if err := do(asJSON); err != nil {
			return err
		}
	}
}

// count counts objects and values, and limits their number so that a small file cannot use a large amount of memory.
func (r *reader) count(data []byte) error {
	r.objects += bytes.Count(data, []byte("{")) + bytes.Count(data, []byte("[")) + bytes.Count(data, []byte("null"))
	if r.objects > maxObjects {
		return fmt.Errorf("more than %d objects in the snapshot", maxObjects)
	}
	if r.values += bytes.Count(data, []byte(",")); r.values > maxValues {
		return fmt.Errorf("more than %d values in the snapshot", maxValues)
	}
	return nil
}

// decode decodes the only document in a file.
func (r *reader) decode(f file, into any) error {
	found := false
	return r.eachDocument(f, func(document []byte) error {
		if found {
			return errors.New("found more than one document")
		}
		found = true
		return utiljson.Unmarshal(document, into) // preserves integers in Helm values
	})
}

func (r *reader) decodeHelm(f file) error {
	if err := r.decode(f, &r.s.HelmReleases); err != nil {
		return err
	}
	r.s.HelmReleases = slices.DeleteFunc(r.s.HelmReleases,
		func(h HelmRelease) bool { return !r.named("helm", h.Namespace, h.Name, h.Chart) })
	return nil
}

func (r *reader) decodeMeta(f file, meta *Meta) error {
	if err := r.decode(f, meta); err != nil {
		return err
	}
	switch group, _, _ := strings.Cut(meta.APIVersion, "/"); {
	case meta.Kind == "":
		return fmt.Errorf("missing kind: must be %q", Kind)
	case meta.Kind != Kind:
		return fmt.Errorf("unsupported kind %q: must be %s", cut(meta.Kind), Kind)
	case meta.APIVersion == "" || meta.APIVersion == APIVersion:
		return nil
	case group == strings.Split(APIVersion, "/")[0]:
		return fmt.Errorf("the snapshot has version %q, but this version of the tool supports %s: %w",
			cut(meta.APIVersion),
			APIVersion, errNewer)
	}
	return fmt.Errorf("unsupported apiVersion %q: must be %s", cut(meta.APIVersion), APIVersion)
}

// decodeNames decodes a list of names, or of objects with names.
func (r *reader) decodeNames(f file) error {
	return r.eachDocument(f, func(document []byte) error {
		var names []string
		if json.Unmarshal(document, &names) == nil {
			r.s.CRDs = append(r.s.CRDs, names...)
			return nil
		}
		return r.each(file{f.name, false, document}, func(raw []byte) error {
			var object struct {
				Metadata metav1.ObjectMeta `json:"metadata"`
			}
			if err := json.Unmarshal(raw, &object); err != nil {
				return err
			}
			r.s.CRDs = append(r.s.CRDs, object.Metadata.Name)
			return nil
		})
	})
}

// sortObjects sorts all objects and removes duplicates.
func (r *reader) sortObjects() { r.s.Sort() }

// Sort sorts all objects in the order of a snapshot: by namespace and name. If several objects have the same name, it
// keeps the first.
func (s *Snapshot) Sort() {
	s.Nodes = sorted(s.Nodes)
	s.Namespaces = sorted(s.Namespaces)
	s.Pods = sorted(s.Pods)
	s.Events = sorted(s.Events)
	s.DaemonSets = sorted(s.DaemonSets)
	s.RuntimeClasses = sorted(s.RuntimeClasses)
	s.ResourceQuotas = sorted(s.ResourceQuotas)
	s.LimitRanges = sorted(s.LimitRanges)
	s.ConfigMaps = sorted(s.ConfigMaps)
	s.NetworkPolicies = sorted(s.NetworkPolicies)
	s.Services = sorted(s.Services)
	s.PersistentVolumes = sorted(s.PersistentVolumes)
	s.PersistentVolumeClaims = sorted(s.PersistentVolumeClaims)
	s.ResourceSlices = sorted(s.ResourceSlices)
	s.ResourceClaims = sorted(s.ResourceClaims)
	s.DeviceClasses = sorted(s.DeviceClasses)
	s.ClusterPolicies = sorted(s.ClusterPolicies)
	s.NVIDIADrivers = sorted(s.NVIDIADrivers)
	s.ComputeDomains = sorted(s.ComputeDomains)
	s.ServiceMonitors = sorted(s.ServiceMonitors)
	s.Prometheuses = sorted(s.Prometheuses)
	s.Queues = sorted(s.Queues)
	s.Queued = sorted(s.Queued)
	slices.Sort(s.CRDs)
	s.CRDs = slices.Compact(s.CRDs)
	sorting.StableFunc(s.HelmReleases, func(a, b HelmRelease) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Revision, b.Revision))
	})
	sortLogs(s.Logs)
}

// sorted sorts objects. It moves them only if necessary, because they are large and usually already in the API server's
// order.
func sorted[T any, P interface {
	*T
	metav1.Object
}](all []T) []T {
	compare := func(a, b P) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()),
			cmp.Compare(kindOf(a), kindOf(b)))
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	inOrder := func(i, j int) int { return compare(P(&all[i]), P(&all[j])) }
	if !slices.IsSortedFunc(order, inOrder) {
		sorting.StableFunc(order, inOrder)
		arrange(all, order)
	}
	kept := 0
	for i := range all {
		if kept > 0 && P(&all[i]).GetName() != "" && compare(P(&all[kept-1]), P(&all[i])) == 0 {
			continue
		}
		if kept != i {
			all[kept] = all[i]
		}
		kept++
	}
	clear(all[kept:])
	return all[:kept]
}

// kindOf returns the group, version and kind of an object in a list with several kinds. For other lists, it returns "".
func kindOf(object any) string {
	custom, is := object.(*unstructured.Unstructured)
	if !is {
		return ""
	}
	return custom.GroupVersionKind().String()
}

// arrange moves the element at order[i] to i, for all i, without a second copy of the elements. It changes order.
func arrange[T any](all []T, order []int) {
	for start := range order {
		if order[start] == start {
			continue
		}
		first := all[start]
		to := start
		for from := order[to]; from != start; from = order[to] {
			all[to] = all[from]
			order[to] = to
			to = from
		}
		all[to] = first
		order[to] = to
	}
}

func sortLogs(logs []Log) {
	sorting.StableFunc(logs, func(a, b Log) int {
		after := map[bool]int{true: 1}
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container),
			cmp.Compare(after[a.Previous], after[b.Previous]), cmp.Compare(after[b.Head], after[a.Head]))
	})
}
