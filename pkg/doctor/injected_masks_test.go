package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// openOn returns an open run on node a of the bench that began a minute ago.
func openOn(fault, summary string, targets ...snapshot.Target) snapshot.Run {
	if len(targets) == 0 {
		targets = []snapshot.Target{{Kind: "Node", Name: "a"}}
	}
	return snapshot.Run{
		ID: fault + "-1", Fault: fault, Summary: summary, By: "alice", Phase: "Proven",
		Created: benchNow().Add(-time.Minute),
		Until:   benchNow().Add(time.Hour), Revert: "kubectl gpu-fault revert " + fault + "-1", Targets: targets,
	}
}

// TestAnOpenRunHidesNothingElse verifies that a harmless open run does not hide real problems on its node. In an
// earlier version, an XID 31 hid all of these for half an hour.
func TestAnOpenRunHidesNothingElse(t *testing.T) {
	t.Parallel()
	runs := []snapshot.Run{
		openOn("xid", "XID 31 on GPU 0"),
		openOn("runtime", "containerd missing-handler (nvidia)"),
		openOn("runtime", "somebody else's words"),
		openOn("cuda", "out-of-memory", snapshot.Target{Kind: "Deployment", Namespace: "team", Name: "other"}),
		openOn("scenario", "an exercise", snapshot.Target{Kind: "Node", Name: "a"},
			snapshot.Target{Kind: "Namespace", Name: "lab"}),
	}
	waiting := func(reason, message string) podChange {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name:  "main",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
			}}
		}
	}
	for name, wrong := range map[string]func() *bench{
		"a program that ends with 3": func() *bench {
			return newBench().node("a", 2).pod("p", "a", 1, crashing(3, "Error")).log("p", "config file not found")
		},
		"an image that is not there": func() *bench {
			return newBench().node("a", 2).pod("p", "a", 1,
				waiting("ErrImagePull", `failed to pull and unpack image "r.example/x:1": not found`))
		},
		"a GPU that the plugin took away": func() *bench {
			return newBench().node("a", 2,
				func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1") })
		},
		"a pod that asks for too much": func() *bench { return newBench().node("a", 2).pod("p", "", 4) },
		"a program on the CPU": func() *bench {
			return newBench().node("a", 2).pod("p", "a", 1).head("p", "device: cpu")
		},
		"a real XID": func() *bench {
			return newBench().node("a", 2).kernel("a",
				"NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=python, GPU has fallen off the bus.")
		},
		"a cordon of an hour ago": func() *bench {
			return newBench().node("a", 2, func(n *corev1.Node) {
				n.Spec.Unschedulable = true
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
					Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
					TimeAdded: new(benchAgo(time.Hour)),
				})
			}).pod("p", "", 1)
		},
		"a node that is lost since an hour": func() *bench {
			return newBench().node("a", 2, func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: benchAgo(time.Hour)},
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			without := runtimeRoots(Examine(&wrong().Snapshot, Options{}))
			if without == "" {
				t.Fatalf("nothing is wrong here:\n%s", reportLines(Examine(&wrong().Snapshot, Options{})))
			}
			for _, run := range runs {
				b := wrong()
				b.Runs = []snapshot.Run{run}
				report := Examine(&b.Snapshot, Options{})
				got := strings.TrimSpace(strings.ReplaceAll(" "+runtimeRoots(report)+" ", " fault.injected ", " "))
				if got != without {
					t.Errorf("with an open run %s (%s) the roots are %q, without it %q:\n%s", run.ID, run.Summary, got,
						without, reportLines(report))
				}
			}
		})
	}
}

// TestAHarmlessXIDExplainsNoLostNode verifies that XID 79 explains a lost node and XID 31 does not: detectors reboot a
// node only for XID 79.
func TestAHarmlessXIDExplainsNoLostNode(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.":                    "fault.injected",
		"kernel: NVRM: Xid (PCI:0000:17:00): 31, pid=4242, name=python, Ch 00000008, intr 0000.": "fault.injected node.not-ready",
	} {
		b := newBench().node("a", 2, func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{
				{
					Type: corev1.NodeReady, Status: corev1.ConditionUnknown,
					LastTransitionTime: benchAgo(10 * time.Second),
				},
			}
		})
		b.Runs = []snapshot.Run{openOn("xid", "XID on GPU 0", snapshot.Target{
			Kind: "Node", Name: "a", Permanent: true,
			Evidence: []snapshot.RunEvidence{{Source: "/dev/kmsg sequence 4711", Text: line}},
		})}
		report := Examine(&b.Snapshot, Options{})
		if got := runtimeRoots(report); got != want {
			t.Errorf("%s: roots %q, wanted %q:\n%s", line, got, want, reportLines(report))
		}
	}
}

// TestAnOpenXIDExplainsWhatDetectorsMakeOfIt verifies that a run explains its line, the condition that quotes the line
// and the cordon that follows, but no other codes or GPUs, and no earlier problems.
func TestAnOpenXIDExplainsWhatDetectorsMakeOfIt(t *testing.T) {
	t.Parallel()
	open := closedXID()
	open.Phase, open.Closed, open.Until = "Proven", time.Time{}, hwNow.Add(time.Hour)
	line := func(sequence uint64, priority int, text string) api.KernelRecord {
		return api.KernelRecord{
			Sequence: sequence, Priority: priority, Text: text, Uptime: time.Hour, Time: hwNow.Add(-10 * time.Minute),
		}
	}
	ours := line(812, 12, ourXID79)
	cordoned := func(ago time.Duration) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = []corev1.Taint{
				{Key: corev1.TaintNodeUnschedulable, TimeAdded: new(metav1.NewTime(hwNow.Add(-ago)))},
			}
		}
	}
	condition := func(ago time.Duration, text string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Status.Conditions = append(n.Status.Conditions, quotes(ago, text)) }
	}
	for name, test := range map[string]struct {
		log  []api.KernelRecord
		edit func(*corev1.Node)
		want string
	}{
		"the line": {[]api.KernelRecord{ours}, nil, "fault.injected"},
		"the line of a module, in the driver's way": {
			[]api.KernelRecord{line(812, 3, strings.TrimPrefix(ourXID79, "kernel: "))}, nil, "fault.injected",
		},
		"the driver's line, too": {
			[]api.KernelRecord{ours, line(900, 3, strings.TrimPrefix(ourXID79, "kernel: "))}, nil,
			"fault.injected hw.gpu-lost",
		},
		"a condition that quotes it": {
			[]api.KernelRecord{ours}, condition(9*time.Minute, ourXID79), "fault.injected",
		},
		"the same, and the node was not read": {nil, condition(9*time.Minute, ourXID79), "fault.injected"},
		"a condition of before": {
			[]api.KernelRecord{ours}, condition(time.Hour, ourXID79), "fault.injected node.condition",
		},
		"a condition of another code": {
			[]api.KernelRecord{ours}, condition(9*time.Minute, strings.Replace(ourXID79, "79", "48", 1)),
			"fault.injected node.condition",
		},
		"a condition of another GPU": {
			[]api.KernelRecord{ours}, condition(9*time.Minute, strings.Replace(ourXID79, ":17:", ":3d:", 1)),
			"fault.injected node.condition",
		},
		"a cordon that follows": {
			[]api.KernelRecord{ours}, cordoned(9 * time.Minute), "fault.injected",
		},
		"a cordon of before": {
			[]api.KernelRecord{ours}, cordoned(time.Hour), "fault.injected sched.node-state",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var host *api.Diagnosis
			if test.log != nil {
				host = hwHost()
				host.KernelLog, host.Probe.Time = test.log, hwNow
			}
			s := hwSnapshot(host)
			s.Runs = []snapshot.Run{open}
			if test.edit != nil {
				test.edit(&s.Nodes[0])
			}
			report := Examine(s, Options{
				Checks: []string{"hw.gpu-lost", "hw.xid-recent", "fault.*", "node.condition", "sched.node-state"},
			})
			var roots []string
			for _, f := range report.Roots() {
				roots = append(roots, f.ID)
			}
			slices.Sort(roots)
			if got := strings.Join(slices.Compact(roots), " "); got != test.want {
				t.Errorf("the roots are %s, want %s:\n%s", got, test.want, reportLines(report))
			}
		})
	}
}

// TestLiveStateWins verifies that an event is outdated if the runtime now has the handler, and if the pod has been
// restarted since.
func TestLiveStateWins(t *testing.T) {
	t.Parallel()
	const missing = sandboxError + `failed to get sandbox runtime: no runtime for "nvidia" is configured`
	for name, test := range map[string]struct {
		handlers []string // of the node, by the API
		started  time.Time
		want     string
	}{
		"nobody knows better":                {nil, time.Time{}, "rt.handler-missing"},
		"the runtime has not got it":         {[]string{"", "runc"}, time.Time{}, "rt.handler-missing"},
		"the runtime has it":                 {[]string{"", "runc", "nvidia"}, time.Time{}, ""},
		"the runtime was started since":      {nil, runtimeTime.Add(-5 * time.Second), ""},
		"the runtime was started before it":  {nil, runtimeTime.Add(-time.Minute), "rt.handler-missing"},
		"when it was started nobody can say": {nil, time.Time{}, "rt.handler-missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := failsToStart(gpuCluster(api.Runtime{}), missing)
			for _, handler := range test.handlers {
				s.Nodes[0].Status.RuntimeHandlers = append(s.Nodes[0].Status.RuntimeHandlers,
					corev1.NodeRuntimeHandler{Name: handler})
			}
			f := facts.New(s)
			if !test.started.IsZero() {
				n := f.Node("gpu-1")
				n.Host = &api.Diagnosis{
					Probe: api.Probe{Units: []api.Unit{{Name: "containerd.service", PID: 7, Started: test.started}}},
				}
				n.View = &runtimeview.View{Runtime: &runtimeview.Instance{PID: 7}}
			}
			checks := Checks()
			i := slices.IndexFunc(checks, func(c engine.Check) bool { return c.ID == "rt.handler-missing" })
			r := &engine.Result{Check: checks[i]}
			r.Check.Run(f, r)
			got := ""
			if len(r.Findings) > 0 {
				got = r.Findings[0].ID
			}
			if got != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}
