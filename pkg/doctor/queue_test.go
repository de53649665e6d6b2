package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// TestQueueOfKAI verifies that a pod that KAI Scheduler skips without a reason is explained by its queue, as far as the
// cluster's queues show it.
func TestQueueOfKAI(t *testing.T) {
	t.Parallel()
	queue := func(name, parent string) unstructured.Unstructured {
		u := unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "spec": map[string]any{"parentQueue": parent},
		}}
		u.SetName(name)
		return u
	}
	inQueue := func(p *corev1.Pod) {
		p.Labels = map[string]string{"kai.scheduler/queue": "train"}
		p.Status.Conditions[0].Message = "Unable to schedule pod"
	}
	for want, queues := range map[string][]unstructured.Unstructured{
		"kai-queue-not-a-leaf":     nil, // the queues were not read
		"queue-missing":            {queue("other", "root"), queue("root", "")},
		"queue-is-a-parent":        {queue("train", "root"), queue("root", ""), queue("small", "train")},
		"kai-queue-without-parent": {queue("train", ""), queue("other", "root"), queue("root", "")},
	} {
		b := newBench().node("n", 8).pod("p", "", 1, inQueue)
		b.Queues = queues
		if _, all := b.tell(t); !signed(all, want) {
			t.Errorf("want %s: %+v", want, all)
		}
	}
	b := newBench().node("n", 8).pod("p", "", 1, inQueue)
	b.Queues = []unstructured.Unstructured{queue("train", "root"), queue("root", "")}
	_, all := b.tell(t)
	for _, id := range []string{"queue-missing", "queue-is-a-parent", "kai-queue-without-parent"} {
		if signed(all, id) {
			t.Errorf("a sound queue is the cause, by %s: %+v", id, all)
		}
	}
}

// TestQueuedWork verifies that GPU work without pods is explained by its queue or by messages from its scheduler, and
// that work that is waiting for its turn is not reported as a problem.
func TestQueuedWork(t *testing.T) {
	t.Parallel()
	const (
		workload = "{apiVersion: kueue.x-k8s.io/v1beta1, kind: Workload, metadata: {name: w, namespace: ml," +
			" creationTimestamp: '2020-01-01T00:00:00Z'}, spec: {queueName: q, podSets: [{name: main, count: 2, template: " +
			"{spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 4}}}]}}}]}, status: {%s}}"
		local = "{apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, metadata: {name: q, namespace: ml}, " +
			"spec: {clusterQueue: cq}}"
		cluster = "{apiVersion: kueue.x-k8s.io/v1beta1, kind: ClusterQueue, metadata: {name: cq}, status: {%s}}"
		group   = "{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: g, namespace: ml," +
			" creationTimestamp: '2020-01-01T00:00:00Z'}, spec: {queue: q, minResources: {nvidia.com/gpu: 8, cpu: '2'}}, " +
			"status: {%s}}"
		queueName = "kueue.x-k8s.io/queue-name: q"
		job       = "{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: ml, labels: {" + queueName +
			"}, creationTimestamp: '2020-01-01T00:00:00Z'}, spec: {suspend: true, template: {spec: {containers: " +
			"[{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}}}"
		queue    = "{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: %s}, spec: {%s}, status: {%s}}"
		pending  = "conditions: [{type: QuotaReserved, status: 'False', message: %q}]"
		noFit    = `topology "t" doesn't allow to fit any of 2 pod(s). Total nodes: 1; excluded: resource "nvidia.com/gpu": 1`
		admitted = "admission: {clusterQueue: cq, podSetAssignments: [{resourceUsage: {nvidia.com/gpu: '8'}}]}, " +
			"conditions: [{type: Admitted, status: 'True', message: x}]"
		inactive = "conditions: [{type: Active, status: 'False', message: %q}]"
	)
	say := func(format string, args ...any) string { return fmt.Sprintf(format, args...) }
	for name, tc := range map[string]struct {
		queues, queued []string
		want           string // a signature, "full" if it waits for its turn, or "" if no finding is expected
	}{
		"no LocalQueue, in Kueue's words": {
			nil, []string{say(workload, say(pending, "LocalQueue q doesn't exist"))}, "kueue-queue-missing",
		},
		"no LocalQueue, compared": {
			[]string{strings.Replace(local, "name: q", "name: other", 1)}, []string{say(workload, "")},
			"kueue-queue-missing",
		},
		"a suspended Job without a Workload": {[]string{local}, []string{job}, "job-suspended-without-workload"},
		"a Job that its user suspended":      {nil, []string{strings.Replace(job, queueName, "a: b", 1)}, ""},
		"a Job that runs":                    {nil, []string{strings.Replace(job, "suspend: true", "suspend: false", 1)}, ""},
		"a Job with a Workload": {
			[]string{local}, []string{job, strings.Replace(say(workload, admitted), "{name: w,",
				"{name: w, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: j, uid: u}],", 1)}, "",
		},
		"no name of a queue": {
			[]string{local},
			[]string{strings.Replace(say(workload, say(pending, "LocalQueue  doesn't exist")), "queueName: q, ", "", 1)},
			"kueue-work-names-no-queue",
		},
		"no ClusterQueue": {
			[]string{local, strings.Replace(say(cluster, ""), "name: cq", "name: other", 1)},
			[]string{say(workload, "")},
			"kueue-queue-missing",
		},
		"the ClusterQueue names a missing flavor": {
			[]string{local, say(cluster, say(inactive,
				"Can't admit new workloads: references missing ResourceFlavor(s): h100."))},
			[]string{say(workload, say(pending, "ClusterQueue cq is inactive"))}, "kueue-clusterqueue-incomplete",
		},
		"the ClusterQueue is stopped": {
			[]string{local, say(cluster, say(inactive, "Can't admit new workloads: is stopped."))},
			[]string{say(workload, say(pending, "ClusterQueue cq is inactive"))}, "kueue-queue-stopped",
		},
		"the workload is deactivated": {
			nil, []string{say(workload, "conditions: [{type: Evicted, status: 'True', "+
				"message: The workload is deactivated due to exceeding the maximum number of re-queuing retries}]")},
			"kueue-workload-deactivated",
		},
		"Kueue does not run": {nil, []string{say(workload, "")}, "queue-controller-silent"},
		"the quota is in use": {
			[]string{local, say(cluster, "")},
			[]string{say(workload, say(pending, "couldn't assign flavors to pod set main: "+
				"insufficient unused quota for nvidia.com/gpu in flavor h100, 6 more needed"))}, "full",
		},
		"an admitted workload": {
			nil, []string{say(workload, "conditions: [{type: Admitted, status: 'True', message: x}]")}, "",
		},
		"without GPUs": {
			nil, []string{strings.Replace(say(workload, say(pending, "LocalQueue q doesn't exist")),
				"nvidia.com/gpu", "cpu", 1)}, "",
		},
		"no queue of Volcano": {
			[]string{say(queue, "other", "", "state: Open")}, []string{say(group, "phase: Pending")}, "queue-missing",
		},
		"a closed queue": {
			[]string{say(queue, "q", "", "state: Closed")}, []string{say(group, "phase: Pending")},
			"volcano-queue-closed",
		},
		"a queue with queues below it": {
			[]string{say(queue, "q", "", "state: Open"), say(queue, "child", "parent: q", "state: Open")},
			[]string{say(group, "phase: Pending")}, "queue-is-a-parent",
		},
		"a queue that is too small": {
			[]string{say(queue, "q", "capability: {nvidia.com/gpu: 4}", "state: Open")},
			[]string{say(group, "phase: Pending")}, "volcano-queue-too-small",
		},
		"a gang without all its pods": {
			nil, []string{strings.Replace(say(group, "phase: Inqueue"), "queue: q,", "queue: q, minMember: 2,", 1)},
			"gang-without-all-pods",
		},
		"pods outside of Kueue hold the nodes": {
			[]string{local, say(cluster, "")}, []string{say(workload, say(pending, noFit))}, "kueue-nodes-held-outside",
		},
		"the quota never binds": {
			[]string{local, strings.Replace(say(cluster, ""), "status", "spec: {resourceGroups: [{flavors: "+
				"[{resources: [{name: nvidia.com/gpu, nominalQuota: '1000'}]}]}]}, status", 1)},
			[]string{
				strings.Replace(say(workload, say(pending, noFit)), "queueName", "priority: 10, queueName", 1),
				strings.Replace(say(workload, admitted), "name: w", "name: runs", 1),
			},
			"kueue-quota-never-binds",
		},
		"work of a flavor without GPUs holds the processors": {
			[]string{local, strings.Replace(say(cluster, ""), "status", "spec: {resourceGroups: [{flavors: "+
				"[{name: cpu, resources: [{name: nvidia.com/gpu, nominalQuota: '0'}]}]}]}, status", 1)},
			[]string{
				strings.NewReplacer("queueName", "priority: 10, queueName", "{nvidia.com/gpu: 4}",
					"{nvidia.com/gpu: 4, cpu: 9}").Replace(
					say(workload, say(pending, strings.Replace(noFit, "nvidia.com/gpu", "cpu", 1)))),
				strings.NewReplacer("name: w", "name: runs", "{nvidia.com/gpu: '8'}", "{cpu: 90}, flavors: {cpu: cpu}").
					Replace(say(workload, admitted)),
			},
			"kueue-flavor-without-gpus-on-gpu-nodes",
		},
		"work behind a head that waits, in order": {
			[]string{local, strings.Replace(say(cluster, ""), "status", "spec: {queueingStrategy: StrictFIFO, "+
				"resourceGroups: [{flavors: [{name: b200, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]}]}, "+
				"status", 1)},
			[]string{
				strings.Replace(say(workload, say(pending, "insufficient unused quota for nvidia.com/gpu in flavor b300, "+
					"8 more needed")), "name: w", "name: head", 1),
				say(workload, ""),
			},
			"kueue-strict-fifo",
		},
		"a queue that deserves GPUs alone": {
			[]string{say(queue, "q", "deserved: {nvidia.com/gpu: 8}", "state: Open, allocated: {nvidia.com/gpu: '0'}")},
			[]string{say(group, "phase: Pending")}, "volcano-deserved-incomplete",
		},
		"quota is held without pods": {
			[]string{local, say(cluster, "")},
			[]string{
				say(workload, say(pending, "insufficient unused quota for nvidia.com/gpu in flavor h100, 6 more needed")),
				strings.Replace(say(workload, admitted), "name: w", "ownerReferences: [{kind: Job, name: lost}], name: runs", 1),
			},
			"kueue-quota-without-pods",
		},
		"quota is held by pods": {
			[]string{local, say(cluster, "")},
			[]string{
				say(workload, say(pending, "insufficient unused quota for nvidia.com/gpu in flavor h100, 6 more needed")),
				strings.Replace(say(workload, admitted), "name: w", "ownerReferences: [{kind: Job, name: held}], name: runs", 1),
			},
			"full",
		},
		"a full queue": {
			[]string{say(queue, "q", "capability: {nvidia.com/gpu: 8}", "state: Open, allocated: {nvidia.com/gpu: 2}")},
			[]string{say(group, "phase: Pending")}, "full",
		},
		"a sound queue":    {[]string{say(queue, "q", "", "state: Open")}, []string{say(group, "phase: Inqueue")}, ""},
		"a gang that runs": {nil, []string{say(group, "phase: Running")}, ""},
		"shapes of no sort": {
			[]string{"{kind: Queue}"}, []string{"{kind: Workload, status: {conditions: [1]}, spec: {podSets: [x]}}"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench().node("n", 8)
			switch want := tc.want; {
			case want == "kueue-nodes-held-outside":
				b = b.pod("other", "n", 8)
			case want == "gang-without-all-pods":
				b = b.pod("member", "", 1, func(p *corev1.Pod) {
					p.Namespace, p.Annotations = "ml", map[string]string{"scheduling.k8s.io/group-name": "g"}
					p.Status.Conditions[0].Message = "2/1 tasks in gang unschedulable: pod group is not ready"
				})
			case name == "quota is held by pods":
				b = b.pod("held-0", "n", 8, func(p *corev1.Pod) { p.Namespace = "ml" })
			}
			for texts, into := range map[*[]string]*[]unstructured.Unstructured{
				&tc.queues: &b.Queues, &tc.queued: &b.Queued,
			} {
				for _, text := range *texts {
					var object map[string]any
					raw, err := yaml.YAMLToJSON([]byte(text))
					if err == nil {
						err = utiljson.Unmarshal(raw, &object)
					}
					if err != nil {
						t.Fatal(err)
					}
					*into = append(*into, unstructured.Unstructured{Object: object})
				}
			}
			report, all := b.tell(t)
			switch {
			case tc.want != "" && tc.want != "full" && !signed(all, tc.want):
				t.Errorf("want %s: %+v", tc.want, all)
			case tc.want == "" && len(all) > 0,
				tc.want == "full" && (len(all) != 1 || all[0].Severity != finding.Info):
				t.Errorf("%+v, %+v", report, all)
			}
		})
	}
}

// TestOtherNodePool verifies that a finding names the node pool of the pod's KAI Scheduler queue, and that a pod whose
// binding fails is not reported as ignored by all schedulers.
func TestOtherNodePool(t *testing.T) {
	t.Parallel()
	b := newBench().node("n", 8).pod("p", "", 1, func(p *corev1.Pod) {
		p.Labels = map[string]string{"kai.scheduler/queue": "train"}
		p.Status.Conditions[0].Message = "QueueDoesNotExist: Queue 'train' does not exist."
	})
	q := unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "spec": map[string]any{"parentQueue": "root"},
	}}
	q.SetName("train")
	q.SetLabels(map[string]string{"kai.scheduler/node-pool": "workers"})
	b.Queues = []unstructured.Unstructured{q}
	if _, all := b.tell(t); !signed(all, "kai-node-pool-label-missing") {
		t.Errorf("%+v", all)
	}

	b = newBench().node("n", 8).pod("p", "", 1, func(p *corev1.Pod) {
		p.Spec.SchedulerName, p.Status.Conditions = "kai-scheduler", nil
	}).event("Pod", "p", "BindingError", `Failed to bind pod ml/p to node n: admission webhook "x" denied the request`)
	if lines, all := b.tell(t); !slices.Contains(lines, "sched.unschedulable error") {
		t.Errorf("%v: %+v", lines, all)
	}
}

// TestPinnedByKueue verifies that a pod that Kueue assigned to a full node is reported if another node has enough free
// GPUs.
func TestPinnedByKueue(t *testing.T) {
	t.Parallel()
	pinned := func(p *corev1.Pod) {
		p.Labels = map[string]string{"kueue.x-k8s.io/tas": "true"}
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "full"}
	}
	hostname := func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelHostname: n.Name, "nvidia.com/gpu.present": "true"}
	}
	b := newBench().node("full", 8, hostname).node("empty", 8, hostname)
	b = b.pod("holder", "full", 8).pod("p", "", 8, pinned)
	_, all := b.tell(t)
	if !slices.ContainsFunc(all, func(f finding.Finding) bool {
		return strings.Contains(f.Title, "Kueue has assigned the pod to node full") && f.Severity == finding.Error
	}) {
		t.Errorf("%+v", all)
	}
}

// TestFailingPlacers verifies that a failing queue controller is reported while GPU work is waiting, and that other
// schedulers and tenants' pods are not mistaken for one.
func TestFailingPlacers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		namespace, name string
		want            bool
	}{
		{"kueue-system", "kueue-controller-manager-1", true},
		{"ml", "kueue-controller-manager-1", false}, // the namespace of the waiting work
		{"data", "dask-scheduler-1", false},
	} {
		b := newBench().node("n", 8).pod(tc.name, "n", 0, func(p *corev1.Pod) {
			p.Namespace = tc.namespace
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name:  "manager",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			}}
		})
		work := unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
			"spec": map[string]any{"minResources": map[string]any{"nvidia.com/gpu": "8"}},
		}}
		work.SetName("g")
		work.SetNamespace("ml")
		b.Queued = []unstructured.Unstructured{work}
		_, all := b.tell(t)
		if got := slices.ContainsFunc(all, func(f finding.Finding) bool {
			return f.ID == "sched.queued" && f.Object.Name == tc.name
		}); got != tc.want {
			t.Errorf("%s/%s: reported %v: %+v", tc.namespace, tc.name, got, all)
		}
	}
}
