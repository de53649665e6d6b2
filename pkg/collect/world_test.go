package collect

import (
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

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
