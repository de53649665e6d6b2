package realxid

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const line = "NVRM: Xid (PCI:0000:17:00): 31, pid=71, name=gpufault-crash, Ch 00000008"

// world is a node, its debug pod, and a ledger with one step.
type world struct {
	t      *testing.T
	spec   Spec
	status corev1.PodStatus // of the program's pod, once it is created
	old    []string         // the kernel log before the program
	new    []string         // what the program adds
	unread error

	step   ledger.Step
	client *fake.Clientset
	reads  int
	did    []string
}

func (w *world) Run() ledger.Run      { return ledger.Run{ID: "xid-test", Steps: []ledger.Step{w.step}} }
func (w *world) Progress(text string) {}
func (w *world) Save(_ context.Context, change func(*ledger.Step)) error {
	w.did = append(w.did, "save")
	change(&w.step)
	return nil
}

func (w *world) ReadKernelLog(_ context.Context, what api.ReadKernelLog) (*api.KernelRecords, error) {
	w.reads++
	if w.unread != nil {
		return nil, w.unread
	}
	found := &api.KernelRecords{}
	all := w.old
	if w.reads > 2 { // the driver's line may come late
		all = append(slices.Clone(all), w.new...)
	}
	for i, text := range all {
		if sequence := uint64(100 + i); what.After == nil || sequence > *what.After {
			found.Records = append(found.Records, api.KernelRecord{Sequence: sequence, Text: text})
		}
	}
	return found, nil
}

func (w *world) Close(context.Context) error { w.did = append(w.did, "close"); return nil }

func (w *world) Describe(ledger.Step) string { return "" }
func (w *world) Undo(context.Context, ledger.Run, ledger.Step) (ledger.State, string, error) {
	w.did = append(w.did, "delete")
	return ledger.StateReverted, "", nil
}

// apply makes the change, in a bubble of time.
func (w *world) apply(t *testing.T) (evidence []ledger.Evidence, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w.t, w.spec = t, Spec{XID: 31, Node: "gpu-1", Namespace: "research", Deadline: time.Minute}
		w.client = fake.NewClientset()
		target := ledger.Target{Kind: "Node", Name: "gpu-1"}
		w.step = ledger.Step{ID: "1", Target: target, Undo: ledger.Undo{Kind: "objects"}}
		in := &Injection{
			Client: w.client,
			Start: func(context.Context, ledger.Run, string, func(string)) (Pod, error) {
				w.did = append(w.did, "start")
				return w, nil
			},
			Waiting: func(*corev1.Pod) (string, error) { return "waiting", nil },
			Undo:    w,
			Remains: func(s *ledger.Step, _ Result) { s.Undo = ledger.Undo{Kind: "kernel-log", Permanent: true} },
		}
		create := fault.Change{
			Target: target, Undo: w.step.Undo,
			Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
				w.did = append(w.did, "create")
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: w.spec.Name(), Namespace: w.spec.Namespace}, Status: w.status,
				}
				_, err := w.client.CoreV1().Pods(w.spec.Namespace).Create(ctx, pod, metav1.CreateOptions{})
				return nil, err
			},
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("not done within 1m0s"))
		defer cancel()
		evidence, err = in.Change(w.spec, create).Apply(ctx, w)
		if _, ok := in.Result("gpu-1"); ok != (err == nil) {
			t.Errorf("there is a result: %t, with error %v", ok, err)
		}
	})
	return evidence, err
}

func ended(message string) corev1.PodStatus {
	return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name:  Container,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, Reason: "Error"}},
	}}}
}

func TestProven(t *testing.T) {
	t.Parallel()
	// The line of an earlier run does not count.
	w := &world{status: ended(good), old: []string{line}, new: []string{"NVRM: other", line}}
	evidence, err := w.apply(t)
	if err != nil {
		t.Fatal(err)
	}
	if len(evidence) != 2 || evidence[0].Source != "CUDA" || evidence[1].Source != "/dev/kmsg sequence 102" ||
		evidence[1].Text != line {
		t.Errorf("evidence %+v", evidence)
	}
	if got := strings.Join(w.did, " "); got != "start create close delete save" {
		t.Errorf("it did: %s", got)
	}
	if !w.step.Undo.IsPermanent() {
		t.Errorf("the step's undo is %+v", w.step.Undo)
	}
}

func TestUnreadableLog(t *testing.T) {
	t.Parallel()
	w := &world{status: ended(good), unread: errors.New("open /dev/kmsg: operation not permitted")}
	evidence, err := w.apply(t)
	if err != nil || len(evidence) != 2 ||
		!strings.Contains(evidence[1].Text, "CUDA's error is the only evidence of the XID: open /dev/kmsg") {
		t.Errorf("%+v, %v", evidence, err)
	}
}

// After a failure, the session undoes the step: the undo of its objects is in place.
func TestNotProven(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		w    world
		want string
	}{
		"no line": {
			world{status: ended(good), old: []string{line}}, "appeared in the kernel log: timed out after 20s",
		},
		"other lines": {
			world{status: ended(good), new: []string{strings.Replace(line, "31", "13", 1), "NVRM: other"}},
			"other XIDs on the GPU since the program started: XID 13",
		},
		"refusal":   {world{status: ended("gpufault refused an MPS server shares it\n")}, "an MPS server shares it"},
		"no driver": {world{status: ended("gpufault failed load libcuda.so.1: not found\n")}, "--runtime-class"},
		"no glibc":  {world{status: ended("exec: no such file")}, "--real-image"},
		"pending": {
			world{status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "0/2 nodes are available:\nInsufficient nvidia.com/gpu",
			}}}},
			"did not terminate (not scheduled: 0/2 nodes are available: Insufficient nvidia.com/gpu): not done within 1m0s",
		},
		"allocation": {
			world{status: corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Allocate failed",
			}},
			"UnexpectedAdmissionError: Allocate failed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := test.w.apply(t)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			if got := strings.Join(test.w.did, " "); got != "start create close" || test.w.step.Undo.Kind != "objects" {
				t.Errorf("it did: %s; the undo is %+v", got, test.w.step.Undo)
			}
		})
	}
}

func TestManifests(t *testing.T) {
	t.Parallel()
	spec := Spec{
		XID: 13, Node: "gpu-1", Namespace: "research", Image: DefaultImage, RuntimeClass: "nvidia",
		Program: []byte("elf"), Deadline: 2 * time.Minute,
	}
	all, err := spec.Manifests()
	if err != nil || len(all) != 2 || all[0].GetKind() != "ConfigMap" || all[1].GetKind() != "Pod" {
		t.Fatalf("%v, %v", all, err)
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(all[1].Object, &pod); err != nil {
		t.Fatal(err)
	}
	container := pod.Spec.Containers[0]
	limit := container.Resources.Limits[GPUResource]
	if limit.Value() != 1 || pod.Spec.NodeName != "" || *pod.Spec.ActiveDeadlineSeconds != 120 ||
		*pod.Spec.RuntimeClassName != "nvidia" ||
		strings.Join(container.Command, " ") != "/gpufault/gpufault-crash 13" {
		t.Errorf("%+v", pod.Spec)
	}
	if len(programName) > 15 {
		t.Errorf("the kernel truncates the name of the process, %s", programName)
	}
	other := spec
	other.Node = "gpu-2"
	if spec.Name() == other.Name() {
		t.Error("two nodes share a pod")
	}
}
