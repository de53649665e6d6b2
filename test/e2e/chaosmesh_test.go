//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// chaosMesh is a stand-in for the controller of Chaos Mesh: it sets the status, the conditions and the finalizer of
// NetworkChaos objects as Chaos Mesh does, but injects nothing.
type chaosMesh struct {
	*env
	objects dynamic.ResourceInterface
	// selects reports whether it selects pods. Otherwise it is like a Chaos Mesh that filters the namespace.
	selects atomic.Bool
	// recovered is the number of objects that it has released after their pods were recovered.
	recovered atomic.Int32
}

// installChaosMesh serves NetworkChaos objects, and starts the stand-in for the objects of a namespace.
// GPU_FAULT_TEST_CHAOS_MESH_CRD is the file of Chaos Mesh's own CustomResourceDefinition, if it should be used.
func (e *env) installChaosMesh(namespace string) *chaosMesh {
	e.t.Helper()
	file := cmp.Or(os.Getenv("GPU_FAULT_TEST_CHAOS_MESH_CRD"), "../../pkg/chaosmesh/testdata/crd.yaml")
	e.kubectl("apply", "--server-side", "-f", file)
	e.kubectl("wait", "--for=condition=Established", "crd/networkchaos.chaos-mesh.org")
	client, err := dynamic.NewForConfig(e.cluster.RESTConfig)
	if err != nil {
		e.t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "chaos-mesh.org", Version: "v1alpha1", Resource: "networkchaos"}
	c := &chaosMesh{env: e, objects: client.Resource(resource).Namespace(namespace)}
	c.selects.Store(true)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, c.reconcile, 100*time.Millisecond)
	}()
	e.t.Cleanup(func() {
		definitions := client.Resource(schema.GroupVersionResource{
			Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
		})
		_ = definitions.Delete(ctx, "networkchaos.chaos-mesh.org", metav1.DeleteOptions{})
		cluster.Eventually(e.t, patience, "the API server has stopped serving NetworkChaos", func() (bool, string) {
			_, err := definitions.Get(ctx, "networkchaos.chaos-mesh.org", metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
		stop()
		<-ended
	})
	return c
}

// reconcile brings each object one step further. A step that fails is repeated.
func (c *chaosMesh) reconcile(ctx context.Context) {
	all, err := c.objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range all.Items {
		o := &all.Items[i]
		if c.step(o) {
			_, _ = c.objects.Update(ctx, o, metav1.UpdateOptions{})
		}
	}
}

// step changes an object as the controller does next, and reports whether there was anything to change.
func (c *chaosMesh) step(o *unstructured.Unstructured) (changed bool) {
	before := o.DeepCopy()
	records, found, _ := unstructured.NestedSlice(o.Object, "status", "experiment", "containerRecords")
	deleted := o.GetDeletionTimestamp() != nil
	spec, _, _ := unstructured.NestedString(o.Object, "spec", "duration")
	lasts, _ := time.ParseDuration(spec)
	phase, next := "Run", "Injected"
	if deleted || time.Since(o.GetCreationTimestamp().Time) > lasts {
		phase, next = "Stop", "Not Injected"
	}
	switch {
	case !deleted && len(o.GetFinalizers()) == 0:
		o.SetFinalizers([]string{"chaos-mesh/records"})
	case deleted && !slices.ContainsFunc(records, func(r any) bool { return r.(map[string]any)["phase"] != next }):
		o.SetFinalizers(nil)
		if found {
			c.recovered.Add(1)
		}
		return true
	case !found && c.selects.Load():
		records = append(selected(o, ".", "spec", "selector"), selected(o, ".Target", "spec", "target", "selector")...)
	default:
		for _, r := range records {
			r.(map[string]any)["phase"] = next
		}
	}
	every := func(phase string) string {
		for _, r := range records {
			if r.(map[string]any)["phase"] != phase {
				return "False"
			}
		}
		return map[bool]string{true: "True", false: "False"}[len(records) > 0]
	}
	conditions := []any{
		map[string]any{"type": "AllInjected", "status": every("Injected")},
		map[string]any{"type": "AllRecovered", "status": every("Not Injected")},
		map[string]any{"type": "Paused", "status": "False"},
	}
	experiment := map[string]any{"desiredPhase": phase}
	if len(records) > 0 {
		experiment["containerRecords"] = records
	}
	o.Object["status"] = map[string]any{"conditions": conditions, "experiment": experiment}
	one, _ := json.Marshal(before)
	two, _ := json.Marshal(o)
	return string(one) != string(two)
}

// selected returns new records of the pods of a selector.
func selected(o *unstructured.Unstructured, key string, path ...string) (all []any) {
	pods, _, _ := unstructured.NestedMap(o.Object, append(path, "pods")...)
	for namespace, names := range pods {
		for _, name := range names.([]any) {
			all = append(all, map[string]any{
				"id": namespace + "/" + name.(string), "selectorKey": key, "phase": "Not Injected",
				"injectedCount": int64(0), "recoveredCount": int64(0),
			})
		}
	}
	return all
}

// list returns the objects.
func (c *chaosMesh) list() []unstructured.Unstructured {
	c.t.Helper()
	all, err := c.objects.List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return all.Items
}

// TestNetworkViaChaosMesh holds that a fault by Chaos Mesh is verified by its status and undone with its objects, that
// a record cannot delete objects that its run did not create, and that what Chaos Mesh does not inject is reverted.
func TestNetworkViaChaosMesh(t *testing.T) {
	n := setupNetwork(t)
	args := func(more ...string) []string {
		return append([]string{"-n", n.namespace, "--via", "chaos-mesh", "--pod", "a", "--yes"}, more...)
	}
	network := func(verb string, more ...string) result {
		return n.plugin(append([]string{"network", verb}, args(more...)...)...)
	}
	n.says(network("partition"), 1, "nothing was changed", "install Chaos Mesh, or omit --via")
	n.untouched()
	c := n.installChaosMesh(n.namespace)

	r := network("partition", "--to", "pod/c", "--dry-run=server")
	n.says(r, 0, "kind: NetworkChaos", "action: partition", "Chaos Mesh ends the fault when the TTL expires")
	if left := c.list(); len(left) > 0 {
		t.Errorf("a dry run created %+v", left)
	}
	n.untouched()

	for _, flags := range [][]string{
		{"partition", "--to", "pod/c", "--from", "pod/c"},
		{"loss", "--percent", "5", "--from", "pod/b"},
		{"slow", "--latency", "1500us", "--jitter", "1ms", "--rate", "10M", "--to", "10.0.0.0/8,pod/b"},
		{"slow", "--latency", "1m"},
		{"slow", "--rate", "100G"},
	} {
		verb := strings.Join(flags, " ")
		n.says(network(flags[0], append(flags[1:], "--ttl", "5m")...), 0,
			"AllInjected=True; Injected: "+n.namespace+"/a", "until ")
		run := n.runs()[0]
		all := c.list()
		if len(all) == 0 || run.Phase != ledger.Proven {
			t.Errorf("%s: %d objects, run %s", verb, len(all), run.Phase)
		}
		for _, o := range all {
			duration, _, _ := unstructured.NestedString(o.Object, "spec", "duration")
			if o.GetLabels()[ledger.LabelRun] != run.ID || duration != "300s" {
				t.Errorf("%s: labels %v, duration %s", verb, o.GetLabels(), duration)
			}
		}
		c.recovered.Store(0)
		n.says(n.plugin("revert", run.ID, "--yes"), 0, "reverted", "NetworkChaos "+n.namespace+"/", " deleted")
		if left := c.list(); len(left) > 0 || int(c.recovered.Load()) != len(all) {
			t.Errorf("%s: %d of %d objects were recovered, %d are left", verb, c.recovered.Load(), len(all), len(left))
		}
	}
	n.noPods()

	// Chaos Mesh ends the fault, and its object remains until the revert.
	n.says(network("partition", "--ttl", "10s"), 0, "AllInjected=True")
	cluster.Eventually(t, patience, "the pod is recovered", func() (bool, string) {
		text, _ := json.Marshal(c.list())
		return strings.Contains(string(text), `{"status":"True","type":"AllRecovered"}`), string(text)
	})
	n.says(n.plugin("revert", n.runs()[0].ID, "--yes"), 0, "reverted")

	// The object of another client, in a record that names it.
	theirs := &unstructured.Unstructured{}
	if err := theirs.UnmarshalJSON([]byte(`{"apiVersion": "chaos-mesh.org/v1alpha1", "kind": "NetworkChaos",
"metadata": {"name": "theirs"}, "spec": {"action": "partition", "mode": "all", "duration": "1h",
"selector": {"pods": {"x": ["y"]}}}}`)); err != nil {
		t.Fatal(err)
	}
	theirs, err := c.objects.Create(t.Context(), theirs, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.says(network("partition"), 0, "AllInjected=True")
	run := n.runs()[0]
	(&writer{env: n.env, client: n.cluster.Client}).rewrite(run.ID, func(run *ledger.Run) {
		data := string(run.Steps[0].Undo.Data)
		for _, o := range c.list() {
			if o.GetName() != "theirs" {
				data = strings.ReplaceAll(strings.ReplaceAll(data, o.GetName(), "theirs"), string(o.GetUID()),
					string(theirs.GetUID()))
			}
		}
		run.Steps[0].Undo.Data = json.RawMessage(data)
	})
	if r := n.plugin("revert", run.ID, "--yes"); !strings.Contains(r.stdout+r.stderr, "theirs was not deleted") {
		t.Errorf("the revert of a forged record says:\n%s%s", r.stdout, r.stderr)
	}
	now, err := c.objects.Get(t.Context(), "theirs", metav1.GetOptions{})
	if err != nil || now.GetDeletionTimestamp() != nil {
		t.Errorf("the object of another client was deleted: %v", err)
	}
	n.kubectl("delete", "networkchaos", "--all", "-n", n.namespace)

	// An experiment with the fault.
	n.kubectl("create", "deployment", "w", "-n", n.namespace, "--image=busybox:1.35", "--", "sleep", "1000")
	n.kubectl("rollout", "status", "deployment/w", "-n", n.namespace)
	file := experimentFile(t, "target: {podsOf: deployment/w, namespace: "+n.namespace+"}",
		"- inject: {network: loss, flags: {percent: 5, via: chaos-mesh}}\n- wait: 1s\n- revert: {}\n")
	n.says(n.plugin("run", "-f", file, "--yes", "--allow-majority", "--allow-control-plane"), 0,
		"all faults are reverted")
	if left := c.list(); len(left) > 0 {
		t.Errorf("after the experiment: %+v", left)
	}

	c.selects.Store(false)
	n.says(network("partition", "--timeout", "5s"), 1, "has selected no pods", "chaos-mesh.org/inject=enabled")
	if left := c.list(); len(left) > 0 {
		t.Errorf("after the failure: %+v", left)
	}
}

// chaosMeshPrepare creates a pod, and serves NetworkChaos objects.
func (r *rights) chaosMeshPrepare() {
	r.installChaosMesh(r.namespace)
	r.networkPrepare()
}

func (r *rights) chaosMeshWorks() {
	r.chaosMeshPrepare()
	for _, args := range [][]string{{"--workload", "deployment/train"}, {"--pod", r.pods("train")[0].Name}} {
		run := r.does(slices.Concat([]string{"network", "partition", "--via", "chaos-mesh"}, args,
			[]string{"--ttl", "5m", "--allow-majority", "--yes", "-o", "name"})...)
		r.does("revert", strings.TrimPrefix(strings.TrimSpace(run), "run/"), "--yes")
	}
	r.noPods()
}

func (r *rights) chaosMeshAsks(rule fault.Permission) [][]string {
	target := []string{"--workload", "deployment/train"}
	switch {
	case rule.Resource == "pods" && rule.Verb == "get":
		target = []string{"--pod", "nobody"}
	case rule.Verb == "get" && rule.Namespace == "" && (rule.Group == "apps" || rule.Group == "batch"):
		target = []string{"--workload", rule.Resource + "/nobody"}
	}
	return [][]string{slices.Concat([]string{"network", "partition", "--via", "chaos-mesh"}, target,
		[]string{"--allow-majority", "--yes", "--dry-run=server"})}
}
