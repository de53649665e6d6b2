package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestVolumeHeld verifies that a pod that holds a volume is blamed, and its deletion recommended, only if it is not
// part of the same work.
func TestVolumeHeld(t *testing.T) {
	t.Parallel()
	claim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models"},
		}}}
	}
	older := created(2 * time.Hour)
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Time) }
	done := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	starts := func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil }
	const old, single, general = "volume-held-by-old-pod", "volume-held-by-single-pod", "volume-used-on-other-node"
	for name, c := range map[string]struct {
		holder []podChange
		gpus   int64
		named  string
		want   string
	}{
		"old pod of the Deployment":    {[]podChange{claim, older, owned("ReplicaSet", "llm-7d9f6")}, 1, "other", old},
		"replica of the ReplicaSet":    {[]podChange{claim, older, owned("ReplicaSet", "llm-5c8bd")}, 1, "other", general},
		"pod of another Deployment":    {[]podChange{claim, older, owned("ReplicaSet", "web-6b7c9")}, 0, "other", general},
		"a pod that copied data":       {[]podChange{claim, older}, 0, "other", single},
		"a pod with a GPU":             {[]podChange{claim, older}, 1, "other", general},
		"a Job":                        {[]podChange{claim, older, owned("Job", "load")}, 0, "other", general},
		"the message names another":    {[]podChange{claim, older}, 0, "third", general},
		"the pod has no such claim":    {[]podChange{older}, 0, "other", general},
		"it is being deleted":          {[]podChange{claim, older, deleted}, 0, "other", general},
		"the pod has ended in success": {[]podChange{claim, older, done}, 0, "other", general},
	} {
		b := newBench().node("a", 1).node("b", 1).pod("other", "a", c.gpus, c.holder...).
			pod("p", "b", 1, claim, starts, owned("ReplicaSet", "llm-5c8bd")).
			event("Pod", "p", "FailedAttachVolume",
				`Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) `+c.named)
		if _, all := b.tell(t); !signed(all, c.want) {
			t.Errorf("%s: want %s: %+v", name, c.want, all)
		}
	}
}

// TestPlaceholder verifies that only a name counts that looks like a variable and that the shell did not find.
func TestPlaceholder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command, log string
		want         bool
	}{
		{"serve --head=$(Leader_Address)", "sh: 1: Leader_Address: not found", true},
		{"serve --head=$(HEAD)", "bash: line 1: HEAD: command not found", true},
		{"serve --head=$(HEAD)", "bash: line 1: TAIL: command not found", false},
		{"serve --threads=$(nproc)", "sh: 1: nproc: not found", false},
		{"serve --head=$HEAD", "sh: 1: HEAD: not found", false},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, crashing(1, "Error"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", c.command}
		}).log("p", c.log)
		if _, all := b.tell(t); signed(all, "command-placeholder-without-variable") != c.want {
			t.Errorf("%+v: %+v", c, all)
		}
	}
}

// TestRefusedByLimit verifies that doctor reports pods that an operator cannot create according to its event.
func TestRefusedByLimit(t *testing.T) {
	t.Parallel()
	b := newBench().node("n", 1).event("RayCluster", "ray", "FailedToCreateWorkerPod",
		`Failed to create worker Pod for the RayCluster team/ray, Pod "ray-worker-x" is invalid: `+
			`spec.containers[0].resources.requests: Invalid value: "1": must be less than or equal to cpu limit `+
			`of 500m`)
	if _, all := b.tell(t); !signed(all, "request-over-limit") {
		t.Errorf("the request above the limit is the cause: %+v", all)
	}
}

// TestNodeNotDelivered verifies that a pod is considered to be waiting for a node that may still come, but not for one
// that the cloud refused to create.
func TestNodeNotDelivered(t *testing.T) {
	t.Parallel()
	const quota = "creating instance, insufficient capacity, with fleet error(s), VcpuLimitExceeded: ..."
	for name, c := range map[string]struct {
		age    time.Duration
		claim  string
		events []string
		want   string
	}{
		"refused":        {time.Hour, "gpu-a1", nil, "wl.message"},
		"a new pod":      {5 * time.Minute, "gpu-a1", nil, "sched.waiting"},
		"another claim":  {time.Hour, "cpu-b2", nil, "sched.waiting"},
		"then it starts": {time.Hour, "gpu-a1", []string{"Launched"}, "sched.waiting"},
	} {
		b := newBench().node("n", 0, cpuOnly).pod("p", "", 1, created(c.age)).
			event("Pod", "p", "Nominated", "Pod should schedule on: nodeclaim/gpu-a1")
		claimed := func(e *corev1.Event) { e.InvolvedObject.Namespace, e.Count = "", 1 }
		for _, reason := range c.events {
			b.event("NodeClaim", c.claim, reason, "launched", claimed, func(e *corev1.Event) {
				e.Type, e.LastTimestamp = corev1.EventTypeNormal, benchAgo(time.Second)
			})
		}
		b.event("NodeClaim", c.claim, "InsufficientCapacityError", quota, claimed)
		var ids []string
		for _, f := range Examine(&b.Snapshot, Options{}).Roots() {
			ids = append(ids, f.ID)
		}
		if !slices.Contains(ids, c.want) {
			t.Errorf("%s: the root causes are %s, want %s", name, strings.Join(ids, " "), c.want)
		}
	}
}

// TestNoNodeTriggered verifies that doctor does not recommend another GPU node if the autoscaler reports that no node
// would help.
func TestNoNodeTriggered(t *testing.T) {
	t.Parallel()
	const small, no = "cluster-autoscaler-node-too-small", "pod didn't trigger scale-up: "
	for message, want := range map[string]string{
		no + "3 node(s) didn't match Pod's node affinity/selector, 1 Insufficient memory": small,
		no + "1 Insufficient cpu":                                       small,
		no + "2 Insufficient memory, 1 max node group size reached":     "",
		no + "1 Insufficient memory, 2 Insufficient nvidia.com/gpu":     "",
		no + "1 Insufficient memory, 1 node(s) had untolerated taint a": "",
	} {
		b := newBench().node("n", 0, cpuOnly).pod("p", "", 1, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("48"), corev1.ResourceMemory: resource.MustParse("250Gi"),
			}
		}).event("Pod", "p", "NotTriggerScaleUp", message)
		_, all := b.tell(t)
		if signed(all, small) != (want != "") {
			t.Errorf("%s: want %q: %+v", message, want, all)
		}
		for _, f := range all {
			if strings.Contains(f.Fix.Text, "add a GPU node") {
				t.Errorf("%s: another node does not help: %s", message, f.Fix.Text)
			}
		}
	}
}

func cpuOnly(n *corev1.Node) { n.Labels, n.Status.Capacity, n.Status.Allocatable = nil, nil, nil }
