package exercise

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// mapper knows the kinds of the tests below.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for kind, scope := range map[schema.GroupVersionKind]meta.RESTScope{
		{Version: "v1", Kind: "Node"}:      meta.RESTScopeRoot,
		{Version: "v1", Kind: "ConfigMap"}: meta.RESTScopeNamespace,
		{
			Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding",
		}: meta.RESTScopeRoot,
		{
			Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration",
		}: meta.RESTScopeRoot,
	} {
		m.Add(kind, scope)
	}
	return m
}

// What a program must not put back is left to people, whatever a record says: nodes that went or came, rights, what is
// Kubernetes' own.
func TestMayRestore(t *testing.T) {
	t.Parallel()
	lab := &Lab{Mapper: mapper(), LedgerNamespace: "gpu-fault"}
	binding := scenario.Ref{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding", Name: "team"}
	in := func(namespace string) scenario.Ref {
		return scenario.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: "settings"}
	}
	for _, test := range []struct {
		difference baseline.Difference
		want       string // empty: it may be put back
	}{
		{baseline.Difference{Ref: nodeRef("a"), Kind: baseline.Changed, Fields: []string{"spec.taints"}}, ""},
		{
			baseline.Difference{
				Ref: nodeRef("a"), Kind: baseline.Changed, Fields: []string{"metadata.uid", "spec.taints"},
			},
			"replaced",
		},
		{baseline.Difference{Ref: nodeRef("a"), Kind: baseline.Deleted}, "the node was deleted"},
		{baseline.Difference{Ref: nodeRef("a"), Kind: baseline.Created}, "the node was deleted"},
		{baseline.Difference{Ref: binding, Kind: baseline.Created}, ""},
		{baseline.Difference{Ref: binding, Kind: baseline.Deleted}, "manually"},
		{baseline.Difference{Ref: binding, Kind: baseline.Changed}, "manually"},
		{baseline.Difference{Ref: in("team-vega"), Kind: baseline.Changed}, ""},
		{baseline.Difference{Ref: in("kube-system"), Kind: baseline.Changed}, "kube-"},
		{baseline.Difference{Ref: in("gpu-fault"), Kind: baseline.Deleted}, "gpu-fault"},
		{baseline.Difference{
			Ref: scenario.Ref{
				APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration", Name: "x",
			},
			Kind: baseline.Created,
		}, "is not supported"},
		{baseline.Difference{
			Ref: scenario.Ref{APIVersion: "unknown.dev/v1", Kind: "Thing", Name: "x"}, Kind: baseline.Created,
		}, "Thing"},
	} {
		err := lab.mayRestore(test.difference)
		if got := text(err); (test.want == "") != (err == nil) || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, wanted %q", test.difference, got, test.want)
		}
	}
}

// A node whose taints are Kubernetes' own now is left alone: the list of taints would be replaced as a whole, and these
// would be gone.
func TestNodesWithTaintsOfTheirOwnAreLeftAlone(t *testing.T) {
	t.Parallel()
	for taint, want := range map[string]string{
		"example.com/mine":                               "",
		"node.kubernetes.io/unschedulable":               "",
		"node.kubernetes.io/out-of-service":              "out-of-service",
		"node.cloudprovider.kubernetes.io/uninitialized": "uninitialized",
	} {
		node := func() *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "uid": "1"},
				"spec": map[string]any{"taints": []any{map[string]any{"key": taint, "effect": "NoSchedule"}}},
			}}
		}
		client := fake.NewSimpleDynamicClient(runtime.NewScheme(), node())
		reach := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
		if got := text(unmovedFrom(t.Context(), reach, node().Object, nodeRef("a"))); (want == "") != (got == "") ||
			!strings.Contains(got, want) {
			t.Errorf("%s: %q, wanted %q", taint, got, want)
		}
		renewed := node()
		renewed.SetUID("2")
		if err := unmovedFrom(context.Background(), reach, renewed.Object, nodeRef("a")); err == nil {
			t.Errorf("%s: a node that was made anew is changed", taint)
		}
	}
}
