package cuda

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// switching runs `cuda arm` or `cuda disarm` in the world, and returns what it wrote.
func (w *world) switching(t *testing.T, verb string, change func(*arming)) (out, errOut string, err error) {
	t.Helper()
	a := &arming{verb: verb, id: "run/" + runID, dryRun: "none", yes: true, timeout: 300 * time.Millisecond}
	if change != nil {
		change(a)
	}
	if err := a.validate(); err != nil {
		return "", "", err
	}
	var stdout, stderr bytes.Buffer
	s := &switching{
		arming: a, cluster: w.cluster(), observer: w.observer(), note: func(string) {},
		injected: func(context.Context, *inPlace) (string, error) { return w.injected, nil },
		session:  &fault.Session{Client: w.client, Ledger: w.store()},
		streams:  genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr},
	}
	err = s.run(t.Context(), "staging")
	return stdout.String(), stderr.String(), err
}

// What no new pod would have is not armed; it can be disarmed, since former pods may have it.
func TestArmWithoutTheShim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	w.injected = ""
	if _, errOut, err := w.switching(t, "arm", nil); err == nil ||
		!strings.Contains(err.Error(), "the shim of run "+runID+" was removed from") {
		t.Errorf("%v\n%s", err, errOut)
	}
	if _, _, err := w.switching(t, "disarm", nil); err != nil {
		t.Error(err)
	}
}

// Without a restart the fault ends and begins again; the list of runs and the workload's Events say so.
func TestDisarmAndArm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"), pod("web-2", "gpu-2"))
	out, errOut, err := w.switching(t, "disarm", nil)
	if err != nil || strings.Count(out, "disarmed") != 2 || !strings.Contains(errOut, "run "+runID+" is disarmed") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
	if s := w.stored(t); !s.ArmedAt.IsZero() || s.Error != w.state.Error || !s.Expires.Equal(w.state.Expires) {
		t.Errorf("%+v", s)
	}
	run, err := w.store().Get(t.Context(), runID)
	if err != nil || !strings.HasSuffix(run.Summary, disarmedSuffix) {
		t.Errorf("%v, %q", err, run.Summary)
	}

	before := time.Now().UnixNano()
	if out, errOut, err = w.switching(t, "arm", nil); err != nil || strings.Count(out, " armed ") != 2 {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
	s := w.stored(t)
	if s.ArmedAt.IsZero() || s.Generation < uint64(before) || s.Error != w.state.Error ||
		s.ErrorInit != w.state.ErrorInit {
		t.Errorf("%+v", s)
	}
	if run, err = w.store().Get(t.Context(), runID); err != nil || run.Summary != w.run.Summary {
		t.Errorf("%v, %q", err, run.Summary)
	}
	events, err := w.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, e := range events.Items {
		reasons = append(reasons, e.Reason)
		if e.InvolvedObject.Kind != "Deployment" || e.InvolvedObject.Name != "web" {
			t.Errorf("an Event is about %+v", e.InvolvedObject)
		}
	}
	if got := strings.Join(reasons, " "); !strings.Contains(got, fault.ReasonArmed) ||
		!strings.Contains(got, fault.ReasonDisarmed) {
		t.Errorf("Events: %s", got)
	}
}

// Disarming does not shorten the kubelet's patience with crashed containers, which users would take for a fault that
// stays.
func TestDisarmSaysWhoIsStillDown(t *testing.T) {
	t.Parallel()
	down := pod("web-2", "gpu-2")
	down.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	w := newWorld(t, nil, pod("web-1", "gpu-1"), down)
	_, errOut, err := w.switching(t, "disarm", nil)
	if err != nil || !strings.Contains(errOut, "kubectl delete pod -n "+namespace+" web-2\n") {
		t.Errorf("%v\n%s", err, errOut)
	}
	if _, errOut, err = w.switching(t, "arm", nil); err != nil || strings.Contains(errOut, "CrashLoopBackOff") {
		t.Errorf("arming: %v\n%s", err, errOut)
	}
}

// Another fault takes the place of the first one, also in the record, so that the next `arm` means that.
func TestArmWithAnotherFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	if _, errOut, err := w.switching(t, "arm", func(a *arming) {
		a.fault, a.nodes, a.onlyOn = &cudafault.Fault{Error: 719}, true, []string{"node/gpu-2"}
	}); err != nil {
		t.Fatalf("%v\n%s", err, errOut)
	}
	s := w.stored(t)
	if s.Error != 719 || s.HasNode("gpu-1") || !s.HasNode("gpu-2") {
		t.Errorf("%+v", s)
	}
	if _, errOut, err := w.switching(t, "disarm", nil); err != nil {
		t.Fatalf("%v\n%s", err, errOut)
	}
	if _, errOut, err := w.switching(t, "arm", func(a *arming) { a.nodes = true }); err != nil { // --only-on-node=
		t.Fatalf("%v\n%s", err, errOut)
	}
	if s := w.stored(t); s.Error != 719 || !s.HasNode("gpu-1") {
		t.Errorf("%+v", s)
	}
	run, err := w.store().Get(t.Context(), runID)
	if err != nil || !strings.Contains(run.Summary, "719") {
		t.Errorf("%v, %q", err, run.Summary)
	}
}

func TestArmRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		run  func(*ledger.Run)
		ask  func(*arming)
		want string
	}{
		"no run":   {nil, func(a *arming) { a.id = "cuda-222222" }, "run cuda-222222 not found"},
		"no ID":    {nil, func(a *arming) { a.id = "deployment/web" }, "invalid run ID"},
		"not cuda": {func(r *ledger.Run) { r.Fault, r.Steps = "xid", nil }, nil, "is not a CUDA fault"},
		"closed": {
			func(r *ledger.Run) { r.Closed, r.Phase = time.Now(), ledger.Reverted }, nil, "was closed at",
		},
		"its time is up": {
			func(r *ledger.Run) { r.Until = time.Now().Add(-time.Minute) }, nil, "kubectl gpu-fault revert " + runID,
		},
		"being made": {func(r *ledger.Run) {
			r.Phase, r.Deadline = ledger.Applying, time.Now().Add(time.Minute)
		}, nil, "still being injected"},
		"never begun": {
			func(r *ledger.Run) { r.Steps[0].State = ledger.StateSkipped }, nil, "has not changed the workload",
		},
		"unknown node": {
			nil, func(a *arming) { a.nodes, a.onlyOn = true, []string{"gpu-9"} }, `node "gpu-9" not found`,
		},
		"another library": {
			nil, func(a *arming) { a.fault = &cudafault.Fault{Error: 719, Layer: cudafault.LayerRuntime} },
			"--layer runtime",
		},
		"no fault":      {nil, func(a *arming) { a.fault = &cudafault.Fault{} }, "--xid"},
		"not confirmed": {nil, func(a *arming) { a.yes = false }, "--yes"},
		"no timeout":    {nil, func(a *arming) { a.timeout = 0 }, "--timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, test.run, pod("web-1", "gpu-1"))
			_, _, err := w.switching(t, "arm", test.ask)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if s := w.stored(t); s.Generation != w.state.Generation {
				t.Errorf("it was armed nevertheless: %+v", s)
			}
		})
	}
}

func TestDryRunsOfArmChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	out, errOut, err := w.switching(t, "disarm", func(a *arming) { a.dryRun = "client" })
	if err != nil || out != "run/"+runID+" disarmed (client dry run)\n" || !strings.Contains(errOut, "armed since") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
	if s := w.stored(t); s.ArmedAt.IsZero() || w.execs.Load() > 0 {
		t.Errorf("%+v, %d execs", s, w.execs.Load())
	}
}

// Who sleeps is told of, and is no failure; a kubelet that does not follow is one.
func TestProcessesThatDoNotNotice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"), pod("web-2", "gpu-2", crashed))
	w.processes = func(string, cudafault.State) []cudafault.Process {
		return []cudafault.Process{process(1, cudafault.StatusArmed)}
	}
	_, errOut, err := w.switching(t, "disarm", nil)
	if err != nil || !strings.Contains(errOut, "no driver call since then from 1 process") {
		t.Errorf("%v\n%s", err, errOut)
	}

	w = newWorld(t, nil, pod("web-1", "gpu-1"))
	old, err := w.state.Encode()
	if err != nil {
		t.Fatal(err)
	}
	w.kubelet = func(string, []byte) []byte { return old }
	if _, _, err := w.switching(t, "disarm", nil); err == nil ||
		!strings.Contains(
			err.Error(), "is disarmed, but after 300ms the kubelet has not updated the state file in pods [web-1]",
		) {
		t.Errorf("%v", err)
	}
}
