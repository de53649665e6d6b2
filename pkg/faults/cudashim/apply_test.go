package cudashim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

const web = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: team}, spec: {replicas: 1, template: {spec: {containers: [{name: main, image: i, env: [{name: LD_PRELOAD, value: /a.so}]}]}}}}`

// undo undoes a step whose data its run has sealed.
func (w *world) undo(step ledger.Step) (ledger.State, string, error) {
	w.Helper()
	w.sealStep(step)
	return w.undoAsRecorded(step)
}

// sealStep keeps the seal of a step that no Apply has made, on the ConfigMap that it would have made.
func (w *world) sealStep(step ledger.Step) {
	w.Helper()
	d, err := ReadData(step)
	if err != nil || d == nil {
		return
	}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	stored, err := w.client.Tracker().Get(configMaps, d.Namespace, Name(run))
	if apierrors.IsNotFound(err) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: Name(run), Namespace: d.Namespace,
			Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: run},
		}}
		setSeal(cm, d.seal(run))
		err = w.client.Tracker().Create(configMaps, cm, d.Namespace)
	} else if err == nil {
		cm := stored.(*corev1.ConfigMap).DeepCopy()
		setSeal(cm, d.seal(run))
		err = w.client.Tracker().Update(configMaps, cm, d.Namespace)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// undoAsRecorded undoes a step, whoever wrote its data.
func (w *world) undoAsRecorded(step ledger.Step) (ledger.State, string, error) {
	return Undoer{Cluster: w.cluster, Settle: time.Millisecond}.Undo(w.Context(), ledger.Run{ID: run}, step)
}

// The undo is in the ledger before anything is created or changed, and afterwards the ConfigMap is there before pods
// want it.
func TestTheUndoIsSavedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, web)
	if err := w.client.Tracker().Add(started("web-1")); err != nil {
		t.Fatal(err)
	}
	found := w.find("deployment/web")
	before := w.object(found)
	r := &recorder{world: w}
	evidence, err := w.injection(found).Change("inject").Apply(t.Context(), r)
	if err != nil || len(evidence) != 2 {
		t.Fatalf("%v, %v", evidence, err)
	}
	if got := strings.Join(w.calls, ", "); got != "save, create configmap, patch deployments" {
		t.Errorf("calls %s", got)
	}
	if state, said, err := w.undo(r.step); err != nil || state != ledger.StateReverted ||
		!strings.Contains(said, "restored") {
		t.Errorf("%s: %s, %v", state, said, err)
	}
	after := w.object(found)
	if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" {
		t.Error(diff)
	}
	if _, err := w.client.CoreV1().ConfigMaps("team").Get(
		t.Context(), Name(run), metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("the configmap is left: %v", err)
	}
}

// When the ledger cannot be written, nothing is.
func TestNothingIsChangedWithoutTheLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, web)
	r := &recorder{world: w, err: errors.New("no ledger")}
	if _, err := w.injection(w.find("deployment/web")).Change("").Apply(t.Context(), r); err == nil ||
		strings.Join(w.calls, ", ") != "save" {
		t.Errorf("%v, calls %v", err, w.calls)
	}
}

// Others who are faster do not lose their changes, are tried against again a bounded number of times, and are told in
// the end.
func TestConflicts(t *testing.T) {
	t.Parallel()
	change := func(o *unstructured.Unstructured, n int64) {
		o.SetGeneration(o.GetGeneration() + 1)
		_ = unstructured.SetNestedField(o.Object, n, "spec", "replicas")
	}
	t.Run("some", func(t *testing.T) {
		t.Parallel()
		w, n := newWorld(t, web), int64(1)
		if err := w.client.Tracker().Add(started("web-1")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"web-2", "web-3", "web-4"} {
			_ = w.client.Tracker().Add(started(name))
		}
		w.interfere = func(o *unstructured.Unstructured) {
			if n < 4 {
				n++
				change(o, n)
			}
		}
		found, r := w.find("deployment/web"), &recorder{world: w}
		if _, err := w.injection(found).Change("").Apply(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got, _ := kubeedit.Get(w.object(found).Object, kubeedit.Fields("spec", "replicas")); got != int64(4) {
			t.Errorf("their change is lost: %v", got)
		}
		if got := strings.Join(w.calls, ", "); got != "save, create configmap, patch deployments" {
			t.Errorf("the same undo was saved again: %s", got)
		}
	})
	t.Run("of the template", func(t *testing.T) {
		t.Parallel()
		w, done := newWorld(t, web), false
		if err := w.client.Tracker().Add(started("web-1")); err != nil {
			t.Fatal(err)
		}
		w.interfere = func(o *unstructured.Unstructured) {
			if !done {
				done = true
				change(o, 1)
				at := kubeedit.Fields("spec", "template", "spec",
					"containers").Then(kubeedit.Element("name",
					"main"), kubeedit.Field("env"), kubeedit.Element("name", "LD_PRELOAD"))
				kubeedit.Map(o.Object, at)["value"] = "/b.so"
			}
		}
		found, r := w.find("deployment/web"), &recorder{world: w}
		if _, err := w.injection(found).Change("").Apply(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(w.calls,
			", "); got != "save, create configmap, update configmap, save, patch deployments" {
			t.Errorf("calls %s", got)
		}
		if _, _, err := w.undo(r.step); err != nil ||
			!strings.Contains(string(kubeedit.Encode(w.object(found).Object["spec"])), `"/b.so"`) {
			t.Errorf("%v: %s", err, kubeedit.Encode(w.object(found).Object))
		}
	})
	t.Run("storm", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, web)
		n := 0
		w.interfere = func(o *unstructured.Unstructured) { n++; change(o, int64(n)) }
		_, err := w.injection(w.find("deployment/web")).Change("").Apply(t.Context(), &recorder{world: w})
		if err == nil || n != conflicts().Steps ||
			!strings.Contains(err.Error(), "was changed by other clients during each of 12 attempts") {
			t.Errorf("%d tries, %v", n, err)
		}
	})
}

// What the API server refuses is said in words, with what to do, before anything is saved.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	forbidden := func(text string) error { return apierrors.NewForbidden(deployments, "web", errors.New(text)) }
	terminating := apierrors.NewForbidden(deployments, "web",
		errors.New("unable to create new content in namespace team because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"rights": {forbidden(`User "x" cannot patch resource "deployments"`), "gpu-fault rbac print --for cuda"},
		"quota":  {forbidden("exceeded quota: small"), "kubectl describe quota -n team"},
		"security": {
			forbidden(`violates PodSecurity "restricted:latest": hostNetwork`), "comply with the restricted level",
		},
		"webhook": {
			apierrors.NewBadRequest(`admission webhook "x" denied the request: no`),
			"ask the cluster administrator for an exception",
		},
		"terminating": {terminating, `namespace "team" is being deleted`},
		"immutable":   {apierrors.NewInvalid(schema.GroupKind{Kind: "JobSet"}, "web", nil), ""},
	} {
		w := newWorld(t, web)
		w.refuse = func(string, bool) error { return test.err }
		if name == "immutable" {
			w.refuse = func(string, bool) error { return apierrors.NewBadRequest("replicatedJobs: field is immutable") }
			test.want = "--recreate"
		}
		_, err := w.injection(w.find("deployment/web")).Change("").Apply(t.Context(), &recorder{world: w})
		if err == nil || !strings.Contains(err.Error(), test.want) || len(w.calls) > 0 {
			t.Errorf("%s: %v, calls %v", name, err, w.calls)
		}
	}
}

// A ConfigMap has room for 1 MiB, and its state is replaced alone, also when others write it at the same time.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, web)
	in := w.injection(w.find("deployment/web"))
	in.Libraries["amd64"] = make([]byte, 1<<20)
	if _, err := in.Preview(t.Context()); err == nil || !strings.Contains(err.Error(), "at most 1024 KiB") {
		t.Errorf("too large: %v", err)
	}
	in.Libraries["amd64"] = []byte("so")
	if err := in.createConfigMap(t.Context(), ledger.Run{ID: run}, Data{}); err != nil {
		t.Fatal(err)
	}
	conflicts := 3
	w.client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts >= 0 {
			return true, nil,
				apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, Name(run), errors.New("newer"))
		}
		return false, nil, nil
	})
	if err := UpdateState(t.Context(), w.client, "team", run, []byte("new")); err != nil {
		t.Fatal(err)
	}
	cm, err := w.client.CoreV1().ConfigMaps("team").Get(t.Context(), Name(run), metav1.GetOptions{})
	if err != nil || string(cm.BinaryData[StateKey]) != "new" || string(cm.BinaryData[libraryKey("amd64")]) != "so" ||
		len(cm.OwnerReferences) != 1 {
		t.Errorf("%v, %v", cm, err)
	}
	if state, err := ReadState(t.Context(), w.client, "team", run); err != nil || string(state) != "new" {
		t.Errorf("%q, %v", state, err)
	}
	cm.Labels[ledger.LabelRun] = "cuda-other"
	if _, err := w.client.CoreV1().ConfigMaps("team").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := UpdateState(t.Context(), w.client, "team", run, nil); err == nil ||
		!strings.Contains(err.Error(), "was not changed") {
		t.Errorf("another run's: %v", err)
	}
	if err := deleteConfigMap(t.Context(), w.client, "team", run); err != nil {
		t.Error(err)
	}
	if _, err := w.client.CoreV1().ConfigMaps("team").Get(t.Context(), Name(run), metav1.GetOptions{}); err != nil {
		t.Errorf("another run's was deleted: %v", err)
	}
}
