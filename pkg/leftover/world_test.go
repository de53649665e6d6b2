package leftover

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// world is a cluster in memory: the same objects behind a client for whole objects and one for metadata.
type world struct {
	t        *testing.T
	client   *kubefake.Clientset
	dynamic  *dynamicfake.FakeDynamicClient
	metadata *metadatafake.FakeMetadataClient
}

// newWorld returns a cluster with these objects, as YAML documents. An object without a UID gets its kind and name as
// one.
func newWorld(t *testing.T, documents string) *world {
	t.Helper()
	partial := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(partial); err != nil {
		t.Fatal(err)
	}
	lists := map[schema.GroupVersionResource]string{nodeResource: "NodeList"}
	for _, k := range workloads() {
		lists[k.resource] = k.name + "List"
	}
	w := &world{
		t: t, client: kubefake.NewClientset(),
		dynamic:  dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists),
		metadata: metadatafake.NewSimpleMetadataClient(partial),
	}
	for document := range strings.SplitSeq(documents, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		w.add(parse(t, document))
	}
	return w
}

// parse reads an object as the API server's answers are read: whole numbers are int64.
func parse(t *testing.T, document string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSONStrict([]byte(document))
	if err == nil {
		err = object.UnmarshalJSON(raw)
	}
	if err != nil {
		t.Fatalf("%v in:\n%s", err, document)
	}
	return object
}

func (w *world) add(object *unstructured.Unstructured) {
	w.t.Helper()
	if object.GetUID() == "" {
		object.SetUID(uid(object.GetKind(), object.GetName()))
	}
	if created := object.GetCreationTimestamp(); created.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(now.Add(-time.Hour)))
	}
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	if object.GetKind() == "NetworkChaos" {
		resource = chaosResource
	}
	if err := w.dynamic.Tracker().Create(resource, object, object.GetNamespace()); err != nil {
		w.t.Fatal(err)
	}
	w.addMetadata(resource, object)
}

func (w *world) addMetadata(resource schema.GroupVersionResource, object metav1.Object) {
	w.t.Helper()
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID(),
		ResourceVersion: object.GetResourceVersion(),
		Labels:          object.GetLabels(), Annotations: object.GetAnnotations(),
		CreationTimestamp: object.GetCreationTimestamp(), ManagedFields: object.GetManagedFields(),
	}}
	if err := w.metadata.Tracker().Create(resource, partial, object.GetNamespace()); err != nil {
		w.t.Fatal(err)
	}
}

// record puts a run into the ledger.
func (w *world) record(run ledger.Run) {
	w.t.Helper()
	store := ledger.New(w.client, ledger.DefaultNamespace)
	if _, err := store.Create(w.t.Context(), run); err != nil {
		w.t.Fatal(err)
	}
	w.mirror(run.ID)
}

// mirror shows a record to the client for metadata.
func (w *world) mirror(name string) *corev1.ConfigMap {
	w.t.Helper()
	cm, err := w.client.CoreV1().ConfigMaps(ledger.DefaultNamespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.addMetadata(configMapResource, cm)
	return cm
}

func (w *world) finder() *Finder {
	return &Finder{
		Client: w.client, Dynamic: w.dynamic, Metadata: metadata.Interface(w.metadata),
		Namespaces: []string{ledger.DefaultNamespace},
		Clock:      func() time.Time { return now },
	}
}

func (w *world) find() *Found {
	w.t.Helper()
	found, err := w.finder().Find(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// lines are leftovers as the tests write them: who, what, and what is done about it.
func lines(items []Leftover) []string {
	all := []string{}
	for _, l := range items {
		line := l.Ref()
		if l.Namespace != "" {
			line = l.Namespace + " " + line
		}
		line += " | " + string(l.Of) + " " + l.Run + " | " + strings.Join(l.What, ", ") + " | " + string(l.Remedy)
		if len(l.With) > 0 {
			line += " | with " + strings.Join(l.With, " ")
		}
		if l.Todo != "" {
			line += " | " + l.Todo
		}
		all = append(all, line)
	}
	return all
}
