// Package bigcluster is the API server of a cluster of any size, as far as doctor asks it: what a real one of 5,000
// nodes sends, from a machine that could not run one.
package bigcluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// pageSize is the limit that clients are expected to ask for.
const pageSize = 500

// Server is an API server with many nodes, of which each has ten pods: eight of the operator's, one that trains, one of
// somebody else. Its pages are encoded before anything is measured.
type Server struct {
	*httptest.Server
	pages map[string][][]byte // by path
	// Requests counts all, Unpaged those for a list without a limit, and Bytes what lists had.
	Requests, Unpaged, Bytes atomic.Int64
}

// Stats is what /stats answers: see Server.
type Stats struct{ Requests, Unpaged, Bytes int64 }

// ServeHTTP implements http.Handler.
func (b *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.Requests.Add(1)
	pages, ok := b.pages[r.URL.Path]
	if !ok {
		b.other(w, r)
		return
	}
	if limit := r.URL.Query().Get("limit"); limit == "" || limit == "0" {
		b.Unpaged.Add(1)
	}
	page, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	w.Header().Set("Content-Type", kruntime.ContentTypeProtobuf)
	b.Bytes.Add(int64(len(pages[page])))
	_, _ = w.Write(pages[page])
}

func (b *Server) other(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/stats": // no part of Kubernetes: for tests in another process
		_ = json.NewEncoder(w).Encode(Stats{b.Requests.Load() - 1, b.Unpaged.Load(), b.Bytes.Load()})
	case "/version":
		_, _ = fmt.Fprint(w, `{"gitVersion":"v1.36.3"}`)
	case "/api":
		_, _ = fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case "/apis":
		_, _ = fmt.Fprint(w, `{"kind":"APIGroupList","groups":[]}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 404,
			Reason: metav1.StatusReasonNotFound,
		})
	}
}

func encodePages[T any](
	b *Server, tb testing.TB, path string, group schema.GroupVersion, all []T,
	list func(items []T, meta metav1.ListMeta) kruntime.Object,
) {
	tb.Helper()
	codecs := serializer.NewCodecFactory(scheme.Scheme)
	info, _ := kruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), kruntime.ContentTypeProtobuf)
	encoder := codecs.EncoderForVersion(info.Serializer, group)
	var pages [][]byte
	for from := 0; from == 0 || from < len(all); from += pageSize {
		to := min(from+pageSize, len(all))
		meta := metav1.ListMeta{ResourceVersion: "1"}
		if to < len(all) {
			meta.Continue = strconv.Itoa(len(pages) + 1)
			meta.RemainingItemCount = new(int64(len(all) - to))
		}
		data, err := kruntime.Encode(encoder, list(all[from:to], meta))
		if err != nil {
			tb.Fatal(err)
		}
		pages = append(pages, data)
	}
	b.pages[path] = pages
}

// New starts a server with that many nodes, which ends with the test.
func New(tb testing.TB, nodes int) *Server {
	tb.Helper()
	b := &Server{pages: map[string][][]byte{}}
	created := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	core, apps := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "apps", Version: "v1"}
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "11111111-2222-3333-4444-555555555555", CreationTimestamp: created,
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubelet", Operation: "Update", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:status":{"f:conditions":{}}}`, 60)),
			}},
		}
	}
	var allNodes []corev1.Node
	for i := range nodes {
		n := corev1.Node{ObjectMeta: meta("", fmt.Sprintf("gpu-%05d", i))}
		n.Labels = map[string]string{
			"kubernetes.io/hostname": n.Name, "nvidia.com/gpu.present": "true",
			"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8",
			"kubernetes.io/arch": "amd64",
		}
		for l := range 60 {
			n.Labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE%02d", l)] = "true"
		}
		n.Status = corev1.NodeStatus{
			Capacity: corev1.ResourceList{
				"cpu": resource.MustParse("192"), "memory": resource.MustParse("2Ti"),
				"nvidia.com/gpu": resource.MustParse("8"), "pods": resource.MustParse("110"),
			},
			Allocatable: corev1.ResourceList{
				"cpu": resource.MustParse("190"), "memory": resource.MustParse("2000Gi"),
				"nvidia.com/gpu": resource.MustParse("8"), "pods": resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{
				{Type: "MemoryPressure", Status: "False"}, {Type: "DiskPressure", Status: "False"},
				{Type: "PIDPressure", Status: "False"}, {Type: "Ready", Status: "True", Reason: "KubeletReady"},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.1.4", Architecture: "amd64",
				OSImage: "Ubuntu 24.04", KernelVersion: "6.8.0",
			},
		}
		for l := range 50 {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{
				fmt.Sprintf("registry.example.com/team/image-%d@sha256:%064d", l, l),
				fmt.Sprintf("registry.example.com/team/image-%d:v1.2.3", l),
			}, SizeBytes: 1 << 30})
		}
		allNodes = append(allNodes, n)
	}
	encodePages(b, tb, "/api/v1/nodes", core, allNodes, func(items []corev1.Node, m metav1.ListMeta) kruntime.Object {
		return &corev1.NodeList{ListMeta: m, Items: items}
	})

	operands := []string{
		"nvidia-device-plugin-daemonset", "nvidia-container-toolkit-daemonset", "gpu-feature-discovery",
		"nvidia-dcgm-exporter", "nvidia-operator-validator", "nvidia-driver-daemonset", "nvidia-mig-manager",
		"node-feature-discovery-worker",
	}
	var daemonSets []appsv1.DaemonSet
	for _, name := range operands {
		pod := bigPod(meta("gpu-operator", "x"), name, "", nil)
		daemonSets = append(daemonSets,
			appsv1.DaemonSet{ObjectMeta: meta("gpu-operator", name), Spec: appsv1.DaemonSetSpec{
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
			},
				Status: appsv1.DaemonSetStatus{
					DesiredNumberScheduled: int32(nodes), NumberReady: int32(nodes),
					CurrentNumberScheduled: int32(nodes),
					NumberAvailable:        int32(nodes),
				}})
	}
	encodePages(b, tb, "/apis/apps/v1/daemonsets", apps, daemonSets,
		func(items []appsv1.DaemonSet, m metav1.ListMeta) kruntime.Object {
			return &appsv1.DaemonSetList{ListMeta: m, Items: items}
		})

	var pods []corev1.Pod
	var events []corev1.Event
	for i := range nodes {
		on := allNodes[i].Name
		for _, name := range operands {
			pods = append(pods, bigPod(meta("gpu-operator", fmt.Sprintf("%s-%05d", name, i)), name, on, nil))
		}
		pods = append(pods, bigPod(meta("team", fmt.Sprintf("train-%05d", i)), "train", on,
			corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}))
		pods = append(pods, bigPod(meta("web", fmt.Sprintf("web-%05d", i)), "web", on,
			corev1.ResourceList{"cpu": resource.MustParse("1")}))
		for n := range 4 {
			events = append(events, corev1.Event{
				ObjectMeta: meta("team", fmt.Sprintf("train-%05d.%d", i, n)),
				InvolvedObject: corev1.ObjectReference{
					Kind: "Pod", Namespace: "team", Name: fmt.Sprintf("train-%05d", i),
				},
				Reason: "Pulled", Type: "Normal", Message: "Container image already present on machine",
			})
		}
	}
	encodePages(b, tb, "/api/v1/pods", core, pods, func(items []corev1.Pod, m metav1.ListMeta) kruntime.Object {
		return &corev1.PodList{ListMeta: m, Items: items}
	})
	encodePages(b, tb, "/api/v1/events", core, events, func(items []corev1.Event, m metav1.ListMeta) kruntime.Object {
		return &corev1.EventList{ListMeta: m, Items: items}
	})
	for path, list := range map[string]kruntime.Object{
		"/api/v1/namespaces": &corev1.NamespaceList{}, "/api/v1/resourcequotas": &corev1.ResourceQuotaList{},
		"/api/v1/limitranges": &corev1.LimitRangeList{}, "/api/v1/secrets": &corev1.SecretList{},
	} {
		encodePages(b, tb, path, core, []int{}, func([]int, metav1.ListMeta) kruntime.Object { return list })
	}
	b.Server = httptest.NewServer(b)
	tb.Cleanup(b.Close)
	return b
}

func bigPod(meta metav1.ObjectMeta, app, on string, asks corev1.ResourceList) corev1.Pod {
	controller := true
	meta.Labels = map[string]string{
		"app": app, "controller-revision-hash": "5b7c9d", "pod-template-generation": "1",
		"app.kubernetes.io/managed-by": "gpu-operator",
	}
	meta.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "DaemonSet", Name: app, UID: "99999999-2222-3333-4444-555555555555",
		Controller: &controller,
	}}
	meta.Annotations = map[string]string{
		"cni.projectcalico.org/podIP": "10.1.2.3/32", "cni.projectcalico.org/containerID": strings.Repeat("a", 64),
	}
	token := "kube-api-access-" + meta.Name
	container := corev1.Container{
		Name: app, Image: "nvcr.io/nvidia/" + app + ":v1.2.3",
		Resources: corev1.ResourceRequirements{Limits: asks, Requests: asks},
		VolumeMounts: []corev1.VolumeMount{
			{Name: token, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
			{Name: "host-root", MountPath: "/host"},
		},
	}
	for e := range 12 {
		container.Env = append(container.Env,
			corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: "some value of it"})
	}
	status := corev1.ContainerStatus{
		Name: app, Ready: true, Image: container.Image, ImageID: container.Image + "@sha256:" + strings.Repeat("b", 64),
		ContainerID: "containerd://" + strings.Repeat("c", 64),
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: meta.CreationTimestamp}},
	}
	return corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			NodeName: on, ServiceAccountName: app, SchedulerName: "default-scheduler",
			Containers: []corev1.Container{container}, InitContainers: []corev1.Container{container},
			Volumes: []corev1.Volume{
				{Name: token, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
				{
					Name:         "host-root",
					VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}},
				},
			},
			Tolerations: []corev1.Toleration{
				{Key: "nvidia.com/gpu", Operator: "Exists"}, {Key: "node.kubernetes.io/not-ready", Operator: "Exists"},
			},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
						{Key: "metadata.name", Operator: "In", Values: []string{on}},
					}}},
				},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.1.2.3", HostIP: "10.0.0.1", StartTime: &meta.CreationTimestamp,
			Conditions: []corev1.PodCondition{
				{Type: "PodScheduled", Status: "True"}, {Type: "Initialized", Status: "True"},
				{Type: "ContainersReady", Status: "True"}, {Type: "Ready", Status: "True"},
			},
			ContainerStatuses:     []corev1.ContainerStatus{status},
			InitContainerStatuses: []corev1.ContainerStatus{status},
		},
	}
}
