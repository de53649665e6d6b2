//go:build e2e

package fault_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
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
	if _, err := c.admin.CoreV1().Namespaces().Create(
		ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.worldNS}}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, ns := range []string{c.ledgerNS, c.worldNS} {
			if err := c.admin.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil &&
				!apierrors.IsNotFound(err) {
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
	plan := fault.Plan{
		Fault: "runtime", Summary: "a test that changes nothing on the node",
		Allow: fault.Allowances{ControlPlane: true},
	}
	for _, verb := range []string{"create", "delete"} {
		plan.Needs = append(plan.Needs, fault.Permission{Verb: verb, Resource: "configmaps", Namespace: c.worldNS})
	}
	for i, node := range nodes {
		plan.Changes = append(plan.Changes, fault.Change{
			Target: ledger.Target{Kind: "Node", Name: node}, Action: "create a ConfigMap",
			Undo: ledger.Undo{Kind: "configmap"},
			Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
				cm, err := client.CoreV1().ConfigMaps(c.worldNS).Create(ctx,
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
						Name: fmt.Sprintf("%s.%d", r.Run().ID, i+1),
					}}, metav1.CreateOptions{})
				if err != nil {
					return nil, err
				}
				return []ledger.Evidence{
					{Source: "resourceVersion " + cm.ResourceVersion, Time: time.Now(), Text: cm.Name},
				}, nil
			},
		})
	}
	return plan
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
