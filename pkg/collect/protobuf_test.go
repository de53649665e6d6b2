package collect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// listOf returns a page with two pods that have managed fields. The list has more pages.
func listOf() *corev1.PodList {
	left, always := int64(7), corev1.ContainerRestartPolicyAlways
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "train-0", Namespace: "ml", UID: "u0", Labels: map[string]string{"app": "train", "tier": "gpu"},
			Annotations:       map[string]string{"note": "x"},
			CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Local()),
			OwnerReferences:   []metav1.OwnerReference{{Kind: "Job", Name: "train"}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}, {Manager: "kubelet"},
			},
			Finalizers: []string{"example.com/a"},
		},
		Spec: corev1.PodSpec{
			NodeName:       "gpu-1",
			InitContainers: []corev1.Container{{Name: "sidecar", RestartPolicy: &always}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
	second := *pod.DeepCopy()
	second.Name, second.Labels = "train-1", nil
	return &corev1.PodList{
		ListMeta: metav1.ListMeta{Continue: "next", RemainingItemCount: &left}, Items: []corev1.Pod{pod, second},
	}
}

// encoded returns a list in the protobuf encoding of the API server.
func encoded(t testing.TB, list *corev1.PodList) []byte {
	t.Helper()
	var body bytes.Buffer
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &body); err != nil {
		t.Fatal(err)
	}
	return body.Bytes()
}

// podsOf lists the pods of a server that responds as the handler does.
func podsOf(t *testing.T, handler http.HandlerFunc) (page[corev1.Pod], error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	cluster, err := Connect(&rest.Config{Host: server.URL}, "gpu-fault")
	if err != nil {
		t.Fatal(err)
	}
	return listPods(cluster.Client)(t.Context(), metav1.ListOptions{Limit: 2})
}

func listPods(client kubernetes.Interface) lister[corev1.Pod] {
	return streamed(client.CoreV1().RESTClient(), "pods",
		paged(client.CoreV1().Pods("").List, func(l *corev1.PodList) []corev1.Pod { return l.Items }))
}

// TestStreamedListsAreTheSame verifies that a list that is decoded object by object is the same as from a typed client,
// except for the managed fields, even if the API server responds in JSON.
func TestStreamedListsAreTheSame(t *testing.T) {
	t.Parallel()
	want := listOf()
	for i := range want.Items {
		want.Items[i].ManagedFields = nil
	}
	for format, body := range map[string]func() (string, []byte){
		"protobuf": func() (string, []byte) { return runtime.ContentTypeProtobuf, encoded(t, listOf()) },
		"JSON": func() (string, []byte) {
			list := listOf()
			list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
			raw, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			return runtime.ContentTypeJSON, raw
		},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			got, err := podsOf(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/pods" || r.URL.Query().Get("limit") != "2" {
					t.Errorf("request %s", r.URL)
				}
				kind, raw := body()
				w.Header().Set("Content-Type", kind)
				_, _ = w.Write(raw)
			})
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.items {
				if got.items[i].ManagedFields != nil && format == "protobuf" {
					t.Error("the managed fields were decoded")
				}
				got.items[i].ManagedFields = nil
			}
			if !reflect.DeepEqual(got.items, want.Items) || got.next != "next" || got.left != 7 {
				t.Errorf("%+v\nwanted %+v", got, want.Items)
			}
		})
	}
}

// TestStreamedNodesHaveNoImages verifies that a node is decoded without its list of up to 50 images, which this package
// does not read, and with all other fields.
func TestStreamedNodesHaveNoImages(t *testing.T) {
	t.Parallel()
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"nvidia.com/gpu.present": "true"}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{KernelVersion: "6.8.0"},
		},
	}
	full := *node.DeepCopy()
	full.Status.Images = []corev1.ContainerImage{{Names: []string{"vllm"}, SizeBytes: 9 << 30}}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	raw, err := full.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Node
	if err := decodeObject(&got, raw); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(got, node) {
		t.Errorf("%+v\nwanted %+v", got, node)
	}
}

// TestStreamedListErrors verifies that errors from the API server keep their kind, because an expired list continues
// with the token in the error. A truncated response is also an error.
func TestStreamedListErrors(t *testing.T) {
	t.Parallel()
	_, err := podsOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusGone)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","metadata":{"continue":"fresh"},"status":"Failure",`+
			`"reason":"Expired","code":410}`)
	})
	if !apierrors.IsResourceExpired(err) || freshToken(err, "old") != "fresh" {
		t.Errorf("%v", err)
	}
	_, err = podsOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		whole := encoded(t, listOf())
		_, _ = w.Write(whole[:len(whole)/2])
	})
	if err == nil || !strings.Contains(err.Error(), "list pods: decode the response") {
		t.Errorf("%v", err)
	}
}

// FuzzDecodeList verifies that the decoder always returns, and accepts only responses that the generated decoder
// accepts.
func FuzzDecodeList(f *testing.F) {
	f.Add(bytes.TrimPrefix(encoded(f, listOf()), []byte("k8s\x00")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, envelope []byte) {
		var p page[corev1.Pod]
		if decodeList(envelope, &p) != nil {
			return
		}
		var unknown runtime.Unknown
		var want corev1.PodList
		if unknown.Unmarshal(envelope) != nil || want.Unmarshal(unknown.Raw) != nil {
			return // the generated decoder also validates what nobody reads
		}
		for i := range want.Items {
			want.Items[i].ManagedFields = nil
		}
		if len(p.items) != len(want.Items) {
			t.Fatalf("%d pods, wanted %d", len(p.items), len(want.Items))
		}
		for i := range p.items {
			if p.items[i].String() != want.Items[i].String() {
				t.Errorf("%s\nwanted %s", p.items[i].String(), want.Items[i].String())
			}
		}
	})
}
