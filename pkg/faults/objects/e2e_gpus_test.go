//go:build e2e && scenario

package objects_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

// bareNode returns a Node without GPUs that no kubelet writes, so that nobody else does: whatever cluster the tests
// have, this one has none.
func (l *lab) bareNode() string {
	l.Helper()
	name := "bare-" + l.word
	node := &corev1.Node{
		// So that no device plugin is started for it
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"type": "kwok"}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			Capacity:    corev1.ResourceList{"cpu": resource.MustParse("4")},
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("3900m")},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
				LastTransitionTime: metav1.Now(),
			}},
		},
	}
	if _, err := l.typed.CoreV1().Nodes().Create(l.Context(), node, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = l.typed.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	status, err := json.Marshal(map[string]any{"status": node.Status})
	if err != nil {
		l.Fatal(err)
	}
	l.patchStatus(name, string(status))
	return name
}

// offers returns a node's labels and resources, as they are stored.
func (l *lab) offers(name string) map[string]any {
	l.Helper()
	node, err := l.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Get(l.Context(),
		name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	found := map[string]any{}
	for _, path := range [][]string{{"metadata", "labels"}, {"status", "capacity"}, {"status", "allocatable"}} {
		found[path[1]], _, _ = unstructured.NestedFieldNoCopy(node.Object, path...)
	}
	return found
}

// advertise returns two GPUs on a node, with a label.
func (l *lab) advertise(c *client, node string) fault.Plan {
	label := l.nodePatch(c, node, func(p *objects.Patching) {
		p.Merge = map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"nvidia.com/gpu.machine": "Simulated"}},
		}
	})
	status := l.nodePatch(c, node, func(p *objects.Patching) {
		gpus := map[string]any{"nvidia.com/gpu": "2"}
		p.Subresource, p.Merge = "status",
			map[string]any{"status": map[string]any{"capacity": gpus, "allocatable": gpus}}
	})
	plan := l.plan(c, label.Change("label"), status.Change("advertise"))
	plan.Checks = []func(context.Context) error{label.Check, status.Check}
	for i := range plan.Changes {
		plan.Changes[i].Harmless = true
	}
	return plan
}

func (l *lab) patchStatus(node, body string) {
	l.Helper()
	_, err := l.typed.CoreV1().Nodes().Patch(l.Context(), node, types.MergePatchType, []byte(body),
		metav1.PatchOptions{FieldManager: "kubelet"}, "status")
	if err != nil {
		l.Fatal(err)
	}
}

// GPUs that are advertised on a node are there at once, and what was absent is absent again, whatever a kubelet has
// made of them; those of a device plugin that has come meanwhile stay, and it is said.
func TestAdvertisedGPUs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		meanwhile string // a patch of the status
		state     ledger.State
		left      any
	}{
		"undisturbed": {state: ledger.StateReverted},
		"zeroed": {
			`{"status":{"capacity":{"nvidia.com/gpu":"0"},"allocatable":{"nvidia.com/gpu":"0"}}}`, ledger.StateReverted,
			nil,
		},
		"half zeroed": {`{"status":{"allocatable":{"nvidia.com/gpu":"0"}}}`, ledger.StateReverted, nil},
		"gone": {
			`{"status":{"capacity":{"nvidia.com/gpu":null},"allocatable":{"nvidia.com/gpu":null}}}`,
			ledger.StateReverted, nil,
		},
		"a device plugin came": {
			`{"status":{"capacity":{"nvidia.com/gpu":"8"},"allocatable":{"nvidia.com/gpu":"8"}}}`,
			ledger.StateSuperseded, "8",
		},
		"others wrote the rest": {
			`{"status":{"capacity":{"memory":"1Gi"},"allocatable":{"memory":"1Gi"}}}`, ledger.StateReverted, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			node := l.bareNode()
			before := l.offers(node)
			run, err := l.session.Run(t.Context(), l.advertise(l.client, node))
			if err != nil {
				t.Fatal(err)
			}
			now := l.node(node)
			capacity, allocatable := now.Status.Capacity["nvidia.com/gpu"], now.Status.Allocatable["nvidia.com/gpu"]
			if capacity.Value() != 2 || allocatable.Value() != 2 ||
				now.Labels["nvidia.com/gpu.machine"] != "Simulated" {
				t.Fatalf("%v %v", now.Labels, now.Status)
			}
			want := before
			if test.meanwhile != "" {
				l.patchStatus(node, test.meanwhile)
				want = l.offers(node)
				delete(want["labels"].(map[string]any), "nvidia.com/gpu.machine")
				for _, list := range []string{"capacity", "allocatable"} {
					delete(want[list].(map[string]any), "nvidia.com/gpu")
					if test.left != nil {
						want[list].(map[string]any)["nvidia.com/gpu"] = test.left
					}
				}
			}
			if run, err = l.session.Revert(t.Context(), run.ID, false); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, l.offers(node)); diff != "" {
				t.Error(diff)
			}
			if step := run.Steps[1]; step.State != test.state ||
				test.left != nil && !strings.Contains(step.Message, "nvidia.com/gpu") {
				t.Errorf("%s: %s", step.State, step.Message)
			}
			if left := l.seals(run); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A client may die at every write, and what it advertised goes all the same.
func TestAClientMayDieWhileItAdvertises(t *testing.T) {
	t.Parallel()
	counting := &killer{}
	probe := newLab(t)
	c := probe.newClient(counting)
	if _, err := c.session.Run(t.Context(), probe.advertise(c, probe.bareNode())); err != nil {
		t.Fatal(err)
	}
	for after := 3; after <= len(counting.writes); after++ {
		for _, landed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d landed=%v", after, landed), func(t *testing.T) {
				t.Parallel()
				l := newLab(t)
				node := l.bareNode()
				before := l.offers(node)
				k := &killer{after: after, landed: landed}
				victim := l.newClient(k)
				_, _ = victim.session.Run(t.Context(), l.advertise(victim, node))
				if !k.dead && len(k.writes) >= after {
					t.Fatalf("the client lives; it wrote %s", strings.Join(k.writes, ", "))
				}
				// Others write nodes, too: a client that meets nobody needs fewer writes than the counted one
				t.Logf("dead %t after %s; the node offers %v", k.dead, k.writes[len(k.writes)-1], l.offers(node))
				l.revertAll()
				if diff := cmp.Diff(before, l.offers(node)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}
