package devicehealth_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
)

const gpu = "nvidia.com/gpu"

// node is a node with two GPUs, with its kubelet and our debug pod.
type node struct {
	t      *testing.T
	client *fake.Clientset
	// silent kubelets do not report the fault in the status of the node; gate reports whether they do in that of pods.
	silent, gate bool
	failErr      error
	recovered    api.RecoveredDevices
	saveErr      error

	reports        sync.WaitGroup
	failed, closed bool
	step           ledger.Step
}

func newNode(t *testing.T) *node {
	return &node{t: t, gate: true, client: fake.NewClientset(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"},
			Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{gpu: resource.MustParse("2")}},
		},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: "trainer", UID: "uid-1"}},
	)}
}

// report has the kubelet report a change some seconds later.
func (n *node) report(allocatable int64, health corev1.ResourceHealthStatus) {
	n.reports.Add(1)
	time.AfterFunc(5*time.Second, func() {
		defer n.reports.Done()
		n.update(allocatable, health)
	})
}

// update writes the status of the node and of the pod.
func (n *node) update(allocatable int64, health corev1.ResourceHealthStatus) {
	ctx := context.Background()
	if !n.silent {
		now, _ := n.client.CoreV1().Nodes().Get(ctx, "gpu-1", metav1.GetOptions{})
		now.Status.Allocatable = corev1.ResourceList{gpu: *resource.NewQuantity(allocatable, resource.DecimalSI)}
		_, _ = n.client.CoreV1().Nodes().UpdateStatus(ctx, now, metav1.UpdateOptions{})
	}
	if n.gate {
		pod, _ := n.client.CoreV1().Pods("research").Get(ctx, "trainer", metav1.GetOptions{})
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			AllocatedResourcesStatus: []corev1.ResourceStatus{{
				Name: gpu, Resources: []corev1.ResourceHealth{{ResourceID: "GPU-b", Health: health}},
			}},
		}}
		_, _ = n.client.CoreV1().Pods("research").UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
}

func (n *node) Inspect(context.Context, api.Inspect) (*api.Info, error) { return &api.Info{}, nil }

func (n *node) ListDevices(context.Context) (*api.Devices, error) { return &api.Devices{}, nil }

func (n *node) FailDevices(_ context.Context, f api.FailDevices) (*api.FailedDevices, error) {
	if n.step.Undo.Data == nil {
		n.t.Error("devices are failed before the undo is recorded")
	}
	if n.failErr != nil {
		return nil, n.failErr
	}
	n.failed = true
	n.report(1, corev1.ResourceHealthStatusUnhealthy)
	return &api.FailedDevices{Resource: f.Resource, Devices: f.Devices, Healthy: 1, Pods: []string{"uid-1"}}, nil
}

func (n *node) RecoverDevices(context.Context) (*api.RecoveredDevices, error) {
	n.report(2, corev1.ResourceHealthStatusHealthy)
	return &n.recovered, nil
}

func (n *node) Close(context.Context) error {
	n.closed = true
	return nil
}

func (n *node) start(context.Context, ledger.Run, string, func(string)) (devicehealth.Pod, error) {
	return n, nil
}

// The node is a fault.Recorder, too.
func (n *node) Run() ledger.Run {
	return ledger.Run{ID: "device-1", Until: time.Now().Add(time.Minute)}
}

func (n *node) Save(_ context.Context, change func(*ledger.Step)) error {
	if n.saveErr == nil {
		change(&n.step)
	}
	return n.saveErr
}

func (n *node) Progress(string) {}

func (n *node) apply() ([]ledger.Evidence, error) {
	in := &devicehealth.Injection{
		Client: n.client, Start: n.start,
		Choose: func(api.Info, api.Devices) (string, []string, error) { return gpu, []string{"GPU-b"}, nil },
	}
	evidence, err := in.Change("gpu-1", "fail").Apply(n.t.Context(), n)
	if !n.closed {
		n.t.Error("the debug pod is left")
	}
	return evidence, err
}

// The fault is proven by what the API server shows of the node, and of the pods that hold the devices; a cluster whose
// kubelets do not report the health of devices is told apart from a fault without effect.
func TestApply(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*node)
		want   string // in the evidence
		err    string
		undo   bool // there is something to undo
	}{
		"proven": {
			nil, "allocatable nvidia.com/gpu: 2 -> 1|research/trainer: nvidia.com/gpu GPU-b Unhealthy", "", true,
		},
		"gate off": {func(n *node) { n.gate = false }, "for research/trainer: the kubelet's ResourceHealthStatus feature gate", "", true},
		"no effect": {func(n *node) { n.silent = true }, "",
			"recorded 1 healthy devices of nvidia.com/gpu, but the node's status shows 2", true},
		"refused": {
			func(n *node) { n.failErr = &api.Error{Code: api.CodeRefused, Message: "no plugin"} }, "", "no plugin",
			false},
		"lost":            {func(n *node) { n.failErr = errors.New("connection lost") }, "", "connection lost", true},
		"ledger is gone":  {func(n *node) { n.saveErr = errors.New("no ledger") }, "", "no ledger", false},
		"node is deleted": {func(n *node) { n.client = fake.NewClientset(); n.closed = true }, "", "not found", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				if test.change != nil {
					test.change(n)
				}
				evidence, err := n.apply()
				n.reports.Wait()
				if test.err == "" && err != nil ||
					test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
					t.Errorf("error %v, wanted %q", err, test.err)
				}
				for _, want := range strings.Split(test.want, "|") {
					if !strings.Contains(fmt.Sprint(evidence), want) {
						t.Errorf("evidence %v, wanted %q", evidence, want)
					}
				}
				if got := n.step.Undo.Data != nil; got != test.undo {
					t.Errorf("undo recorded: %v, wanted %v (%s)", got, test.undo, n.step.Undo.Data)
				}
				if n.saveErr != nil && n.failed {
					t.Error("devices are failed without a record")
				}
			})
		})
	}
}

func TestUndo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*node)
		want   string
		err    bool
	}{
		"reverted": {func(n *node) {
			n.recovered = api.RecoveredDevices{Found: true, Resource: gpu, Cause: "requested", Healthy: 2}
		}, "healthy and allocatable again: 2 devices of nvidia.com/gpu", false},
		"expired": {func(n *node) {
			n.recovered = api.RecoveredDevices{Found: true, Resource: gpu, Cause: "the TTL expired", Healthy: 2}
		}, "(the TTL expired)", false},
		// The kubelet's record was read while the plugin, which had just restarted, had reported only some devices.
		"more devices since": {func(n *node) {
			n.recovered = api.RecoveredDevices{Found: true, Resource: gpu, Cause: "requested", Healthy: 1}
		}, "healthy and allocatable again", false},
		"never began": {func(*node) {}, "no record of this run", false},
		"not shown": {func(n *node) {
			n.recovered, n.silent = api.RecoveredDevices{Found: true, Resource: gpu, Healthy: 3}, true
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				test.change(n)
				u := devicehealth.Undoer{Client: n.client, Start: n.start}
				step := ledger.Step{
					Target: ledger.Target{Kind: "Node", Name: "gpu-1"},
					Undo:   ledger.Undo{Kind: devicehealth.UndoKind, Data: []byte(`{}`)},
				}
				state, said, err := u.Undo(t.Context(), n.Run(), step)
				if (err != nil) != test.err || err == nil && state != ledger.StateReverted ||
					!strings.Contains(said, test.want) {
					t.Errorf("%s, %q, %v", state, said, err)
				}
				if !n.closed {
					t.Error("the debug pod is left")
				}
				n.reports.Wait()
			})
		})
	}
	u := devicehealth.Undoer{}
	if state, _, err := u.Undo(t.Context(), ledger.Run{}, ledger.Step{}); err != nil || state != ledger.StateReverted {
		t.Errorf("a step that changed nothing: %s, %v", state, err)
	}
}
