package leftover

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// clean removes all that the world's Finder finds, and returns what became of it.
func (w *world) clean() []string {
	w.t.Helper()
	cleaner := &Cleaner{Dynamic: w.dynamic}
	var said []string
	for _, r := range cleaner.Clean(w.t.Context(), w.find().Items) {
		line := r.Ref() + " " + r.Did
		if r.Err != nil {
			line += "failed: " + r.Err.Error()
		}
		said = append(said, line)
	}
	return said
}

func (w *world) get(resource schema.GroupVersionResource, name string) *unstructured.Unstructured {
	w.t.Helper()
	object, err := w.dynamic.Resource(resource).Namespace("dynamo").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return object
}

func (w *world) exists(resource schema.GroupVersionResource, namespace, name string) bool {
	w.t.Helper()
	_, err := w.dynamic.Resource(resource).Namespace(namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return err == nil
}

// First goes who injects, then what disturbs, then the additions, and then what they mount. What looks alike stays.
func TestCleanDynamo(t *testing.T) {
	t.Parallel()
	w := dynamoWorld(t)
	golden.Compare(t, "clean.golden", strings.Join(w.clean(), "\n")+"\n")
	for _, name := range []string{"of-the-user"} {
		if !w.exists(configMapResource, "dynamo", name) || !w.exists(policyResource, "dynamo", name) {
			t.Errorf("%s of the user is gone", name)
		}
	}
	if !w.exists(workloads()[1].resource, "of-somebody-else", "fault-injection-api") {
		t.Error("somebody else's service is gone")
	}
	graph, err := yaml.Marshal(w.get(workloads()[7].resource, "vllm").Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "graph-after.golden.yaml", string(graph))
	// The workload that a graph owns is changed by its operator; nobody fights it.
	if owned := fmt.Sprint(w.get(workloads()[1].resource, "vllm-decode").Object); !strings.Contains(
		owned, "cuda_intercept.so",
	) {
		t.Error("a Deployment that has an owner was edited")
	}
}

// While a template still mounts the ConfigMap, its new pods need it.
func TestConfigMapStaysWhileItIsMounted(t *testing.T) {
	t.Parallel()
	w := dynamoWorld(t)
	w.dynamic.PrependReactor("update", "dynamographdeployments",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("a webhook says no")
		})
	said := strings.Join(w.clean(), "\n")
	for _, want := range []string{
		"dynamographdeployment.nvidia.com/vllm failed: a webhook says no",
		"configmap/cuda-fault-injection-lib failed: dynamographdeployment.nvidia.com/vllm still mounts the ConfigMap",
		"deployment.apps/web edited",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it did not say %q, but:\n%s", want, said)
		}
	}
	if !w.exists(configMapResource, "dynamo", dynamoConfigMap) {
		t.Error("the ConfigMap is gone")
	}
}

// Somebody else's change at the same time is kept: the edit is made again, on what they wrote.
func TestEditKeepsAChangeOfSomebodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dynamo}
spec: {replicas: 1, template: {spec: {containers: [{name: web, env: [{name: CUDA_XID_TYPE, value: "79"}]}]}}}
`)
	deployments := workloads()[1].resource
	tries := 0
	w.dynamic.PrependReactor("update", "deployments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if tries++; tries > 1 {
			return false, nil, nil
		}
		stored, err := w.dynamic.Tracker().Get(deployments, "dynamo", "web") // the client would wait for this reactor
		if err != nil {
			t.Error(err)
			return false, nil, nil
		}
		theirs := stored.DeepCopyObject().(*unstructured.Unstructured)
		if err := unstructured.SetNestedField(theirs.Object, int64(5), "spec", "replicas"); err != nil {
			t.Error(err)
		}
		if err := w.dynamic.Tracker().Update(deployments, theirs, "dynamo"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(deployments.GroupResource(), "web", errors.New("modified"))
	})
	if diff := cmp.Diff([]string{"deployment.apps/web edited"}, w.clean()); diff != "" {
		t.Errorf("it said (-want +got):\n%s", diff)
	}
	after := fmt.Sprint(w.get(deployments, "web").Object["spec"])
	if after != "map[replicas:5 template:map[spec:map[containers:[map[name:web]]]]]" {
		t.Errorf("after it: %s", after)
	}
}

// Only the very object that was found is deleted, and a lock only if nobody has taken it over.
func TestDeletePreconditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t,
		pod("xid-22")+"\n---\n"+strings.Replace(lease("xid-22"), "metadata:", "metadata:\n  resourceVersion: \"7\"", 1))
	got := map[string]string{}
	w.dynamic.PrependReactor("delete", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		remove := action.(clienttesting.DeleteActionImpl)
		text := "uid " + string(*remove.DeleteOptions.Preconditions.UID)
		if version := remove.DeleteOptions.Preconditions.ResourceVersion; version != nil {
			text += ", version " + *version
		}
		got[remove.Name] = text
		return true, nil,
			apierrors.NewConflict(remove.Resource.GroupResource(), remove.Name, errors.New("precondition failed"))
	})
	said := w.clean()
	want := map[string]string{"pod-xid-22": "uid Pod-pod-xid-22", "lock-xid-22": "uid Lease-lock-xid-22, version 7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("preconditions (-want +got):\n%s", diff)
	}
	for _, line := range said {
		if !strings.Contains(line, ErrChanged.Error()) {
			t.Errorf("a changed object: %s", line)
		}
	}
}

// ours is a Deployment with a variable of ours, and a field that our field manager has set.
const ours = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: dynamo
  generation: 4
  labels: {gpufault.dev/run: cuda-22}
  managedFields: [{manager: kubectl-gpu-fault, operation: Apply, time: "2026-05-04T11:00:00Z", fieldsType: FieldsV1, fieldsV1: {}}]
spec: {template: {spec: {containers: [{name: web, env: [{name: GPUFAULT_STATE, value: /x}, {name: MINE, value: "1"}]}]}}}
`

// What a lost run left in a workload goes; what a run that is in place has there, and what a new run may have put
// there, stays.
func TestChangesOfOurs(t *testing.T) {
	t.Parallel()
	deployments := workloads()[1].resource
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, ours)
		if diff := cmp.Diff([]string{"deployment.apps/web edited"}, w.clean()); diff != "" {
			t.Errorf("it said (-want +got):\n%s", diff)
		}
		if after := fmt.Sprint(w.get(deployments, "web").Object["spec"]); strings.Contains(after, "GPUFAULT") ||
			!strings.Contains(after, "MINE") {
			t.Errorf("after it: %s", after)
		}
		// The field that our manager has set: nobody knows what it was before.
		found := w.find()
		if len(found.Items) != 1 || found.Items[0].Remedy != Nobody ||
			!strings.Contains(found.Items[0].Todo, "--show-managed-fields") {
			t.Errorf("then: %v", lines(found.Items))
		}
	})
	t.Run("in place", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, ours)
		w.record(run("cuda-22", ledger.Proven, ledger.StateProven, nil))
		if found := w.find(); len(found.Items) != 0 || found.InUse != 1 {
			t.Errorf("found %v, %d in use", lines(found.Items), found.InUse)
		}
	})
	t.Run("the target of a run that is in place", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, strings.Replace(ours, "gpufault.dev/run: cuda-22", "a: b", 1))
		w.record(run("cuda-22", ledger.Proven, ledger.StateProven, func(r *ledger.Run) {
			r.Steps[0].Target = ledger.Target{Kind: "Deployment", Namespace: "dynamo", Name: "web"}
		}))
		if found := w.find(); len(found.Items) != 0 || found.InUse != 1 {
			t.Errorf("found %v, %d in use", lines(found.Items), found.InUse)
		}
	})
	t.Run("changed since it was found", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, ours)
		found := w.find()
		changed := w.get(deployments, "web")
		changed.SetGeneration(5)
		if err := w.dynamic.Tracker().Update(deployments, changed, "dynamo"); err != nil {
			t.Fatal(err)
		}
		results := (&Cleaner{Dynamic: w.dynamic}).Clean(t.Context(), found.Items)
		if len(results) != 1 || !errors.Is(results[0].Err, ErrChanged) {
			t.Errorf("got %+v", results)
		}
	})
}

// shimmed is a Deployment into which pkg/faults/cudashim has put the CUDA shim, before a library of the user's own.
const shimmed = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dynamo, generation: 4}
spec:
  template:
    metadata: {labels: {app: web, gpufault.dev/run: cuda-22}}
    spec:
      containers:
      - name: web
        env:
        - {name: LD_PRELOAD, value: "/gpu-fault/lib/libgpufault.so:/usr/lib/libjemalloc.so"}
        - {name: GPU_FAULT_NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        volumeMounts: [{name: gpu-fault-lib, mountPath: /gpu-fault/lib}, {name: gpu-fault-run, mountPath: /gpu-fault/run}, {name: data, mountPath: /data}]
      volumes:
      - {name: gpu-fault-lib, configMap: {name: gpu-fault-cuda-22, optional: true}}
      - {name: gpu-fault-run, emptyDir: {}}
      - {name: data, emptyDir: {}}
`

// A shim whose record is lost goes with all that belongs to it, and nothing of the user's.
func TestAShimWithoutARecord(t *testing.T) {
	t.Parallel()
	deployments := workloads()[1].resource
	for name, text := range map[string]string{
		"labeled": shimmed, "told by the ConfigMap": strings.Replace(shimmed, ", gpufault.dev/run: cuda-22", "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, text)
			found := w.find()
			if len(found.Items) != 1 || found.Items[0].Run != "cuda-22" || found.Items[0].Remedy != Edit {
				t.Fatalf("found %v", lines(found.Items))
			}
			if diff := cmp.Diff([]string{"deployment.apps/web edited"}, w.clean()); diff != "" {
				t.Errorf("it said (-want +got):\n%s", diff)
			}
			after := fmt.Sprint(w.get(deployments, "web").Object["spec"])
			if strings.Contains(after, "gpu-fault") || strings.Contains(after, "GPU_FAULT") ||
				strings.Contains(after, "gpufault") {
				t.Errorf("ours is left: %s", after)
			}
			for _, theirs := range []string{"value:/usr/lib/libjemalloc.so", "mountPath:/data", "app:web"} {
				if !strings.Contains(after, theirs) {
					t.Errorf("%s is gone: %s", theirs, after)
				}
			}
			if again := w.find(); len(again.Items) != 0 {
				t.Errorf("then: %v", lines(again.Items))
			}
		})
		t.Run(name+", in place", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, text)
			w.record(run("cuda-22", ledger.Proven, ledger.StateProven, nil))
			if found := w.find(); len(found.Items) != 0 || found.InUse != 1 {
				t.Errorf("found %v, %d in use", lines(found.Items), found.InUse)
			}
		})
	}
}
