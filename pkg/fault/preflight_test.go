package fault_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

func TestPreflightOfNodes(t *testing.T) {
	labeled := func(label string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/"+label] = "" }
	}
	noGPU := func(n *corev1.Node) { n.Status.Capacity = nil }
	w := newWorld(t,
		gpuNode("control", noGPU, labeled("control-plane")), gpuNode("old-control", noGPU, labeled("master")),
		gpuNode("windows", noGPU, func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "windows" }),
		gpuNode("lost", func(n *corev1.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].Reason = "Unknown", "NodeStatusUnknown"
		}),
		gpuNode("worker-1.example.com", noGPU),
	)
	for node, want := range map[string]string{
		"gpu-1": "", "worker-1.example.com": "",
		"control":     "node control belongs to the control plane (label node-role.kubernetes.io/control-plane); to allow this, pass --allow-control-plane",
		"old-control": "(label node-role.kubernetes.io/master)",
		"windows":     "node windows runs windows",
		"lost":        "node lost is not Ready (NodeStatusUnknown)",
		"gpu-11":      `node "gpu-11" not found; did you mean gpu-1, gpu-2, gpu-3?`,
		"worker-1":    `node "worker-1" not found; did you mean worker-1.example.com?`,
		"elsewhere":   `node "elsewhere" not found; see: kubectl get nodes`,
	} {
		c := w.client(ledgertest.Hooks{})
		err := c.Preflight(t.Context(), c.plan(node))
		if want == "" && err != nil {
			t.Errorf("%s: %v", node, err)
		} else if want != "" {
			wantText(t, err, want)
		}
	}
	c := w.client(ledgertest.Hooks{})
	plan := c.plan("control")
	plan.Allow.ControlPlane = true
	if err := c.Preflight(t.Context(), plan); err != nil {
		t.Error(err)
	}
	gentle := c.plan("control")
	gentle.Changes[0].Harmless = true
	if err := c.Preflight(t.Context(), gentle); err != nil {
		t.Errorf("a change that takes nothing away from a control plane's node: %v", err)
	}
	plan.Changes[0].Target.UID = "an older one"
	wantText(t, c.Preflight(t.Context(), plan), "was re-registered since the command started")
	if now := w.state(t); len(now.runs)+len(now.leases)+len(now.events) > 0 {
		t.Errorf("preflight changed something: %+v", now)
	}
}

func TestPreflightOfTheBlastRadius(t *testing.T) {
	cordon := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	lose := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	label := func(n *corev1.Node) { n.Status.Capacity, n.Labels["nvidia.com/gpu.present"] = nil, "true" }
	mig := func(n *corev1.Node) {
		n.Status.Capacity = corev1.ResourceList{"nvidia.com/mig-1g.10gb": n.Status.Capacity["nvidia.com/gpu"]}
	}
	noGPU := func(n *corev1.Node) { n.Status.Capacity = nil }
	const last, majority = "--allow-last-gpu-node", "--allow-majority"
	for name, test := range map[string]struct {
		nodes   map[string]func(*corev1.Node) // beside plain GPU nodes a, b, ...
		plain   int
		targets string
		held    string
		allow   fault.Allowances
		want    []string
	}{
		"one of two":             {plain: 2, targets: "a"},
		"two of three":           {plain: 3, targets: "a b", want: []string{"2 of 3", majority}},
		"two of four":            {plain: 4, targets: "a b"},
		"three of four, allowed": {plain: 4, targets: "a b c", allow: fault.Allowances{Majority: true}},
		"the only one":           {plain: 1, targets: "a", want: []string{"1 of 1", last}},
		"the only one, allowed":  {plain: 1, targets: "a", allow: fault.Allowances{LastGPUNode: true}},
		"all":                    {plain: 2, targets: "a b", want: []string{last, majority}},
		"all, half allowed": {
			plain: 2, targets: "a b", allow: fault.Allowances{Majority: true}, want: []string{last},
		},
		"cordoned ones do not count": {
			plain: 1, nodes: map[string]func(*corev1.Node){"x": cordon, "y": lose}, targets: "a", want: []string{last},
		},
		"nothing is lost with a cordoned one": {
			plain: 1, nodes: map[string]func(*corev1.Node){"x": cordon}, targets: "x",
		},
		"labels and MIG slices count": {
			plain: 1, nodes: map[string]func(*corev1.Node){"x": label, "y": mig}, targets: "a",
		},
		"nodes without GPUs do not": {
			plain: 1, nodes: map[string]func(*corev1.Node){"x": noGPU, "y": noGPU}, targets: "a", want: []string{last},
		},
		"a node without GPUs": {
			plain: 1, nodes: map[string]func(*corev1.Node){"x": noGPU}, targets: "x",
		},
		"other runs count": {
			plain: 4, held: "a b", targets: "c", want: []string{"3 of 4", "2 of them held by other runs", majority},
		},
		"one remains with other runs": {plain: 2, held: "a", targets: "b", want: []string{last}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{server: ledgertest.New(t), files: map[string]string{}}
			add := w.client(ledgertest.Hooks{}).Client.CoreV1().Nodes()
			for i := range test.plain {
				_, _ = add.Create(t.Context(), gpuNode(string(rune('a'+i))), metav1.CreateOptions{})
			}
			for name, change := range test.nodes {
				_, _ = add.Create(t.Context(), gpuNode(name, change), metav1.CreateOptions{})
			}
			c := w.client(ledgertest.Hooks{})
			if test.held != "" {
				if _, err := c.Run(t.Context(), c.plan(strings.Fields(test.held)...)); err != nil {
					t.Fatal(err)
				}
			}
			plan := c.plan(strings.Fields(test.targets)...)
			plan.Allow = test.allow
			err := c.Preflight(t.Context(), plan)
			if len(test.want) > 0 {
				wantText(t, err, test.want...)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPreflightNamesAllProblemsAtOnce(t *testing.T) {
	w := newWorld(t)
	holder := w.client(ledgertest.Hooks{})
	held, err := holder.Run(t.Context(), holder.plan("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	c := w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1", "gpu-9x9x9")
	plan.Changes = append(plan.Changes, fault.Change{
		Target: ledger.Target{Kind: "Deployment", Namespace: "kube-system", Name: "coredns"},
		Undo:   ledger.Undo{Kind: ledger.UndoNone}, Apply: plan.Changes[0].Apply,
	})
	plan.Checks = []func(context.Context) error{
		func(context.Context) error { return errors.New("the image cannot be pulled") },
		func(context.Context) error { return errors.New("the image cannot be pulled") }, // which is said once
		func(context.Context) error { panic("a bug") },
		func(context.Context) error { return nil },
	}
	err = c.Preflight(t.Context(), plan)
	wantText(t, err, "5 problems:\n  - ", "locked by run "+held.ID, `node "gpu-9x9x9" not found`,
		"the image cannot be pulled",
		"panic: a bug",
		"deployment/coredns in namespace kube-system: namespace kube-system is protected")
	var locked *ledger.LockedError
	if !errors.As(err, &locked) || locked.Holder != held.ID {
		t.Errorf("%v", err)
	}
	if _, err := c.Run(t.Context(), plan); err == nil || len(w.state(t).runs) != 1 {
		t.Errorf("Run goes past preflight: %v", err)
	}
}

func TestPreflightOfPermissions(t *testing.T) {
	w := newWorld(t)
	w.server.Denied = func(a authorizationv1.ResourceAttributes) bool {
		return a.Resource == "pods" && a.Subresource == "exec" || a.Resource == "leases" && a.Verb == "update" ||
			a.Resource == "events"
	}
	c := w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1")
	plan.Needs = []fault.Permission{
		{Verb: "create", Resource: "pods", Namespace: "gpu-fault"},
		{Verb: "create", Resource: "pods/exec", Namespace: "gpu-fault"},
		{Verb: "create", Resource: "pods/exec", Namespace: "gpu-fault"},
	}
	err := c.Preflight(t.Context(), plan)
	wantText(t, err,
		"you lack these permissions:\n  create pods/exec in namespace gpu-fault\n  update leases.coordination.k8s.io in namespace gpu-fault\n")
	if !strings.HasSuffix(err.Error(), "kubectl gpu-fault rbac print --for runtime --user alice | kubectl apply -f -") {
		t.Errorf("no next step: %v", err)
	}
	if got := c.warnings(); len(got) != 0 { // the run does not go on
		t.Errorf("%q", got)
	}
	w.server.Denied = func(a authorizationv1.ResourceAttributes) bool { return a.Resource == "events" }
	if err := c.Preflight(t.Context(), plan); err != nil {
		t.Error(err)
	}
	if got := c.warnings(); len(got) != 1 ||
		got[0] != "warning: you are not allowed to create events in namespace default; the run continues without doing so" {
		t.Errorf("%q", got)
	}
	// A request that is forbidden is not told a second time.
	w.server.Denied = func(a authorizationv1.ResourceAttributes) bool { return a.Resource == "nodes" }
	err = c.Preflight(t.Context(), c.plan("gpu-1"))
	var forbidden *apierrors.StatusError
	if errors.As(err, &forbidden) {
		t.Errorf("%v", err)
	}
	wantText(t, err, "get,list nodes")
	// The namespace needs no creating where it exists.
	w.server.Denied = func(a authorizationv1.ResourceAttributes) bool {
		return a.Verb == "create" && a.Resource == "namespaces" || a.Resource == "serviceaccounts"
	}
	wantText(t, c.Preflight(t.Context(), c.plan("gpu-1")), "create namespaces")
	_, _ = newNamespace(t, w)
	if err := c.Preflight(t.Context(), c.plan("gpu-1")); err != nil {
		t.Error(err)
	}
	// Whoever has the printed roles may not create it, and reads of one missing right about that alone.
	w.server.Denied = func(a authorizationv1.ResourceAttributes) bool {
		return a.Resource == "namespaces" || a.Resource == "serviceaccounts"
	}
	if err := c.Preflight(t.Context(), c.plan("gpu-1")); err == nil ||
		!strings.HasPrefix(err.Error(), "you are not allowed to get namespaces;") {
		t.Error(err)
	}
}

func newNamespace(t *testing.T, w *world) (bool, error) {
	t.Helper()
	denied := w.server.Denied
	defer func() { w.server.Denied = denied }()
	w.server.Denied = nil
	return w.client(ledgertest.Hooks{}).Ledger.EnsureNamespace(t.Context())
}

func TestAPreflightIsTrustedOnceAndNotForLong(t *testing.T) {
	checks := 0
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	plan := func(node string) fault.Plan {
		plan := c.plan(node)
		plan.Checks = append(plan.Checks, func(context.Context) error { checks++; return nil })
		return plan
	}
	run := func(node string, wait time.Duration) {
		t.Helper()
		if err := c.Preflight(t.Context(), plan(node)); err != nil {
			t.Fatal(err)
		}
		c.later(wait)
		if _, err := c.Run(t.Context(), plan(node)); err != nil {
			t.Fatal(err)
		}
	}
	run("gpu-1", 20*time.Second)
	if checks != 1 {
		t.Errorf("%d checks, though a preflight was fresh", checks)
	}
	run("gpu-2", 2*time.Minute)
	if checks != 3 {
		t.Errorf("%d checks, though a preflight was old", checks)
	}
}

func TestPlansThatCouldNotBeUndoneAreRefused(t *testing.T) {
	c := newWorld(t).client(ledgertest.Hooks{})
	for i, change := range []func(*fault.Plan){
		func(p *fault.Plan) { p.Changes = nil },
		func(p *fault.Plan) { p.Changes[0].Undo = ledger.Undo{} },
		func(p *fault.Plan) { p.Changes[0].Undo.Kind = "magic" },
		func(p *fault.Plan) { p.Changes[0].Apply = nil },
		func(p *fault.Plan) { p.Changes[0].Target.Name = "" },
	} {
		plan := c.plan("gpu-1")
		change(&plan)
		if err := c.Preflight(t.Context(), plan); err == nil {
			t.Errorf("plan %d passes", i)
		}
	}
}

func TestPreflightStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := newWorld(t).client(ledgertest.Hooks{Before: func(ledgertest.Call) error {
		cancel()
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("whatever"))
	}})
	if err := c.Preflight(ctx, c.plan("gpu-1")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
