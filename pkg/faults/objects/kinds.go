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
	groupRBAC   = "rbac.authorization.k8s.io"
	kindNode    = "Node"
	fieldStatus = "status"
	gpuResource = "nvidia.com/gpu"
)

// clusterKinds are the kinds without a namespace that may be created and patched, by group and kind. All others rule
// over objects of everybody (webhooks, CustomResourceDefinitions, APIServices), or are hardware and data.
var clusterKinds = map[string]string{
	"Namespace": "", "ClusterRole": groupRBAC, "ClusterRoleBinding": groupRBAC, "RuntimeClass": "node.k8s.io",
	"PriorityClass": "scheduling.k8s.io",
	"StorageClass":  "storage.k8s.io", "DeviceClass": "resource.k8s.io",
}

// refusedGroups are of objects that are no configuration: questions to the API server, elections, notes of controllers.
var refusedGroups = []string{
	"authentication.k8s.io", "authorization.k8s.io", "certificates.k8s.io", "coordination.k8s.io", "events.k8s.io",
	"discovery.k8s.io",
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "metrics.k8s.io",
}

// refusedKinds are such of the core group, and Nodes.
var refusedKinds = []string{"Event", "Endpoints", "Binding", "ComponentStatus", kindNode, "List"}

// mayBeCreated refuses what a Creation does not make, and so its undo does not delete.
func (o Object) mayBeCreated(ledgerNamespace string) error {
	if o.Subresource != "" {
		return fmt.Errorf("%s: its %s is not created", o, o.Subresource)
	}
	if o.Group == "" && o.Kind == kindNode {
		return fmt.Errorf("%s: nodes are not created; labels and taints of one can be patched", o)
	}
	return o.allowed(ledgerNamespace)
}

// mayBePatched refuses what a Patching does not change.
func (o Object) mayBePatched(ledgerNamespace string) error {
	if o.Group == "" && o.Kind == kindNode && o.Resource == "nodes" && o.Namespace == "" &&
		(o.Subresource == "" || o.Subresource == fieldStatus) {
		return nil
	}
	if o.Subresource != "" {
		return fmt.Errorf("%s: its %s is out of bounds", o, o.Subresource)
	}
	if o.Group == "" && o.Kind == "Secret" {
		return fmt.Errorf(
			"%s: the record of a patch holds the values before, and others read records: secrets are only created", o,
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
			"%s: objects of the kind %s are out of bounds: they are no configuration, or rule over objects of everybody",
			o, o.Kind,
		)
	case strings.ContainsAny(o.Resource, "/"):
		return fmt.Errorf("%s: %s is no resource", o, o.Resource)
	case o.Namespace == "" && !clusterWide:
		return fmt.Errorf("%s: objects of the kind %s that belong to no namespace are out of bounds", o, o.Kind)
	case o.Namespace != "" && clusterWide:
		return fmt.Errorf("%s: a %s belongs to no namespace", o, o.Kind)
	case o.Group == groupRBAC && (strings.HasPrefix(o.Name, "system:") ||
		slices.Contains([]string{"cluster-admin", "admin", "edit", "view"}, o.Name)):
		return fmt.Errorf("%s: it is one of Kubernetes' own", o)
	}
	namespace := o.Namespace
	if o.isNamespace() {
		namespace = o.Name
	}
	if strings.HasPrefix(namespace, "kube-") {
		return fmt.Errorf("%s: namespaces whose name begins with kube- are Kubernetes' own", o)
	}
	if o.isNamespace() && o.Name == "default" {
		return fmt.Errorf("%s: it is one of Kubernetes' own", o)
	}
	return fault.CheckNamespace(o.target(), namespace, cmp.Or(ledgerNamespace, ledger.DefaultNamespace))
}

// MayTouch reports whether a run may make or change the object, for others who put objects back: the error says what is
// out of bounds.
func (o Object) MayTouch(ledgerNamespace string) error { return o.allowed(ledgerNamespace) }

func (o Object) target() ledger.Target {
	return ledger.Target{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

// nodeFields are what a Patching changes of a Node, and nodeStatusFields what of its status: GPUs that are not there,
// for exercises without.
var (
	nodeFields = []kubeedit.Path{
		kubeedit.Fields("metadata", "labels"), kubeedit.Fields("metadata", "annotations"),
		kubeedit.Fields("spec", "taints"), kubeedit.Fields("spec", "unschedulable"),
	}
	nodeStatusFields = []kubeedit.Path{
		kubeedit.Fields(fieldStatus, "capacity", gpuResource), kubeedit.Fields(fieldStatus, "allocatable", gpuResource),
	}
)

// mayBeEdited refuses fields that are the API server's or the kubelet's, or that would keep the undo from ending.
func (o Object) mayBeEdited(e kubeedit.Edit) error {
	if o.Group == "" && o.Kind == kindNode {
		fields := nodeFields
		if o.Subresource == fieldStatus {
			fields = nodeStatusFields
		}
		if slices.ContainsFunc(fields, e.Path.HasPrefix) {
			return nil
		}
		return fmt.Errorf(
			"%s: of nodes only labels, annotations, taints, unschedulable and the number of GPUs are changed, not %s",
			o, e.Path,
		)
	}
	switch e.Path[0].Field {
	case fieldStatus, "apiVersion", "kind":
		return fmt.Errorf("%s: %s cannot be patched", o, e.Path)
	case "metadata":
		if len(e.Path) < 3 || e.Path[1].Field != "labels" && e.Path[1].Field != "annotations" {
			return fmt.Errorf("%s: of the metadata only labels and annotations are changed, not %s", o, e.Path)
		}
	}
	return nil
}

// objectOf names the object of a manifest, which must be one that can be created.
func objectOf(mapper meta.RESTMapper, manifest *unstructured.Unstructured) (Object, error) {
	kind := manifest.GroupVersionKind()
	o := Object{
		Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Namespace: manifest.GetNamespace(),
		Name: manifest.GetName(),
	}
	if kind.Kind == "" || kind.Version == "" {
		return o, fmt.Errorf("an object %q has no apiVersion or no kind", manifest.GetName())
	}
	if o.Name == "" {
		return o, fmt.Errorf("a %s has no name: generated ones could not be undone", o.Kind)
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
		return o, fmt.Errorf("%s: a %s belongs to no namespace", o, o.Kind)
	}
	return o, nil
}

func unknownKind(o Object, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%s: the cluster has no kind %s of %s; see: kubectl api-resources", o, o.Kind, o.APIVersion())
	}
	return fmt.Errorf("%s: ask the cluster for its kind: %w", o, err)
}

// checkManifest refuses what would keep the undo from finding or deleting the object, or tell who made it.
func checkManifest(o Object, manifest *unstructured.Unstructured) error {
	if len(manifest.GetOwnerReferences()) > 0 || len(manifest.GetFinalizers()) > 0 {
		return fmt.Errorf("%s: it has ownerReferences or finalizers, with which it could not be undone", o)
	}
	if _, taken := manifest.GetLabels()[LabelInstance]; taken {
		return fmt.Errorf(
			"%s: it has the label %s, by which its undo finds it: use another one (on pod templates it may stay)", o,
			LabelInstance,
		)
	}
	for _, keys := range []map[string]string{manifest.GetLabels(), manifest.GetAnnotations()} {
		for key := range keys {
			if strings.Contains(key, "gpufault") {
				return fmt.Errorf("%s: the label or annotation %s tells who made it", o, key)
			}
		}
	}
	return nil
}

var errNoCluster = errors.New("no cluster to do it in")
