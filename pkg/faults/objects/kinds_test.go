package objects

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// What rules over everybody's objects, belongs to Kubernetes, or holds the records is neither created nor patched, nor
// deleted by an undo.
func TestOutOfBounds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		o                Object
		created, patched bool
	}{
		"a deployment": {
			Object{
				Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Namespace: "a", Name: "x",
			},
			true, true,
		},
		"a custom resource": {
			Object{Group: "example.com", Version: "v1", Resource: "things", Kind: "Thing", Namespace: "a", Name: "x"},
			true, true,
		},
		"a namespace": {
			Object{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: "a"}, true, true,
		},
		"a role of all": {
			Object{Group: groupRBAC, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole", Name: "a"}, true,
			true,
		},
		"a taint rule": {Object{
			Group: groupDRA, Version: "v1", Resource: "devicetaintrules", Kind: kindTaintRule, Name: "x",
		}, true, false},
		"a node": {Object{Version: "v1", Resource: "nodes", Kind: "Node", Name: "a"}, false, true},
		"a node's status": {
			Object{Version: "v1", Resource: "nodes", Kind: "Node", Name: "a", Subresource: "status"}, false, true,
		},
		"a node's proxy": {
			Object{Version: "v1", Resource: "nodes", Kind: "Node", Name: "a", Subresource: "proxy"}, false, false,
		},
		"a pod's status": {
			Object{Version: "v1", Resource: "pods", Kind: "Pod", Namespace: "a", Name: "x", Subresource: "status"},
			false, false,
		},
		"a secret": {
			Object{Version: "v1", Resource: "secrets", Kind: "Secret", Namespace: "a", Name: "x"}, true, false,
		},
		"what is no node": {
			Object{Version: "v1", Resource: "secrets", Kind: "Node", Namespace: "a", Name: "x"}, false, false,
		},
		"cluster-admin": {
			Object{
				Group: groupRBAC, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole", Name: "cluster-admin",
			},
			false, false,
		},
		"a system role": {
			Object{Group: groupRBAC, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole", Name: "system:node"},
			false, false,
		},
		"a namespaced cluster": {Object{
			Group: groupRBAC, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole", Namespace: "a", Name: "x",
		}, false, false},
		"another's cluster": {
			Object{Group: "example.com", Version: "v1", Resource: "clusterroles", Kind: "ClusterRole", Name: "x"},
			false, false,
		},
		"a definition": {Object{
			Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
			Kind: "CustomResourceDefinition", Name: "x",
		}, false, false},
		"a webhook": {Object{
			Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations",
			Kind: "ValidatingWebhookConfiguration", Name: "x",
		}, false, false},
		"a volume": {
			Object{Version: "v1", Resource: "persistentvolumes", Kind: "PersistentVolume", Name: "x"}, false, false,
		},
		"a lease": {Object{
			Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Kind: "Lease", Namespace: "a", Name: "x",
		}, false, false},
		"an event": {
			Object{Version: "v1", Resource: "events", Kind: "Event", Namespace: "a", Name: "x"}, false, false,
		},
		"an eviction": {
			Object{Version: "v1", Resource: "pods/eviction", Kind: "Pod", Namespace: "a", Name: "x"}, false, false,
		},
		"in kube-system": {
			Object{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "kube-system", Name: "x"},
			false, false,
		},
		"in kube-anything": {
			Object{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "kube-flannel", Name: "x"},
			false, false,
		},
		"in the GPU operator": {
			Object{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "gpu-operator", Name: "x"},
			false, false,
		},
		"in the ledger": {
			Object{Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: "records", Name: "x"}, false,
			false,
		},
		"the ledger": {
			Object{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: "records"}, false, false,
		},
		"kube-system": {
			Object{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: "kube-system"}, false, false,
		},
		"default": {
			Object{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: "default"}, false, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := test.o.mayBeCreated("records"); (err == nil) != test.created {
				t.Errorf("created: %v", err)
			}
			if err := test.o.mayBePatched("records"); (err == nil) != test.patched {
				t.Errorf("patched: %v", err)
			}
		})
	}
	if err := (Object{
		Version: "v1", Resource: "configmaps", Kind: "ConfigMap", Namespace: ledger.DefaultNamespace, Name: "x",
	}).mayBeCreated(""); err == nil {
		t.Error("the usual ledger is open where none is named")
	}
}

// Of nodes only what scenarios need, and of nothing what would outlive the undo or belongs to the API server.
func TestFieldsOutOfBounds(t *testing.T) {
	t.Parallel()
	at := func(fields ...string) kubeedit.Edit {
		return kubeedit.Edit{Path: kubeedit.Fields(fields...), Ours: []byte(`"x"`)}
	}
	node, other := Object{Version: "v1", Kind: "Node", Name: "n"},
		Object{Version: "v1", Kind: "ConfigMap", Namespace: "a", Name: "n"}
	for _, e := range []kubeedit.Edit{
		at("metadata", "labels", "a"), at("metadata", "annotations", "a"), at("spec", "taints"),
		at("spec", "unschedulable"),
	} {
		if err := node.mayBeEdited(e); err != nil {
			t.Error(err)
		}
	}
	status := node
	status.Subresource = "status"
	for _, e := range []kubeedit.Edit{
		at("status", "capacity", "nvidia.com/gpu"), at("status", "allocatable", "nvidia.com/gpu"),
	} {
		if err := status.mayBeEdited(e); err != nil {
			t.Error(err)
		}
	}
	for _, e := range []kubeedit.Edit{
		at("status"), at("status", "capacity"), at("status", "capacity", "cpu"), at("status", "conditions"),
		at("metadata", "labels", "a"), at("spec", "taints"),
	} {
		if err := status.mayBeEdited(e); err == nil {
			t.Errorf("%s of a node's status may be patched", e.Path)
		}
	}
	for _, e := range []kubeedit.Edit{
		at("metadata", "finalizers"), at("spec", "podCIDR"), at("spec"), at("status", "capacity"),
		at("status", "capacity", "nvidia.com/gpu"),
	} {
		if err := node.mayBeEdited(e); err == nil {
			t.Errorf("%s of a node may be patched", e.Path)
		}
	}
	for _, e := range []kubeedit.Edit{
		at("metadata", "finalizers"), at("metadata", "ownerReferences"), at("metadata", "labels"),
		at("metadata", "name", "x"), at("status", "x"), at("kind"), at("apiVersion"),
	} {
		if err := other.mayBeEdited(e); err == nil {
			t.Errorf("%s may be patched", e.Path)
		}
	}
	if err := other.mayBeEdited(at("data", "a")); err != nil {
		t.Error(err)
	}
}

// A manifest that could not be undone, or that would tell who made it, is refused before anything is created, and all
// that is wrong is said.
func TestManifestsThatAreRefused(t *testing.T) {
	t.Parallel()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.AddSpecific(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmap"}, meta.RESTScopeNamespace)
	mapper.AddSpecific(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"},
		schema.GroupVersionResource{Version: "v1", Resource: "namespaces"},
		schema.GroupVersionResource{Version: "v1", Resource: "namespace"}, meta.RESTScopeRoot)
	mapper.AddSpecific(schema.GroupVersionKind{Group: groupDRA, Version: "v1", Kind: kindTaintRule},
		schema.GroupVersionResource{Group: groupDRA, Version: "v1", Resource: "devicetaintrules"},
		schema.GroupVersionResource{Group: groupDRA, Version: "v1", Resource: "devicetaintrule"}, meta.RESTScopeRoot)
	const rule = `{apiVersion: resource.k8s.io/v1, kind: DeviceTaintRule, metadata: {name: x}, spec: `
	for manifest, want := range map[string]string{
		rule + `{}}`:                   "must contain a driver, a pool and a device",
		rule + `{deviceSelector: {}}}`: "must contain a driver, a pool and a device",
		rule + `{deviceSelector: {driver: a, pool: b}}}`:                                                                "must contain a driver, a pool and a device",
		rule + `{deviceSelector: {device: gpu-0}}}`:                                                                     "must contain a driver, a pool and a device",
		rule + `{deviceSelector: [a]}}`:                                                                                 "must contain a driver, a pool and a device",
		`{kind: ConfigMap, metadata: {name: x, namespace: a}}`:                                                          "no apiVersion",
		`{apiVersion: v1, kind: ConfigMap, metadata: {generateName: x-, namespace: a}}`:                                 "has no name",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`:                                                        "has no namespace",
		`{apiVersion: v1, kind: Namespace, metadata: {name: x, namespace: a}}`:                                          "is not namespaced",
		`{apiVersion: v1, kind: Thing, metadata: {name: x, namespace: a}}`:                                              " kind Thing not found in v1",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: a, finalizers: [example.com/x]}}`:             "cannot be undone",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: a, ownerReferences: [{name: x}]}}`:            "cannot be undone",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: a, labels: {app.kubernetes.io/instance: x}}}`: "reserved for reverting the run;",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: a, annotations: {gpufault.dev/run: x}}}`:      "reveals who created the object",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: kube-system}}`:                                "belong to Kubernetes",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: twice, namespace: a}}`:                                      "is specified twice",
		`{apiVersion: v1, kind: List, items: []}`:                                                                       "has no name",
	} {
		object := &unstructured.Unstructured{Object: parse(t, manifest)}
		twice := &unstructured.Unstructured{
			Object: parse(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: twice, namespace: a}}`),
		}
		c := &Creation{Dynamic: noCluster{}, Mapper: mapper, Objects: []*unstructured.Unstructured{twice, object}}
		if _, _, err := c.prepare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", manifest, err)
		}
	}
}

// A namespace is created before what is in it, in whatever order they come, and the target that is locked is the
// namespace.
func TestNamespacesComeFirst(t *testing.T) {
	t.Parallel()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	object := &unstructured.Unstructured{
		Object: parse(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: a}}`),
	}
	namespace := &unstructured.Unstructured{Object: parse(t, `{apiVersion: v1, kind: Namespace, metadata: {name: a}}`)}
	c := &Creation{Dynamic: noCluster{}, Mapper: mapper, Objects: []*unstructured.Unstructured{object, namespace}}
	manifests, d, err := c.prepare()
	if err != nil || manifests[0].GetKind() != "Namespace" || d.Created[0].Name != "a" || d.needsKeeper(nil) {
		t.Errorf("%v %+v", err, d)
	}
	if target := c.Change("create").Target; target != (ledger.Target{Kind: "Namespace", Name: "a"}) {
		t.Errorf("%+v", target)
	}
	manifests[0].SetName("changed")
	if namespace.GetName() != "a" {
		t.Error("the caller's manifest was changed")
	}
	c.Objects = c.Objects[:1]
	if target := c.Change("create").Target; target != (ledger.Target{Kind: "Namespace", Name: "a"}) {
		t.Errorf("%+v", target)
	}
	if _, d, _ := c.prepare(); !d.needsKeeper(nil) || d.needsKeeper(map[string]string{"a": ""}) {
		t.Error("an object in somebody's namespace needs a ClusterRole for its seal, and one in the run's does not")
	}
}
