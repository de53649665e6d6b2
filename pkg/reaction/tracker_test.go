package reaction

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// story plays states of objects one after the other, and returns the reactions as lines: NAME NODE|POD by WHO: TEXT.
type story struct {
	*Tracker
	node *corev1.Node
	said []string
}

func newStory() *story {
	s := &story{Tracker: NewTracker([]string{"gpu-1"})}
	s.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", UID: "n1", Labels: map[string]string{}},
		Status: corev1.NodeStatus{
			NodeInfo:    corev1.NodeSystemInfo{BootID: "a"},
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), "cpu": resource.MustParse("9")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	s.hear(s.Node(s.node, start))
	return s
}

func (s *story) hear(all []Reaction) {
	for _, r := range all {
		where := r.Node
		if r.Pod != "" {
			where = r.Pod
		}
		s.said = append(s.said, strings.TrimSpace(fmt.Sprintf("%s %s by %q: %s", r.Name, where, r.Actor(), r.Text)))
	}
}

// change changes the node as a client with a field manager would.
func (s *story) change(manager, fields string, edit func(*corev1.Node)) {
	next := s.node.DeepCopy()
	edit(next)
	sub := ""
	if strings.HasPrefix(fields, `{"f:status"`) {
		sub = "status"
	}
	now := metav1.NewTime(start.Add(time.Duration(len(s.said)+1) * time.Second))
	next.ManagedFields = append(next.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: sub, Time: &now,
		FieldsV1: metav1.NewFieldsV1(fields),
	})
	s.node = next
	s.hear(s.Node(next, now.Time))
}

func (s *story) pod(name, owner, node string, atStart bool, edit ...func(*corev1.Pod)) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ml", UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if owner != "" {
		kind := "ReplicaSet"
		if strings.HasPrefix(owner, "ds-") {
			kind = "DaemonSet"
		}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, UID: types.UID(owner), Controller: &yes}}
	}
	for _, e := range edit {
		e(p)
	}
	s.hear(s.Pod(p, atStart, start))
	return p
}

func ready(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func leaving(p *corev1.Pod) {
	now := metav1.NewTime(start)
	p.DeletionTimestamp = &now
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
	}}
}

func crashed(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 1,
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 134}},
	}}
}

func (s *story) want(t *testing.T, lines ...string) {
	t.Helper()
	if got, want := strings.Join(s.said, "\n"), strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwanted\n%s", got, want)
	}
}

// NVSentinel's whole way with a GPU that fell off the bus: every step with its writer.
func TestDetectToRecover(t *testing.T) {
	t.Parallel()
	s := newStory()
	worker := s.pod("worker-a", "rs", "gpu-1", true, ready)
	daemon := s.pod("exporter", "ds-exporter", "gpu-1", true, ready)
	s.change("platform-connectors",
		`{"f:status":{"f:conditions":{"k:{\"type\":\"SysLogsXIDError\"}":{"f:status":{}}}}}`,
		func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: "SysLogsXIDError", Status: corev1.ConditionTrue, Message: "ErrorCode:79",
			})
		})
	s.change("fault-quarantine",
		`{"f:spec":{"f:unschedulable":{}},"f:metadata":{"f:annotations":{"f:quarantineHealthEvent":{}}}}`,
		func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
			n.Annotations = map[string]string{"quarantineHealthEvent": "{}"}
		})
	s.pod("worker-a", "rs", "gpu-1", false, crashed)
	s.pod("worker-a", "rs", "gpu-1", false, crashed, leaving)
	s.pod("worker-b", "rs", "", false)
	s.pod("worker-b", "rs", "gpu-2", false)
	s.hear(s.PodGone(worker, start))
	s.pod("worker-b", "rs", "gpu-2", false, ready)
	s.change("node-drainer", `{"f:metadata":{"f:labels":{"f:dgxc.nvidia.com/nvsentinel-state":{}}}}`,
		func(n *corev1.Node) { n.Labels[stateLabel] = "drain-succeeded" })
	s.change("fault-remediation", `{"f:metadata":{"f:labels":{"f:dgxc.nvidia.com/nvsentinel-state":{}}}}`,
		func(n *corev1.Node) { n.Labels[stateLabel] = "remediation-succeeded" })
	s.change("kubelet", `{"f:status":{}}`, func(n *corev1.Node) { n.Status.NodeInfo.BootID = "b" })
	s.change("fault-quarantine", `{"f:metadata":{}}`, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	s.hear(s.PodGone(daemon, start))
	s.want(t,
		`detected gpu-1 by "NVSentinel (platform-connectors)": condition SysLogsXIDError is True: ErrorCode:79`,
		`decided gpu-1 by "NVSentinel (fault-quarantine)": annotation quarantineHealthEvent`,
		`cordoned gpu-1 by "NVSentinel (fault-quarantine)":`,
		`pod-failed ml/worker-a by "": container main exited with code 134`,
		`evicted ml/worker-a by "": EvictionByEvictionAPI`,
		`rescheduled ml/worker-b by "Kubernetes (kube-scheduler)": from gpu-1 to gpu-2`,
		`pod-gone ml/worker-a by "":`,
		`drained gpu-1 by "": none remaining of 1 pod`,
		`served ml/worker-b by "": ready on gpu-2`,
		`remediated gpu-1 by "NVSentinel (fault-remediation)": dgxc.nvidia.com/nvsentinel-state=remediation-succeeded`,
		`rebooted gpu-1 by "": boot ID b`,
		`uncordoned gpu-1 by "NVSentinel (fault-quarantine)":`,
	)
}

// Whoever waits for a replacement must know a restarted container from it.
func TestRestartedOrReplaced(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.pod("worker-a", "rs", "gpu-1", true, ready)
	served := func(all []Reaction) (restarted bool) {
		t.Helper()
		if len(all) == 0 || all[len(all)-1].Name != Served {
			t.Fatalf("%+v", all)
		}
		return all[len(all)-1].Restarted
	}
	state := func(name string, edit ...func(*corev1.Pod)) []Reaction {
		p := s.pod(name, "rs", "gpu-1", false) // not ready
		for _, e := range edit {
			e(p)
		}
		return s.Pod(p, false, start)
	}
	if !served(state("worker-a", crashed, ready)) {
		t.Error("the pod that was there before the fault is called a replacement")
	}
	if served(state("worker-b", ready)) {
		t.Error("a new pod on the node is called a restarted one")
	}
}

// Containers that are killed because their pod is deleted have not failed. Other exit codes, and earlier ends, count.
func TestDeletedPodsDoNotFail(t *testing.T) {
	t.Parallel()
	grace := int64(30)
	ends := metav1.NewTime(start.Add(time.Duration(grace) * time.Second))
	for name, c := range map[string]struct {
		after time.Duration // from the request to delete the pod
		code  int32
		want  []string
	}{
		"before":    {-time.Second, 137, []string{`pod-failed ml/worker by "": container main exited with code 137`}},
		"SIGKILL":   {31 * time.Second, 137, nil},
		"SIGTERM":   {time.Second, 143, nil},
		"by itself": {time.Second, 134, []string{`pod-failed ml/worker by "": container main exited with code 134`}},
	} {
		s := newStory()
		s.pod("worker", "rs", "gpu-1", true)
		s.pod("worker", "rs", "gpu-1", false, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &ends, &grace
		})
		s.said = nil
		s.pod("worker", "rs", "gpu-1", false, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &ends, &grace
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: c.code, FinishedAt: metav1.NewTime(start.Add(c.after)),
				}},
			}}
		})
		if !slices.Equal(s.said, c.want) {
			t.Errorf("%s: %q, wanted %q", name, s.said, c.want)
		}
	}
}

// Who cordons counts: a person and this tool are told apart from the cluster.
func TestWhoDidIt(t *testing.T) {
	t.Parallel()
	for manager, want := range map[string]struct {
		actor   string
		cluster bool
	}{
		"kubectl-cordon":    {"a person (kubectl-cordon)", false},
		"kubectl-gpu-fault": {"gpu-fault (kubectl-gpu-fault)", false},
		"fault-quarantine":  {"NVSentinel (fault-quarantine)", true},
		"my-operator":       {"my-operator", true},
	} {
		s := newStory()
		var got []Reaction
		next := s.node.DeepCopy()
		next.Spec.Unschedulable = true
		next.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: manager, Operation: "Update",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
		}}
		got = s.Node(next, start)
		if len(got) != 1 || got[0].Actor() != want.actor || got[0].DoneBy("") != want.cluster ||
			!got[0].DoneBy("any") || !got[0].DoneBy(manager) || got[0].DoneBy("somebody-else") {
			t.Errorf("%s: %+v", manager, got)
		}
	}
	nv := Reaction{By: "fault-quarantine", Who: "NVSentinel"}
	if !nv.DoneBy("nvsentinel") || !nv.DoneBy("fault-*") || nv.DoneBy("gpud") {
		t.Error("a system is named by its name, or by its writers")
	}
}

// What Kubernetes does by itself with taints and conditions is not a reaction. What happens to pods of DaemonSets is
// not one either.
func TestNoReactions(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.change("kubelet", `{"f:status":{"f:conditions":{}}}`, func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue},
			corev1.NodeCondition{Type: "GPUXid", Status: corev1.ConditionFalse})
		n.Status.Allocatable["cpu"] = resource.MustParse("1")
	})
	s.change("kube-controller-manager", `{"f:spec":{"f:taints":{}}}`, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/disk-pressure", Effect: corev1.TaintEffectNoSchedule}}
	})
	s.pod("elsewhere", "rs", "gpu-2", true, ready)
	s.pod("elsewhere", "rs", "gpu-2", false, ready, crashed)
	s.pod("exporter", "ds-exporter", "gpu-1", true, ready)
	s.pod("exporter", "ds-exporter", "gpu-1", false, leaving)
	s.want(t)
}

// Each end of a container is one failure, although it is first the container's state and then its last one.
func TestOneFailureForEachEnd(t *testing.T) {
	t.Parallel()
	s := newStory()
	end := func(seconds int) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{
			ExitCode: 1, FinishedAt: metav1.NewTime(start.Add(time.Duration(seconds) * time.Second)),
		}
	}
	state := func(c corev1.ContainerStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c.Name = "main"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{c}
		}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	s.pod("w", "rs", "gpu-1", true, state(corev1.ContainerStatus{State: running}))
	for i, c := range []corev1.ContainerStatus{
		{State: corev1.ContainerState{Terminated: end(1)}},
		{State: running, LastTerminationState: corev1.ContainerState{Terminated: end(1)}, RestartCount: 1},
		{State: running, LastTerminationState: corev1.ContainerState{Terminated: end(1)}, RestartCount: 1},
		{State: corev1.ContainerState{Terminated: end(3)}, RestartCount: 1},
		{State: running, LastTerminationState: corev1.ContainerState{Terminated: end(9)}, RestartCount: 3},
	} {
		s.pod("w", "rs", "gpu-1", false, state(c))
		if want := []int{1, 1, 1, 2, 3}[i]; len(s.said) != want {
			t.Errorf("after state %d there are %q, wanted %d", i, s.said, want)
		}
	}
}

// A StatefulSet's new pod has the old one's controller: its first readiness replaces the old one's, and its failures
// are its own.
func TestAReplacementCanFail(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.pod("train-0", "sts", "gpu-1", true)
	s.said = nil
	s.pod("train-0-again", "sts", "gpu-1", false, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
		}}
	})
	if len(s.said) != 1 || !strings.HasPrefix(s.said[0], "pod-failed ml/train-0-again") {
		t.Errorf("%q", s.said)
	}
}

// Devices: the kubelet's numbers, and the health of a pod's own.
func TestDevices(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.change("kubelet", `{"f:status":{}}`,
		func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("7") })
	sick := func(p *corev1.Pod) {
		bad := []corev1.ResourceHealth{{ResourceID: "GPU-1", Health: corev1.ResourceHealthStatusUnhealthy}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:                     "main",
			AllocatedResourcesStatus: []corev1.ResourceStatus{{Name: "nvidia.com/gpu", Resources: bad}},
		}}
	}
	s.pod("w", "rs", "gpu-1", true)
	s.pod("w", "rs", "gpu-1", false, sick)
	s.pod("w", "rs", "gpu-1", false, sick)
	s.change("kubelet", `{"f:status":{}}`,
		func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8") })
	s.want(t,
		`device-unhealthy gpu-1 by "Kubernetes (kubelet)": 7 of 0 nvidia.com/gpu can be allocated, previously 8`,
		`device-unhealthy ml/w by "Kubernetes (kubelet)": nvidia.com/gpu GPU-1 in container main is Unhealthy`,
		`device-healthy gpu-1 by "Kubernetes (kubelet)": 8 of 0 nvidia.com/gpu can be allocated, previously 7`,
	)
}

// Events: only of detectors, once for each time, and not those of before.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := newStory()
	event := func(uid, component, kind string, count int32, writer string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(uid), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: writer}},
			},
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "gpu-1"},
			Source:         corev1.EventSource{Component: component}, Type: kind, Count: count,
			Reason: "Xid", Message: "79",
		}
	}
	s.hear(s.Event(event("a", "kernel-monitor", "Warning", 1, "node-problem-detector"), true, start))
	s.hear(s.Event(event("a", "kernel-monitor", "Warning", 1, "node-problem-detector"), false, start))
	s.hear(s.Event(event("a", "kernel-monitor", "Warning", 2, "node-problem-detector"), false, start))
	s.hear(s.Event(event("b", "kubelet", "Warning", 1, "kubelet"), false, start))
	s.hear(s.Event(event("c", "kubectl-gpu-fault", "Warning", 1, "kubectl-gpu_fault"), false, start))
	s.hear(s.Event(event("f", "gpufault.dev/kubectl-gpu-fault", "Warning", 1, "kubectl-gpu_fault"), false, start))
	s.hear(s.Event(event("d", "other", "Normal", 1, "other"), false, start))
	s.hear(s.Event(event("e", "", "SysLogsXIDError", 1, "platform-connectors"), false, start))
	s.want(t,
		`detected gpu-1 by "node-problem-detector (kernel-monitor)": Event Xid: 79`,
		`detected gpu-1 by "": Event Xid: 79`,
	)
}

// FuzzNode holds that no two states of a node make the comparison panic: managed fields are the cluster's.
func FuzzNode(f *testing.F) {
	f.Add(`{"f:spec":{"f:unschedulable":{}}}`, "v", true)
	f.Add(`{"f:metadata":{"f:labels":{"f:a":{}}}}`, "kubectl", false)
	f.Add(`{"k:{}":[]}`, "", true)
	f.Fuzz(func(t *testing.T, fields, manager string, closed bool) {
		s := newStory()
		next := s.node.DeepCopy()
		next.Spec.Unschedulable = closed
		next.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: manager, FieldsV1: metav1.NewFieldsV1(fields),
		}}
		found := s.Node(next, start)
		if closed != (len(found) == 1) {
			t.Errorf("found %+v", found)
		}
	})
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Name{"cordon": Cordoned, "cordoned": Cordoned, "pod-gone": PodGone} {
		if got, err := Parse(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	if _, err := Parse("cordonned"); err == nil || !strings.Contains(err.Error(), "did you mean cordoned?") {
		t.Error(err)
	}
	if _, err := Parse(""); err == nil || !strings.Contains(err.Error(), "must be one of detected") {
		t.Error(err)
	}
}
