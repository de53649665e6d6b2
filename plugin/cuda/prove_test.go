package cuda

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

func (w *world) proof(t *testing.T) *proof {
	t.Helper()
	return &proof{
		observer: w.observer(), run: runID, generation: 1, grace: 20 * time.Millisecond,
		patience: 200 * time.Millisecond,
		pods:     func(ctx context.Context) ([]corev1.Pod, error) { return w.cluster().Pods(ctx, namespace, runID) },
	}
}

// What counts as proof that the shim is in the pods, and what as proof that it is not.
func TestProof(t *testing.T) {
	t.Parallel()
	idle := func(string, cudafault.State) []cudafault.Process { return nil }
	for name, test := range map[string]struct {
		pods   []*corev1.Pod
		change func(*world)
		proven []string // in the evidence, one each
		notes  string
		fails  string // in the error
	}{
		"a process has it": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1"), pod("web-2", "gpu-2")},
			proven: []string{
				"process 7 (python3): armed, 347 hooks by dlsym,cuGetProcAddress, CUDA driver 12.8", "process 7",
			},
		},
		"nobody called the driver yet": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1")}, change: func(w *world) { w.processes = idle },
			proven: []string{"no process has called the driver yet"},
		},
		"a process that slept through the arming": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1")}, change: func(w *world) {
				w.processes = func(string, cudafault.State) []cudafault.Process {
					return []cudafault.Process{process(0, cudafault.StatusPassing)}
				}
			},
			proven: []string{"notices the change at its next driver call"},
		},
		"a process of the container's former life does not count": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1")}, change: func(w *world) {
				w.processes = func(_ string, s cudafault.State) []cudafault.Process {
					old := process(s.Generation, cudafault.StatusPoisoned)
					old.Started = started.Add(-time.Hour)
					return []cudafault.Process{old}
				}
			},
			proven: []string{"no process has called the driver yet"},
		},
		"it crashed, and its log tells": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1", crashed)}, change: func(w *world) {
				w.log = map[string]string{
					"web-1": "epoch 1\ngpu-fault: run cuda-7k3f9q: injected CUDA error 999 into cuLaunchKernel, call 0, pid 7 (python3)\nRuntimeError\n",
				}
			},
			proven: []string{"from the container's log: gpu-fault: run cuda-7k3f9q: injected CUDA error 999"},
		},
		"the log of another run is no proof": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1", crashed)}, change: func(w *world) {
				w.log = map[string]string{
					"web-1": "gpu-fault: run cuda-222222: injected CUDA error 999 into cuLaunchKernel, call 0, pid 7 (python3)\n",
				}
			},
			fails: "could not verify the shim in any pod: pod web-1: CrashLoopBackOff",
		},
		"the file is missing": {
			pods:   []*corev1.Pod{pod("web-1", "gpu-1"), pod("web-2", "gpu-2")},
			change: func(w *world) { w.broken = map[string]error{"web-2": errMissing} },
			proven: []string{"process 7"}, fails: "pod web-2: the shim's file is missing in the container",
		},
		"the linker refused it": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1")}, change: func(w *world) {
				w.processes = idle
				w.log = map[string]string{
					"web-1": "ERROR: ld.so: object '/gpu-fault/lib/libgpufault.so' from LD_PRELOAD cannot be preloaded (wrong ELF class: ELFCLASS64): ignored.\n",
				}
			},
			fails: "the dynamic linker did not load the shim: ERROR: ld.so",
		},
		"another run's state": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1")}, change: func(w *world) {
				w.kubelet = func(string, []byte) []byte {
					s, _ := lostGPU.State("cuda-222222", 1, started, time.Time{})
					file, _ := s.Encode()
					return file
				}
			},
			fails: `the state file in the container belongs to run "cuda-222222"`,
		},
		"one is still starting": {
			pods: []*corev1.Pod{
				pod("web-1", "gpu-1"),
				pod("web-2", "", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }),
			},
			proven: []string{"process 7"}, notes: "pod web-2: Pending",
		},
		"one is going": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1"), pod("web-2", "gpu-2", func(p *corev1.Pod) {
				p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: started}, []string{"x/y"}
			})},
			proven: []string{"process 7"},
		},
		"no exec allowed": {
			pods: []*corev1.Pod{pod("web-1", "gpu-1")}, change: func(w *world) {
				w.broken = map[string]error{
					"web-1": errors.New(`pods "web-1" is forbidden: User "bob" cannot create resource "pods/exec"`),
				}
			},
			fails: "you do not have permission to exec into the pod (pods/exec)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, test.pods...)
			if test.change != nil {
				test.change(w)
			}
			evidence, notes, err := w.proof(t).gather(t.Context())
			if test.fails == "" && err != nil ||
				test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("%v, want %q", err, test.fails)
			}
			if len(evidence) != len(test.proven) {
				t.Fatalf("evidence %+v, want %q", evidence, test.proven)
			}
			for i, e := range evidence {
				if !strings.Contains(e.Text, test.proven[i]) || !strings.HasPrefix(e.Source, "pod web-") {
					t.Errorf("%+v, want %q", e, test.proven[i])
				}
			}
			if got := strings.Join(notes, "\n"); got != test.notes {
				t.Errorf("notes %q, want %q", got, test.notes)
			}
		})
	}
}

// recorder is a fault.Recorder that only knows its run.
type recorder struct {
	run  ledger.Run
	said []string
}

func (r *recorder) Run() ledger.Run                                { return r.run }
func (r *recorder) Save(context.Context, func(*ledger.Step)) error { return nil }
func (r *recorder) Progress(text string)                           { r.said = append(r.said, text) }
func (w *world) recorder() *recorder                               { return &recorder{run: w.run} }
func (w *world) injection(change ...func(*injection)) *injection {
	i := &injection{
		Injection: &cudashim.Injection{Cluster: w.cluster(), Workload: deployment("")}, fault: lostGPU,
		observer: w.observer(),
		timeout:  100 * time.Millisecond, grace: 20 * time.Millisecond, patience: 200 * time.Millisecond,
	}
	for _, c := range change {
		c(i)
	}
	return i
}

// set writes the first state of the run.
func (w *world) set(t *testing.T, i *injection) {
	t.Helper()
	file, err := i.state(w.run, i.atStart)
	if err != nil {
		t.Fatal(err)
	}
	if err := cudashim.UpdateState(t.Context(), w.client, namespace, runID, file); err != nil {
		t.Fatal(err)
	}
}

// The shim comes disarmed, so that the rollout goes through, and is armed when its pods are seen to have it.
func TestTheFaultBeginsAfterTheRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	var states []string // of the process, as it was asked
	w.processes = func(name string, s cudafault.State) []cudafault.Process {
		all := attentive(name, s)
		if word := all[0].Status.String(); len(states) == 0 || states[len(states)-1] != word {
			states = append(states, word)
		}
		return all
	}
	i := w.injection()
	w.set(t, i)
	evidence, err := i.prove(t.Context(), w.recorder(), nil)
	if err != nil || len(evidence) != 1 || !strings.Contains(evidence[0].Text, "armed") {
		t.Errorf("%v, %+v", err, evidence)
	}
	if got := strings.Join(states, " "); got != "passing armed" {
		t.Errorf("the process was %s", got)
	}
	if s := w.stored(t); s.ArmedAt.IsZero() || !s.Expires.Equal(w.run.Until) || s.Generation <= firstGeneration(w.run) {
		t.Errorf("%+v", s)
	}
	p, err := w.client.CoreV1().Pods(namespace).Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil || len(p.Annotations) == 0 {
		t.Errorf("its kubelet was not told: %v, %v", err, p.Annotations)
	}
}

func TestDisarmedAndAtStartAreNotArmedLater(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*injection)
		armed  bool
	}{
		"disarmed": {func(i *injection) { i.disarmed = true }, false},
		"at start": {func(i *injection) { i.atStart = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, pod("web-1", "gpu-1"))
			i := w.injection(test.change)
			w.set(t, i)
			if _, err := i.prove(t.Context(), w.recorder(), nil); err != nil {
				t.Fatal(err)
			}
			if s := w.stored(t); s.ArmedAt.IsZero() == test.armed || s.Generation != firstGeneration(w.run) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A kubelet that looked too early is made to look again: else pods would learn of it a minute later.
func TestKubeletsAreToldAgain(t *testing.T) {
	t.Parallel()
	patches := 0
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	w.client = w.server.Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
		if c.Verb == "patch" && c.Resource == "pods" {
			patches++
		}
		return nil
	}})
	w.kubelet = func(_ string, newest []byte) []byte {
		if patches > 0 {
			return newest
		}
		s, _ := lostGPU.State(runID, 99, started, time.Time{})
		old, _ := s.Encode()
		return old
	}
	p := w.proof(t)
	p.patience = 10 * time.Second
	if evidence, _, err := p.gather(t.Context()); err != nil || len(evidence) != 1 || patches == 0 {
		t.Errorf("%v, %+v, %d patches", err, evidence, patches)
	}
}

var _ fault.Recorder = (*recorder)(nil)

// TestLivingProcesses: a process is one of the running container even if the container runtime looked at the clock only
// in the next second. One of the previous instance is not, even if that ended a moment ago.
func TestLivingProcesses(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 28, 23, 33, 41, 0, time.UTC)
	ended := func(at time.Time) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(at)}}
	}
	for name, test := range map[string]struct {
		began time.Duration // of the process, after the container
		last  corev1.ContainerState
		lives bool
	}{
		"just before":          {-40 * time.Millisecond, corev1.ContainerState{}, true},
		"after":                {time.Second, corev1.ContainerState{}, true},
		"long before":          {-3 * time.Second, corev1.ContainerState{}, false},
		"restarted at once":    {-1500 * time.Millisecond, ended(start.Add(-time.Second)), false},
		"restarted, this one":  {-40 * time.Millisecond, ended(start.Add(-time.Second)), true},
		"restarted, long ago":  {-40 * time.Millisecond, ended(start.Add(-time.Minute)), true},
		"restarted, the first": {-30 * time.Second, ended(start.Add(-time.Minute)), false},
	} {
		r := report{
			pod: &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", LastTerminationState: test.last,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}},
			}}}},
			containers: []string{"main"}, processes: []cudafault.Process{{Started: start.Add(test.began)}},
		}
		if lives := len(r.living()) == 1; lives != test.lives {
			t.Errorf("%s: lives %t, want %t", name, lives, test.lives)
		}
	}
}
