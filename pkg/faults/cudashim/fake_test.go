package cudashim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// kindsOfWorld are the kinds that a world knows, and their resources.
var kindsOfWorld = map[schema.GroupVersionKind]string{
	{Version: "v1", Kind: "Pod"}: "pods", {Version: "v1", Kind: "ConfigMap"}: "configmaps",
	{Group: "apps", Version: "v1", Kind: "Deployment"}:                        "deployments",
	{Group: "apps", Version: "v1", Kind: "ReplicaSet"}:                        "replicasets",
	{Group: "apps", Version: "v1", Kind: "StatefulSet"}:                       "statefulsets",
	{Group: "batch", Version: "v1", Kind: "Job"}:                              "jobs",
	{Group: "batch", Version: "v1", Kind: "CronJob"}:                          "cronjobs",
	{Group: "example.org", Version: "v1", Kind: "Owner"}:                      "owners",
	{Group: "nvidia.com", Version: "v1alpha1", Kind: "DynamoGraphDeployment"}: "dynamographdeployments",
}

// world is a cluster in memory. Its dynamic client applies the patches with their tests as the API server does: a
// failed test is answered as there, and a dry run keeps nothing.
type world struct {
	*testing.T
	cluster *Cluster
	dynamic *dynamicfake.FakeDynamicClient
	client  *fake.Clientset

	mu    sync.Mutex
	calls []string // writes, in their order
	// interfere is called before each patch that is no dry run.
	interfere func(object *unstructured.Unstructured)
	refuse    func(verb string, dryRun bool) error
}

func newWorld(t *testing.T, documents ...string) *world {
	t.Helper()
	lists, mapper := map[schema.GroupVersionResource]string{}, meta.NewDefaultRESTMapper(nil)
	for kind, resource := range kindsOfWorld {
		gvr := kind.GroupVersion().WithResource(resource)
		lists[gvr] = kind.Kind + "List"
		mapper.AddSpecific(kind, gvr, kind.GroupVersion().WithResource(strings.ToLower(kind.Kind)),
			meta.RESTScopeNamespace)
	}
	w := &world{
		T: t, dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists),
		client: fake.NewClientset(),
	}
	w.cluster = &Cluster{
		Client: w.client, Dynamic: w.dynamic, Mapper: mapper,
		Conflicts: wait.Backoff{Steps: 12, Duration: time.Millisecond},
	}
	for _, document := range documents {
		object := parseYAML(t, document)
		if object.GetUID() == "" {
			object.SetUID(types.UID("uid-" + object.GetName()))
		}
		if object.GetGeneration() == 0 {
			object.SetGeneration(1)
		}
		gvr := object.GroupVersionKind().GroupVersion().WithResource(kindsOfWorld[object.GroupVersionKind()])
		if err := w.dynamic.Tracker().Create(gvr, object, object.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	w.dynamic.PrependReactor("patch", "*", w.patch)
	for _, verb := range []string{"create", "delete"} {
		w.dynamic.PrependReactor(verb, "*", w.createOrDelete)
	}
	w.client.PrependReactor("*", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(clienttesting.CreateActionImpl); ok && len(create.CreateOptions.DryRun) > 0 {
			return true, create.Object, nil
		}
		if action.GetVerb() != "get" {
			w.note(action.GetVerb() + " configmap")
		}
		return false, nil, nil
	})
	return w
}

func (w *world) note(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

// stale returns what the API server answers when a test of a JSON patch fails.
func stale() error {
	return apierrors.NewGenericServerResponse(422, "", schema.GroupResource{}, "", "testing value failed", 0, false)
}

func (w *world) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	a := action.(clienttesting.PatchActionImpl)
	dry := len(a.PatchOptions.DryRun) > 0
	if w.refuse != nil {
		if err := w.refuse("patch", dry); err != nil {
			return true, nil, err
		}
	}
	gvr := a.GetResource()
	stored, err := w.dynamic.Tracker().Get(gvr, a.GetNamespace(), a.GetName())
	if err != nil {
		return true, nil, err
	}
	object := stored.(*unstructured.Unstructured).DeepCopy()
	if w.interfere != nil && !dry {
		w.interfere(object)
		if err := w.dynamic.Tracker().Update(gvr, object.DeepCopy(), a.GetNamespace()); err != nil {
			return true, nil, err
		}
	}
	var ops []operation
	if err := json.Unmarshal(a.GetPatch(), &ops); err != nil {
		return true, nil, err
	}
	var changes []operation
	for _, o := range ops {
		if o.Op != "test" {
			changes = append(changes, o)
			continue
		}
		at := kubeedit.Fields(strings.Split(o.Path, "/")[1:]...)
		if value, _ := kubeedit.Get(object.Object, at); !kubeedit.Same(value, o.Value) {
			return true, nil, stale()
		}
	}
	object.Object = applyPatch(w.T, object.Object, changes)
	object.Object, _ = kubeedit.Decode(kubeedit.Encode(object.Object)).(map[string]any)
	object.SetGeneration(object.GetGeneration() + 1)
	if dry {
		return true, object, nil
	}
	w.note("patch " + gvr.Resource)
	return true, object, w.dynamic.Tracker().Update(gvr, object, a.GetNamespace())
}

func (w *world) createOrDelete(action clienttesting.Action) (bool, runtime.Object, error) {
	if create, ok := action.(clienttesting.CreateActionImpl); ok {
		object := create.Object.(*unstructured.Unstructured)
		if len(create.CreateOptions.DryRun) > 0 {
			return true, object, nil
		}
		object.SetUID(types.UID(fmt.Sprintf("created-%d", len(w.calls))))
		object.SetGeneration(1)
	}
	w.note(action.GetVerb() + " " + action.GetResource().Resource)
	return false, nil, nil
}

func (w *world) find(name string) *Workload {
	w.Helper()
	found, err := w.cluster.Find(w.Context(), "team", name)
	if err != nil {
		w.Fatal(err)
	}
	return found
}

func (w *world) object(of *Workload) *unstructured.Unstructured {
	w.Helper()
	object, err := w.cluster.resource(of).Get(w.Context(), of.Object.GetName(), metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return object
}

// recorder keeps what is saved, among the world's calls.
type recorder struct {
	world *world
	step  ledger.Step
	err   error
}

func (r *recorder) Run() ledger.Run { return ledger.Run{ID: run} }
func (r *recorder) Progress(string) {}
func (r *recorder) Save(_ context.Context, change func(*ledger.Step)) error {
	r.world.note("save")
	if r.err == nil {
		change(&r.step)
		var d Data
		if err := json.Unmarshal(r.step.Undo.Data, &d); err != nil {
			r.world.Fatal(err)
		}
		r.step.Target = targetOf(&d)
	}
	return r.err
}

func (w *world) injection(of *Workload) *Injection {
	return &Injection{
		Cluster: w.cluster, Workload: of, Libraries: map[string][]byte{"amd64": []byte("so")},
		State:    func(ledger.Run) ([]byte, error) { return []byte("armed"), nil },
		Disarmed: func(ledger.Run) ([]byte, error) { return []byte("disarmed"), nil },
	}
}

// started returns a pod that carries the shim.
func started(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: volumeLib,
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: Name(run)},
			}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
}

// targetOf returns the target of the step that has the data.
func targetOf(d *Data) ledger.Target {
	return ledger.Target{Kind: d.Kind, Namespace: d.Namespace, Name: d.Name, UID: d.UID}
}

// stepOf returns a step with the data, as the ledger keeps it.
func stepOf(d *Data) ledger.Step {
	return ledger.Step{Target: targetOf(d), Undo: ledger.Undo{Kind: UndoKind, Data: kubeedit.Encode(d)}}
}
