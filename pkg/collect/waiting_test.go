package collect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

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

// TestReleasesOfHealthyPrograms verifies that healthy pods are kept if a signature applies only to some releases of
// their program, because these pods may be the reason why other pods are not running.
func TestReleasesOfHealthyPrograms(t *testing.T) {
	t.Parallel()
	k := newKeeper(now, nil)
	for image, want := range map[string]bool{
		"registry.k8s.io/kueue/kueue:v0.14.1": true, "mirror.house/x/kueue/kueue@sha256:00": true,
		"registry.k8s.io/kueue/kueue-viz:v0.14.1": false, "docker.io/library/nginx:1": false,
	} {
		if got := k.pod(pod("apps", "manager", "plain", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = image
		})); got != want {
			t.Errorf("a pod with %s is kept: %t, want %t", image, got, want)
		}
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
