//go:build e2e && scenario

// These tests need a real cluster, by KUBECONFIG, as its administrator, whose nodes have
// docker.io/library/busybox:1.35. They work in namespaces and with names of their own.
package objects_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

// lab is what one test has of the cluster: a word for its names, and a ledger.
type lab struct {
	*testing.T
	word string
	*client
}

// client is one use of the tool.
type client struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
	session *fault.Session
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{T: t, word: fmt.Sprintf("%x", time.Now().UnixNano()&0xffffffffff)}
	l.client = l.newClient(nil)
	t.Cleanup(func() {
		ctx := context.Background()
		if runs, err := l.session.Ledger.List(ctx, ledger.All); err == nil {
			for _, run := range runs.Runs {
				_, _ = l.session.Revert(ctx, run.ID, true)
			}
		}
		if err := l.typed.CoreV1().Namespaces().Delete(ctx, l.ledger(), metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return l
}

func (l *lab) ledger() string { return "objects-test-" + l.word }
func (l *lab) team() string   { return "team-" + l.word }

// newClient returns a client whose requests go through a killer, if there is one.
func (l *lab) newClient(k *killer) *client {
	l.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		l.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	mapperConfig := rest.CopyConfig(config)
	if k != nil {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { k.next = next; return k })
	}
	c := &client{}
	if c.typed, err = kubernetes.NewForConfig(config); err != nil {
		l.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		l.Fatal(err)
	}
	discovery, err := kubernetes.NewForConfig(mapperConfig)
	if err != nil {
		l.Fatal(err)
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery.Discovery()))
	c.session = &fault.Session{
		Client: c.typed, Ledger: ledger.New(c.typed, l.ledger()), From: "test", Heartbeat: 50 * time.Millisecond,
		Undoers: map[string]fault.Undoer{
			objects.UndoKind: objects.Undoer{Dynamic: c.dynamic, LedgerNamespace: l.ledger(), Wait: 4 * time.Minute},
		},
		CleanupTimeout: 8 * time.Minute,
		Observer:       fault.Observer{Warning: func(text string) { l.Log("warning: " + text) }},
	}
	if k != nil {
		c.session.Retry, c.session.CleanupTimeout = wait.Backoff{Steps: 1, Duration: time.Millisecond}, 2*time.Second
	}
	return c
}

// killer ends a client at its nth write: that one does not reach the cluster, or its answer is lost.
type killer struct {
	after  int
	landed bool
	next   http.RoundTripper

	mu     sync.Mutex
	writes []string
	dead   bool
}

var errKilled = errors.New("killed")

func (k *killer) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	if k.dead {
		k.mu.Unlock()
		return nil, errKilled
	}
	dies, write := false, ""
	if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/selfsubject") &&
		!strings.Contains(r.URL.RawQuery, "dryRun") &&
		!(strings.Contains(r.URL.Path, "/leases/") && r.Method == http.MethodPut) { // heartbeats come when they want
		write = r.Method + " " + r.URL.Path
		k.writes = append(k.writes, write)
		dies = len(k.writes) == k.after
	}
	k.dead = k.dead || dies
	k.mu.Unlock()
	if dies && !k.landed {
		return nil, errKilled
	}
	response, err := k.next.RoundTrip(r)
	if dies {
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, errKilled
	}
	// It is made once more, and counts then
	if write != "" && r.Method != http.MethodPost && err == nil && response.StatusCode == http.StatusConflict {
		k.mu.Lock()
		i := slices.Index(k.writes, write)
		k.writes = slices.Delete(k.writes, i, i+1)
		k.mu.Unlock()
	}
	return response, err
}

func object(apiVersion, kind, namespace, name string, rest map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}},
	}
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	for name, value := range rest {
		o.Object[name] = value
	}
	return o
}

// manifests returns a tenant: a namespace, a Deployment, and RBAC in it and around it.
func (l *lab) manifests() []*unstructured.Unstructured {
	rule := []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"get"}}}
	subject := []any{map[string]any{"kind": "ServiceAccount", "name": "trainer", "namespace": l.team()}}
	ref := func(kind, name string) map[string]any {
		return map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
	}
	labels := map[string]any{"app": "trainer"}
	return []*unstructured.Unstructured{
		object("rbac.authorization.k8s.io/v1", "ClusterRole", "", l.team(), map[string]any{"rules": rule}),
		object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", l.team(),
			map[string]any{"subjects": subject, "roleRef": ref("ClusterRole", l.team())}),
		object("v1", "Namespace", "", l.team(), nil),
		object("v1", "ServiceAccount", l.team(), "trainer", nil),
		object("rbac.authorization.k8s.io/v1", "Role", l.team(), "trainer", map[string]any{"rules": rule}),
		object("rbac.authorization.k8s.io/v1", "RoleBinding", l.team(), "trainer",
			map[string]any{"subjects": subject, "roleRef": ref("Role", "trainer")}),
		object("apps/v1", "Deployment", l.team(), "trainer", map[string]any{"spec": map[string]any{
			"replicas": int64(1), "selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{
				"serviceAccountName": "trainer",
				"containers": []any{map[string]any{"name": "main", "image": "docker.io/library/busybox:1.35",
					"imagePullPolicy": "IfNotPresent",
					// ignores SIGTERM, as PID 1 does: its grace period is 30 s
					"command": []any{"sh", "-c", "sleep 3600"}}},
			}},
		}}),
	}
}

func (l *lab) creation(c *client, manifests ...*unstructured.Unstructured) *objects.Creation {
	return &objects.Creation{Dynamic: c.dynamic, Mapper: c.mapper, Objects: manifests, LedgerNamespace: l.ledger()}
}

func (l *lab) plan(c *client, changes ...fault.Change) fault.Plan {
	return fault.Plan{Fault: "scenario", Summary: "a test", Changes: changes, InOrder: true, Quiet: true, NoPods: true}
}

// left returns what is there of the lab.
func (l *lab) left() (found []string) {
	l.Helper()
	ctx := context.Background()
	if ns, err := l.typed.CoreV1().Namespaces().Get(ctx, l.team(), metav1.GetOptions{}); err == nil {
		found = append(found, "namespace "+ns.Name+" "+string(ns.Status.Phase))
	}
	roles, err := l.typed.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	for _, role := range roles.Items {
		if role.Name == l.team() {
			found = append(found, "clusterrole "+role.Name)
		}
	}
	if b, err := l.typed.RbacV1().ClusterRoleBindings().Get(ctx, l.team(), metav1.GetOptions{}); err == nil {
		found = append(found, "clusterrolebinding "+b.Name)
	}
	return found
}

// seals returns the ClusterRoles that keep the seals of the steps of a run.
func (l *lab) seals(run *ledger.Run) (found []string) {
	l.Helper()
	for _, step := range run.Steps {
		for _, o := range objects.Objects(*run, step) {
			if !strings.HasPrefix(o.Name, "lab-") {
				continue
			}
			if _, err := l.typed.RbacV1().ClusterRoles().Get(l.Context(), o.Name, metav1.GetOptions{}); err == nil {
				found = append(found, o.Name)
			}
		}
	}
	return found
}

func (l *lab) worker() *corev1.Node {
	l.Helper()
	nodes, err := l.typed.CoreV1().Nodes().List(l.Context(),
		metav1.ListOptions{LabelSelector: "!node-role.kubernetes.io/control-plane"})
	if err != nil || len(nodes.Items) == 0 {
		l.Fatalf("no worker: %v", err)
	}
	return &nodes.Items[0]
}
