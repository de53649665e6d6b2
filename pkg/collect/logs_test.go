package collect

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubetesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

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
