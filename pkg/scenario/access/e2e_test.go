//go:build e2e && scenario

// These tests need a real cluster with RBAC and Pod Security admission, by KUBECONFIG, as its administrator. They work
// in namespaces of their own.
package access_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
)

// lab has the namespaces PREFIX-own, -read, -other and -ledger, each with a Secret, and a candidate.
type lab struct {
	*testing.T
	config    *rest.Config
	admin     kubernetes.Interface
	dynamic   dynamic.Interface
	prefix    string
	candidate kubernetes.Interface
	access    scenario.Access
}

func (l *lab) ns(name string) string { return l.prefix + "-" + name }

func newLab(t *testing.T, change func(*lab)) *lab {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	l := &lab{
		T: t, config: config, admin: kubernetes.NewForConfigOrDie(config), dynamic: dynamic.NewForConfigOrDie(config),
		prefix: fmt.Sprintf("ac-%x", time.Now().UnixNano()),
	}
	l.access = scenario.Access{Namespaces: []string{l.ns("own")}, Read: []string{l.ns("read")}}
	if change != nil {
		change(l)
	}
	if err := access.Validate(l.access, l.ns("ledger")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"own", "read", "other", "ledger"} {
		o := &unstructured.Unstructured{
			Object: map[string]any{
				"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": l.ns(name)},
			},
		}
		access.Secure([]*unstructured.Unstructured{o}, l.access)
		l.create(o)
		_, err := l.admin.CoreV1().Secrets(l.ns(name)).Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "answer"}, StringData: map[string]string{"a": "b"}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range access.Objects(l.prefix, l.ns("ledger"), l.access) {
		l.create(o)
	}
	l.candidate = l.client(l.issue(time.Now().Add(time.Hour)).Kubeconfig)
	return l
}

func (l *lab) create(o *unstructured.Unstructured) {
	l.Helper()
	resource := o.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(o.GetKind()) + "s")
	client := dynamic.ResourceInterface(l.dynamic.Resource(resource))
	if o.GetNamespace() != "" {
		client = l.dynamic.Resource(resource).Namespace(o.GetNamespace())
	}
	if _, err := client.Create(l.Context(), o, metav1.CreateOptions{FieldManager: "kubectl-create"}); err != nil {
		l.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	l.Cleanup(func() {
		if err := client.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			l.Error(err)
		}
	})
}

func (l *lab) issue(until time.Time) access.Issued {
	l.Helper()
	issued, err := access.Kubeconfig(l.Context(), l.admin, l.config, l.prefix, l.access, until)
	if err != nil {
		l.Fatal(err)
	}
	return issued
}

func (l *lab) client(kubeconfig []byte) kubernetes.Interface {
	l.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		l.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	return kubernetes.NewForConfigOrDie(config)
}

func pod(change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "docker.io/library/busybox:1.35"}},
		},
	}
	change(&p.Spec)
	return p
}

func privileged(s *corev1.PodSpec) {
	yes := true
	s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
}

var dry = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// What a candidate can and cannot do, tried as the candidate.
func TestE2ECandidate(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c, ctx := l.candidate, t.Context()
	own, ledger := l.ns("own"), l.ns("ledger")
	if notes, err := access.Verify(ctx, l.admin, l.prefix, ledger, l.access); err != nil || notes != nil {
		t.Errorf("Verify: %q, %v", notes, err)
	}
	get, list := metav1.GetOptions{}, metav1.ListOptions{}
	account, _ := access.Account(l.prefix)
	binding := func(role string, kind string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "b-"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: own}}}
	}
	type try struct {
		what string
		do   func() error
	}
	for _, at := range []try{
		{"read nodes", func() error { _, err := c.CoreV1().Nodes().List(ctx, list); return err }},
		{"read namespaces", func() error { _, err := c.CoreV1().Namespaces().List(ctx, list); return err }},
		{"read storage classes", func() error { _, err := c.StorageV1().StorageClasses().List(ctx, list); return err }},
		{"read runtime classes", func() error { _, err := c.NodeV1().RuntimeClasses().List(ctx, list); return err }},
		{
			"read priority classes",
			func() error { _, err := c.SchedulingV1().PriorityClasses().List(ctx, list); return err },
		},
		{
			"read cluster role bindings",
			func() error { _, err := c.RbacV1().ClusterRoleBindings().List(ctx, list); return err },
		},
		{
			"read Secrets in its namespace",
			func() error { _, err := c.CoreV1().Secrets(own).Get(ctx, "answer", get); return err },
		},
		{"read events in its namespace", func() error { _, err := c.CoreV1().Events(own).List(ctx, list); return err }},
		{
			"read quotas in its namespace",
			func() error { _, err := c.CoreV1().ResourceQuotas(own).List(ctx, list); return err },
		},
		{"make pods in its namespace", func() error {
			_, err := c.CoreV1().Pods(own).Create(ctx, pod(func(*corev1.PodSpec) {}), dry)
			return err
		}},
		{"make pods as another service account of its namespace", func() error {
			_, err := c.CoreV1().Pods(own).Create(ctx,
				pod(func(s *corev1.PodSpec) { s.ServiceAccountName = "default" }), dry)
			return err
		}},
		{"bind a role in its namespace", func() error {
			_, err := c.RbacV1().RoleBindings(own).Create(ctx, binding("view", "ClusterRole"), dry)
			return err
		}},
		{
			"read pods where it may read",
			func() error { _, err := c.CoreV1().Pods(l.ns("read")).List(ctx, list); return err },
		},
		{
			"read ConfigMaps where it may read",
			func() error { _, err := c.CoreV1().ConfigMaps(l.ns("read")).List(ctx, list); return err },
		},
	} {
		if err := at.do(); err != nil {
			t.Errorf("cannot %s: %v", at.what, err)
		}
	}
	for _, at := range []try{
		{
			"read a Secret of the ledger",
			func() error { _, err := c.CoreV1().Secrets(ledger).Get(ctx, "answer", get); return err },
		},
		{
			"list Secrets of the ledger",
			func() error { _, err := c.CoreV1().Secrets(ledger).List(ctx, list); return err },
		},
		{
			"list ConfigMaps of the ledger",
			func() error { _, err := c.CoreV1().ConfigMaps(ledger).List(ctx, list); return err },
		},
		{"list pods of the ledger", func() error { _, err := c.CoreV1().Pods(ledger).List(ctx, list); return err }},
		{"list events of the ledger", func() error { _, err := c.CoreV1().Events(ledger).List(ctx, list); return err }},
		{
			"list leases of the ledger",
			func() error { _, err := c.CoordinationV1().Leases(ledger).List(ctx, list); return err },
		},
		{
			"watch Secrets of the ledger",
			func() error { _, err := c.CoreV1().Secrets(ledger).Watch(ctx, list); return err },
		},
		{
			"read Secrets of another namespace",
			func() error { _, err := c.CoreV1().Secrets(l.ns("other")).Get(ctx, "answer", get); return err },
		},
		{
			"read pods of another namespace",
			func() error { _, err := c.CoreV1().Pods(l.ns("other")).List(ctx, list); return err },
		},
		{
			"read Secrets where it may read",
			func() error { _, err := c.CoreV1().Secrets(l.ns("read")).Get(ctx, "answer", get); return err },
		},
		{"change where it may read", func() error {
			_, err := c.CoreV1().Pods(l.ns("read")).Create(ctx, pod(func(*corev1.PodSpec) {}), dry)
			return err
		}},
		{
			"read Secrets of kube-system",
			func() error { _, err := c.CoreV1().Secrets("kube-system").List(ctx, list); return err },
		},
		{"list all Secrets", func() error { _, err := c.CoreV1().Secrets("").List(ctx, list); return err }},
		{"list all pods", func() error { _, err := c.CoreV1().Pods("").List(ctx, list); return err }},
		{"list all events", func() error { _, err := c.CoreV1().Events("").List(ctx, list); return err }},
		{"list all ConfigMaps", func() error { _, err := c.CoreV1().ConfigMaps("").List(ctx, list); return err }},
		{"cordon a node", func() error {
			_, err := c.CoreV1().Nodes().Patch(ctx, "node-a", "application/merge-patch+json",
				[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}},
		{"exec through a kubelet", func() error {
			return c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-a/proxy/pods").Do(ctx).Error()
		}},
		{"bind cluster-admin in its namespace", func() error {
			_, err := c.RbacV1().RoleBindings(own).Create(ctx, binding("cluster-admin", "ClusterRole"), dry)
			return err
		}},
		{"bind cluster-admin", func() error {
			_, err := c.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "b-"},
				RoleRef:    binding("cluster-admin", "ClusterRole").RoleRef,
			}, dry)
			return err
		}},
		{"make a role with all rights", func() error {
			_, err := c.RbacV1().Roles(own).Create(ctx, &rbacv1.Role{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "r-"},
				Rules: []rbacv1.PolicyRule{
					{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
				},
			}, dry)
			return err
		}},
		{"take away Pod Security", func() error {
			_, err := c.CoreV1().Namespaces().Patch(ctx, own, "application/merge-patch+json",
				[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}},
		{
			"make a privileged pod",
			func() error { _, err := c.CoreV1().Pods(own).Create(ctx, pod(privileged), dry); return err },
		},
		{"make a pod with files of the node", func() error {
			_, err := c.CoreV1().Pods(own).Create(ctx, pod(func(s *corev1.PodSpec) {
				s.Volumes = []corev1.Volume{
					{
						Name:         "root",
						VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}},
					},
				}
			}), dry)
			return err
		}},
		{"make a pod with the node's processes", func() error {
			_, err := c.CoreV1().Pods(own).Create(ctx, pod(func(s *corev1.PodSpec) { s.HostPID = true }), dry)
			return err
		}},
		{"make a longer token for itself", func() error {
			seconds := int64(86400)
			_, err := c.CoreV1().ServiceAccounts(account).CreateToken(ctx, "engineer",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
				metav1.CreateOptions{})
			return err
		}},
		{
			"read its own account",
			func() error { _, err := c.CoreV1().ServiceAccounts(account).List(ctx, list); return err },
		},
		{"delete its namespace", func() error {
			return c.CoreV1().Namespaces().Delete(ctx, own, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		}},
		{
			"delete its quota",
			func() error { return c.CoreV1().ResourceQuotas(own).Delete(ctx, "q", metav1.DeleteOptions{}) },
		},
	} {
		if err := at.do(); !apierrors.IsForbidden(err) {
			t.Errorf("can %s: %v", at.what, err)
		}
	}
}

// Without the label a namespace's admin is root; Verify says how to set it. With NodeShell that is meant.
func TestE2ENodeShellAndOtherBindings(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(l *lab) {
		l.access.NodeShell = true
		l.access.Namespaces = append(l.access.Namespaces, l.ns("other"))
	})
	if _, err := l.candidate.CoreV1().Pods(l.ns("own")).Create(t.Context(), pod(privileged), dry); err != nil {
		t.Errorf("no shell: %v", err)
	}
	if _, err := l.candidate.CoreV1().Pods(l.ns("other")).Create(
		t.Context(), pod(privileged), dry,
	); !apierrors.IsForbidden(err) {
		t.Errorf("a shell in the other namespace: %v", err)
	}
	_, err := l.admin.CoreV1().Namespaces().Patch(t.Context(), l.ns("other"), "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	notes, err := access.Verify(t.Context(), l.admin, l.prefix, l.ns("ledger"), l.access)
	if err != nil || len(notes) != 2 || !strings.Contains(notes[1], "kubectl label namespace "+l.ns("other")) {
		t.Errorf("%q, %v", notes, err)
	}
	// A cluster that lets all service accounts read everything hides nothing. Here they get it in the ledger's
	// namespace only.
	l.create(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1",
		"kind": "RoleBinding", "metadata": map[string]any{"name": "all", "namespace": l.ns("ledger")},
		"roleRef": map[string]any{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": "view"},
		"subjects": []any{
			map[string]any{"kind": "Group", "apiGroup": rbacv1.GroupName, "name": "system:serviceaccounts"},
		}}})
	deadline := time.Now().Add(10 * time.Second) // the authorizer's cache
	for err = nil; err == nil && time.Now().Before(deadline); {
		_, err = access.Verify(t.Context(), l.admin, l.prefix, l.ns("ledger"), l.access)
	}
	if err == nil || !strings.Contains(err.Error(), "get configmaps in "+l.ns("ledger")) ||
		strings.Contains(err.Error(), "secrets") {
		t.Errorf("%v", err)
	}
}

// Tokens live as long as the API server says, and end at once with their account.
func TestE2EToken(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	if issued := l.issue(time.Now().Add(45 * time.Minute)); issued.Note != "" ||
		time.Until(issued.Until) > 46*time.Minute || time.Until(issued.Until) < 44*time.Minute {
		t.Errorf("%s %q", issued.Until, issued.Note)
	}
	if issued := l.issue(time.Now().Add(time.Minute)); !strings.Contains(issued.Note, "ten minutes") ||
		time.Until(issued.Until) > 11*time.Minute {
		t.Errorf("%s %q", issued.Until, issued.Note)
	}
	if issued := l.issue(time.Now().Add(3607 * time.Second)); time.Until(issued.Until) > 2*time.Hour {
		t.Errorf("a token of a year: %s", issued.Until)
	}
	namespace, name := access.Account(l.prefix)
	if err := l.admin.CoreV1().ServiceAccounts(namespace).Delete(
		t.Context(), name, metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	// The API server remembers a token for ten seconds.
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && !apierrors.IsUnauthorized(err); {
		_, err = l.candidate.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	}
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("the token outlives its account: %v", err)
	}
	if _, err := access.Kubeconfig(
		t.Context(), l.admin, l.config, l.prefix, l.access, time.Now().Add(time.Hour),
	); err == nil ||
		!strings.Contains(err.Error(), "end the exercise") {
		t.Error(err)
	}
}

// What the trainer needs is what is asked for beforehand.
func TestE2EPermissions(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	known := map[schema.GroupResource]bool{}
	lists, err := l.admin.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			known[schema.GroupResource{Group: version.Group, Resource: r.Name}] = true
		}
	}
	for _, p := range access.Permissions(l.prefix, l.access) {
		resource, _, _ := strings.Cut(p.Resource, "/")
		if !known[schema.GroupResource{Group: p.Group, Resource: resource}] {
			t.Errorf("no such resource: %+v", p)
		}
	}
}
