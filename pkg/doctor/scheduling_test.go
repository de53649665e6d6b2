package doctor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// TestPending verifies that the reasons why a pod stays Pending are distinguished, and that a pod that is waiting on
// purpose is not a problem.
func TestPending(t *testing.T) {
	t.Parallel()
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
	}
	requests := func(cpu string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		}
	}
	together := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey:   "kubernetes.io/hostname",
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
			}},
		}}
	}
	nominated := func(p *corev1.Pod) { p.Status.NominatedNodeName = "a" }
	terminating := func(p *corev1.Pod) { at := benchAgo(time.Minute); p.DeletionTimestamp = &at }
	before := func(e *corev1.Event) { e.LastTimestamp = benchAgo(30 * time.Minute) }
	silent := func(p *corev1.Pod) { p.Status.Conditions, p.Spec.SchedulerName = nil, "volcano" }
	claims := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = nil
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	}
	runBench(t, map[string]benchCase{
		"healthy": {newBench().node("a", 2).pod("p", "a", 2), "", ""},
		"no GPU node": {
			newBench().pod("p", "", 1), "sched.none-advertised error", "no device plugin is installed in the cluster",
		},
		"nothing advertised": {
			newBench().node("a", 0).pod("p", "", 1), "sched.none-advertised error", "nvidia.com/gpu: 0",
		},
		"plugin of one node dead": {
			newBench().node("a", 0).pod("p", "", 1).pod("q", "a", 0), "sched.none-advertised error", "Node a",
		},
		"all in use": {
			newBench().node("a", 2).pod("h", "a", 2, owned("Job", "train")).pod("p", "", 1), "sched.all-in-use warning",
			"owner Job train, age 1h0m",
		},
		"a failed pod holds none": {
			newBench().node("a", 2).pod("h", "a", 2).pod("done", "a", 1, endedBadly("")).pod("p", "", 1),
			"sched.all-in-use warning, wl.pod-failing error", "",
		},
		"ended pods hold nothing": {newBench().node("a", 2).pod("h", "a", 2,
			func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }).pod("p", "", 1, toldByScheduler("")),
			"sched.waiting info", ""},
		"free, and tainted": {newBench().node("a", 2).node("b", 2, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Value: "pending", Effect: corev1.TaintEffectNoSchedule}}
		}).pod("h", "a", 2).pod("p", "", 1, toldByScheduler(
			"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {maintenance: pending}.",
		)),
			"sched.all-in-use warning", "add a toleration for the taint on the nodes with free GPUs"},
		"free, and not where its like are": {newBench().node("a", 2).node("b", 2).pod("h", "a", 2, together).pod("p",
			"", 1, together,
			toldByScheduler(
				"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match pod affinity rules.",
			)),
			"sched.unschedulable error", `"topologyKey":"kubernetes.io/hostname"`},
		"bigger than any": {
			newBench().node("a", 2).node("b", 2).pod("p", "", 4), "sched.bigger-than-any-node error",
			"at most 2 of nvidia.com/gpu",
		},
		"fewer healthy": {
			newBench().node("a", 0, gives("nvidia.com/gpu", 4, 3)).pod("p", "", 4), "sched.insufficient-gpu error",
			"nvidia.com/gpu: 4",
		},
		"fragmented": {
			newBench().node("a", 2).node("b", 2).pod("h", "a", 1).pod("i", "b", 1).pod("p", "", 2),
			"sched.fragmented warning", "1 of 2 free",
		},
		"wrong name: MIG": {
			newBench().node("a", 0, gives("nvidia.com/mig-1g.10gb", 7, 7)).pod("p", "", 1),
			"sched.wrong-resource-name error", "mig-1g.10gb instead of nvidia.com/gpu",
		},
		"wrong name: shared": {
			newBench().node("a", 4).pod("p", "", 0, needs(corev1.ResourceList{"nvidia.com/gpu.shared": pieces(1)})),
			"sched.wrong-resource-name error", "renameByDefault",
		},
		"wrong name: AMD": {
			newBench().node("a", 4).pod("p", "", 0, needs(corev1.ResourceList{"amd.com/gpu": pieces(1)})),
			"sched.wrong-resource-name error", "nvidia.com/gpu instead of amd.com/gpu",
		},
		"AMD's own nodes": {newBench().node("a", 4).node("x", 0,
			gives("amd.com/gpu", 8, 8)).pod("h", "x", 0, needs(corev1.ResourceList{"amd.com/gpu": pieces(4)})), "", ""},
		"taint": {
			newBench().node("a", 2, tainted("nvidia.com/gpu", "present")).pod("p", "", 1), "sched.taint error",
			`"operator":"Equal"`,
		},
		"taint tolerated": {newBench().node("a", 2,
			tainted("nvidia.com/gpu", "present")).pod("p", "", 1, toldByScheduler(""), func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
		}), "sched.waiting info", ""},
		"selector": {
			newBench().node("a", 2).pod("p", "", 1, selector("nvidia.com/gpu.product", "H100")),
			"sched.node-selector error", "nvidia.com/gpu.product=Tesla-T4",
		},
		"selector of a plain": {newBench().node("a", 2).node("plain", 0, func(n *corev1.Node) {
			n.Labels = map[string]string{"pool": "cpu"}
			delete(n.Status.Capacity, "nvidia.com/gpu")
		}).pod("p", "", 1, selector("pool", "cpu")), "sched.node-selector error", "only nodes that have no GPUs"},
		"cordoned": {
			newBench().node("a", 2, cordoned).pod("p", "", 1), "sched.node-state error, sched.nodes-unavailable error",
			"kubectl uncordon a",
		},
		"cordoned, nobody": {
			newBench().node("a", 2, cordoned).node("b", 2).pod("h", "b", 1), "sched.node-state info", "",
		},
		"cordoned beside full": {
			newBench().node("a", 2, cordoned).node("b", 2).pod("h", "b", 2).pod("p", "", 1),
			"sched.all-in-use warning, sched.node-state info", "uncordon a",
		},
		"node not ready": {newBench().node("a", 2, readiness(corev1.ConditionUnknown, "NodeStatusUnknown",
			"Kubelet stopped posting node status.")).pod("p", "", 1),
			"node.not-ready error, sched.nodes-unavailable error", ""},
		"CPU": {
			newBench().node("a", 2).pod("p", "", 1, requests("12")), "sched.insufficient-other error",
			"cpu: at most 8000m free, the pod requests 12000m",
		},
		"CPU, by the message": {
			newBench().node("a", 2).pod("p", "", 1, toldByScheduler("0/1 nodes are available: 1 Insufficient cpu.")),
			"sched.insufficient-other error", "",
		},
		"volume": {newBench().node("a", 2).pod(
			"p", "", 1, toldByScheduler("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
		), "sched.volume error", ""},
		"anti-affinity": {newBench().node("a", 2).pod(
			"p", "", 1, toldByScheduler("0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."),
		), "sched.unschedulable error", ""},
		"the scheduler differs": {newBench().node("a", 2).pod("p", "", 1), "sched.insufficient-gpu error", ""},
		"claim": {newBench().node("a", 2).pod("p", "", 1, claims,
			toldByScheduler("0/1 nodes are available: 1 cannot allocate all claims.")), "", ""},
		"gate": {newBench().node("a", 0).pod("p", "", 1, gated), "sched.waiting info", "kueue"},
		"nominated": {newBench().node("a", 2).pod("h", "a",
			2, terminating).pod("p", "", 1, nominated), "sched.waiting info", ""},
		"nominated long ago": {
			newBench().node("a", 2).pod("h", "a", 2).pod("p", "", 1, nominated), "sched.all-in-use warning", "",
		},
		"scale-up": {
			newBench().pod("p", "", 1).event("Pod", "p", "TriggeredScaleUp", "pod triggered scale-up"),
			"sched.waiting info", "",
		},
		"scale-up failed": {
			newBench().pod("p", "", 1).event("Pod", "p", "FailedScaleUp", "Node scale up failed: internal error.").
				event("Pod", "p", "TriggeredScaleUp", "pod triggered scale-up", before),
			"sched.none-advertised error", "internal error",
		},
		"scale-up tried again": {
			newBench().pod("p", "", 1).
				event("Pod", "p", "FailedScaleUp", "Node scale up failed: internal error.", before).
				event("Pod", "p", "TriggeredScaleUp", "pod triggered scale-up", func(e *corev1.Event) {
					e.LastTimestamp = benchAgo(20 * time.Minute)
				}),
			"sched.none-advertised warning", "",
		},
		"young": {
			newBench().node("a", 2).pod("h", "a", 2).pod("p", "", 1, created(10*time.Second)), "sched.all-in-use info",
			"",
		},
		"young and too big": {
			newBench().node("a", 2).pod("p", "", 4, created(10*time.Second)), "sched.bigger-than-any-node error", "",
		},
		"the clock is wrong": {
			newBench().node("a", 2).pod("h", "a", 2).pod("p", "", 1, created(-time.Hour)), "sched.all-in-use warning",
			"",
		},
		"no scheduler": {
			newBench().node("a", 2).pod("p", "", 1, silent), "sched.no-scheduler error", "volcano",
		},
		"deleted": {newBench().node("a", 0).pod("p", "", 1,
			func(p *corev1.Pod) { at := benchAgo(time.Second); p.DeletionTimestamp = &at }), "", ""},
		"topology": {
			newBench().node("a", 2).pod("p", "a", 1, endedBadly("TopologyAffinityError")), "sched.topology error", "",
		},
		"admission": {newBench().node("a",
			2).pod("p", "a", 1, endedBadly("UnexpectedAdmissionError"), func(p *corev1.Pod) {
			p.Status.Message =
				"Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected"
		}), "alloc.unexpected-admission error", "Requested: 1"},
		"admission, replaced": {newBench().node("a", 2).pod("p", "a", 1, owned("ReplicaSet", "r"), created(2*time.Hour),
			endedBadly("UnexpectedAdmissionError")).pod("q", "a", 1, owned("ReplicaSet", "r")),
			"alloc.unexpected-admission info", ""},
		"past the scheduler": {
			newBench().node("a", 2).pod("p", "a", 1, endedBadly("OutOfnvidia.com/gpu")),
			"alloc.unexpected-admission error", "spec.nodeName",
		},
		"unbalanced": {
			newBench().node("a",
				2).node("b", 2).pod("h", "a", 2).pod("p", "", 1, selector("kubernetes.io/hostname", "a")),
			"sched.all-in-use warning, sched.unbalanced warning", "kubernetes.io/hostname=a",
		},
		"packed, not tied": {newBench().node("a", 2).node("b", 2).pod("h", "a", 2), "", ""},
		"tied, nobody waits": {
			newBench().node("a", 2).node("b", 2).pod("h", "a", 2, selector("kubernetes.io/hostname", "a")),
			"sched.unbalanced info", "",
		},
	})
}

// TestPendingUnknown verifies that pods are not considered healthy if the user may not list them.
func TestPendingUnknown(t *testing.T) {
	t.Parallel()
	lines, all := newBench().node("a", 0).missing("api/pods").tell(t)
	for _, id := range []string{
		"sched.all-in-use", "sched.none-advertised", "sched.unbalanced", "alloc.unexpected-admission", "wl.pod-failing",
		"wl.exec-format", "wl.cpu-mode",
	} {
		if !slices.Contains(lines, id+" unknown") {
			t.Errorf("%s is not unknown without pods: %v", id, lines)
		}
	}
	if len(all) > 0 {
		t.Errorf("findings without pods: %+v", all)
	}
}

// TestSchedulingRoots verifies that each cause is one root cause, with the consequences that the graph groups under it.
func TestSchedulingRoots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bench *bench
		root  string
	}{
		"not ready": {newBench().node("a", 2, readiness(corev1.ConditionFalse, "KubeletNotReady",
			"container runtime is down")).pod("p", "", 1), "node.not-ready"},
		"cordoned": {newBench().node("a", 2, cordoned).pod("p", "", 1), "sched.node-state"},
		"unbalanced": {
			newBench().node("a",
				2).node("b", 2).pod("h", "a", 2).pod("p", "", 1, selector("kubernetes.io/hostname", "a")),
			"sched.unbalanced",
		},
		"format": {newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")).log("p",
			"exec /usr/bin/python3: exec format error"), "wl.exec-format"},
		"pull": {newBench().node("a", 2).pod("p", "a", 1,
			cannotPull("ErrImagePull", `failed to pull: dial tcp 1.2.3.4:443: i/o timeout`)), "img.pull-network"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Examine(&c.bench.Snapshot, Options{Checks: []string{"node.*", "sched.*", "wl.*", "img.*", "net.*"}})
			var roots []string
			for _, f := range r.Items {
				if f.Root && f.Severity != finding.Info {
					roots = append(roots, f.ID)
				}
			}
			if got := strings.Join(roots, " "); got != c.root {
				t.Errorf("the roots are %q, want %q: %+v", got, c.root, r.Items)
			}
		})
	}
}

// TestAllocationAddsUp verifies with random clusters that the numbers in the allocation view add up, that holders
// account for all usage, and that no pod for which doctor recommends waiting for GPUs would fit on an available node.
func TestAllocationAddsUp(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		b := newBench()
		for i := range 1 + random.IntN(6) {
			b.node(fmt.Sprint("n", i), int64(random.IntN(9)))
		}
		for i := range random.IntN(20) {
			n := b.Nodes[random.IntN(len(b.Nodes))]
			free := n.Status.Allocatable["nvidia.com/gpu"]
			left := free.Value()
			for _, p := range b.Pods {
				if p.Spec.NodeName == n.Name {
					left -= facts.GPURequests(&p)["nvidia.com/gpu"]
				}
			}
			if left > 0 {
				b.pod(fmt.Sprint("h", i), n.Name, 1+random.Int64N(left))
			}
		}
		for i := range random.IntN(5) {
			b.pod(fmt.Sprint("p", i), "", 1+random.Int64N(10))
		}
		f := facts.New(&b.Snapshot)
		view := scheduler.Allocation(f)
		most, open, total := int64(0), int64(0), int64(0)
		for _, n := range view.Nodes {
			for _, c := range n.Resources {
				held := int64(0)
				for _, h := range n.Holders {
					held += h.GPUs
				}
				if c.Used+c.Free != c.Allocatable || c.Used > c.Allocatable || c.Allocatable > c.Capacity ||
					held != c.Used {
					t.Fatalf("seed %d: node %s does not add up: %+v, held %d", seed, n.Node, c, held)
				}
				most, open, total = max(most, c.Allocatable), max(open, c.Free), total+c.Free
			}
		}
		for _, p := range scheduler.Pending(f) {
			want := facts.GPURequests(p.Pod)["nvidia.com/gpu"]
			expected := "sched.insufficient-gpu" // fits; the scheduler's message says otherwise
			switch {
			case most == 0:
				expected = "sched.none-advertised"
			case want > most:
				expected = "sched.bigger-than-any-node"
			case want > open && want > 1 && total >= want && enoughOn(view, want):
				expected = "sched.fragmented"
			case want > open:
				expected = "sched.all-in-use"
			}
			if p.Id != expected {
				t.Fatalf("seed %d: a pod that wants %d of (biggest node %d, most free %d, all free %d) is %s, want %s",
					seed, want, most, open, total, p.Id, expected)
			}
		}
	}
}

// enoughOn reports whether the nodes that are large enough have this many free GPUs in total.
func enoughOn(view scheduler.AllocationView, want int64) bool {
	sum := int64(0)
	for _, n := range view.Nodes {
		for _, c := range n.Resources {
			if c.Allocatable >= want {
				sum += c.Free
			}
		}
	}
	return sum >= want
}

// TestAllocationOfClaims verifies that allocated claims count as used by the pods for which they are reserved.
func TestAllocationOfClaims(t *testing.T) {
	t.Parallel()
	b := newBench().node("a", 0).pod("p", "a", 0)
	name := "a"
	b.ResourceSlices = []resourcev1.ResourceSlice{{Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: "a"},
		Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
	}}}
	b.ResourceClaims = []resourcev1.ResourceClaim{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim"},
		Status: resourcev1.ResourceClaimStatus{
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{
					{Driver: "gpu.nvidia.com", Pool: "a", Device: "gpu-0"},
				},
			}},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}},
		},
	}}
	view := scheduler.Allocation(facts.New(&b.Snapshot))
	want := scheduler.ResourceCounts{Resource: "gpu.nvidia.com", Capacity: 2, Allocatable: 2, Used: 1, Free: 1}
	if got := view.Nodes[0]; !slices.Contains(got.Resources, want) || len(got.Holders) != 1 ||
		got.Holders[0].Pod != "p" || got.Holders[0].GPUs != 1 {
		t.Errorf("node a is %+v, want %+v and the holder p", got, want)
	}
}
