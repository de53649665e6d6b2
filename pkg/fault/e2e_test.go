//go:build e2e

// These tests need a real cluster, by KUBECONFIG, as its administrator. They work in namespaces of their own, and leave
// Events on a node. KUBECTL names the kubectl to describe the node with.
package fault_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

func TestE2ERunAndRevert(t *testing.T) {
	c := connect(t)
	s := c.session(c.admin, func(text string) { t.Errorf("warning: %s", text) })
	plan := c.plan(c.admin, c.node)

	run, err := s.Run(t.Context(), plan) // creates the namespace
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Revert(t.Context(), run.ID, false); err != nil {
		t.Fatal(err)
	}

	c.calls = nil
	begin := time.Now()
	run, err = s.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	took, calls := time.Since(begin), slices.Clone(c.calls)
	t.Logf("run: %s, %d calls, one of them the fault's:\n%s", took, len(calls), strings.Join(calls, "\n"))
	if len(calls) > 14 {
		t.Errorf("%d calls", len(calls))
	}
	described := describe(t, c.node)
	for _, want := range []string{fault.ReasonInjected, run.ID, run.By} {
		if !strings.Contains(described, want) {
			t.Errorf("kubectl describe node does not show %q:\n%s", want, described)
		}
	}
	begin = time.Now()
	run, err = s.Revert(t.Context(), run.ID, false)
	if err != nil || !run.IsClosed() {
		t.Fatalf("%v, %+v", err, run)
	}
	t.Logf("revert: %s", time.Since(begin))
	if described = describe(t, c.node); !strings.Contains(described, fault.ReasonReverted) {
		t.Errorf("kubectl describe node:\n%s", described)
	}
	left, err := c.admin.CoordinationV1().Leases(c.ledgerNS).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("locks left: %v, %v", left.Items, err)
	}
}

func describe(t *testing.T, node string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), cmp.Or(os.Getenv("KUBECTL"), "kubectl"), "describe", "node",
		node).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, events, _ := strings.Cut(string(out), "\nEvents:")
	return events
}

func TestE2EOfConcurrentSessionsOneGetsTheNode(t *testing.T) {
	c := connect(t)
	if _, err := ledger.New(c.admin, c.ledgerNS).EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	const n = 6
	var wg sync.WaitGroup
	errs, runs := make([]error, n), make([]*ledger.Run, n)
	for i := range n {
		client := c.client(t, "")
		wg.Go(func() {
			runs[i], errs[i] = c.session(client, func(text string) { t.Log(text) }).Run(t.Context(),
				c.plan(client, c.node))
		})
	}
	wg.Wait()
	var winner *ledger.Run
	for i, err := range errs {
		var locked *ledger.LockedError
		switch {
		case err == nil && winner != nil:
			t.Error("two sessions have the same node")
		case err == nil:
			winner = runs[i]
		case !errors.As(err, &locked):
			t.Error(err)
		}
	}
	if winner == nil {
		t.Fatalf("nobody got the node: %v", errs)
	}
	world, err := c.admin.CoreV1().ConfigMaps(c.worldNS).List(t.Context(),
		metav1.ListOptions{LabelSelector: "!nothing"})
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	for _, cm := range world.Items {
		if strings.HasPrefix(cm.Name, "runtime-") {
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("%d changes were made", changes)
	}
	// Two reverts at once end the same as one.
	for i := range 2 {
		client := c.client(t, "")
		wg.Go(func() {
			_, errs[i] = c.session(client, func(text string) { t.Log(text) }).Revert(t.Context(), winner.ID, false)
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:2]...); err != nil {
		t.Error(err)
	}
}

func TestE2EPermissions(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	if _, err := ledger.New(c.admin, c.ledgerNS).EnsureNamespace(ctx); err != nil {
		t.Fatal(err)
	}
	user := "alice-" + c.ledgerNS
	client := c.client(t, user)
	plan := c.plan(client, c.node)
	needs := fault.PlanPermissions(plan, c.ledgerNS)
	grant := func(needs []fault.Permission) {
		t.Helper()
		c.grant(t,
			fault.Roles(c.ledgerNS, needs, []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}))
	}
	warnings := 0
	s := c.session(client, func(string) { warnings++ })
	eventually := func(what string, ok func(error) bool) {
		t.Helper()
		var err error
		for range 50 { // the authorizer sees new roles after a moment
			warnings = 0
			if err = s.Preflight(ctx, plan); ok(err) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("%s: %v", what, err)
	}

	grant(needs)
	t.Cleanup(func() {
		_ = c.admin.RbacV1().ClusterRoles().Delete(context.Background(), c.ledgerNS, metav1.DeleteOptions{})
		_ = c.admin.RbacV1().ClusterRoleBindings().Delete(context.Background(), c.ledgerNS, metav1.DeleteOptions{})
		_ = c.admin.RbacV1().Roles("default").Delete(context.Background(), c.ledgerNS, metav1.DeleteOptions{})
		_ = c.admin.RbacV1().RoleBindings("default").Delete(context.Background(), c.ledgerNS, metav1.DeleteOptions{})
	})
	eventually("with the roles", func(err error) bool { return err == nil })
	run, err := s.Run(ctx, plan)
	if err != nil || run.By != user {
		t.Fatalf("%v, %+v", err, run)
	}
	if _, err := s.Revert(ctx, run.ID, false); err != nil || warnings > 0 {
		t.Fatalf("%v, %d warnings", err, warnings)
	}

	for i, missing := range needs {
		if missing.Namespace == "default" { // it has one permission: without it there is no role to update
			_ = c.admin.RbacV1().Roles("default").Delete(ctx, c.ledgerNS, metav1.DeleteOptions{})
		}
		grant(slices.Delete(slices.Clone(needs), i, i+1))
		eventually("without "+missing.String(), func(err error) bool {
			switch {
			case missing.Optional:
				return err == nil && warnings == 1
			case missing.Verb == "create" && missing.Resource == "namespaces", missing.Resource == "serviceaccounts":
				return err == nil // the namespace is there
			}
			return err != nil && strings.HasPrefix(err.Error(), "you are not allowed to "+missing.String()+";") &&
				strings.Contains(err.Error(), "kubectl gpu-fault rbac print --for runtime")
		})
	}
}
