package cuda

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

const (
	runID     = "cuda-7k3f9q"
	namespace = "prod"
)

// started is when containers and processes began, long enough ago that nothing is new.
var started = time.Now().Add(-time.Minute).Truncate(time.Second)

// pod returns one with the shim whose only container runs.
func pod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName: node,
			Volumes: []corev1.Volume{{Name: "gpu-fault-lib",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: cudashim.Name(runID)},
					Items: []corev1.KeyToPath{
						{Key: "libgpufault-amd64.so", Path: cudashim.LibraryName},
						{Key: cudashim.StateKey, Path: cudashim.StateKey},
					},
				}}}},
			Containers: []corev1.Container{
				{
					Name:         "main",
					VolumeMounts: []corev1.VolumeMount{{Name: "gpu-fault-lib", MountPath: cudashim.LibraryDir}},
				},
			},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)},
				},
			}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// crashed makes the container of a pod one that waits to be started again.
func crashed(p *corev1.Pod) {
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"},
	}
	p.Status.ContainerStatuses[0].RestartCount = 3
	p.Status.Conditions = nil
}

// shims are those in the pods of a test: what an exec of their file prints, and what their containers log.
type shims struct {
	client kubernetes.Interface
	// kubelet is what of the ConfigMap's state a pod has: nil is the newest.
	kubelet func(pod string, newest []byte) []byte
	// processes are those of a pod, given the state that it has.
	processes func(pod string, s cudafault.State) []cudafault.Process
	broken    map[string]error  // by pod: what an exec fails with
	log       map[string]string // by pod
	execs     atomic.Int64
}

// Exec implements debugpod.Execer.
func (s *shims) Exec(ctx context.Context, pod *corev1.Pod, _ string, _ []string, streams debugpod.Streams) error {
	s.execs.Add(1)
	if err := s.broken[pod.Name]; err != nil {
		return err
	}
	file, err := cudashim.ReadState(ctx, s.client, pod.Namespace, runID)
	if err != nil {
		return err
	}
	if s.kubelet != nil {
		file = s.kubelet(pod.Name, file)
	}
	state, err := cudafault.DecodeState(file)
	if err != nil {
		return err
	}
	var processes []byte
	if s.processes != nil {
		processes = processesFile(s.processes(pod.Name, state)...)
	}
	_, err = streams.Out.Write(reportOf(file, processes))
	return err
}

func (s *shims) observer() *observer {
	w := newObserver(s.client, s)
	w.every = time.Millisecond
	w.logs = func(_ context.Context, pod *corev1.Pod, _ string, _ bool) ([]byte, error) {
		text, ok := s.log[pod.Name]
		if !ok {
			return nil, errors.New("no log")
		}
		return []byte(text), nil
	}
	return w
}

// reportOf returns what the shim's file prints when it is run: two files, each after its length.
func reportOf(files ...[]byte) []byte {
	var out []byte
	for _, file := range files {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(file)))
		out = append(out, file...)
	}
	return out
}

// processesFile returns a file of processes, by the layout of shim/state.h.
func processesFile(processes ...cudafault.Process) []byte {
	const header, slot = 128, 256
	file := make([]byte, cudafault.ProcessesSize)
	copy(file, "GPUFRUN1")
	put32 := func(at, v int) { binary.LittleEndian.PutUint32(file[at:], uint32(v)) }
	put64 := func(at int, v uint64) { binary.LittleEndian.PutUint64(file[at:], v) }
	milli := func(t time.Time) uint64 {
		if t.IsZero() {
			return 0
		}
		return uint64(t.UnixMilli())
	}
	put32(8, 1)
	put32(12, 63)
	for i, p := range processes {
		at := header + i*slot
		put32(at, p.PID)
		put32(at+4, p.Driver)
		put64(at+8, milli(p.Started))
		put64(at+16, milli(p.Looked))
		put64(at+24, p.Generation)
		put32(at+32, int(p.Status))
		put32(at+36, int(p.Paths))
		put32(at+40, p.Hooks)
		put32(at+44, p.LastError)
		put64(at+48, p.Calls)
		put64(at+56, p.Trips)
		put64(at+64, milli(p.TrippedAt))
		copy(file[at+80:at+128], p.Name)
		copy(file[at+128:at+192], p.Function)
	}
	return file
}

// process returns one that has called the driver under a generation.
func process(generation uint64, status cudafault.Status) cudafault.Process {
	return cudafault.Process{
		PID: 7, Name: "python3", Driver: 12080, Started: started.Add(time.Second),
		Looked: started.Add(30 * time.Second), Generation: generation,
		Status: status, Paths: cudafault.PathDlsym | cudafault.PathProcAddress, Hooks: 347, Calls: 1200,
	}
}

// attentive are processes that have noticed whatever state is there.
func attentive(_ string, s cudafault.State) []cudafault.Process {
	status := cudafault.StatusArmed
	if s.ArmedAt.IsZero() {
		status = cudafault.StatusPassing
	}
	return []cudafault.Process{process(s.Generation, status)}
}

// world is a cluster in which a fault is in place: the record, the ConfigMap and two pods.
type world struct {
	*shims
	server *ledgertest.Server
	run    ledger.Run
	state  cudafault.State
	// injected is the run of which the workload's template has the shim.
	injected string
}

var lostGPU = cudafault.Fault{XID: 79}

func newWorld(t *testing.T, change func(*ledger.Run), pods ...*corev1.Pod) *world {
	t.Helper()
	kept, err := json.Marshal(detail{lostGPU})
	if err != nil {
		t.Fatal(err)
	}
	undo, err := json.Marshal(cudashim.Data{
		Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Namespace: namespace, Name: "web",
		UID:       "uid-web",
		ConfigMap: cudashim.Name(runID), Variable: cudashim.PreloadVar, Preload: cudashim.Executable,
		Replaced: cudashim.Rolling,
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	run := ledger.Run{
		ID: runID, Fault: "cuda", Summary: summary(lostGPU, false), By: "alice", Created: now.Add(-time.Minute),
		Deadline: now.Add(-time.Second),
		Until:    now.Add(30 * time.Minute), Phase: ledger.Proven, Steps: []ledger.Step{{
			ID: "1", Target: ledger.Target{Kind: "Deployment", Namespace: namespace, Name: "web", UID: "uid-web"},
			Action: "load the shim", State: ledger.StateProven,
			Undo: ledger.Undo{Kind: cudashim.UndoKind, Data: undo}, Detail: kept, Started: now,
		}},
	}
	if change != nil {
		change(&run)
	}
	state, err := lostGPU.State(runID, 1, now.Add(-time.Minute), run.Until)
	if err != nil {
		t.Fatal(err)
	}
	file, err := state.Encode()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{injected: runID, run: run, state: state, server: ledgertest.New(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		ledger.NamespaceObject(ledger.DefaultNamespace),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-2"}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cudashim.Name(runID), Labels: map[string]string{
				ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: runID,
			}},
			BinaryData: map[string][]byte{cudashim.StateKey: file},
		},
	)}
	client := w.server.Client(ledgertest.Hooks{})
	for _, p := range pods {
		if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.shims = &shims{client: client, processes: attentive}
	if _, err := w.store().Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) store() *ledger.Store { return ledger.New(w.client, ledger.DefaultNamespace) }

func (w *world) cluster() *cudashim.Cluster { return &cudashim.Cluster{Client: w.client} }

// stored returns the state in the run's ConfigMap.
func (w *world) stored(t *testing.T) cudafault.State {
	t.Helper()
	file, err := cudashim.ReadState(t.Context(), w.client, namespace, runID)
	if err != nil {
		t.Fatal(err)
	}
	state, err := cudafault.DecodeState(file)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func deleteOptions() metav1.DeleteOptions { return metav1.DeleteOptions{} }

// exitError is how remote commands end that fail.
type exitError struct{ code int }

func (e exitError) Error() string   { return fmt.Sprintf("command terminated with exit code %d", e.code) }
func (e exitError) ExitStatus() int { return e.code }

var errMissing = errors.New(
	`OCI runtime exec failed: exec failed: unable to start container process: exec: "/gpu-fault/lib/libgpufault.so": stat /gpu-fault/lib/libgpufault.so: no such file or directory: unknown`,
)

// The report that tests make by hand must be one that the shim could have printed.
func TestTheTestsSpeakTheShimsLanguage(t *testing.T) {
	t.Parallel()
	state, err := lostGPU.State(runID, 5, time.Now(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := state.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := process(5, cudafault.StatusPoisoned)
	read, processes, err := cudafault.DecodeReport(reportOf(file, processesFile(want)))
	if err != nil || read.Generation != 5 || len(processes.List) != 1 {
		t.Fatalf("%v, %+v, %+v", err, read, processes)
	}
	got := processes.List[0]
	if got.PID != want.PID || got.Name != want.Name || got.Status != want.Status || got.Hooks != want.Hooks ||
		!got.Started.Equal(want.Started) || got.Paths != want.Paths {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !bytes.HasPrefix(file, []byte("GPUFAULT")) {
		t.Errorf("the state begins %q", file[:8])
	}
}
