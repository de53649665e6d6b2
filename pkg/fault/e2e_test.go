//go:build e2e

// These tests need a real cluster, by KUBECONFIG, as its administrator. They work in namespaces of their own, and leave Events on a
// node. KUBECTL names the kubectl to describe the node with.
package fault_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
)

// cluster is a real cluster, with a namespace for the ledger that does not exist yet and a ConfigMap to break.
type cluster struct {
	config   *rest.Config
	admin    kubernetes.Interface
	ledgerNS string
	worldNS  string
	node     string
	mu       sync.Mutex
	calls    []string
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func connect(t *testing.T) *cluster {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	c := &cluster{config: config}
	c.admin = c.client(t, "")
	suffix := fmt.Sprintf("%x", time.Now().UnixNano())
	c.ledgerNS, c.worldNS = "led-"+suffix, "led-world-"+suffix
	ctx := context.Background()
	if _, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.worldNS}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, ns := range []string{c.ledgerNS, c.worldNS} {
			if err := c.admin.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	nodes, err := c.admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.node = nodes.Items[len(nodes.Items)-1].Name
	return c
}

// client connects as a user, or as the administrator, and counts what it asks.
func (c *cluster) client(t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(c.config)
	config.Impersonate.UserName = user
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			c.mu.Lock()
			c.calls = append(c.calls, r.Method+" "+r.URL.Path)
			c.mu.Unlock()
			return next.RoundTrip(r)
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// annotating breaks ConfigMaps of the world namespace: it is the fault, and its Undoer.
type annotating struct {
	client    kubernetes.Interface
	namespace string
}

func (a annotating) Describe(ledger.Step) string { return "deletes the ConfigMap" }

func (a annotating) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	err := a.client.CoreV1().ConfigMaps(a.namespace).Delete(ctx, run.ID+"."+step.ID, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", "", err
	}
	return ledger.StateReverted, "the ConfigMap is gone", nil
}

func (c *cluster) session(client kubernetes.Interface, warn func(string)) *fault.Session {
	return &fault.Session{
		Client: client, Ledger: ledger.New(client, c.ledgerNS), From: "laptop",
		Undoers:  map[string]fault.Undoer{"configmap": annotating{client, c.worldNS}},
		Observer: fault.Observer{Warning: warn},
	}
}

func (c *cluster) plan(client kubernetes.Interface, nodes ...string) fault.Plan {
	plan := fault.Plan{Fault: "runtime", Summary: "a test that changes nothing on the node", Allow: fault.Allowances{ControlPlane: true}}
	for _, verb := range []string{"create", "delete"} {
		plan.Needs = append(plan.Needs, fault.Permission{Verb: verb, Resource: "configmaps", Namespace: c.worldNS})
	}
	for i, node := range nodes {
		plan.Changes = append(plan.Changes, fault.Change{
			Target: ledger.Target{Kind: "Node", Name: node}, Action: "create a ConfigMap", Undo: ledger.Undo{Kind: "configmap"},
			Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
				cm, err := client.CoreV1().ConfigMaps(c.worldNS).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s.%d", r.Run().ID, i+1),
				}}, metav1.CreateOptions{})
				if err != nil {
					return nil, err
				}
				return []ledger.Evidence{{Source: "resourceVersion " + cm.ResourceVersion, Time: time.Now(), Text: cm.Name}}, nil
			},
		})
	}
	return plan
}

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
	if len(calls) > 13 {
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
	out, err := exec.CommandContext(t.Context(), cmp.Or(os.Getenv("KUBECTL"), "kubectl"), "describe", "node", node).CombinedOutput()
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
			runs[i], errs[i] = c.session(client, func(text string) { t.Log(text) }).Run(t.Context(), c.plan(client, c.node))
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
	world, err := c.admin.CoreV1().ConfigMaps(c.worldNS).List(t.Context(), metav1.ListOptions{LabelSelector: "!nothing"})
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
		c.grant(t, fault.Roles(c.ledgerNS, needs, []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}))
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
			return err != nil && strings.HasPrefix(err.Error(), "you may not "+missing.String()+";") && strings.HasSuffix(err.Error(), "kubectl gpu-fault rbac runtime")
		})
	}
}

func (c *cluster) grant(t *testing.T, objects []runtime.Object) {
	t.Helper()
	ctx, rbac := t.Context(), c.admin.RbacV1()
	for _, object := range objects {
		var err error
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			if _, err = rbac.ClusterRoles().Create(ctx, o, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				_, err = rbac.ClusterRoles().Update(ctx, o, metav1.UpdateOptions{})
			}
		case *rbacv1.Role:
			if _, err = rbac.Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				_, err = rbac.Roles(o.Namespace).Update(ctx, o, metav1.UpdateOptions{})
			}
		case *rbacv1.ClusterRoleBinding:
			_, err = rbac.ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.RoleBinding:
			_, err = rbac.RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}
