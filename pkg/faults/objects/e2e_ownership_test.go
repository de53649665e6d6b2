//go:build e2e && scenario

package objects_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

// owners returns the fields of each manager of the Deployment, but for those that its controller keeps in the status.
func (l *lab) owners() map[string]any {
	l.Helper()
	live, err := l.typed.AppsV1().Deployments(l.team()).Get(l.Context(), "web", metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	all := map[string]any{}
	for _, e := range live.ManagedFields {
		if e.Subresource == "status" {
			continue
		}
		var fields any
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err != nil {
			l.Fatal(err)
		}
		all[strings.Join([]string{e.Manager, string(e.Operation), e.APIVersion, e.Subresource}, " ")] = fields
	}
	return all
}

// sends is a write of somebody's to the Deployment.
func (l *lab) sends(manager string, kind types.PatchType, body string) {
	l.Helper()
	options := metav1.PatchOptions{FieldManager: manager}
	if kind == types.ApplyPatchType {
		force := true
		options.Force = &force
	}
	if _, err := l.typed.AppsV1().Deployments(l.team()).Patch(
		l.Context(), "web", kind, []byte(body), options,
	); err != nil {
		l.Fatal(err)
	}
}

// owned makes a Deployment without pods, in a namespace that is not the run's, which Argo CD applies, somebody updates,
// and somebody has patched with kubectl.
func (l *lab) owned() *objects.Patching {
	l.Helper()
	namespace := object("v1", "Namespace", "", l.team(), nil)
	gvr := objects.Object{Version: "v1", Resource: "namespaces"}.GVR()
	if _, err := l.dynamic.Resource(gvr).Create(l.Context(), namespace, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		if err := l.typed.CoreV1().Namespaces().Delete(
			context.Background(), l.team(), metav1.DeleteOptions{},
		); err != nil {
			l.Log(err)
		}
	})
	l.sends("argocd", types.ApplyPatchType, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"team":"a"}},"spec":{
		"replicas":0,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[
		{"name":"main","image":"docker.io/library/busybox:1.35","env":[{"name":"A","value":"1"}],"ports":[{"containerPort":80}]}]}}}}`)
	l.sends("controller", types.StrategicMergePatchType,
		`{"metadata":{"annotations":{"example.com/seen":"1","example.com/kept":"1"}},"spec":{"minReadySeconds":1}}`)
	l.sends(objects.ManagerPatch, types.StrategicMergePatchType,
		`{"metadata":{"annotations":{"example.com/mine":"1","example.com/both":"1"}},"spec":{"revisionHistoryLimit":3}}`)
	return &objects.Patching{
		Dynamic: l.dynamic, Mapper: l.mapper, APIVersion: "apps/v1", Kind: "Deployment", Namespace: l.team(),
		Name: "web", LedgerNamespace: l.ledger(),
		Merge: map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"team": nil}, "annotations": map[string]any{
				"example.com/seen": "2", "example.com/mine": nil, "example.com/both": "2", "example.com/new": "x"}},
			"spec": map[string]any{"minReadySeconds": 2, "template": map[string]any{"spec": map[string]any{
				"nodeSelector": map[string]any{"example.com/gpu": "none"},
				// Without env and ports
				"containers": []any{map[string]any{"name": "main", "image": "docker.io/library/busybox:none",
					"resources": map[string]any{"limits": map[string]any{"memory": "64Mi"}}}}}}},
		},
	}
}

// broken patches the Deployment, and holds that somebody has lost something by it.
func (l *lab) broken(patch *objects.Patching) *ledger.Run {
	l.Helper()
	before := l.owners()
	run, err := l.session.Run(l.Context(), l.plan(l.client, patch.Change("break the deployment")))
	if err != nil {
		l.Fatal(err)
	}
	if cmp.Equal(before, l.owners()) {
		l.Fatal("nobody has lost a field")
	}
	l.Logf("%s", run.Steps[0].Undo.Data)
	return run
}

func (l *lab) sameOwners(want map[string]any) {
	l.Helper()
	if diff := cmp.Diff(want, l.owners()); diff != "" {
		l.Errorf("its fields are not owned as expected:\n%s", diff)
	}
}

// After the undo each field is owned by who owned it before: a GitOps tool, a controller, and who had patched with
// kubectl.
func TestE2EOwnershipIsGivenBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	patch := l.owned()
	before := l.owners()
	if len(before) != 3 {
		t.Fatalf("owners %v", before)
	}
	run := l.broken(patch)
	reverted, err := l.session.Revert(t.Context(), run.ID, false)
	if err != nil || reverted.Steps[0].State != ledger.StateReverted {
		t.Fatalf("%v %+v", err, reverted)
	}
	l.sameOwners(before)
	if left := l.seals(run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// What is applied again without force meets no conflict: the tool owns its fields.
	body := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"team":"b"}},"spec":{"replicas":0,"selector":{"matchLabels":{"app":"web"}},
		"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"docker.io/library/busybox:1.36"}]}}}}`
	_, err = l.typed.AppsV1().Deployments(l.team()).Patch(t.Context(), "web", types.ApplyPatchType, []byte(body),
		metav1.PatchOptions{FieldManager: "argocd"})
	if err != nil {
		t.Errorf("a server-side apply without force: %v", err)
	}
}

// What somebody has taken over meanwhile stays theirs, and all else is given back.
func TestE2EOwnershipIsGivenBackButForWhatWasTakenOver(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	patch := l.owned()
	want := l.owners()
	run := l.broken(patch)
	l.sends("thief", types.StrategicMergePatchType, `{"metadata":{"annotations":{"example.com/seen":"3"}}}`)
	reverted, err := l.session.Revert(t.Context(), run.ID, false)
	if err != nil || reverted.Steps[0].State != ledger.StateSuperseded ||
		!strings.Contains(reverted.Steps[0].Message, "example.com/seen") {
		t.Fatalf("%v %+v", err, reverted)
	}
	controller, _ := want["controller Update apps/v1 "].(map[string]any)
	metadata, _ := controller["f:metadata"].(map[string]any)
	annotations, _ := metadata["f:annotations"].(map[string]any)
	delete(annotations, "f:example.com/seen")
	want["thief Update apps/v1 "] = map[string]any{
		"f:metadata": map[string]any{"f:annotations": map[string]any{"f:example.com/seen": map[string]any{}}},
	}
	l.sameOwners(want)
}

// dropper loses the write of who owns the fields as long as it is told to.
type dropper struct {
	next http.RoundTripper
	on   atomic.Bool
	lost atomic.Int32
}

var errLost = errors.New("lost on its way")

func (d *dropper) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.on.Load() && r.Method == http.MethodPatch && r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		defer body.Close()
		var sent struct {
			Metadata struct {
				ManagedFields json.RawMessage `json:"managedFields"`
			} `json:"metadata"`
		}
		if err := json.NewDecoder(body).Decode(&sent); err == nil && len(sent.Metadata.ManagedFields) > 0 {
			d.lost.Add(1)
			return nil, errLost
		}
	}
	return d.next.RoundTrip(r)
}

// An undo whose second write was lost has not ended, and the next one gives the fields back.
func TestE2EOwnershipIsGivenBackByTheNextUndo(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	patch := l.owned()
	before := l.owners()
	run := l.broken(patch)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	d := &dropper{}
	d.on.Store(true)
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { d.next = next; return d })
	lossy, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	l.undoer(func(u *objects.Undoer) { u.Dynamic = lossy })
	if reverted, err := l.session.Revert(t.Context(), run.ID, false); err == nil || d.lost.Load() == 0 {
		t.Fatalf("it says nothing: %+v, %d lost", reverted, d.lost.Load())
	}
	if cmp.Equal(before, l.owners()) {
		t.Fatal("its fields were given back by a write that was lost")
	}
	d.on.Store(false)
	reverted, err := l.session.Revert(t.Context(), run.ID, false)
	if err != nil || reverted.Steps[0].State != ledger.StateReverted {
		t.Fatalf("%v %+v", err, reverted)
	}
	l.sameOwners(before)
	if left := l.seals(run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
