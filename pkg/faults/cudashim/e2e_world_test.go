//go:build e2e

// These tests need a real cluster, by KUBECONFIG, as its administrator, whose nodes have
// docker.io/library/busybox:1.35. They work in namespaces of their own.
package cudashim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// site is a namespace in a real cluster.
type site struct {
	*testing.T
	cluster   *cudashim.Cluster
	namespace string
}

func newSite(t *testing.T) *site {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	cached := memory.NewMemCacheClient(client.Discovery())
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	s := &site{
		t, &cudashim.Cluster{Client: client, Dynamic: dyn, Mapper: mapper},
		fmt.Sprintf("wl-test-%x", time.Now().UnixNano()),
	}
	ctx := context.Background()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return s
}

// apply creates an object by server-side apply, as GitOps does: its manager owns every field.
func (s *site) apply(document string) *unstructured.Unstructured {
	s.Helper()
	object := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON([]byte(document))
	if err == nil {
		err = object.UnmarshalJSON(raw)
	}
	if err != nil {
		s.Fatal(err)
	}
	mapping, err := s.cluster.Mapper.RESTMapping(object.GroupVersionKind().GroupKind(),
		object.GroupVersionKind().Version)
	if err != nil {
		s.Fatal(err)
	}
	var created *unstructured.Unstructured
	s.until("create "+object.GetName(), func() (bool, string) {
		created, err = s.cluster.Dynamic.Resource(mapping.Resource).Namespace(s.namespace).Apply(s.Context(),
			object.GetName(), object,
			metav1.ApplyOptions{FieldManager: "gitops", Force: true})
		return err == nil, fmt.Sprint(err)
	})
	return created
}

// until waits for a condition.
func (s *site) until(what string, is func() (bool, string)) {
	s.Helper()
	last := ""
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var ok bool
		if ok, last = is(); ok {
			return
		}
	}
	s.Fatalf("%s: %s", what, last)
}

func (s *site) find(name string) *cudashim.Workload {
	s.Helper()
	w, err := s.cluster.Find(s.Context(), s.namespace, name)
	if err != nil {
		s.Fatal(err)
	}
	return w
}

// get reads the workload anew.
func (s *site) get(w *cudashim.Workload) *unstructured.Unstructured {
	s.Helper()
	now, err := s.cluster.Dynamic.Resource(w.Resource).Namespace(s.namespace).Get(s.Context(), w.Object.GetName(),
		metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return now
}

func (s *site) patch(w *cudashim.Workload, body string) {
	s.Helper()
	_, err := s.cluster.Dynamic.Resource(w.Resource).Namespace(s.namespace).Patch(s.Context(), w.Object.GetName(),
		types.JSONPatchType, []byte(body),
		metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		s.Fatal(err)
	}
}

// record is one step of a run that is in no ledger.
type record struct {
	run  ledger.Run
	step ledger.Step
	t    *testing.T
}

func (r *record) Run() ledger.Run { return r.run }
func (r *record) Save(_ context.Context, change func(*ledger.Step)) error {
	change(&r.step)
	return nil
}
func (r *record) Progress(text string) { r.t.Log(text) }

func (s *site) injection(w *cudashim.Workload) *cudashim.Injection {
	return &cudashim.Injection{
		Cluster: s.cluster, Workload: w, Wait: 4 * time.Minute,
		Libraries: map[string][]byte{"amd64": []byte("\x7fELF"), "arm64": []byte("\x7fELF")},
		State:     func(ledger.Run) ([]byte, error) { return []byte("armed"), nil },
		Disarmed:  func(ledger.Run) ([]byte, error) { return []byte("disarmed"), nil },
	}
}

func (s *site) inject(in *cudashim.Injection) *record {
	s.Helper()
	r := &record{t: s.T, run: ledger.Run{ID: fmt.Sprintf("cuda-%x", time.Now().UnixNano()&0xffffff)}}
	change := in.Change("inject")
	r.step = ledger.Step{Target: change.Target, Undo: change.Undo}
	evidence, err := change.Apply(s.Context(), r)
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range evidence {
		s.Logf("%s: %s", e.Source, e.Text)
	}
	return r
}

func (s *site) undo(r *record) (ledger.State, string) {
	s.Helper()
	raw, err := json.Marshal(r.step) // as it comes from the ledger
	if err != nil {
		s.Fatal(err)
	}
	var step ledger.Step
	if err := json.Unmarshal(raw, &step); err != nil {
		s.Fatal(err)
	}
	s.Logf("record: %d bytes; %s", len(raw), cudashim.Undoer{}.Describe(step))
	state, said, err := cudashim.Undoer{
		Cluster: s.cluster, Settle: 500 * time.Millisecond,
	}.Undo(s.Context(), r.run, step)
	if err != nil {
		s.Fatal(err)
	}
	s.Logf("%s: %s", state, said)
	return state, said
}

// template returns a pod template that has something of everything that the shim must not disturb.
func template(indent int, command string) string {
	text := `metadata: {labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}}
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: docker.io/library/busybox:1.35
    imagePullPolicy: IfNotPresent
    command: [sh, -c, ` + command + `]
    env: [{name: LD_PRELOAD, value: /usr/lib/libjemalloc.so}, {name: A, value: a}]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
  - name: plain
    image: docker.io/library/busybox:1.35
    imagePullPolicy: IfNotPresent
    command: [sh, -c, ` + command + `]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
`
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indent))
}
