package baseline

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// longest is the maximum length of a string that is stored; longer strings are hashed.
const longest = 8 << 10

// normalize removes the status of an object, and everything else that the API server or controllers set. It modifies
// the object. worth is false for objects that a controller created from other objects. since is an earlier baseline, or
// nil; see Options.
func normalize(
	kind schema.GroupKind, o map[string]any, salt []byte, since *Baseline,
) (body map[string]any, worth bool) {
	metadata, _ := o["metadata"].(map[string]any)
	if metadata == nil || derived(kind, metadata) || !special(kind, o, metadata) {
		return nil, false
	}
	delete(o, "status")
	if kind == (schema.GroupKind{Kind: "Secret"}) {
		hide(o, salt)
	}
	o["metadata"] = normalizeMetadata(kind, metadata, since)
	dropField(o, "spec", "template", "metadata", "creationTimestamp") // null, from old clients
	return shorten(o, salt).(map[string]any), true
}

func normalizeMetadata(kind schema.GroupKind, metadata map[string]any, since *Baseline) map[string]any {
	kept := map[string]any{}
	for _, name := range []string{"name", "namespace", "uid", "labels", "annotations"} {
		if value, is := metadata[name]; is {
			kept[name] = value
		}
	}
	if annotations, is := kept["annotations"].(map[string]any); is {
		maps.DeleteFunc(annotations, func(name string, _ any) bool { return noted(kind, name, metadata, since) })
		if len(annotations) == 0 {
			delete(kept, "annotations")
		}
	}
	if labels, is := kept["labels"].(map[string]any); is {
		maps.DeleteFunc(labels, func(name string, _ any) bool { return labeled(kind, name) })
		if len(labels) == 0 {
			delete(kept, "labels")
		}
	}
	if held := heldFromOutside(kind, metadata); len(held) > 0 {
		kept["finalizers"] = held
	}
	owners, _ := metadata["ownerReferences"].([]any)
	var names []any
	for _, each := range owners {
		if owner, is := each.(map[string]any); is { // without the UID, because a recreated owner is still the owner
			names = append(names,
				map[string]any{"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["name"]})
		}
	}
	if names != nil {
		kept["ownerReferences"] = names
	}
	return kept
}

// noted reports whether the annotation of an object with this metadata is set by controllers.
func noted(kind schema.GroupKind, name string, metadata map[string]any, since *Baseline) bool {
	// Most annotations of nodes are set by kubelets, network plugins and detectors.
	if kind == nodeKind && !Obeyed(name) && !byUser(name, metadata, since) {
		return true
	}
	domain, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{
		"kubectl.kubernetes.io/last-applied-configuration", // a copy of the object
		"deprecated.daemonset.template.generation", "control-plane.alpha.kubernetes.io/leader",
		"endpoints.kubernetes.io/last-change-trigger-time", "batch.kubernetes.io/job-tracking",
		"kubernetes.io/limit-ranger",
	}, name) || slices.Contains([]string{
		"deployment.kubernetes.io", "pv.kubernetes.io", "volume.kubernetes.io", "volume.beta.kubernetes.io",
		"autoscaling.alpha.kubernetes.io",
		"cni.projectcalico.org", "k8s.v1.cni.cncf.io", "k8s.ovn.org", "cloud.google.com", "lifecycle.cattle.io",
		"openshift.io", "security.openshift.io",
	}, domain) || strings.HasPrefix(name, "kubernetes.io/config.") // for static pods: the start time of the kubelet
}

// obeyed are annotations of nodes that controllers obey and that do not change by themselves. They are always stored,
// because a user can remove the proof of who set an annotation.
var obeyed = []string{
	"volumes.kubernetes.io/controller-managed-attach-detach", "cluster-autoscaler.kubernetes.io/scale-down-disabled",
	"karpenter.sh/do-not-disrupt",
}

// Obeyed reports whether controllers obey the annotation of a node.
func Obeyed(name string) bool { return slices.Contains(obeyed, name) }

// byUser reports whether the annotation of a node was set with kubectl, or by a client that had set nothing on nodes
// before.
func byUser(name string, metadata map[string]any, since *Baseline) bool {
	managers, _ := metadata["managedFields"].([]any)
	return slices.ContainsFunc(managers, func(each any) bool {
		manager, _ := each.(map[string]any)
		_, set := mapAt(manager, "fieldsV1", "f:metadata", "f:annotations")["f:"+name]
		client, _ := manager["manager"].(string)
		_, known := slices.BinarySearch(since.clients(), client)
		return set && (strings.HasPrefix(client, "kubectl") || since != nil && !known)
	})
}

func (b *Baseline) clients() []string {
	if b == nil {
		return nil
	}
	return b.nodeClients
}

// labeled reports whether the label is set by controllers.
func labeled(kind schema.GroupKind, name string) bool {
	switch kind.String() {
	case "Node":
		return name == "nvidia.com/gfd.timestamp"
	case "Secret":
		return strings.HasPrefix(name, "kubernetes.io/legacy-token-")
	case "Pod": // copied from the node when the pod is bound
		return name == "topology.kubernetes.io/zone" || name == "topology.kubernetes.io/region"
	case "Job.batch":
		return isControllerUID(name)
	}
	return false
}

func isControllerUID(label string) bool {
	return label == "controller-uid" || label == "batch.kubernetes.io/controller-uid"
}

// special removes fields outside the status that controllers set in certain kinds. It returns false for an object that
// is not worth storing.
func special(kind schema.GroupKind, o, metadata map[string]any) (worth bool) {
	switch kind.String() {
	case "ConfigMap": // created in every namespace, and restored if changed
		return metadata["name"] != "kube-root-ca.crt" && metadata["name"] != "openshift-service-ca.crt"
	case "Secret":
		if o["type"] == "kubernetes.io/service-account-token" {
			delete(o, "data") // a controller adds the token later
		}
		return o["type"] != "bootstrap.kubernetes.io/token"
	case "ServiceAccount":
		delete(o, "secrets")
	case "Node":
		normalizeNode(o)
	case "Pod":
		normalizePod(o)
	case "Service":
		normalizeService(o)
	case "PersistentVolume":
		return normalizeVolume(o, metadata)
	case "Job.batch": // a recreated Job has different values
		for _, path := range [][]string{
			{"spec", "selector", "matchLabels"}, {"spec", "template", "metadata", "labels"},
		} {
			maps.DeleteFunc(mapAt(o, path...), func(name string, _ any) bool { return isControllerUID(name) })
		}
	case "ClusterRole.rbac.authorization.k8s.io":
		if o["aggregationRule"] != nil {
			delete(o, "rules") // a controller aggregates them
		}
	case "MutatingWebhookConfiguration.admissionregistration.k8s.io",
		"ValidatingWebhookConfiguration.admissionregistration.k8s.io":
		dropBundles(o)
	case "APIService.apiregistration.k8s.io":
		dropField(o, "spec", "caBundle")
	case "CustomResourceDefinition.apiextensions.k8s.io":
		dropField(o, "spec", "conversion", "webhook", "clientConfig", "caBundle")
	}
	return true
}

// dropBundles removes the CA bundles of webhooks, which operators rotate.
func dropBundles(o map[string]any) {
	webhooks, _ := o["webhooks"].([]any)
	for _, each := range webhooks {
		if webhook, is := each.(map[string]any); is {
			dropField(webhook, "clientConfig", "caBundle")
		}
	}
}

func normalizeNode(o map[string]any) {
	spec := mapAt(o, "spec")
	for _, name := range []string{"podCIDR", "podCIDRs"} {
		delete(spec, name)
	}
	taints, _ := spec["taints"].([]any)
	taints = slices.DeleteFunc(taints, func(each any) bool {
		taint, _ := each.(map[string]any)
		delete(taint, "timeAdded")
		key, _ := taint["key"].(string)
		// These follow the node's conditions and spec.unschedulable.
		return strings.HasPrefix(key, "node.kubernetes.io/") ||
			strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
	})
	if delete(spec, "taints"); len(taints) > 0 {
		sorting.Func(taints, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		spec["taints"] = taints
	}
	if spec["unschedulable"] == false {
		delete(spec, "unschedulable")
	}
}

// tokenVolume matches the volume that the API server adds to each pod, with a random name.
var tokenVolume = regexp.MustCompile(`^kube-api-access-[a-z0-9]{5}$`)

func normalizePod(o map[string]any) {
	spec := mapAt(o, "spec")
	rename := func(of any, list string) {
		holder, _ := of.(map[string]any)
		items, _ := holder[list].([]any)
		for _, each := range items {
			item, _ := each.(map[string]any)
			if name, is := item["name"].(string); is && tokenVolume.MatchString(name) {
				item["name"] = "kube-api-access"
			}
		}
	}
	rename(spec, "volumes")
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		containers, _ := spec[list].([]any)
		for _, container := range containers {
			rename(container, "volumeMounts")
		}
	}
}

// normalizeService removes assigned addresses, because a recreated Service still works for clients that use its name.
func normalizeService(o map[string]any) {
	spec := mapAt(o, "spec")
	if spec["clusterIP"] != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	delete(spec, "healthCheckNodePort")
}

// normalizeVolume reports whether to store a volume. Provisioned volumes belong to their claims.
func normalizeVolume(o, metadata map[string]any) bool {
	annotations, _ := metadata["annotations"].(map[string]any)
	dropField(o, "spec", "claimRef", "uid")
	dropField(o, "spec", "claimRef", "resourceVersion")
	return annotations["pv.kubernetes.io/provisioned-by"] == nil
}

// hide replaces the values of a Secret with hashes.
func hide(o map[string]any, salt []byte) {
	for _, name := range []string{"data", "stringData"} {
		for k, v := range mapAt(o, name) {
			mapAt(o, name)[k] = hashOf(fmt.Sprint(v), salt)
		}
	}
}

// hashOf returns a short hash, which only needs to detect differences.
func hashOf(text string, salt []byte) string {
	sum := hmac.New(sha256.New, salt)
	sum.Write([]byte(text))
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)[:16])
}

// shorten replaces long strings with hashes.
func shorten(value any, salt []byte) any {
	switch value := value.(type) {
	case string:
		if len(value) > longest {
			return fmt.Sprintf("%s (%d bytes)", hashOf(value, salt), len(value))
		}
	case map[string]any:
		for k, v := range value {
			value[k] = shorten(v, salt)
		}
	case []any:
		for i, v := range value {
			value[i] = shorten(v, salt)
		}
	}
	return value
}

// mapAt returns the map at a path, or nil. Reading and deleting are safe on nil.
func mapAt(o map[string]any, path ...string) map[string]any {
	for _, name := range path {
		o, _ = o[name].(map[string]any)
	}
	return o
}

func dropField(o map[string]any, path ...string) {
	delete(mapAt(o, path[:len(path)-1]...), path[len(path)-1])
}
