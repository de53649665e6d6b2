package objects

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// server is an API server in memory that knows who owns which field: by the API server's own code, and the schemas of
// Kubernetes.
type server struct {
	*testing.T
	*dynamicfake.FakeDynamicClient
	mapper *meta.DefaultRESTMapper
	types  managedfields.TypeConverter

	mu sync.Mutex
	// before is asked before each patch that is kept; its error is the answer.
	before func(patch clienttesting.PatchActionImpl) error
	writes []string
}

func newServer(t *testing.T) *server {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{
		{Group: "apps", Version: "v1", Resource: "deployments"}:     "DeploymentList",
		{Version: "v1", Resource: "nodes"}:                          "NodeList",
		{Group: groupRBAC, Version: "v1", Resource: "clusterroles"}: "ClusterRoleList",
	}
	s := &server{T: t,
		FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds),
		mapper:            meta.NewDefaultRESTMapper(nil), types: applyconfigurations.NewTypeConverter(scheme.Scheme)}
	s.mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	s.mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	s.PrependReactor("patch", "*", s.patch)
	return s
}

// asIs is for objects of one version, without defaults.
type asIs struct{}

func (asIs) Convert(_, _, _ any) error { return nil }
func (asIs) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
func (asIs) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
func (asIs) Default(runtime.Object) {}
func (asIs) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o, nil
}

func (s *server) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	p, ok := action.(clienttesting.PatchActionImpl)
	if !ok {
		return false, nil, nil
	}
	dry := len(p.PatchOptions.DryRun) > 0
	if !dry && s.before != nil {
		if err := s.before(p); err != nil {
			return true, nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, err := s.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	live := stored.(*unstructured.Unstructured).DeepCopy()
	manager, err := managedfields.NewDefaultFieldManager(s.types, asIs{}, asIs{}, asIs{}, live.GroupVersionKind(),
		live.GroupVersionKind().GroupVersion(), p.Subresource, nil)
	if err != nil {
		return true, nil, err
	}
	var after runtime.Object
	if p.PatchType == types.ApplyPatchType {
		applied := &unstructured.Unstructured{Object: parse(s.T, string(p.Patch))}
		after, err = manager.Apply(live, applied, p.PatchOptions.FieldManager,
			p.PatchOptions.Force != nil && *p.PatchOptions.Force)
	} else {
		var changed *unstructured.Unstructured
		if changed, err = s.merged(p, live); err == nil {
			after, err = manager.Update(live, changed, p.PatchOptions.FieldManager)
		}
	}
	if err != nil {
		return true, nil, err
	}
	result := after.(*unstructured.Unstructured)
	if !dry {
		s.writes = append(s.writes, p.PatchOptions.FieldManager)
		version, _ := strconv.Atoi(live.GetResourceVersion())
		result.SetResourceVersion(strconv.Itoa(version + 1))
		err = s.Tracker().Update(p.GetResource(), result.DeepCopy(), p.GetNamespace())
	}
	return true, result, err
}

// merged returns the object with a patch in it, with the preconditions and the reach of a subresource that an API
// server sees to.
func (s *server) merged(
	p clienttesting.PatchActionImpl, live *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	from, err := json.Marshal(live.Object)
	if err != nil {
		return nil, err
	}
	var to []byte
	if p.PatchType == types.JSONPatchType {
		patch, err := jsonpatch.DecodePatch(p.Patch)
		if err != nil {
			return nil, err
		}
		to, err = patch.Apply(from)
		if err != nil {
			return nil, err
		}
	} else if to, err = jsonpatch.MergePatch(from, p.Patch); err != nil {
		return nil, err
	}
	changed := &unstructured.Unstructured{Object: parse(s.T, string(to))}
	if changed.GetResourceVersion() != live.GetResourceVersion() || changed.GetUID() != live.GetUID() {
		return nil, apierrors.NewConflict(p.GetResource().GroupResource(), p.GetName(), nil)
	}
	if p.Subresource == fieldStatus {
		status := changed.Object[fieldStatus]
		changed = live.DeepCopy()
		changed.Object[fieldStatus] = status
	}
	return changed, nil
}

// has puts an object in, which is nobody's yet.
func (s *server) has(text string) Object {
	s.Helper()
	object := &unstructured.Unstructured{Object: parse(s.T, text)}
	object.SetUID("uid-1")
	object.SetResourceVersion("1")
	o, err := objectOf(s.mapper, object)
	if err != nil {
		s.Fatal(err)
	}
	o.UID = "uid-1"
	if err := s.Tracker().Create(o.GVR(), object, o.Namespace); err != nil {
		s.Fatal(err)
	}
	return o
}

func (s *server) get(o Object) *unstructured.Unstructured {
	s.Helper()
	live, err := reach(s.FakeDynamicClient, o).Get(s.Context(), o.Name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return live
}

// sends is a write of somebody's. It goes past the client, which is busy while it is asked for a patch.
func (s *server) sends(manager string, kind types.PatchType, o Object, body string, subresources ...string) {
	s.Helper()
	force := true
	p := clienttesting.NewPatchSubresourceAction(o.GVR(), o.Namespace, o.Name, kind, []byte(body), subresources...)
	p.PatchOptions.FieldManager = manager
	if kind == types.ApplyPatchType {
		p.PatchOptions.Force = &force
	}
	if _, _, err := s.patch(p); err != nil {
		s.Fatal(err)
	}
}

// book is a ledger of one step.
type book struct {
	run  ledger.Run
	save func(*ledger.Step) error
}

func (b *book) Run() ledger.Run { return b.run }
func (b *book) Save(_ context.Context, change func(*ledger.Step)) error {
	step := b.run.Steps[0]
	change(&step)
	if b.save != nil {
		if err := b.save(&step); err != nil {
			return err
		}
	}
	b.run.Steps[0] = step
	return nil
}
func (b *book) Progress(string) {}

var _ fault.Recorder = &book{}

// parse returns an object of YAML with the types of the API server's.
func parse(t testing.TB, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	object, _ := kubeedit.Decode(raw).(map[string]any)
	return object
}
