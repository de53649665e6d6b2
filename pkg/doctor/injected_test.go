package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/injected"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

const xid79 = "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=python, GPU has fallen off the bus."

// openRun returns an open run with the fault, whose changes are in place.
func openRun(fault string) snapshot.Run {
	run := snapshot.Run{
		ID: "run-1", Fault: fault, Summary: "a fault", By: "alice", Phase: "Proven",
		Created: runtimeTime.Add(-5 * time.Minute), Until: runtimeTime.Add(time.Hour),
		Revert: "kubectl gpu-fault revert run-1", Targets: []snapshot.Target{{Kind: "Node", Name: "gpu-1"}},
	}
	switch fault {
	case "xid":
		run.Targets[0].Permanent = true
		run.Targets[0].Evidence = []snapshot.RunEvidence{
			{Source: "kernel log of node gpu-1, sequence 812", Text: xid79},
		}
	case "cuda":
		run.Targets = []snapshot.Target{{Kind: "Deployment", Namespace: "gpu", Name: "train"}}
	}
	return run
}

func kernelLog(records ...api.KernelRecord) map[string]*api.Diagnosis {
	return map[string]*api.Diagnosis{"gpu-1": {KernelLog: records}}
}

// carrierOf makes the training pod crash and contain a run's CUDA fault.
func carrierOf(s *snapshot.Snapshot) *snapshot.Snapshot {
	pod := &s.Pods[len(s.Pods)-1]
	pod.Labels = map[string]string{"app": "train", "gpufault.dev/run": "run-1"}
	pod.Spec.Volumes = []corev1.Volume{{Name: "gpu-fault-lib", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "gpu-fault-run-1"},
		},
	}}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "LD_PRELOAD", Value: "/gpu-fault/lib/libgpufault.so:/usr/lib/libtcmalloc.so"},
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 4,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", FinishedAt: metav1.NewTime(runtimeTime.Add(-time.Minute)),
		}},
	}}
	return s
}

// TestInjected verifies that an active fault is the root cause of all its effects, with the command that reverts it,
// and that the cluster is diagnosed as usual if the run is unknown.
func TestInjected(t *testing.T) {
	t.Parallel()
	missing := func() *snapshot.Snapshot {
		return failsToStart(gpuCluster(api.Runtime{}),
			sandboxError+`failed to get sandbox runtime: no runtime for "nvidia" is configured`)
	}
	for name, test := range map[string]struct {
		snapshot *snapshot.Snapshot
		run      snapshot.Run
		want     string // roots
		unknown  string // roots, when nobody knows of the run
	}{
		"a handler was taken away": {missing(), openRun("runtime"), "fault.injected", "rt.handler-missing"},
		"on another node": {missing(), func() snapshot.Run {
			run := openRun("runtime")
			run.Targets[0].Name = "gpu-2"
			return run
		}(), "fault.injected rt.handler-missing", "rt.handler-missing"},
		"the time is up": {missing(), func() snapshot.Run {
			run := openRun("runtime")
			run.Until = runtimeTime.Add(-time.Second)
			return run
		}(), "rt.handler-missing", "rt.handler-missing"},
		"it was only planned": {missing(), func() snapshot.Run {
			run := openRun("runtime")
			run.Phase = "Planned"
			return run
		}(), "rt.handler-missing", "rt.handler-missing"},
		"what --fix made is no fault": {missing(), func() snapshot.Run {
			run := openRun("runtime")
			run.Fault = "fix"
			return run
		}(), "rt.handler-missing", "rt.handler-missing"},
		"CUDA fails in a pod": {
			carrierOf(gpuCluster(api.Runtime{})), openRun("cuda"), "fault.injected", "wl.cuda-preload",
		},
		"CUDA fails in no pod": {
			missing(), openRun("cuda"), "fault.injected rt.handler-missing", "rt.handler-missing",
		},
		"nothing is wrong by it": {gpuCluster(api.Runtime{}), openRun("runtime"), "fault.injected", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := test.snapshot
			s.Runs = []snapshot.Run{test.run}
			report := Examine(s, Options{})
			if got := runtimeRoots(report); got != test.want {
				t.Errorf("the roots are %q, want %q:\n%s", got, test.want, reportLines(report))
			}
			for _, f := range report.Items {
				if f.ID == "fault.injected" &&
					(f.Object != finding.Object{Kind: "Run", Name: "run-1"} ||
						!slices.Contains(f.Fix.Commands, test.run.Revert)) {
					t.Errorf("the run is %v, and ends with %v", f.Object, f.Fix.Commands)
				}
			}
			report = Examine(s, Options{IgnoreInjected: true})
			if got := runtimeRoots(report); got != test.unknown {
				t.Errorf("when nobody knows of the run the roots are %q, want %q:\n%s", got, test.unknown,
					reportLines(report))
			}
		})
	}
}

// TestOwnEventsAreNoProblems verifies that events announcing this tool's faults are never reported. They quote errors
// that did not really occur, and remain for an hour after a fault has been reverted. The same message from another
// component is reported.
func TestOwnEventsAreNoProblems(t *testing.T) {
	t.Parallel()
	const message = "CUDA_ERROR_LAUNCH_FAILED: running processes 719 (sticky): load the CUDA shim into " +
		"deployment.apps/train, by kubectl gpu-fault run cuda-1 of alice"
	announced := func(component string) *snapshot.Snapshot {
		b := newBench().node("a", 2).pod("train-1", "a", 1).
			event("Deployment", "train", "GPUFaultInjected", message).
			event("Pod", "train-1", "GPUFaultInjected", message).
			event("Node", "a", "GPUFaultInjected", xid79)
		for i := range b.Events {
			b.Events[i].Source.Component = component
		}
		return &b.Snapshot
	}
	for _, options := range []Options{{}, {IgnoreInjected: true}} {
		if report := Examine(announced("kubectl-gpu-fault"), options); runtimeRoots(report) != "" {
			t.Errorf("%+v: the roots are %q:\n%s", options, runtimeRoots(report), reportLines(report))
		}
	}
	if report := Examine(announced("trainer"), Options{}); !strings.Contains(runtimeRoots(report), "wl.message") {
		t.Errorf("another component's events: the roots are %q:\n%s", runtimeRoots(report), reportLines(report))
	}
}

// TestExerciseIsTheOnlyRoot verifies that an open exercise is the only root cause of all problems in its own
// namespaces, including self-evident ones (quotas, images, selectors), and of none elsewhere.
func TestExerciseIsTheOnlyRoot(t *testing.T) {
	t.Parallel()
	run := snapshot.Run{
		ID: "scenario-1", Fault: finding.AsScenario, Summary: "exercise x", By: "alice", Phase: "Proven",
		Created: benchNow().Add(-time.Minute),
		Targets: []snapshot.Target{
			{Kind: "Namespace", Name: "team"}, {Kind: "Namespace", Name: "team"},
			{Kind: "ConfigMap", Namespace: "team", Name: "c"}, {Kind: "Namespace", Name: "accounts-1"},
		},
	}
	elsewhere := func(b *bench) *bench {
		for i := range b.Pods {
			b.Pods[i].Namespace = "other"
		}
		for i := range b.Events {
			b.Events[i].InvolvedObject.Namespace = "other"
		}
		for i := range b.Logs {
			b.Logs[i].Namespace = "other"
		}
		return b
	}
	for name, make := range map[string]struct {
		bench func() *bench
		root  string // when nobody knows of the run
	}{
		"quota": {func() *bench {
			return newBench().node("a", 2).event("ReplicaSet", "train-1", "FailedCreate",
				`Error creating: pods "train-1-x" is forbidden: exceeded quota: tenant, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1`)
		}, "rbac.quota"},
		"too many": {func() *bench { return newBench().node("a", 2).pod("p", "", 4) }, "sched.bigger-than-any-node"},
		"memory": {func() *bench {
			return newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")).log("p",
				"torch.OutOfMemoryError: CUDA out of memory.")
		}, "wl.cuda-oom"},
		"exec format": {func() *bench {
			return newBench().node("a",
				2).pod("p", "a", 1, crashing(1, "Error")).log("p", "exec /bin/x: exec format error")
		}, "wl.exec-format"},
		"one node full": {func() *bench {
			tied := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "a"} }
			return newBench().node("a", 2).node("b", 2).pod("h", "a", 2, tied).pod("p", "", 1, tied)
		}, "sched.unbalanced"},
		"on the CPU": {
			func() *bench { return newBench().node("a", 2).pod("p", "a", 1).head("p", "device: cpu") }, "wl.cpu-mode",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			known := make.bench()
			known.Runs = []snapshot.Run{run}
			report := Examine(&known.Snapshot, Options{})
			if got := runtimeRoots(report); got != "fault.injected" {
				t.Errorf("the roots are %q\n%s", got, reportLines(report))
			}
			if got := runtimeRoots(Examine(&known.Snapshot, Options{IgnoreInjected: true})); got != make.root {
				t.Errorf("when nobody knows of the run the roots are %q, want %s", got, make.root)
			}
			other := elsewhere(make.bench())
			other.Runs = []snapshot.Run{run}
			if got := runtimeRoots(Examine(&other.Snapshot, Options{})); got != "fault.injected "+make.root {
				t.Errorf("of what is wrong elsewhere the roots are %q", got)
			}
		})
	}
	b := newBench().node("a", 2).pod("p", "a", 1).pod("q", "a", 1)
	found := injected.Injected(facts.New(&b.Snapshot), run)
	if len(found.Evidence) != 2 || found.Evidence[1].Text != "p, q" ||
		!strings.HasSuffix(found.Title, "on Namespace team, ConfigMap team/c, Namespace accounts-1") {
		t.Errorf("%s: %+v", found.Title, found.Evidence)
	}
}

// TestExerciseHidesNoHardware verifies that the driver's own reports about a GPU are not attributed to an exercise.
func TestExerciseHidesNoHardware(t *testing.T) {
	t.Parallel()
	s := gpuCluster(api.Runtime{})
	s.Hosts = kernelLog(api.KernelRecord{Sequence: 5, Text: xid79, Time: runtimeTime.Add(-time.Minute)})
	s.Runs = []snapshot.Run{{
		ID: "scenario-1", Fault: finding.AsScenario, Phase: "Proven", Created: runtimeTime,
		Targets: []snapshot.Target{{Kind: "Node", Name: "gpu-1"}, {Kind: "Namespace", Name: "gpu"}},
	}}
	if got := runtimeRoots(Examine(s, Options{})); !strings.Contains(got, "hw.") ||
		!strings.Contains(got, "fault.injected") {
		t.Errorf("the roots are %q", got)
	}
}

// TestExerciseOfARuntimeClass verifies that a node's missing handler is attributed to an exercise if the exercise's own
// RuntimeClass requires it for the exercise's own pods, but not if other pods also lack it, or lack it through another
// RuntimeClass.
func TestExerciseOfARuntimeClass(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ namespace, class, want string }{
		"its own class and pods": {"gpu", "nvidia", "fault.injected"},
		"pods of others":         {"team", "nvidia", "fault.injected rt.handler-missing"},
		"another class":          {"gpu", "lab", "fault.injected rt.handler-missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := failsToStart(gpuCluster(api.Runtime{}),
				sandboxError+`failed to get sandbox runtime: no runtime for "nvidia" is configured`)
			s.Runs = []snapshot.Run{{
				ID: "scenario-1", Fault: finding.AsScenario, Phase: "Proven", Created: runtimeTime,
				Targets: []snapshot.Target{
					{Kind: "Namespace", Name: test.namespace}, {Kind: "RuntimeClass", Name: test.class},
				},
			}}
			if report := Examine(s, Options{}); runtimeRoots(report) != test.want {
				t.Errorf("the roots are %q, want %q:\n%s", runtimeRoots(report), test.want, reportLines(report))
			}
		})
	}
}

// TestInjectedXID verifies that an injected XID is proven by the record in the node's kernel log, and is no longer in
// place when the record is gone.
func TestInjectedXID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hosts map[string]*api.Diagnosis
		want  string
	}{
		"the record is there": {
			kernelLog(api.KernelRecord{Sequence: 812, Text: xid79}), "fault.injected",
		},
		"the node was not read":              {nil, "fault.injected"},
		"without sequences, as dmesg prints": {kernelLog(api.KernelRecord{Text: xid79}), "fault.injected"},
		"the node was started anew": {
			kernelLog(api.KernelRecord{Sequence: 812, Text: "something else"}), "fault.recorded",
		},
		"the same words, of somebody else": {
			kernelLog(api.KernelRecord{Sequence: 5, Text: xid79}), "fault.recorded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gpuCluster(api.Runtime{})
			s.Hosts, s.Runs = test.hosts, []snapshot.Run{openRun("xid")}
			report := Examine(s, Options{Checks: []string{"fault.*"}})
			if len(report.Items) != 1 || report.Items[0].ID != test.want {
				t.Fatalf("found\n%s\nwant %s", reportLines(report), test.want)
			}
			if test.want == "fault.injected" &&
				!strings.Contains(report.Items[0].Evidence[1].Text, "fallen off the bus") {
				t.Errorf("the line is not quoted: %+v", report.Items[0].Evidence)
			}
		})
	}
}

// TestPreloaded verifies that the remains of fault injections in pods are found without a record, and are only a
// warning while the pod works.
func TestPreloaded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   finding.Severity
	}{
		"nothing": {func(*corev1.Pod) {}, ""},
		"another library": {func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/usr/lib/libtcmalloc.so"}}
		}, ""},
		"ours, and it works": {func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{
				{Name: "LD_PRELOAD", Value: "/gpu-fault/lib/$PLATFORM/libgpufault.so"},
			}
		}, finding.Warning},
		"Dynamo's, and it works": {func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{
				{Name: "LD_PRELOAD", Value: "/cuda-fault/cuda_intercept.so"}, {Name: "CUDA_XID_TYPE", Value: "79"},
			}
		}, finding.Warning},
		"Dynamo's, and it fails": {func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{
				{Name: "LD_PRELOAD", Value: "/lib/a.so /tmp/fake_cuda_xid79.so"},
			}
			pod.Status.Phase = corev1.PodFailed
		}, finding.Error},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gpuCluster(api.Runtime{})
			test.change(&s.Pods[len(s.Pods)-1])
			report := Examine(s, Options{Checks: []string{"wl.cuda-preload"}})
			var got finding.Severity
			if len(report.Items) > 0 {
				got = report.Items[0].Severity
			}
			if got != test.want {
				t.Errorf("severity %q, want %q:\n%s", got, test.want, reportLines(report))
			}
		})
	}
}
