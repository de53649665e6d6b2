package baseline

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// census is what a capture knows about the namespaces in Options.Verify: all their objects, as returned by the API
// server, and the RuntimeClasses that their pods may use. A user who may create pods there can set any labels and any
// owner. Therefore, an object is considered the work of a controller only if the controller exists and would have
// created the object in this form.
type census struct {
	objects   map[key]*unstructured.Unstructured
	byUID     map[types.UID]key
	resources map[schema.GroupKind]resource
}

func newCensus() *census {
	return &census{
		objects: map[key]*unstructured.Unstructured{}, byUID: map[types.UID]key{},
		resources: map[schema.GroupKind]resource{},
	}
}

func (c *census) add(k key, r resource, raw *unstructured.Unstructured) {
	c.objects[k], c.byUID[raw.GetUID()], c.resources[k.kind] = raw, k, r
}

// settling is the time within which a doubt may resolve itself, because kinds are listed one after the other, rollouts
// replace pods, and the pods of a deleted controller continue to exist for a short time.
const settling = 4 * time.Second

// deepest is the maximum length of a chain of controllers to follow (CronJob, Job, Pod), because a candidate may create
// a cycle.
const deepest = 3

// mutated is the beginning of notes on pods that an admission webhook may also have changed. See Diff.
const mutated = "differs from the template of "

// strayed is the end of notes on pods that are always stored.
const strayed = " selects it, but no controller created it"

// verify stores the objects that falsely appear to be created by a controller, with a note.
func (c *capture) verify(ctx context.Context) error {
	doubtful := slices.DeleteFunc(slices.Collect(maps.Keys(c.census.objects)), func(k key) bool {
		return c.census.doubt(k, c.census.objects[k]) == ""
	})
	for until := time.Now().Add(settling); len(doubtful) > 0; {
		var still []key
		notes := map[key]string{}
		for _, k := range doubtful {
			note, err := c.again(ctx, k)
			if err != nil {
				return err
			}
			if note != "" {
				still, notes[k] = append(still, k), note
			}
		}
		doubtful = still
		if time.Now().After(until) {
			for k, note := range notes {
				c.note(k, note)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	return nil
}

// note stores an object of the census with a note.
func (c *capture) note(k key, note string) {
	if c.b.objects[k] == nil { // the objects of controllers are not stored
		raw := c.census.objects[k].DeepCopy()
		raw.SetOwnerReferences(nil)
		c.store(k, c.census.resources[k.kind], raw)
	}
	if stored := c.b.objects[k]; stored != nil {
		stored.note = note
	}
}

// again rereads a doubtful object and its owners, and returns the remaining doubt, or "".
func (c *capture) again(ctx context.Context, k key) (string, error) {
	raw, err := c.read(ctx, k)
	if raw == nil || err != nil {
		return "", err
	}
	above := raw
	for range deepest {
		owner := metav1.GetControllerOfNoCopy(above)
		if owner == nil {
			break
		}
		ref := scenario.Ref{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: k.namespace, Name: owner.Name,
		}
		if above, err = c.read(ctx, keyOf(ref)); above == nil || err != nil {
			break
		}
	}
	if err != nil {
		return "", err
	}
	return c.census.doubt(k, raw), nil
}

// read updates an object of the census. It returns nil if the object does not exist or is being deleted.
func (c *capture) read(ctx context.Context, k key) (*unstructured.Unstructured, error) {
	r, known := c.census.resources[k.kind]
	if !known {
		return nil, nil
	}
	raw, err := c.client.Resource(r.GroupVersionResource).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && raw.GetDeletionTimestamp() != nil:
		delete(c.census.objects, k)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get %s %s/%s: %w", k.kind.Kind, k.namespace, k.name, err)
	}
	c.census.add(k, r, raw)
	return raw, nil
}

// doubt returns the reason why an object is not what it appears to be, or will not remain as it is, or "".
func (c *census) doubt(k key, raw *unstructured.Unstructured) string {
	if k.kind == runtimeClass {
		return "" // not in the namespaces to verify
	}
	if held := HeldBy(k.kind, raw.GetFinalizers()); len(held) > 0 {
		return HeldNote(held[0])
	}
	metadata, _ := raw.Object["metadata"].(map[string]any)
	if !derived(k.kind, metadata) {
		if k.kind.String() == "Pod" {
			return c.stray(k, raw)
		}
		return ""
	}
	if !slices.ContainsFunc(raw.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return c.owner(o) != nil && creates(o, k.kind)
	}) {
		return "no controller created it: its owner does not exist, or does not create such objects"
	}
	if k.kind.String() != "Pod" {
		return c.rewritten(k.kind, raw)
	}
	if running := debugged(raw); running != "" {
		return "debug container " + running + " is running in it"
	}
	controller := metav1.GetControllerOfNoCopy(raw)
	if controller == nil {
		return c.stray(k, raw)
	}
	owner := c.owner(*controller)
	if owner == nil {
		return "its controller does not exist"
	}
	if field := cmp.Or(unlike(owner, raw, c.classSelector(raw)), c.relabeled(owner, raw)); field != "" {
		return fmt.Sprintf("%s%s %s: %s", mutated, controller.Kind, owner.GetName(), field)
	}
	return c.outdated(owner)
}

// owner returns the object that an owner reference refers to, or nil.
func (c *census) owner(o metav1.OwnerReference) *unstructured.Unstructured {
	k, known := c.byUID[o.UID]
	found := c.objects[k]
	if !known || found == nil || k.kind.Kind != o.Kind || k.name != o.Name {
		return nil
	}
	return found
}

// creates reports whether owners of this kind create objects of the kind.
func creates(owner metav1.OwnerReference, kind schema.GroupKind) bool {
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	if !strings.Contains(owner.APIVersion, "/") {
		group = ""
	}
	if !builtIn(group) {
		return true // the owner is an operator's
	}
	return slices.Contains(map[string][]string{
		"Deployment": {"ReplicaSet.apps"}, "ReplicaSet": {"Pod"}, "ReplicationController": {"Pod"},
		"StatefulSet": {"Pod", "PersistentVolumeClaim"}, "DaemonSet": {"Pod"}, "CronJob": {"Job.batch"},
		"Job": {"Pod"}, "Pod": {"PersistentVolumeClaim", "ResourceClaim.resource.k8s.io"},
	}[owner.Kind], kind.String())
}

// stray returns the object that selects a pod although no controller created the pod, or "". A Service would send
// requests to such a pod.
func (c *census) stray(k key, pod *unstructured.Unstructured) string {
	var by []string
	for at, o := range c.objects {
		if at.namespace == k.namespace && selects(at.kind, o, pod.GetLabels()) {
			by = append(by, at.kind.Kind+" "+at.name)
		}
	}
	if len(by) == 0 {
		return ""
	}
	slices.Sort(by)
	return strings.Join(by, " and ") + strayed
}

// selects reports whether a Service or a workload selects pods with these labels.
func selects(kind schema.GroupKind, o *unstructured.Unstructured, has map[string]string) bool {
	switch kind.String() {
	case "Service":
		wanted, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
		return len(wanted) > 0 && labels.SelectorFromSet(wanted).Matches(labels.Set(has))
	case "Deployment.apps", "StatefulSet.apps", "DaemonSet.apps":
		wanted, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
		return len(wanted) > 0 && labels.SelectorFromSet(wanted).Matches(labels.Set(has))
	}
	return false
}

// debugged returns the name of an ephemeral container running in a pod, or "". Such a container shares the pod's
// address, and can respond in place of the program.
func debugged(pod *unstructured.Unstructured) string {
	statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", "ephemeralContainerStatuses")
	for _, each := range statuses {
		status, _ := each.(map[string]any)
		if mapAt(status, "state")["running"] != nil {
			name, _ := status["name"].(string)
			return name
		}
	}
	return ""
}

// outdated describes a ReplicaSet that is not the current revision of its Deployment; otherwise, it returns "". The
// Deployment treats a ReplicaSet created by another user as an old revision, and keeps it until the current revision is
// available.
func (c *census) outdated(set *unstructured.Unstructured) string {
	controller := metav1.GetControllerOfNoCopy(set)
	if controller == nil || controller.Kind != "Deployment" {
		return ""
	}
	deployment := c.owner(*controller)
	if deployment == nil {
		return fmt.Sprintf("no Deployment created its ReplicaSet %s", set.GetName())
	}
	current, is := mapAt(deployment.Object, "spec", "template"), mapAt(set.Object, "spec", "template")
	given := maps.Clone(mapAt(is, "metadata", "labels"))
	delete(given, "pod-template-hash")
	if same(current["spec"], is["spec"]) && same(mapAt(current, "metadata", "labels"), given) {
		return ""
	}
	return "not the current revision of Deployment " + deployment.GetName()
}

// settings are the fields of pods that neither the API server nor a controller changes when a pod is created from a
// template; containerSettings are the corresponding fields of containers.
var (
	settings = []string{
		"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "runtimeClassName",
		"securityContext", "hostAliases", "dnsPolicy", "dnsConfig", "resourceClaims",
	}
	containerSettings = []string{
		"image", "command", "args", "env", "envFrom", "workingDir", "lifecycle", "securityContext", "ports",
		"readinessProbe", "livenessProbe", "startupProbe", "volumeDevices", "restartPolicy",
	}
)

// runtimeClass is the kind of the classes that may add a selector to the pods that use them.
var runtimeClass = schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"}

// classSelector returns the node labels that a pod's RuntimeClass adds to the pod's node selector.
func (c *census) classSelector(pod *unstructured.Unstructured) map[string]any {
	name, _ := mapAt(pod.Object, "spec")["runtimeClassName"].(string)
	class := c.objects[key{kind: runtimeClass, name: name}]
	if class == nil {
		return nil
	}
	return mapAt(class.Object, "scheduling", "nodeSelector")
}

// unlike returns the first field in which a pod differs from the template of its owner, or "". It returns "" for owners
// without a template. The API server may have added classSelector to the pod.
func unlike(owner, pod *unstructured.Unstructured, classSelector map[string]any) string {
	template, is := mapAt(owner.Object, "spec", "template", "spec"), mapAt(pod.Object, "spec")
	if template == nil {
		return ""
	}
	for _, field := range settings {
		if !same(template[field], is[field]) {
			return "spec." + field
		}
	}
	if owner.GetKind() != "DaemonSet" { // a DaemonSet selects the node of each pod itself
		merged := maps.Clone(classSelector)
		if given := mapAt(template, "nodeSelector"); merged != nil {
			maps.Copy(merged, given)
		}
		if !same(template["nodeSelector"], is["nodeSelector"]) && (merged == nil || !same(merged, is["nodeSelector"])) {
			return "spec.nodeSelector"
		}
		if !same(template["affinity"], unmerged(is["affinity"])) {
			return "spec.affinity"
		}
	}
	account := is["serviceAccountName"]
	if !same(account, template["serviceAccountName"]) && !same(account, "default") {
		return "spec.serviceAccountName"
	}
	claimed := names(mapAt(owner.Object, "spec")["volumeClaimTemplates"], true)
	if !same(named(template["volumes"], claimed), named(is["volumes"], claimed)) {
		return "spec.volumes"
	}
	for _, list := range []string{"initContainers", "containers"} {
		wanted, has := named(template[list], nil), named(is[list], nil)
		if !slices.Equal(slices.Sorted(maps.Keys(wanted)), slices.Sorted(maps.Keys(has))) {
			return "spec." + list
		}
		for name := range wanted {
			for _, field := range containerSettings {
				is := has[name][field]
				if field == "env" && owner.GetKind() == "Job" {
					is = withoutIndex(is)
				}
				if !same(wanted[name][field], is) {
					return fmt.Sprintf("spec.%s[%s].%s", list, name, field)
				}
			}
			if limit := unequal(wanted[name], has[name]); limit != "" {
				return fmt.Sprintf("spec.%s[%s].resources.limits[%s]", list, name, limit)
			}
			if !same(mounts(wanted[name]), mounts(has[name])) {
				return fmt.Sprintf("spec.%s[%s].volumeMounts", list, name)
			}
		}
	}
	return ""
}

// withoutIndex returns a container's environment variables without the one that the Job controller adds to the pods of
// an Indexed Job.
func withoutIndex(env any) any {
	variables, is := env.([]any)
	if !is {
		return env
	}
	variables = slices.DeleteFunc(slices.Clone(variables), func(each any) bool {
		variable, _ := each.(map[string]any)
		return variable["name"] == "JOB_COMPLETION_INDEX" && mapAt(variable, "valueFrom", "fieldRef") != nil
	})
	if len(variables) == 0 {
		return nil
	}
	return variables
}

// unmerged returns a pod's affinity without the values that the API server has merged into its selectors: the values of
// the labels in matchLabelKeys and mismatchLabelKeys.
func unmerged(affinity any) any {
	whole, is := affinity.(map[string]any)
	if !is {
		return affinity
	}
	whole = runtime.DeepCopyJSON(whole)
	for _, kind := range []string{"podAffinity", "podAntiAffinity"} {
		for list, weighted := range map[string]bool{
			"requiredDuringSchedulingIgnoredDuringExecution":  false,
			"preferredDuringSchedulingIgnoredDuringExecution": true,
		} {
			terms, _ := mapAt(whole, kind)[list].([]any)
			for _, each := range terms {
				term, _ := each.(map[string]any)
				if weighted {
					term = mapAt(term, "podAffinityTerm")
				}
				unmergeTerm(term)
			}
		}
	}
	return whole
}

func unmergeTerm(term map[string]any) {
	matched, _ := term["matchLabelKeys"].([]any)
	mismatched, _ := term["mismatchLabelKeys"].([]any)
	keys := slices.Concat(matched, mismatched)
	selector := mapAt(term, "labelSelector")
	expressions, _ := selector["matchExpressions"].([]any)
	left := slices.DeleteFunc(expressions, func(e any) bool {
		expression, _ := e.(map[string]any)
		return slices.Contains(keys, expression["key"])
	})
	switch {
	case len(expressions) == 0:
	case len(left) == 0:
		delete(selector, "matchExpressions")
	default:
		selector["matchExpressions"] = left
	}
}

// unequal returns a resource whose limit in the pod's container differs from the template's, or "". A LimitRange adds
// limits for CPU and memory, but not for devices.
func unequal(template, pod map[string]any) string {
	wanted, has := mapAt(template, "resources", "limits"), mapAt(pod, "resources", "limits")
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !sameQuantity(wanted[name], has[name]) {
			return name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if wanted[name] == nil && strings.Contains(name, "/") {
			return name
		}
	}
	return ""
}

// sameQuantity reports whether two quantities are equal, regardless of their notation: 1 and 1000m.
func sameQuantity(a, b any) bool {
	x, errX := quantities.ParseQuantity(fmt.Sprint(a))
	y, errY := quantities.ParseQuantity(fmt.Sprint(b))
	return errX == nil && errY == nil && x.Cmp(y) == 0
}

// names returns the names of the items in a list, or the names in their metadata.
func names(list any, inMetadata bool) []string {
	items, _ := list.([]any)
	var all []string
	for _, each := range items {
		item, _ := each.(map[string]any)
		if inMetadata {
			item = mapAt(item, "metadata")
		}
		name, _ := item["name"].(string)
		all = append(all, name)
	}
	return all
}

// named returns the items of a list by name, except for items set by the API server and items whose names are in the
// list without.
func named(list any, without []string) map[string]map[string]any {
	items, _ := list.([]any)
	all := map[string]map[string]any{}
	for _, each := range items {
		item, _ := each.(map[string]any)
		name, _ := item["name"].(string)
		if !tokenVolume.MatchString(name) && !slices.Contains(without, name) {
			all[name] = item
		}
	}
	return all
}

// accountPath is the path at which the API server mounts the service account volume.
const accountPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// mounts returns a container's mounts without the one added by the API server. Other mounts can copy its name, but not
// its path.
func mounts(container map[string]any) []any {
	items, _ := container["volumeMounts"].([]any)
	return slices.DeleteFunc(slices.Clone(items), func(each any) bool {
		item, _ := each.(map[string]any)
		name, _ := item["name"].(string)
		return tokenVolume.MatchString(name) && item["mountPath"] == accountPath
	})
}

// same reports whether two values are equal. Empty and missing values are equivalent.
func same(a, b any) bool {
	return reflect.DeepEqual(a, b) || blank(a) && blank(b)
}

func blank(value any) bool {
	v := reflect.ValueOf(value)
	return !v.IsValid() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0 || v.IsZero()
}
