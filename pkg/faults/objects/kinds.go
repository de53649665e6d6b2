package objects

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

const (
	groupRBAC = "rbac.authorization.k8s.io"
	groupDRA  = "resource.k8s.io"
	kindNode  = "Node"
	// kindTaintRule is the kind of the objects that taint devices of DRA drivers.
	kindTaintRule = "DeviceTaintRule"
	fieldStatus   = "status"
	gpuResource   = "nvidia.com/gpu"
	migResources  = "nvidia.com/mig-" // the prefix; the rest is the profile
)

// clusterKinds are the cluster-scoped kinds that may be created and patched, with their groups. Other kinds affect all
// users' objects (webhooks, CustomResourceDefinitions, APIServices), or represent hardware and data.
var clusterKinds = map[string]string{
	"Namespace": "", "ClusterRole": groupRBAC, "ClusterRoleBinding": groupRBAC, "RuntimeClass": "node.k8s.io",
	"PriorityClass": "scheduling.k8s.io",
	"StorageClass":  "storage.k8s.io", "DeviceClass": groupDRA, kindTaintRule: groupDRA,
}

// refusedGroups contain objects that are not configuration: reviews, leader elections, controllers' own data.
var refusedGroups = []string{
	"authentication.k8s.io", "authorization.k8s.io", "certificates.k8s.io", "coordination.k8s.io", "events.k8s.io",
	"discovery.k8s.io",
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "metrics.k8s.io",
}

// refusedKinds are the corresponding kinds in the core group, and Nodes.
var refusedKinds = []string{"Event", "Endpoints", "Binding", "ComponentStatus", kindNode, "List"}

// mayBeCreated returns an error for an object that a Creation must not create and its undo must not delete.
func (o Object) mayBeCreated(ledgerNamespace string) error {
	if o.Subresource != "" {
		return fmt.Errorf("%s: its %s cannot be created", o, o.Subresource)
	}
	if o.Group == "" && o.Kind == kindNode {
		return fmt.Errorf("%s: nodes cannot be created; patch the labels and taints of an existing node", o)
	}
	return o.allowed(ledgerNamespace)
}

// mayBePatched returns an error for an object that a Patching must not change.
func (o Object) mayBePatched(ledgerNamespace string) error {
	if o.Group == "" && o.Kind == kindNode && o.Resource == "nodes" && o.Namespace == "" &&
		(o.Subresource == "" || o.Subresource == fieldStatus) {
		return nil
	}
	if o.Subresource != "" {
		return fmt.Errorf("%s: its %s cannot be patched", o, o.Subresource)
	}
	if o.Group == groupDRA && o.Kind == kindTaintRule {
		return fmt.Errorf("%s: DeviceTaintRules cannot be patched, only created for a single device", o)
	}
	if o.Group == "" && o.Kind == "Secret" {
		return fmt.Errorf(
			"%s: secrets cannot be patched, because a record contains the previous values and other users can read records", o,
		)
	}
	return o.allowed(ledgerNamespace)
}

func (o Object) allowed(ledgerNamespace string) error {
	group, clusterWide := clusterKinds[o.Kind]
	clusterWide = clusterWide && group == o.Group
	switch {
	case slices.Contains(refusedGroups, o.Group), o.Group == "" && slices.Contains(refusedKinds, o.Kind):
		return fmt.Errorf(
			"%s: kind %s is not supported: its objects are not configuration, or affect the objects of all users",
			o, o.Kind,
		)
	case strings.ContainsAny(o.Resource, "/"):
		return fmt.Errorf("%s: %q is not a resource", o, o.Resource)
	case o.Namespace == "" && !clusterWide:
		return fmt.Errorf("%s: the cluster-scoped kind %s is not supported", o, o.Kind)
	case o.Namespace != "" && clusterWide:
		return fmt.Errorf("%s: a %s is not namespaced", o, o.Kind)
	case o.Group == groupRBAC && (strings.HasPrefix(o.Name, "system:") ||
		slices.Contains([]string{"cluster-admin", "admin", "edit", "view"}, o.Name)):
		return fmt.Errorf("%s: the object belongs to Kubernetes itself", o)
	}
	namespace := o.Namespace
	if o.isNamespace() {
		namespace = o.Name
	}
	if strings.HasPrefix(namespace, "kube-") {
		return fmt.Errorf("%s: namespaces with the prefix kube- belong to Kubernetes", o)
	}
	if o.isNamespace() && o.Name == "default" {
		return fmt.Errorf("%s: the object belongs to Kubernetes itself", o)
	}
	return fault.CheckNamespace(o.target(), namespace, cmp.Or(ledgerNamespace, ledger.DefaultNamespace))
}

// MayTouch returns an error if a run must not create or change the object. Other packages that restore objects use it.
func (o Object) MayTouch(ledgerNamespace string) error { return o.allowed(ledgerNamespace) }

func (o Object) target() ledger.Target {
	return ledger.Target{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

// nodeFields are the fields of a Node that a Patching may change, except for those in its status.
var nodeFields = []kubeedit.Path{
	kubeedit.Fields("metadata", "labels"), kubeedit.Fields("metadata", "annotations"),
	kubeedit.Fields("spec", "taints"), kubeedit.Fields("spec", "unschedulable"),
}

// isNodeGPUs reports whether a path in a Node's status is the number of the Node's GPUs or MIG devices, because
// exercises may simulate that number.
func isNodeGPUs(path kubeedit.Path) bool {
	return len(path) == 3 && path[0].Field == fieldStatus &&
		(path[1].Field == "capacity" || path[1].Field == "allocatable") &&
		(path[2].Field == gpuResource || strings.HasPrefix(path[2].Field, migResources))
}

// mayBeEdited returns an error for fields that belong to the API server or the kubelet, or that could block the undo.
func (o Object) mayBeEdited(e kubeedit.Edit) error {
	if o.Group == "" && o.Kind == kindNode {
		ofStatus := o.Subresource == fieldStatus
		if ofStatus && isNodeGPUs(e.Path) || !ofStatus && slices.ContainsFunc(nodeFields, e.Path.HasPrefix) {
			return nil
		}
		return fmt.Errorf(
			"%s: %[2]s cannot be patched; supported fields of nodes: labels, annotations, taints, unschedulable, the number of GPUs and MIG devices",
			o, e.Path,
		)
	}
	switch e.Path[0].Field {
	case fieldStatus, "apiVersion", "kind":
		return fmt.Errorf("%s: %s cannot be patched", o, e.Path)
	case "metadata":
		if len(e.Path) < 3 || e.Path[1].Field != "labels" && e.Path[1].Field != "annotations" {
			return fmt.Errorf("%s: %[2]s cannot be patched; supported fields of the metadata: labels, annotations", o,
				e.Path)
		}
	}
	return nil
}

// objectOf returns the object of a manifest.
func objectOf(mapper meta.RESTMapper, manifest *unstructured.Unstructured) (Object, error) {
	kind := manifest.GroupVersionKind()
	o := Object{
		Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Namespace: manifest.GetNamespace(),
		Name: manifest.GetName(),
	}
	if kind.Kind == "" || kind.Version == "" {
		return o, fmt.Errorf("object %q has no apiVersion or no kind", manifest.GetName())
	}
	if o.Name == "" {
		return o, fmt.Errorf("a %s has no name: creating objects with generated names cannot be undone", o.Kind)
	}
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return o, unknownKind(o, err)
	}
	o.Resource = mapping.Resource.Resource
	switch namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace; {
	case namespaced && o.Namespace == "":
		return o, fmt.Errorf("%s has no namespace", o)
	case !namespaced && o.Namespace != "":
		return o, fmt.Errorf("%s: a %s is not namespaced", o, o.Kind)
	}
	return o, nil
}

func unknownKind(o Object, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%s: kind %s not found in %s; to list the kinds, run: kubectl api-resources", o, o.Kind, o.APIVersion())
	}
	return fmt.Errorf("%s: find the kind: %w", o, err)
}

// checkManifest returns an error for metadata that would prevent the undo, or reveal who created the object.
func checkManifest(o Object, manifest *unstructured.Unstructured) error {
	if len(manifest.GetOwnerReferences()) > 0 || len(manifest.GetFinalizers()) > 0 {
		return fmt.Errorf("%s: creating objects with ownerReferences or finalizers cannot be undone", o)
	}
	if _, taken := manifest.GetLabels()[LabelInstance]; taken {
		return fmt.Errorf(
			"%s: label %s is reserved for reverting the run; remove it from the object's metadata (it is allowed in pod templates)", o,
			LabelInstance,
		)
	}
	if o.Group == groupDRA && o.Kind == kindTaintRule {
		selector, _, err := unstructured.NestedStringMap(manifest.Object, "spec", "deviceSelector")
		if err != nil || selector["device"] == "" || selector["driver"] == "" || selector["pool"] == "" {
			return fmt.Errorf(
				"%s: the deviceSelector must contain a driver, a pool and a device; otherwise, it selects devices on all nodes", o)
		}
	}
	for _, keys := range []map[string]string{manifest.GetLabels(), manifest.GetAnnotations()} {
		for key := range keys {
			if strings.Contains(key, "gpufault") {
				return fmt.Errorf("%s: label or annotation %q reveals who created the object", o, key)
			}
		}
	}
	return nil
}

var errNoCluster = errors.New("no cluster")
