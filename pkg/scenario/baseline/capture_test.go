package baseline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// cluster returns a fake one with ConfigMaps, Secrets and Leases, of which the lists may be made to fail.
func cluster(
	fail func(options metav1.ListOptions, resource string) error, objects ...runtime.Object,
) (*fake.FakeDynamicClient, served) {
	kinds := map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "configmaps"}: "ConfigMapList", {Version: "v1", Resource: "secrets"}: "SecretList",
		{Version: "v1", Resource: "namespaces"}:                           "NamespaceList",
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}: "LeaseList",
	}
	dynamic := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	dynamic.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetResource().Resource == "leases" {
			return true, nil, errors.New("leases change all the time: nobody should list them")
		}
		options := action.(clienttesting.ListActionImpl).ListOptions
		err := fail(options, action.GetResource().Resource)
		return err != nil, nil, err
	})
	list := metav1.Verbs{"list"}
	return dynamic, served{lists: []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: list},
			{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: list},
			{Name: "tokenreviews", Kind: "TokenReview", Verbs: metav1.Verbs{"create"}},
			{Name: "namespaces", Kind: "Namespace", Verbs: list},
		}},
		{
			GroupVersion: "coordination.k8s.io/v1",
			APIResources: []metav1.APIResource{{Name: "leases", Kind: "Lease", Namespaced: true, Verbs: list}},
		},
	}}
}

// served is what an API server says that it serves.
type served struct {
	discovery.DiscoveryInterface
	lists []*metav1.APIResourceList
	err   error
}

func (s served) ServerPreferredResources() ([]*metav1.APIResourceList, error) { return s.lists, s.err }

func configMap(i int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
			"namespace": "a", "name": fmt.Sprintf("c%04d", i), "labels": map[string]any{"n": fmt.Sprint(i)},
		},
		"data": map[string]any{"x": "y"},
	}}
}

// Whatever a list answers, the capture says what is missing and does not take it for deleted; only without an API
// server there is none.
func TestCaptureWhenListsFail(t *testing.T) {
	t.Parallel()
	configMaps := schema.GroupResource{Resource: "configmaps"}
	for name, at := range map[string]struct {
		fails   error
		missing string
		err     string
		kinds   int
	}{
		"forbidden":     {apierrors.NewForbidden(configMaps, "", errors.New("no")), "configmaps: ", "", 2},
		"away":          {apierrors.NewServiceUnavailable("later"), "configmaps: later", "", 2},
		"not any more":  {apierrors.NewNotFound(configMaps, ""), "", "", 2},
		"no API server": {errors.New("connection refused"), "", "list configmaps: connection refused", 0},
		"fine":          {nil, "", "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dynamic, static := cluster(func(_ metav1.ListOptions, resource string) error {
				if resource == "configmaps" {
					return at.fails
				}
				return nil
			}, configMap(1))
			b, err := Capture(t.Context(), dynamic, static, Options{})
			if at.err != "" {
				if err == nil || !strings.Contains(err.Error(), at.err) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(b.Missing, "\n"); !strings.HasPrefix(got, at.missing) ||
				(got == "") != (at.missing == "") {
				t.Errorf("missing %q", got)
			}
			if len(b.kinds) != at.kinds {
				t.Errorf("kinds %v", b.kinds)
			}
		})
	}
}

// A list of many pages that loses its place begins anew, and has all.
func TestCaptureThatLosesItsPlace(t *testing.T) {
	t.Parallel()
	asked := 0
	dynamic, static := cluster(func(metav1.ListOptions, string) error { return nil })
	dynamic.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		list := &unstructured.UnstructuredList{Object: map[string]any{"kind": "ConfigMapList", "apiVersion": "v1"}}
		switch asked++; asked {
		case 1:
			list.Items = []unstructured.Unstructured{*configMap(1)}
			list.SetContinue("more")
		case 2:
			return true, nil, apierrors.NewResourceExpired("too old")
		default:
			list.Items = []unstructured.Unstructured{*configMap(1), *configMap(2)}
		}
		return true, list, nil
	})
	b, err := Capture(t.Context(), dynamic, static, Options{})
	if err != nil || b.Len() != 2 || asked != 3 {
		t.Errorf("%d objects, asked %d times, %v", b.Len(), asked, err)
	}
}

// A capture ends with its context.
func TestCaptureEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	dynamic, static := cluster(func(metav1.ListOptions, string) error { cancel(); return context.Canceled })
	if _, err := Capture(ctx, dynamic, static, Options{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// What was captured can be asked for, before and after it was stored.
func TestGetAndList(t *testing.T) {
	t.Parallel()
	var objects []runtime.Object
	for i := range 30 {
		objects = append(objects, configMap(i))
	}
	dynamic, static := cluster(func(metav1.ListOptions, string) error { return nil }, objects...)
	taken, err := Capture(t.Context(), dynamic, static, Options{})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := taken.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := Decode(parts)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []*Baseline{taken, read} {
		if got := b.Get(
			scenario.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: "c0007"},
		); mapAt(got, "data")["x"] != "y" || got["kind"] != "ConfigMap" {
			t.Errorf("%v", got)
		}
		if got := b.Get(scenario.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: "b", Name: "c0007"}); got != nil {
			t.Errorf("%v", got)
		}
		for selector, want := range map[scenario.Selector]int{
			{APIVersion: "v1", Kind: "ConfigMap"}:                                               30,
			{APIVersion: "v1", Kind: "ConfigMap", Namespace: "b"}:                               0,
			{APIVersion: "v1", Kind: "ConfigMap", Labels: "n in (1,2)"}:                         2,
			{APIVersion: "v1", Kind: "ConfigMap", Fields: "metadata.name=c0001"}:                1,
			{APIVersion: "v1", Kind: "ConfigMap", Fields: "status.phase=x"}:                     0,
			{APIVersion: "v1", Kind: "ConfigMap", Labels: "n in ("}:                             0,
			{APIVersion: "apps/v1", Kind: "ConfigMap"}:                                          0,
			{APIVersion: "v1", Kind: "ConfigMap", Fields: "metadata.name==c0001,,"}:             1,
			{APIVersion: "v1", Kind: "ConfigMap", Fields: "metadata.namespace=b"}:               0,
			{APIVersion: "v1", Kind: "ConfigMap", Labels: "n=3", Fields: "metadata.name=c0004"}: 0,
		} {
			if got := b.List(selector); len(got) != want || got == nil {
				t.Errorf("%+v: %v", selector, got)
			}
		}
	}
}

// A large cluster's baseline is stored in parts that fit, and of what is read only a whole one is taken.
func TestEncodeInParts(t *testing.T) {
	t.Parallel()
	b := &Baseline{kinds: map[schema.GroupKind]string{{Kind: "ConfigMap"}: "v1"}, objects: map[key]*object{}}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 600 { // noise, that does not get smaller
		o := configMap(i).Object
		noise := make([]byte, 4<<10)
		for j := range noise {
			noise[j] = byte(' ' + random.IntN(90))
		}
		o["data"] = map[string]any{"x": string(noise)}
		b.objects[key{schema.GroupKind{Kind: "ConfigMap"}, "a", fmt.Sprintf("c%04d", i)}] = &object{
			version: "v1", body: o,
		}
	}
	parts, err := b.Encode()
	if err != nil || len(parts) < 3 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	for _, p := range parts {
		if len(p) > part {
			t.Errorf("a part of %d bytes", len(p))
		}
	}
	read, err := Decode(parts)
	if err != nil || Diff(b, read) != nil || read.Len() != 600 {
		t.Errorf("%v", err)
	}
	for name, broken := range map[string][][]byte{
		"one missing": parts[:1], "none": nil, "exchanged": {parts[1], parts[0], parts[2]}, "empty": {{}},
	} {
		if _, err := Decode(broken); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Of a large cluster, whose pods are mostly controllers', so much is kept as fits into a few Secrets, and a change is
// still found.
func TestLargeCluster(t *testing.T) {
	t.Parallel()
	const limit, count = 2_000, 2_400
	take := func(change func(i int, o map[string]any)) *Baseline {
		c := &capture{
			options: Options{Limit: limit}, gone: map[string]bool{},
			b: &Baseline{kinds: map[schema.GroupKind]string{}, objects: map[key]*object{}},
		}
		configMaps, pods := schema.GroupKind{Kind: "ConfigMap"}, schema.GroupKind{Kind: "Pod"}
		c.b.kinds[configMaps], c.b.kinds[pods] = "v1", "v1"
		for i := range count {
			o := configMap(i)
			if change != nil {
				change(i, o.Object)
			}
			c.keep(resource{schema.GroupVersionResource{Version: "v1"}, configMaps}, o)
			p := configMap(i)
			p.SetOwnerReferences([]metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", Controller: new(bool)}})
			c.keep(resource{schema.GroupVersionResource{Version: "v1"}, pods}, p)
		}
		return c.b
	}
	before := take(nil)
	parts, err := before.Encode()
	if err != nil || before.Len() != count || len(parts) > 3 {
		t.Fatalf("%d objects in %d parts, %v", before.Len(), len(parts), err)
	}
	after := take(func(i int, o map[string]any) {
		if i == 1 || i == count-1 {
			o["data"] = map[string]any{"x": "z"}
		}
	})
	got := Diff(before, after)
	if len(got) != 2 || got[0].Before != "y" || got[1].Before != "" || got[1].Fields[0] != "data.x" {
		t.Errorf("%+v", got)
	}
	if before.Whole(got[1].Ref) || !before.Whole(got[0].Ref) {
		t.Error("the first are whole")
	}
}

// Whatever lies in the ledger, reading it does not panic.
func FuzzDecode(f *testing.F) {
	parts, err := (&Baseline{}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(parts[0])
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = Decode([][]byte{data}) })
}

// A cluster with an aggregated API server that is away is captured as far as it goes; one that says nothing is not.
func TestDiscoveryInParts(t *testing.T) {
	t.Parallel()
	dynamic, static := cluster(func(metav1.ListOptions, string) error { return nil }, configMap(1))
	static.err = &discovery.ErrGroupDiscoveryFailed{
		Groups: map[schema.GroupVersion]error{{Group: "metrics.k8s.io", Version: "v1beta1"}: errors.New("away")},
	}
	b, err := Capture(t.Context(), dynamic, static, Options{})
	if err != nil || len(b.Missing) != 1 || b.Missing[0] != "metrics.k8s.io/v1beta1: away" || b.Len() != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	static.err = errors.New("connection refused")
	if _, err := Capture(t.Context(), dynamic, static, Options{}); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}
