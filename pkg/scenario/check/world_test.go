package check

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// world is a cluster that is none.
type world struct {
	*Checker
	dynamic *dynamicfake.FakeDynamicClient
	typed   *fake.Clientset

	mu   sync.Mutex
	said []string
}

func newWorld(objects ...runtime.Object) *world {
	w := &world{dynamic: dynamicfake.NewSimpleDynamicClient(scheme.Scheme, objects...), typed: fake.NewClientset()}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	for _, kind := range []string{"Pod", "Event", "ConfigMap"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	w.Checker = &Checker{
		Client: w.typed, Dynamic: w.dynamic, Mapper: mapper, ping: func(context.Context) error { return nil },
		Progress: func(text string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said = append(w.said, text)
		},
	}
	return w
}

// one runs a single check.
func (w *world) one(t *testing.T, c scenario.Check) Result {
	t.Helper()
	results, err := w.Run(t.Context(), []scenario.Check{c})
	if err != nil {
		t.Fatal(err)
	}
	return results[0]
}

// settings is a ConfigMap whose data.state is what the function says, by the time since now.
func (w *world) settings(state func(since time.Duration) (string, error)) {
	began := time.Now()
	w.dynamic.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		text, err := state(time.Since(began))
		if err != nil {
			return true, nil, err
		}
		return true, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "s", "namespace": "a"},
			"data": map[string]any{"state": text},
		}}, nil
	})
}

// of returns a check of that ConfigMap.
func of(within, sustained time.Duration) scenario.Check {
	return scenario.Check{
		Name:   "the state is good",
		Object: &scenario.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: "s"},
		Expect: `o.data.state == "good"`, Within: scenario.Duration(within), Sustained: scenario.Duration(sustained),
	}
}

// server returns a Checker whose API server is the handler.
func server(t *testing.T, handler http.HandlerFunc) *Checker {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	config := &rest.Config{Host: s.URL, QPS: -1}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Checker{Config: config, Client: client, ping: func(context.Context) error { return nil }}
}

// commands is an Execer that answers by the command's words.
type commands func(ctx context.Context, pod, command string, streams debugpod.Streams) error

func (c commands) Exec(
	ctx context.Context, pod *corev1.Pod, _ string, command []string, streams debugpod.Streams,
) error {
	return c(ctx, pod.Name, strings.Join(command, " "), streams)
}

type exitCode int

func (e exitCode) Error() string   { return "it ended" }
func (e exitCode) ExitStatus() int { return int(e) }

// node makes pods what a kubelet makes of them: a pod's status is the function's, by how many have been made and its
// age.
func (w *world) node(status func(n int, age time.Duration) corev1.PodStatus) (made func() []string) {
	type life struct {
		n     int
		began time.Time
	}
	var mu sync.Mutex
	lives := map[string]life{}
	var names []string
	w.dynamic.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		o := a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured)
		o.SetUID(types.UID("uid-of-" + o.GetName()))
		names = append(names, o.GetName())
		lives[o.GetName()] = life{len(names), time.Now()}
		return false, nil, nil
	})
	w.dynamic.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		get := a.(clienttesting.GetAction)
		stored, err := w.dynamic.Tracker().Get(get.GetResource(), get.GetNamespace(), get.GetName())
		if err != nil {
			return true, nil, err
		}
		o := stored.(*unstructured.Unstructured).DeepCopy()
		l := lives[o.GetName()]
		now := status(l.n, time.Since(l.began))
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&now)
		if err != nil {
			return true, nil, err
		}
		o.Object["status"] = raw
		return true, o, nil
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return names
	}
}

// left returns the pods that are there.
func (w *world) left(t *testing.T) []string {
	t.Helper()
	list, err := w.pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.GetName())
	}
	return names
}

func phase(p corev1.PodPhase, states ...corev1.ContainerState) corev1.PodStatus {
	s := corev1.PodStatus{Phase: p}
	for _, state := range states {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: "main", State: state})
	}
	return s
}
