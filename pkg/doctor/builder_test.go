package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/cluster"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/network"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/scheduling"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/workload"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// bench is a small cluster for the checks of the cluster, network, scheduling, access and workload layers.
type bench struct{ snapshot.Snapshot }

func benchNow() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

func benchAgo(d time.Duration) metav1.Time { return metav1.NewTime(benchNow().Add(-d)) }

func pieces(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

func gpus(n int64) corev1.ResourceList { return corev1.ResourceList{"nvidia.com/gpu": pieces(n)} }

func needs(list corev1.ResourceList) podChange {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = list }
}

type (
	podChange  = func(*corev1.Pod)
	nodeChange = func(*corev1.Node)
)

func newBench() *bench {
	b := &bench{}
	b.Meta = snapshot.Meta{Created: benchNow(), Server: "v1.36.3"}
	b.Hosts, b.Images = map[string]*api.Diagnosis{}, map[string]snapshot.Image{}
	return b
}

// node adds a Ready amd64 node with 8 CPUs, a GPU label, and count GPUs.
func (b *bench) node(name string, count int64, edits ...nodeChange) *bench {
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: benchAgo(240 * time.Hour),
			Labels: map[string]string{
				"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "nvidia.com/gpu.present": "true",
				"nvidia.com/gpu.product": "Tesla-T4",
			}},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: "amd64", KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.1.4",
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	list := corev1.ResourceList{
		"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110"),
		"nvidia.com/gpu": pieces(count),
	}
	n.Status.Capacity, n.Status.Allocatable = list.DeepCopy(), list.DeepCopy()
	for _, edit := range edits {
		edit(&n)
	}
	b.Nodes = append(b.Nodes, n)
	return b
}

// pod adds a pod that requests count GPUs. It runs on the node, or is waiting for a node if on is "".
func (b *bench) pod(name, on string, count int64, edits ...podChange) *bench {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, CreationTimestamp: benchAgo(time.Hour)},
		Spec:       corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "main", Image: "train:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	if count > 0 {
		p.Spec.Containers[0].Resources.Limits = gpus(count)
	}
	if on != "" {
		p.Status.Phase = corev1.PodRunning
		p.Status.StartTime = &p.CreationTimestamp
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "main", Image: "train:1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}
	} else {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
			Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
		}}
	}
	for _, edit := range edits {
		edit(&p)
	}
	b.Pods = append(b.Pods, p)
	return b
}

func (b *bench) event(kind, name, reason, message string, edits ...func(*corev1.Event)) *bench {
	e := corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "team", Name: name}, Reason: reason,
		Message: message, Type: corev1.EventTypeWarning,
		LastTimestamp: benchAgo(time.Minute),
	}
	for _, edit := range edits {
		edit(&e)
	}
	b.Events = append(b.Events, e)
	return b
}

func (b *bench) log(pod, text string) *bench {
	b.Logs = append(b.Logs, snapshot.Log{Namespace: "team", Pod: pod, Container: "main", Text: text})
	return b
}

// head sets the beginning of the container's log. container sets the end of another container's log.
func (b *bench) head(pod, text string) *bench {
	b.Logs = append(b.Logs, snapshot.Log{Namespace: "team", Pod: pod, Container: "main", Head: true, Text: text})
	return b
}

func (b *bench) container(name, text string) *bench {
	b.Logs = append(b.Logs, snapshot.Log{Namespace: "team", Pod: "p", Container: name, Text: text})
	return b
}

// previous sets the log of the container's previous instance.
func (b *bench) previous(pod, text string) *bench {
	b.Logs = append(b.Logs, snapshot.Log{Namespace: "team", Pod: pod, Container: "main", Previous: true, Text: text})
	return b
}

func (b *bench) missing(what string) *bench {
	b.Missing = append(b.Missing, snapshot.Missing{What: what, Why: "forbidden"})
	return b
}

func toldByScheduler(text string) podChange {
	return func(p *corev1.Pod) { p.Status.Conditions[0].Message = text }
}

func owned(kind, name string) podChange {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: "u-" + "1", Controller: &yes}}
	}
}

func created(ago time.Duration) podChange {
	return func(p *corev1.Pod) { p.CreationTimestamp = benchAgo(ago); p.Status.StartTime = &p.CreationTimestamp }
}

func inState(s corev1.ContainerState, last corev1.ContainerState) podChange {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "main", State: s, LastTerminationState: last, RestartCount: 5},
		}
		p.Status.Conditions = nil
	}
}

func exitedWith(code int32, reason string) corev1.ContainerState {
	return corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: benchAgo(time.Minute)},
	}
}

func inWaiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// crashing returns a container in CrashLoopBackOff.
func crashing(code int32, reason string) podChange {
	return inState(inWaiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"), exitedWith(code, reason))
}

// endedBadly makes a pod fail without being restarted.
func endedBadly(reason string) podChange {
	return func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Conditions, p.Status.ContainerStatuses = corev1.PodFailed, reason,
			nil, nil
	}
}

func cannotPull(reason, message string) podChange {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		inState(inWaiting(reason, message), corev1.ContainerState{})(p)
	}
}

func tainted(key, value string) nodeChange {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints,
			corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func readiness(status corev1.ConditionStatus, reason, message string) nodeChange {
	return func(n *corev1.Node) {
		n.Status.Conditions[0] = corev1.NodeCondition{
			Type: corev1.NodeReady, Status: status, Reason: reason, Message: message,
		}
	}
}

func reports(kind, reason, message string, status corev1.ConditionStatus) nodeChange {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{
				Type: corev1.NodeConditionType(kind), Status: status, Reason: reason, Message: message,
			})
	}
}

func gives(name string, capacity, allocatable int64) nodeChange {
	return func(n *corev1.Node) {
		n.Status.Capacity[corev1.ResourceName(name)], n.Status.Allocatable[corev1.ResourceName(name)] =
			pieces(capacity),
			pieces(allocatable)
	}
}

func selector(key, value string) podChange {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

// tell returns the results of the checks under test as "ID severity" and "ID unknown", sorted.
func (b *bench) tell(t *testing.T) ([]string, []finding.Finding) {
	t.Helper()
	var lines []string
	var all []finding.Finding
	f := facts.New(&b.Snapshot)
	var results []*engine.Result
	for _, c := range slices.Concat(
		cluster.Checks(), network.Checks(), scheduling.Checks(), access.Checks(), workload.Checks(),
	) {
		r := &engine.Result{Check: c}
		c.Run(f, r)
		r.Name(f)
		results = append(results, r)
	}
	engine.Prune(results)
	for _, r := range results {
		c := r.Check
		for _, found := range r.Findings {
			if found.ID != c.ID {
				t.Errorf("check %s makes a finding of ID %s: nothing can explain that", c.ID, found.ID)
			}
			if found.Title == "" || found.Fix.Text == "" || len(found.Evidence) == 0 || found.Evidence[0].Text == "" ||
				found.Object.Kind == "" {
				t.Errorf("finding of %s lacks its title, fix, evidence or object: %+v", c.ID, found)
			}
			lines = append(lines, fmt.Sprintf("%s %s", found.ID, found.Severity))
			all = append(all, found)
		}
		if len(r.Unknowns) > 0 {
			lines = append(lines, c.ID+" unknown")
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines), all
}

type benchCase struct {
	bench *bench
	want  string // lines of tell, those that begin with net.egress-blocked unknown and wl.idle-holder unknown left out
	text  string // in a finding's evidence, title or fix
}

func runBench(t *testing.T, cases map[string]benchCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, all := c.bench.tell(t)
			lines = slices.DeleteFunc(lines, func(l string) bool { // no node was read
				return len(c.bench.Hosts) == 0 && (l == "net.egress-blocked unknown" || l == "wl.idle-holder unknown")
			})
			if got := strings.Join(lines, ", "); got != c.want {
				t.Errorf("doctor says\n  %s, want\n  %s\n%+v", got, c.want, all)
			}
			if text := fmt.Sprintf("%+v", all); c.text != "" && !strings.Contains(text, c.text) {
				t.Errorf("no finding says %q:\n%s", c.text, text)
			}
		})
	}
}
