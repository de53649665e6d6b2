package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
)

// asking is a recorder whose ledger answers by the number of the question.
type asking struct {
	*recorder
	saves int
	save  func(n int, run *ledger.Run) error
}

func (a *asking) Save(context.Context, func(*ledger.Step)) error {
	a.saves++
	return a.save(a.saves, &a.run)
}

// The client that makes a run does not arm it when somebody took it over, disarmed it, or its time is up; what it hears
// names the reason.
func TestTheClientAsksBeforeItArms(t *testing.T) {
	t.Parallel()
	disarm := func(run *ledger.Run) error {
		run.Summary += disarmedSuffix
		return nil
	}
	for name, test := range map[string]struct {
		save    func(n int, run *ledger.Run) error
		want    string
		written bool // whether the state is armed nevertheless; the undo of the failed run disarms it
	}{
		"taken over": {
			func(int, *ledger.Run) error { return errors.New("another client is reverting this run") },
			"not armed: another client is reverting this run", false,
		},
		"disarmed": {
			func(_ int, run *ledger.Run) error { return disarm(run) }, "run " + runID + " was disarmed while", false,
		},
		"disarmed in between": {func(n int, run *ledger.Run) error {
			if n == 1 {
				return nil
			}
			return disarm(run)
		}, "run " + runID + " was disarmed while", true},
		"too slow": {func(_ int, run *ledger.Run) error {
			run.Until = time.Now().Add(-time.Second)
			return nil
		}, "the rollout took longer than --ttl: specify a longer TTL", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, pod("web-1", "gpu-1"))
			i := w.injection()
			w.set(t, i)
			r := &asking{recorder: w.recorder(), save: test.save}
			if _, err := i.prove(t.Context(), r, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if s := w.stored(t); s.ArmedAt.IsZero() == test.written || i.armed {
				t.Errorf("armed %v, %+v", i.armed, s)
			}
		})
	}
}

// What a revert has marked is armed by nobody, and the reason is said in words.
func TestNobodyArmsWhatIsBeingReverted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	i := w.injection()
	w.set(t, i)
	configMaps := w.client.CoreV1().ConfigMaps(namespace)
	cm, err := configMaps.Get(t.Context(), cudashim.Name(runID), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, "gpufault.dev/reverting", "now")
	if _, err := configMaps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	const want = "not armed: run " + runID + " is being reverted by another client"
	if _, err := i.arm(t.Context(), w.recorder()); err == nil || err.Error() != want {
		t.Errorf("the client: %v", err)
	}
	if _, _, err := w.switching(t, "arm", nil); err == nil || err.Error() != want {
		t.Errorf("cuda arm: %v", err)
	}
	if s := w.stored(t); !s.ArmedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	if run, err := w.store().Get(t.Context(), runID); err != nil || run.Summary != w.run.Summary {
		t.Errorf("the record: %v, %q", err, run.Summary)
	}
	if _, errOut, err := w.switching(t, "disarm", nil); err != nil {
		t.Errorf("disarm: %v\n%s", err, errOut)
	}
}

// A fault of which every process says that its time is up is not proven, and not armed.
func TestExpiredProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	w.processes = func(_ string, s cudafault.State) []cudafault.Process {
		status := cudafault.StatusPassing
		if !s.ArmedAt.IsZero() {
			status = cudafault.StatusExpired
		}
		return []cudafault.Process{process(s.Generation, status)}
	}
	i := w.injection()
	w.set(t, i)
	const want = "its node's clock is ahead of yours by more than the TTL"
	if _, err := i.prove(t.Context(), w.recorder(), nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("prove: %v", err)
	}
	if _, _, err := w.switching(t, "arm", nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("arm: %v", err)
	}

	state, err := lostGPU.State(runID, 5, started, time.Now().Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	r := report{
		pod: pod("web-1", "gpu-1"), asked: true, file: &state,
		processes: []cudafault.Process{process(5, cudafault.StatusExpired), process(5, cudafault.StatusArmed)},
	}
	if v, text := r.judge(runID, 5); v != failed || !strings.Contains(text, "longer than --ttl") {
		t.Errorf("%v, %q", v, text)
	}
}

func TestAnExpiredStateIsNotWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	state := w.state
	state.Generation, state.Expires = 9, time.Now().Add(-time.Second)
	if _, err := setState(t.Context(), w.cluster(), namespace, runID, state, nil); err == nil ||
		!strings.Contains(err.Error(), "run "+runID+" expired at") {
		t.Errorf("%v", err)
	}
	if s := w.stored(t); s.Generation != w.state.Generation {
		t.Errorf("%+v", s)
	}
}

// Before the question it is said that the time may be up before the rollout ends.
func TestATTLShorterThanTheRollout(t *testing.T) {
	t.Parallel()
	for limit, noted := range map[time.Duration]bool{time.Minute: true, time.Hour: false, 0: false} {
		in := asked(func(in *injecting) { in.ttl, in.timeout = ttl.Flags{TTL: limit}, 5*time.Minute })
		notes := strings.Join(in.notes(&decided{workload: deployment("")}), "\n")
		if strings.Contains(notes, "the fault is not armed") != noted {
			t.Errorf("%s: %s", limit, notes)
		}
	}
}

// What becomes of pods at a revert is said for each way in which they are replaced; only where they are it says so.
func TestWhatARevertDoesToPods(t *testing.T) {
	t.Parallel()
	for how, want := range map[cudashim.Replacement]string{
		cudashim.Rolling: "which replaces the pods again", cudashim.OnDelete: "until they are deleted",
		cudashim.Paused:  "until the rollout is resumed",
		cudashim.NextJob: "the idle shim stays in running jobs", cudashim.Recreate: "which recreates the workload",
		cudashim.Unknown: "controller decides when to replace",
	} {
		if got := reverting(how); !strings.Contains(got, want) {
			t.Errorf("%s: %q", how, got)
		}
	}
}

// flood is a container that prints without end, until somebody stops listening.
type flood struct{ out, err bool }

func (f flood) Exec(ctx context.Context, _ *corev1.Pod, _ string, _ []string, streams debugpod.Streams) error {
	chunk := make([]byte, 1<<10)
	for written := 0; ; written += len(chunk) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if written > 1<<20 {
			return nil
		}
		if f.out { // as client-go, which tells nobody that a write failed
			_, _ = streams.Out.Write(chunk)
		}
		if f.err {
			_, _ = streams.Err.Write(chunk)
		}
	}
}

// A container may print what it likes: no more of it is read than a report has.
func TestWhatAContainerPrintsIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, execer := range []flood{{out: true}, {err: true}} {
		_, err := newObserver(w.client, execer).exec(t.Context(), pod("web-1", "gpu-1"), "main")
		if !errors.Is(err, errTooMuch) {
			t.Errorf("%+v: %v", execer, err)
		}
	}
	long := shimPrefix + runID + ": " + strings.Repeat("ü", 1000)
	said, refused := findLines(long+"\ncannot be preloaded "+cudashim.LibraryDir+"/ "+strings.Repeat("x", 1000), runID)
	if len(said) != 1 || len(said[0]) > mostOfLine || len(refused) != 1 || len(refused[0]) > mostOfLine ||
		!strings.HasSuffix(refused[0], "...") {
		t.Errorf("%q, %q", said, refused)
	}
}

// An empty path is no command: where no shim is known for a node nothing is run in its pods.
func TestNoExecWithoutAShim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "risc-1"},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{Architecture: "riscv64"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bare := pod("web-1", "gpu-1", func(p *corev1.Pod) { p.Spec.Volumes[0].ConfigMap.Items = nil })
	reports := w.observer().ask(t.Context(), []corev1.Pod{*bare, *pod("web-2", "risc-1")})
	for _, r := range reports {
		if r.asked || r.missing || r.trouble != "no shim exists for the architecture of the pod's node" {
			t.Errorf("%s: %+v", r.pod.Name, r)
		}
	}
	if n := w.execs.Load(); n > 0 {
		t.Errorf("%d execs", n)
	}
}

// Of many pods only those are asked again that are not known to have it, and their logs are read at the same time.
func TestManyPods(t *testing.T) {
	t.Parallel()
	var pods []*corev1.Pod
	for i := range 30 {
		pods = append(pods, pod(fmt.Sprintf("web-%02d", i), "gpu-1"))
	}
	crashing := []string{"web-03", "web-07", "web-11", "web-19"}
	for _, p := range pods {
		if slices.Contains(crashing, p.Name) {
			crashed(p)
		}
	}
	w := newWorld(t, nil, pods...)
	p := w.proof(t)
	p.patience = 10 * time.Second
	var reading atomic.Int32
	together := make(chan struct{})
	p.observer.logs = func(ctx context.Context, _ *corev1.Pod, _ string, _ bool) ([]byte, error) {
		if int(reading.Add(1)) == len(crashing) {
			close(together)
		}
		select {
		case <-together:
		case <-ctx.Done(): // one after the other they never come together
			return nil, ctx.Err()
		}
		if reading.Load() < 40 { // some rounds later
			return []byte("starting\n"), nil
		}
		return []byte(
			"gpu-fault: run " + runID + ": injected CUDA error 999 into cuLaunchKernel, call 0, pid 7 (python3)\n",
		), nil
	}
	evidence, _, err := p.gather(t.Context())
	if err != nil || len(evidence) != len(pods) {
		t.Errorf("%v, %d proofs", err, len(evidence))
	}
	if got, want := int(w.execs.Load()), len(pods)-len(crashing); got != want {
		t.Errorf("%d execs for %d pods that answered at once", got, want)
	}
}
