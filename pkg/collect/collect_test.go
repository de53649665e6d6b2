package collect

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return now }

// gpuNode returns a healthy node with eight GPUs.
func gpuNode(name string) *corev1.Node {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"nvidia.com/gpu.present": "true"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Status: corev1.NodeStatus{
			Capacity: gpus, Allocatable: gpus.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Images:     []corev1.ContainerImage{{Names: []string{"i"}}},
		},
	}
}

func pod(namespace, name, on string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u"},
		Spec: corev1.PodSpec{
			NodeName: on, Containers: []corev1.Container{{Name: "c", Image: "example.com/app:1"}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func asking(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
}

func failing(p *corev1.Pod) {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "c", RestartCount: 3,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}
}

func event(about, name, kind, reason string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about, Name: name + "." + reason},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: about, Name: name}, Type: kind, Reason: reason,
	}
}

// aCluster returns a cluster with a healthy node, a failing node, and many irrelevant objects.
func aCluster() []runtime.Object {
	controller := true
	plugin := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "nvidia-device-plugin-daemonset"}
		p.OwnerReferences = []metav1.OwnerReference{
			{Kind: "DaemonSet", Name: "nvidia-device-plugin-daemonset", Controller: &controller},
		}
	}
	return []runtime.Object{
		gpuNode("good"), gpuNode("bad"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}},
		}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpu-operator", Name: "nvidia-device-plugin-daemonset",
		},
			Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "nvidia-device-plugin-daemonset"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{
					ConfigMapRef: &corev1.ConfigMapEnvSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "plugin-variables"},
					},
				}}}}, Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "plugin-config"},
					},
				}}}},
			}}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "plugin-config"},
			Data:       map[string]string{"a": "b"},
		},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "plugin-variables"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "somebody-elses"}},
		pod("gpu-operator", "plugin-good", "good", plugin),
		pod("gpu-operator", "plugin-bad", "bad", func(p *corev1.Pod) { plugin(p); failing(p) }),
		pod("gpu-operator", "helper", "cpu", nil),
		pod("team", "train", "good", asking),
		pod("team", "pending", "", func(p *corev1.Pod) {
			asking(p)
			p.Status = corev1.PodStatus{Phase: corev1.PodPending}
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "HF_TOKEN", Value: "hush"}}
		}),
		pod("team", "wrong-name", "", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"amd.com/gpu": resource.MustParse("1")}
		}),
		pod("team", "done", "good", func(p *corev1.Pod) { asking(p); p.Status.Phase = corev1.PodSucceeded }),
		pod("team", "rejected", "good", func(p *corev1.Pod) {
			asking(p)
			p.Status.Phase, p.CreationTimestamp = corev1.PodFailed, metav1.NewTime(now.Add(-time.Hour))
		}),
		pod("team", "rejected-long-ago", "good", func(p *corev1.Pod) {
			asking(p)
			p.Status.Phase, p.CreationTimestamp = corev1.PodFailed, metav1.NewTime(now.Add(-48*time.Hour))
		}),
		pod("web", "web-gpu-node", "good",
			func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}} }),
		pod("web", "web", "cpu", nil),
		pod("web", "shimmed", "cpu",
			func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/x.so"}} }),
		pod("web", "crashing", "cpu", failing),
		pod("kube-system", "coredns", "cpu", failing),
		event("team", "train", "Normal", "Pulled"), event("team", "train", "Warning", "Unhealthy"),
		event("team", "pending", "Normal", "Scheduled"),
		event("web", "web", "Warning", "BackOff"), event("web", "gone", "Warning", "BackOff"),
	}
}

func connected(objects ...runtime.Object) (Cluster, *fake.Clientset) {
	client := fake.NewClientset(objects...)
	lists := map[schema.GroupVersionResource]string{}
	for _, kind := range [][3]string{
		{"nvidia.com", "v1", "clusterpolicies"}, {"nvidia.com", "v1alpha1", "nvidiadrivers"},
		{"resource.nvidia.com", "v1beta1", "computedomains"}, {"monitoring.coreos.com", "v1", "servicemonitors"},
		{"monitoring.coreos.com", "v1", "prometheuses"}, {"scheduling.run.ai", "v2", "queues"},
		{"scheduling.volcano.sh", "v1beta1", "queues"}, {"kueue.x-k8s.io", "v1beta2", "workloads"},
		{"kueue.x-k8s.io", "v1beta2", "clusterqueues"}, {"batch", "v1", "jobs"},
	} {
		lists[schema.GroupVersionResource{Group: kind[0], Version: kind[1], Resource: kind[2]}] = kind[2] + "List"
	}
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	return Cluster{Client: client, Dynamic: custom, Ledger: ledger.New(client, ledger.DefaultNamespace)}, client
}

func collected(t *testing.T, cluster Cluster) *snapshot.Snapshot {
	t.Helper()
	s, err := Collect(t.Context(), cluster, Options{Clock: clock, Client: "v1", Context: "c", NoImages: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func names[T any, P interface {
	*T
	metav1.Object
}](all []T) string {
	var text []string
	for i := range all {
		text = append(text, P(&all[i]).GetName())
	}
	return strings.Join(text, " ")
}

// TestCollectKeepsWhatMatters verifies that, in a cluster with 50,000 pods, exactly the pods that may explain GPU
// problems are kept. A missing pod would not be noticed.
func TestCollectKeepsWhatMatters(t *testing.T) {
	t.Parallel()
	cluster, _ := connected(aCluster()...)
	s := collected(t, cluster)
	if got, want := names(s.Pods),
		"helper plugin-bad plugin-good coredns pending rejected train wrong-name shimmed web-gpu-node"; got != want {
		t.Errorf("pods %s, wanted %s", got, want)
	}
	if s.Meta.PodsSeen != 14 {
		t.Errorf("%d pods were seen, wanted 14", s.Meta.PodsSeen)
	}
	if got, want := names(s.Events), "pending.Scheduled train.Unhealthy gone.BackOff"; got != want {
		t.Errorf("events %s, wanted %s", got, want)
	}
	if got := names(s.ConfigMaps); got != "plugin-config plugin-variables" {
		t.Errorf("ConfigMaps %s, wanted only the device plugin's", got)
	}
	if s.Nodes[0].ManagedFields != nil || s.Nodes[0].Status.Images != nil {
		t.Error("nodes keep fields that nobody reads")
	}
	for i := range s.Pods {
		switch p := &s.Pods[i]; p.Name {
		case "web-gpu-node":
			if p.Spec.Containers[0].Env != nil {
				t.Error("somebody else's pod keeps its variables")
			}
		case "pending":
			if got := p.Spec.Containers[0].Env[0].Value; got != snapshot.Redacted {
				t.Errorf("a token came through: %q", got)
			}
		}
	}
	if len(s.Logs) == 0 || s.Logs[0].Pod != "plugin-bad" || !s.Logs[0].Previous {
		t.Errorf("the log of the component that crashed was not read: %+v", s.Logs)
	}
	if len(s.Missing) > 0 {
		t.Errorf("something is missing where nothing is: %+v", s.Missing)
	}
}

func forbid(client *fake.Clientset, resources ...string) {
	for _, r := range resources {
		client.PrependReactor("list", r, func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: r}, "", errors.New("no"))
		})
	}
}

func why(s *snapshot.Snapshot, what string) string {
	for _, m := range s.Missing {
		if m.What == what {
			return m.Why
		}
	}
	return ""
}

// TestWhatIsForbiddenIsMissing verifies that evidence is recorded as missing, not as healthy, if the user lacks
// permissions.
func TestWhatIsForbiddenIsMissing(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	forbid(client, "events", "secrets", "configmaps", "daemonsets", "resourcequotas", "runtimeclasses")
	client.PrependReactor("list", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTooManyRequests("later", 1)
	})
	s := collected(t, cluster)
	for _, what := range []string{
		"api/events", "helm", "runs", "api/daemonsets", "api/resourcequotas", "api/runtimeclasses",
	} {
		if got := why(s, what); !strings.HasPrefix(got, "forbidden: ") {
			t.Errorf("%s: %q, wanted it to be forbidden", what, got)
		}
	}
	if got := why(s, "api/namespaces"); !strings.Contains(got, "try again later") {
		t.Errorf("the throttled list of namespaces: %q", got)
	}
	if len(s.Nodes) != 3 || len(s.Pods) == 0 {
		t.Error("what is allowed was not collected")
	}
}

// TestCollectFailsWhenThereIsNothingToSee verifies that nodes or pods suffice for a collection. Without both, or
// without a cluster, an empty report would look healthy.
func TestCollectFailsWhenThereIsNothingToSee(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		nodes, pods error
		want        string
	}{
		"no right to nodes": {nodes: apierrors.NewForbidden(schema.GroupResource{}, "", nil)},
		"no right to pods":  {pods: apierrors.NewForbidden(schema.GroupResource{}, "", nil)},
		"no right to both": {
			apierrors.NewForbidden(schema.GroupResource{}, "", nil),
			apierrors.NewForbidden(schema.GroupResource{}, "", nil), "cannot list nodes or pods",
		},
		"away": {
			nodes: &url.Error{Op: "Get", URL: "https://x", Err: syscall.ECONNREFUSED}, want: "connection refused",
		},
		"not logged in":       {nodes: apierrors.NewUnauthorized("who?"), want: "list nodes"},
		"too slow":            {nodes: context.DeadlineExceeded},
		"the server is upset": {nodes: apierrors.NewInternalError(errors.New("etcd"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, client := connected(aCluster()...)
			for resource, err := range map[string]error{"nodes": test.nodes, "pods": test.pods} {
				if err != nil {
					client.PrependReactor("list", resource,
						func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, err })
				}
			}
			s, err := Collect(t.Context(), cluster, Options{Clock: clock, NoImages: true}, nil)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("%v, though something can be seen", err)
			case test.want == "" && len(s.Missing) == 0:
				t.Error("nothing is missing")
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, wanted it to say %q", err, test.want)
			}
		})
	}
}

// TestCollectEndsWithItsContext verifies that Ctrl-C stops the collection at once, with its own reason.
func TestCollectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	stopped := errors.New("stopped by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
		cancel(stopped)
		return true, nil, context.Canceled
	})
	if _, err := Collect(ctx, cluster, Options{Clock: clock}, nil); !errors.Is(err, stopped) {
		t.Errorf("%v, wanted %v", err, stopped)
	}
}

// TestAListThatLostItsPlace verifies that a list with many pages can be completed after its continue token has expired.
func TestAListThatLostItsPlace(t *testing.T) {
	t.Parallel()
	expired := func(token string) error {
		err := apierrors.NewResourceExpired("the provided continue parameter is too old")
		err.ErrStatus.ListMeta.Continue = token
		return err
	}
	for name, test := range map[string]struct {
		// answer returns the error for the nth request for the second page, or nil to return the page.
		answer func(n int, token string) error
		limit  int64 // of the last request
	}{
		"goes on with the present state": {func(n int, token string) error {
			if token == "fresh" {
				return nil
			}
			return expired("fresh")
		}, 2},
		"begins anew": {func(n int, _ string) error {
			if n == 0 {
				return expired("")
			}
			return nil
		}, 2},
		"asks for all at once in the end":     {func(int, string) error { return expired("") }, 0},
		"is not led in circles by its server": {func(_ int, token string) error { return expired(token) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := 0
			var last int64
			list := func(_ context.Context, options metav1.ListOptions) (page[int], error) {
				last = options.Limit
				if options.Limit == 0 {
					return page[int]{items: []int{1, 2, 3}}, nil
				}
				if options.Continue == "" {
					return page[int]{items: []int{1, 2}, next: "second"}, nil
				}
				second++
				if err := test.answer(second-1, options.Continue); err != nil {
					return page[int]{}, err
				}
				return page[int]{items: []int{3}}, nil
			}
			got, err := all(t.Context(), metav1.ListOptions{Limit: 2}, list, func(*int) bool { return true })
			if err != nil || !slices.Equal(got, []int{1, 2, 3}) || last != test.limit {
				t.Errorf("%v (%v), the last request with limit %d, wanted 1 2 3 and %d", got, err, last, test.limit)
			}
		})
	}
}

// TestListsGrowByTheServersCount verifies that a long list is not copied while it grows, if the API server reports the
// number of remaining objects. A short list is read even if this number is wrong, and uses no more memory than its
// pages.
func TestListsGrowByTheServersCount(t *testing.T) {
	t.Parallel()
	for _, left := range []int64{0, 2, -1, math.MaxInt64} {
		list := func(_ context.Context, options metav1.ListOptions) (page[int], error) {
			if options.Continue == "" {
				return page[int]{items: []int{1, 2}, next: "second", left: left}, nil
			}
			return page[int]{items: []int{3, 4}}, nil
		}
		got, err := all(t.Context(), metav1.ListOptions{Limit: 2}, list, func(*int) bool { return true })
		if err != nil || !slices.Equal(got, []int{1, 2, 3, 4}) {
			t.Errorf("%d left: %v (%v), wanted 1 2 3 4", left, got, err)
		}
		if left == 2 && cap(got) != 4 {
			t.Errorf("memory for %d objects, wanted 4: the list was moved", cap(got))
		}
		if cap(got) > roomLimit*11/10 { // an allocation is rounded up
			t.Errorf("%d left: memory for %d objects", left, cap(got))
		}
	}
}

// TestCustomResources verifies that custom resources are requested in the version that is served, and only if they are
// installed.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	client.Resources = append(client.Resources,
		&metav1.APIResourceList{
			GroupVersion: "nvidia.com/v1",
			APIResources: []metav1.APIResource{{Name: "clusterpolicies"}, {Name: "clusterpolicies/status"}},
		},
		&metav1.APIResourceList{
			GroupVersion: "monitoring.coreos.com/v1", APIResources: []metav1.APIResource{{Name: "servicemonitors"}},
		},
		&metav1.APIResourceList{
			GroupVersion: "resource.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "resourceslices"}},
		},
	)
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": map[string]any{
			"name": "cluster-policy", "managedFields": []any{map[string]any{"manager": "helm"}},
		},
		"spec": map[string]any{
			"driver": map[string]any{"env": []any{map[string]any{"name": "A_PASSWORD", "value": "hush"}}},
		},
	}}
	custom := cluster.Dynamic.(*dynamicfake.FakeDynamicClient)
	policies := schema.GroupVersionResource{Group: "nvidia.com", Version: "v1", Resource: "clusterpolicies"}
	if err := custom.Tracker().Create(policies, policy, ""); err != nil {
		t.Fatal(err)
	}
	custom.PrependReactor("list", "servicemonitors", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "servicemonitors"}, "", nil)
	})
	custom.PrependReactor("list", "nvidiadrivers", func(kubetesting.Action) (bool, runtime.Object, error) {
		t.Error("a resource was asked for that is not installed")
		return false, nil, nil
	})
	s := collected(t, cluster)
	if len(s.ClusterPolicies) != 1 || strings.Contains(fmt.Sprint(s.ClusterPolicies[0].Object), "hush") ||
		s.ClusterPolicies[0].GetManagedFields() != nil {
		t.Errorf("the ClusterPolicy is missing, or keeps what it must not: %+v", s.ClusterPolicies)
	}
	if !slices.Equal(s.CRDs, []string{"clusterpolicies.nvidia.com", "servicemonitors.monitoring.coreos.com"}) {
		t.Errorf("CRDs are %q", s.CRDs)
	}
	if got := why(s, "api/servicemonitors"); !strings.HasPrefix(got, "forbidden") {
		t.Errorf("ServiceMonitors: %q", got)
	}
	if got := why(s, "api/resourceslices"); !strings.Contains(got, "only as v1beta1") {
		t.Errorf("ResourceSlices of an old version: %q", got)
	}
	if got := why(s, "api/nvidiadrivers") + why(s, "api/prometheuses"); got != "" {
		t.Errorf("what is not installed is no missing evidence: %q", got)
	}
}

// TestDynamicResourceAllocation verifies that only NVIDIA devices and unallocated claims are kept.
func TestDynamicResourceAllocation(t *testing.T) {
	t.Parallel()
	name := "good"
	allocated := func(driver string) *resourcev1.AllocationResult {
		return &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Driver: driver}},
		}}
	}
	cluster, client := connected(
		gpuNode("good"),
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "ours"},
			Spec:       resourcev1.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &name},
		},
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: resourcev1.ResourceSliceSpec{Driver: "net.example.com"},
		},
		&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "ours"},
			Status:     resourcev1.ResourceClaimStatus{Allocation: allocated("gpu.nvidia.com")},
		},
		&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "other"},
			Status:     resourcev1.ResourceClaimStatus{Allocation: allocated("net.example.com")},
		},
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "waits"}},
	)
	client.Resources = append(client.Resources, &metav1.APIResourceList{
		GroupVersion: "resource.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "resourceslices"}},
	})
	s := collected(t, cluster)
	if got := names(s.ResourceSlices) + "; " + names(s.ResourceClaims); got != "ours; ours waits" {
		t.Errorf("kept %s", got)
	}
}

func helmSecret(t *testing.T, namespace, release, chart string, revision int) *corev1.Secret {
	t.Helper()
	record, err := json.Marshal(map[string]any{
		"name": release, "namespace": namespace, "version": revision, "info": map[string]any{"status": "deployed"},
		"chart": map[string]any{
			"metadata":  map[string]any{"name": chart, "version": "v26.7.0", "appVersion": "v26.7.0"},
			"templates": []any{map[string]any{"data": "x"}},
		},
		"config": map[string]any{
			"driver": map[string]any{"enabled": false}, "ngc": map[string]any{"apiKey": "hush"}, "replicas": 3,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", release, revision),
			Labels: map[string]string{"owner": "helm", "status": "deployed"},
		},
		Type: helmType,
		Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(zipped.Bytes()))},
	}
}

// TestHelmReleases verifies that the collected releases contain what doctor requires to print Helm values for the
// installed chart.
func TestHelmReleases(t *testing.T) {
	t.Parallel()
	broken := helmSecret(t, "gpu-operator", "broken", "x", 1)
	broken.Data["release"] = []byte("%%%")
	cluster, _ := connected(append(aCluster(),
		helmSecret(t, "gpu-operator", "gpu-operator", "gpu-operator", 1),
		helmSecret(t, "gpu-operator", "gpu-operator", "gpu-operator", 2),
		helmSecret(t, "web", "shop", "wordpress", 1), broken)...)
	s := collected(t, cluster)
	if len(s.HelmReleases) != 1 {
		t.Fatalf("releases are %+v", s.HelmReleases)
	}
	r := s.HelmReleases[0]
	if r.Name != "gpu-operator" || r.Revision != 2 || r.ChartVersion != "v26.7.0" || r.Status != "deployed" ||
		r.Values["replicas"] != int64(3) {
		t.Errorf("the release is %+v", r)
	}
	if strings.Contains(fmt.Sprint(r.Values), "hush") {
		t.Errorf("a key came through: %v", r.Values)
	}
	if got := why(s, "helm/gpu-operator/"+broken.Name); !strings.Contains(got, "base64") {
		t.Errorf("a damaged release: %q", got)
	}
}

func FuzzHelm(f *testing.F) {
	f.Add([]byte("eyJuYW1lIjoiYSJ9"))
	f.Add([]byte("H4sIAAAAAAAA/w=="))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = decodeHelm(&corev1.Secret{Type: helmType, Data: map[string][]byte{"release": data}})
	})
}

// TestOwnRuns verifies that this tool's runs are collected, because a fault is the root cause of its effects. Lines in
// a kernel log remain long after their run has been closed.
func TestOwnRuns(t *testing.T) {
	t.Parallel()
	cluster, _ := connected(aCluster()...)
	create := func(id, fault string, undo ledger.Undo, state ledger.State) {
		t.Helper()
		_, err := cluster.Ledger.Create(t.Context(), ledger.Run{
			APIVersion: ledger.APIVersion, Kind: ledger.KindRun, ID: id, Fault: fault, Created: now, Deadline: now,
			Phase: ledger.Proven, Steps: []ledger.Step{{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: "good"}, State: state, Undo: undo,
				Evidence: []ledger.Evidence{{Source: "/dev/kmsg sequence 4711", Time: now, Text: "NVRM: Xid"}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	create("xid-aaaaaa", "xid", ledger.Undo{Kind: "kernellog", Permanent: true}, ledger.StateProven)
	create("fix-aaaaaa", "fix", ledger.Undo{Kind: "x"}, ledger.StateProven)
	create("runtime-aaaaaa", "runtime", ledger.Undo{Kind: "x"}, ledger.StateReverted)
	closed := func(id, fault string, at time.Time, undo ledger.Undo, state ledger.State) {
		t.Helper()
		_, err := cluster.Ledger.Create(t.Context(), ledger.Run{
			APIVersion: ledger.APIVersion, Kind: ledger.KindRun, ID: id, Fault: fault, Created: at, Deadline: at,
			Closed: at, Phase: ledger.Reverted, Steps: []ledger.Step{{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: state, Undo: undo,
				Evidence: []ledger.Evidence{{Source: "/dev/kmsg sequence 5", Time: at, Text: "NVRM: Xid"}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	lines := ledger.Undo{Kind: "kernel-log", Permanent: true}
	closed("xid-bbbbbb", "xid", now.Add(-6*24*time.Hour), lines, ledger.StatePermanent)
	closed("xid-cccccc", "xid", now.Add(-8*24*time.Hour), lines, ledger.StatePermanent)
	closed("scenario-bbbbbb", "scenario", now.Add(-time.Hour), lines, ledger.StatePermanent)
	closed("runtime-bbbbbb", "runtime", now.Add(-time.Hour), ledger.Undo{Kind: "node-files"}, ledger.StateReverted)
	s := collected(t, cluster)
	var over []string
	s.Runs = slices.DeleteFunc(s.Runs, func(r snapshot.Run) bool {
		if r.Closed.IsZero() {
			return false
		}
		over = append(over, r.ID)
		if len(r.Targets) != 1 || r.Targets[0].Evidence[0].Source != "/dev/kmsg sequence 5" {
			t.Errorf("a closed run has not its line: %+v", r)
		}
		return true
	})
	if slices.Sort(over); !slices.Equal(over, []string{"scenario-bbbbbb", "xid-bbbbbb"}) {
		t.Fatalf("of closed runs those count whose lines of the last week are in a kernel log: %q", over)
	}
	if got := suspicious(s); slices.Contains(got, "gpu-1") {
		t.Errorf("a node is suspicious for a run that is over: %q", got)
	}
	if len(s.Runs) != 1 || s.Runs[0].ID != "xid-aaaaaa" || !s.Runs[0].Targets[0].Permanent ||
		s.Runs[0].Targets[0].Evidence[0].Source != "/dev/kmsg sequence 4711" {
		t.Fatalf("runs are %+v", s.Runs)
	}
	if s.Runs[0].Revert != "kubectl gpu-fault revert xid-aaaaaa" {
		t.Errorf("revert with %q", s.Runs[0].Revert)
	}
	if got := suspicious(s); !slices.Contains(got, "good") {
		t.Errorf("a node with a fault of ours is not suspicious: %q", got)
	}
}

// TestSuspicious verifies that only nodes that look unhealthy are read, because reading a node requires a privileged
// pod, and that each of them is read.
func TestSuspicious(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(n *corev1.Node, s *snapshot.Snapshot)
		want   bool
	}{
		"healthy": {func(*corev1.Node, *snapshot.Snapshot) {}, false},
		"not Ready": {
			func(n *corev1.Node, _ *snapshot.Snapshot) {
				n.Status.Conditions[0].Status = corev1.ConditionUnknown
			}, true,
		},
		"a problem condition": {func(n *corev1.Node, _ *snapshot.Snapshot) {
			n.Status.Conditions = append(n.Status.Conditions,
				corev1.NodeCondition{Type: "GPUXid", Status: corev1.ConditionTrue})
		}, true},
		"a good condition": {func(n *corev1.Node, _ *snapshot.Snapshot) {
			n.Status.Conditions = append(n.Status.Conditions,
				corev1.NodeCondition{Type: "KernelReady", Status: corev1.ConditionTrue},
				corev1.NodeCondition{Type: "DiskPressure", Status: corev1.ConditionFalse})
		}, false},
		"an unhealthy GPU": {func(n *corev1.Node, _ *snapshot.Snapshot) {
			n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("7")
		}, true},
		"no GPUs offered": {
			func(n *corev1.Node, _ *snapshot.Snapshot) { n.Status.Capacity, n.Status.Allocatable = nil, nil }, true,
		},
		"GPUs are claimed": {func(n *corev1.Node, s *snapshot.Snapshot) {
			n.Status.Capacity, n.Status.Allocatable = nil, nil
			s.ResourceSlices = []resourcev1.ResourceSlice{
				{Spec: resourcev1.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &n.Name}},
			}
		}, false},
		"a failing GPU pod": {func(_ *corev1.Node, s *snapshot.Snapshot) {
			s.Pods = append(s.Pods, *pod("team", "p", "n", func(p *corev1.Pod) { asking(p); failing(p) }))
		}, true},
		"somebody else's failing pod": {
			func(_ *corev1.Node, s *snapshot.Snapshot) { s.Pods = append(s.Pods, *pod("web", "p", "n", failing)) },
			false,
		},
		"no sandbox": {func(_ *corev1.Node, s *snapshot.Snapshot) {
			s.Pods = append(s.Pods, *pod("web", "p", "n", failing))
			s.Events = append(s.Events, *event("web", "p", "Warning", "FailedCreatePodSandBox"))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &snapshot.Snapshot{}
			n := gpuNode("n")
			test.change(n, s)
			s.Nodes = []corev1.Node{*n}
			if got := suspicious(s); (len(got) == 1) != test.want {
				t.Errorf("suspicious are %q, wanted the node to be among them: %t", got, test.want)
			}
		})
	}
}

// TestLogsAreOfManyKinds verifies that a thousand crashing pods of one DaemonSet do not displace a pod of another one.
func TestLogsAreOfManyKinds(t *testing.T) {
	t.Parallel()
	s := &snapshot.Snapshot{Nodes: []corev1.Node{*gpuNode("n")}}
	owned := func(by string) func(*corev1.Pod) {
		controller := true
		return func(p *corev1.Pod) {
			asking(p)
			failing(p)
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: by, Controller: &controller}}
		}
	}
	for i := range 100 {
		s.Pods = append(s.Pods, *pod("a", fmt.Sprintf("many-%03d", i), "n", owned("many")))
	}
	s.Pods = append(s.Pods, *pod("z", "single", "n", owned("single")))
	wanted, left := logCandidates(s)
	if len(wanted) != logPods || len(left) != 101-logPods {
		t.Fatalf("%d logs wanted and %d left", len(wanted), len(left))
	}
	if !slices.ContainsFunc(wanted, func(p *corev1.Pod) bool { return p.Name == "single" }) {
		t.Error("the only pod of its kind is not among them")
	}
}

// TestBeginningsOfLogs verifies that, within the limits, the beginnings and ends of logs are read for a few healthy GPU
// pods per owner, and that the others are not reported as missing.
func TestBeginningsOfLogs(t *testing.T) {
	t.Parallel()
	objects := []runtime.Object{gpuNode("n")}
	for i := range 5 {
		objects = append(objects, pod("team", fmt.Sprintf("train-%d", i), "n", func(p *corev1.Pod) {
			asking(p)
			p.GenerateName = "train-"
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar"})
		}))
	}
	cluster, client := connected(objects...)
	var asked []*corev1.PodLogOptions
	var mu sync.Mutex
	client.PrependReactor("get", "pods/log", func(a kubetesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, a.(kubetesting.GenericAction).GetValue().(*corev1.PodLogOptions))
		return true, &runtime.Unknown{Raw: []byte("device: cpu\n")}, nil
	})
	s := collected(t, cluster)
	if len(s.Logs) != 2*logAlike || !s.Logs[0].Head || s.Logs[1].Head || s.Logs[0].Text != "device: cpu\n" ||
		s.Logs[0].Container != "c" {
		t.Errorf("logs %+v", s.Logs)
	}
	for _, o := range asked {
		if o.LimitBytes == nil || o.Container != "c" ||
			o.TailLines == nil && *o.LimitBytes != headBytes || o.TailLines != nil && *o.TailLines != endLines {
			t.Errorf("asked for %+v", o)
		}
	}
	client.PrependReactor("get", "pods/log", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	})
	if s := collected(t, cluster); len(s.Missing)+len(s.Logs) > 0 {
		t.Errorf("of logs that need not be there is said %+v", s.Missing)
	}

	again := requestsOf(
		pod("a", "again", "n", func(p *corev1.Pod) { asking(p); p.Status.ContainerStatuses[0].RestartCount = 1 }),
	)
	if len(again) != 3 || again[0].head || !again[1].previous || !again[2].head {
		t.Errorf("of a pod that works again is read %+v", again)
	}

	crowd := &snapshot.Snapshot{}
	for i := range logPods {
		crowd.Pods = append(crowd.Pods, *pod("a", fmt.Sprintf("bad-%02d", i), "n",
			func(p *corev1.Pod) { asking(p); failing(p); p.GenerateName = "bad-" }))
	}
	crowd.Pods = append(crowd.Pods, *pod("a", "well", "n", asking))
	if wanted, left := logCandidates(crowd); len(wanted) != logPods || len(left) != 0 ||
		slices.ContainsFunc(wanted, func(p *corev1.Pod) bool { return p.Name == "well" }) {
		t.Errorf("the log of a pod that is well is read in the place of one that fails: %d wanted, %d left",
			len(wanted), len(left))
	}
}

// TestPoliciesOfPodsThatWait verifies that policies, Services and pods at both ends are collected if a GPU pod reports
// that a server does not respond, and not otherwise.
func TestPoliciesOfPodsThatWait(t *testing.T) {
	t.Parallel()
	policy := func(namespace, name string) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}}
	}
	service := func(namespace, name string, selector map[string]string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"a": "b"}},
			Spec:       corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80}}},
		}
	}
	behind := func(labels map[string]string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = labels
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
			p.Status.PodIP = "10.1.0.9"
		}
	}
	waiting := pod("team", "train", "good", func(p *corev1.Pod) {
		asking(p)
		p.Status.Phase, p.Status.Conditions[0].Status = corev1.PodPending, corev1.ConditionFalse
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{
			Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}},
		}
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Minute))},
		}}}
	})
	license, dns := map[string]string{"app": "license"}, map[string]string{"k8s-app": "kube-dns"}
	make := func(log string) (Cluster, *fake.Clientset) {
		cluster, client := connected(gpuNode("good"), waiting.DeepCopy(), policy("team", "p"), policy("house", "q"),
			policy("kube-system", "d"), policy("others", "r"),
			service("house", "license", license), service("house", "accounts", nil),
			service("kube-system", "kube-dns", dns),
			pod("house", "license-1", "cpu", behind(license)), pod("house", "license-2", "good", behind(license)),
			pod("house", "accounts-1", "cpu", nil), pod("kube-system", "dns-1", "cpu", behind(dns)))
		client.PrependReactor("get", "pods/log", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, &runtime.Unknown{Raw: []byte(log)}, nil
		})
		return cluster, client
	}
	const words = "dial tcp: i/o timeout\nhttp://license.house.svc.cluster.local/\nhttp://gone.house.svc/"
	cluster, _ := make(words)
	s := collected(t, cluster)
	if got := names(s.NetworkPolicies); got != "q d p" || s.NetworkPolicies[0].ManagedFields != nil {
		t.Errorf("policies %s, wanted those of the pod's namespace, the Service's and the DNS server's", got)
	}
	if got := names(s.Services); got != "license kube-dns" || s.Services[0].Annotations != nil {
		t.Errorf("Services %s", got)
	}
	if got := names(s.Pods); got != "license-1 license-2 dns-1 train" {
		t.Errorf("pods %s", got)
	}
	for i := range s.Pods[:3] {
		if p := &s.Pods[i]; len(p.Spec.Containers[0].Ports) != 1 || p.Status.PodIP == "" ||
			p.Spec.Containers[0].Env != nil {
			t.Errorf("of %s is kept %+v", p.Name, p)
		}
	}
	if s.Meta.PodsSeen != 5 || len(s.Missing) > 0 {
		t.Errorf("%d pods seen, missing %+v", s.Meta.PodsSeen, s.Missing)
	}

	cluster, client := make(words)
	forbid(client, "networkpolicies")
	client.PrependReactor("get", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))
	})
	s = collected(t, cluster)
	for _, what := range []string{"api/networkpolicies", "api/services/house/license"} {
		if got := why(s, what); !strings.HasPrefix(got, "forbidden: ") {
			t.Errorf("%s: %q, wanted it to be forbidden", what, got)
		}
	}

	cluster, client = make("downloading\n")
	s = collected(t, cluster)
	if len(s.NetworkPolicies)+len(s.Services) > 0 || slices.ContainsFunc(
		client.Actions(), func(a kubetesting.Action) bool { return a.GetResource().Resource == "networkpolicies" },
	) {
		t.Error("policies are asked for where nobody waits for an answer")
	}
}

// withClaim returns a pod that mounts the claim data and that the scheduler has rejected with the message.
func withClaim(message string) *corev1.Pod {
	return pod("team", "train", "", func(p *corev1.Pod) {
		asking(p)
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message,
		}}
	})
}

// TestVolumesOfPendingPods verifies that a snapshot contains the locations of volumes that prevent a pod from being
// scheduled, and no other data about these volumes.
func TestVolumesOfPendingPods(t *testing.T) {
	t.Parallel()
	waiting := withClaim("0/1 nodes are available: 1 node(s) had volume node affinity conflict.")
	cluster, _ := connected(gpuNode("good"), waiting)
	custom := cluster.Dynamic.(*dynamicfake.FakeDynamicClient)
	for resource, object := range map[string]map[string]any{
		"persistentvolumeclaims": {
			"apiVersion": "v1", "kind": "PersistentVolumeClaim",
			"metadata": map[string]any{"name": "data", "namespace": "team"},
			"spec":     map[string]any{"volumeName": "pv-1"},
		},
		"persistentvolumes": {
			"apiVersion": "v1", "kind": "PersistentVolume", "metadata": map[string]any{"name": "pv-1"},
			"spec": map[string]any{
				"csi": map[string]any{"volumeHandle": "hush"}, "nodeAffinity": map[string]any{"required": "here"},
			},
		},
	} {
		at := &unstructured.Unstructured{Object: object}
		if err := custom.Tracker().Create(
			schema.GroupVersionResource{Version: "v1", Resource: resource}, at, at.GetNamespace(),
		); err != nil {
			t.Fatal(err)
		}
	}
	s := collected(t, cluster)
	if len(s.PersistentVolumes) != 1 || len(s.Missing) > 0 {
		t.Fatalf("%d volumes, missing %v", len(s.PersistentVolumes), s.Missing)
	}
	spec, _, _ := unstructured.NestedMap(s.PersistentVolumes[0].Object, "spec")
	if spec["csi"] != nil || spec["nodeAffinity"] == nil || spec["claimRef"] == nil {
		t.Errorf("of the volume is kept %v", spec)
	}
}

// TestClaimsOfPendingPods verifies that a snapshot contains the storage class of an unbound claim, and no other data
// about the claim.
func TestClaimsOfPendingPods(t *testing.T) {
	t.Parallel()
	waiting := withClaim("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
	cluster, _ := connected(gpuNode("good"), waiting)
	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "PersistentVolumeClaim",
		"metadata": map[string]any{"name": "data", "namespace": "team", "annotations": map[string]any{"a": "hush"}},
		"spec":     map[string]any{"storageClassName": "", "accessModes": []any{"ReadWriteOnce"}},
	}}
	if err := cluster.Dynamic.(*dynamicfake.FakeDynamicClient).Tracker().Create(
		schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, claim, "team",
	); err != nil {
		t.Fatal(err)
	}
	s := collected(t, cluster)
	if len(s.PersistentVolumeClaims) != 1 || len(s.Missing) > 0 {
		t.Fatalf("%d claims, missing %v", len(s.PersistentVolumeClaims), s.Missing)
	}
	spec, _, _ := unstructured.NestedMap(s.PersistentVolumeClaims[0].Object, "spec")
	if class, set := spec["storageClassName"]; len(spec) != 1 || !set || class != "" {
		t.Errorf("of the claim is kept %v", spec)
	}
	if s.PersistentVolumeClaims[0].GetAnnotations() != nil {
		t.Error("the annotations of the claim are kept")
	}
}

// TestVariablesOfWorkloadsAreNotKept verifies that only the environment variables that checks read are kept, because
// others may contain secrets. The variables of GPU software are kept.
func TestVariablesOfWorkloadsAreNotKept(t *testing.T) {
	t.Parallel()
	k := newKeeper(now, nil)
	with := func(p *corev1.Pod) {
		asking(p)
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "CUSTOMER", Value: "hush"}, {Name: "CUDA_VISIBLE_DEVICES", Value: "-1"},
			{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, {Name: "LD_PRELOAD", Value: "/x.so"}, {Name: "EMPTY"},
			{Name: "NATS_SERVER", Value: "nats://nats.house.svc.cluster.local:4222"},
			{Name: "NATS", Value: "nats://u:hush@nats.house.svc.cluster.local:4222"},
		}
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Env: []corev1.EnvVar{{Name: "X", Value: "hush"}}}}
	}
	workload := pod("team", "train", "good", with)
	plugin := pod("team", "plugin", "good", func(p *corev1.Pod) {
		with(p)
		p.Labels = map[string]string{"app": "nvidia-device-plugin-daemonset"}
	})
	if !k.pod(workload) || !k.pod(plugin) {
		t.Fatal("pods that matter are not kept")
	}
	env := workload.Spec.Containers[0].Env
	if env[0].Value != snapshot.Redacted || env[1].Value != "-1" || env[2].Value != "all" || env[3].Value != "/x.so" ||
		env[4].Value != "" || env[5].Value == snapshot.Redacted ||
		env[6].Value != snapshot.Redacted || workload.Spec.InitContainers[0].Env[0].Value != snapshot.Redacted {
		t.Errorf("of a workload is kept: %+v, %+v", env, workload.Spec.InitContainers[0].Env)
	}
	if got := plugin.Spec.Containers[0].Env[0].Value; got != "hush" {
		t.Errorf("of the device plugin is kept: %q", got)
	}
}

// TestLogsOfThoseWhoServe verifies that doctor reads the logs of software from any vendor that schedules pods or
// advertises devices, and of pods that search for a GPU but request none.
func TestLogsOfThoseWhoServe(t *testing.T) {
	t.Parallel()
	waiting := pod("team", "waits", "", func(p *corev1.Pod) {
		asking(p)
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	})
	withLog := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	}
	others := []*corev1.Pod{
		pod("karpenter", "karpenter-6d-x1", "cpu", withLog),
		pod("kube-amd-gpu", "amdgpu-device-plugin-x2", "cpu", func(p *corev1.Pod) { withLog(p); failing(p) }),
		pod("team", "blind", "cpu", func(p *corev1.Pod) {
			withLog(p)
			failing(p)
			p.Spec.Containers[0].Image = "nvidia/cuda:13.0.1-base-ubuntu24.04"
		}),
		pod("team", "web", "cpu", func(p *corev1.Pod) { withLog(p); failing(p) }),
	}
	k := newKeeper(time.Now(), nil)
	s := &snapshot.Snapshot{Nodes: []corev1.Node{*gpuNode("n")}, Pods: []corev1.Pod{*waiting}}
	for _, p := range others {
		if k.pod(p) {
			s.Pods = append(s.Pods, *p)
		}
	}
	wanted, _ := logCandidates(s)
	var names []string
	for _, p := range wanted {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if want := []string{"amdgpu-device-plugin-x2", "blind", "karpenter-6d-x1"}; !slices.Equal(names, want) {
		t.Errorf("the logs of %q are read, want %q", names, want)
	}
}

// TestQueuedWorkIsCollected verifies that unfinished work is kept without the contents of its pod templates, and that
// queues from several schedulers are kept even if they have the same name.
func TestQueuedWorkIsCollected(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	custom := cluster.Dynamic.(*dynamicfake.FakeDynamicClient)
	for _, r := range []struct{ group, version, resource, kind, namespace, name, status string }{
		{"kueue.x-k8s.io", "v1beta2", "workloads", "Workload", "ml", "waits", "QuotaReserved"},
		{"kueue.x-k8s.io", "v1beta2", "workloads", "Workload", "ml", "ended", "Finished"},
		{"kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", "", "default", ""},
		{"scheduling.volcano.sh", "v1beta1", "queues", "Queue", "", "default", ""},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": r.group + "/" + r.version, "kind": r.kind,
			"metadata": map[string]any{"name": r.name, "namespace": r.namespace},
			"spec": map[string]any{"podSets": []any{map[string]any{"count": int64(2), "template": map[string]any{
				"spec": map[string]any{"containers": []any{map[string]any{
					"name": "c", "args": []any{"hush"},
					"resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "4"}},
				}}},
			}}}},
			"status": map[string]any{"conditions": []any{map[string]any{"type": r.status, "status": "True"}}},
		}}
		resource := schema.GroupVersionResource{Group: r.group, Version: r.version, Resource: r.resource}
		if err := custom.Tracker().Create(resource, object, r.namespace); err != nil {
			t.Fatal(err)
		}
	}
	for name, suspended := range map[string]bool{"held": true, "runs": false} {
		job := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "batch/v1", "kind": "Job",
			"metadata": map[string]any{
				"name": name, "namespace": "ml", "labels": map[string]any{"kueue.x-k8s.io/queue-name": "q"},
				"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "hush"},
			},
			"spec": map[string]any{"suspend": suspended, "template": map[string]any{
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "args": []any{"hush"}}}},
			}},
		}}
		resource := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
		if err := custom.Tracker().Create(resource, job, "ml"); err != nil {
			t.Fatal(err)
		}
	}
	client.Resources = append(client.Resources,
		&metav1.APIResourceList{GroupVersion: "kueue.x-k8s.io/v1beta2", APIResources: []metav1.APIResource{
			{Name: "workloads"}, {Name: "clusterqueues"},
		}},
		&metav1.APIResourceList{GroupVersion: "scheduling.volcano.sh/v1beta1", APIResources: []metav1.APIResource{
			{Name: "queues"},
		}},
	)
	s := collected(t, cluster)
	if got := names(s.Queued); got != "held waits" {
		t.Errorf("queued: %s", got)
	} else if strings.Contains(fmt.Sprint(s.Queued[0].Object), "hush") {
		t.Errorf("a Job keeps what nobody reads: %s", s.Queued[0].Object)
	} else if text := fmt.Sprint(s.Queued[1].Object); strings.Contains(text, "hush") ||
		!strings.Contains(text, "gpu:4") {
		t.Errorf("the templates of pods keep what nobody reads, or lost what they request: %s", text)
	}
	if got := names(s.Queues); got != "default default" {
		t.Errorf("queues: %s", got)
	}
}
