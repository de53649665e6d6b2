//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// What cannot work is refused before anything is touched, in words that help.
func TestE2ECudaRefusals(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	web := c.deployment("web")
	web.Spec.Replicas = new(int32(0))
	get := c.create(web)
	before := asUserSees(t, get())

	preload := c.deployment("preload")
	preload.Spec.Replicas = new(int32(0))
	preload.Spec.Template.Spec.Containers[0].Env = append(preload.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{
		Name:      "LD_PRELOAD",
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
	})
	c.create(preload)

	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: c.template("bare").Spec})

	for name, test := range map[string]struct {
		args  []string
		parts []string
	}{
		"unknown workload": {[]string{"deployment/wbe", "--xid", "79"}, []string{"wbe", "web"}},
		"unknown type":     {[]string{"deploymnet/web", "--xid", "79"}, []string{"deploymnet"}},
		"no type":          {[]string{"web", "--xid", "79"}, []string{"TYPE/NAME"}},
		"no pod template":  {[]string{"configmap/kube-root-ca.crt", "--xid", "79"}, []string{"pod template"}},
		"bare pod":         {[]string{"pod/bare", "--xid", "79"}, []string{"pod without a controller"}},
		"unknown container": {
			[]string{"deployment/web", "--xid", "79", "--container", "mian"}, []string{"mian", "main"},
		},
		"unknown XID":              {[]string{"deployment/web", "--xid", "4711"}, []string{"4711"}},
		"XID that nothing notices": {[]string{"deployment/web", "--xid", "154"}, []string{"154"}},
		"unknown error":            {[]string{"deployment/web", "--error", "nonsense"}, []string{"nonsense"}},
		"no fault":                 {[]string{"deployment/web"}, []string{"--xid"}},
		"two faults": {
			[]string{"deployment/web", "--xid", "79", "--error", "719"}, []string{"--xid", "--error"},
		},
		"memory limit": {
			[]string{"deployment/web", "--mem-limit", "lots"}, []string{"--mem-limit", "lots"},
		},
		"more than the GPU has": {
			[]string{"deployment/web", "--mem-limit", "200Gi"}, []string{"--mem-limit", "200Gi", "143771Mi"},
		},
		"unknown node": {
			[]string{"deployment/web", "--xid", "79", "--only-on-node", "node-z"}, []string{"node-z"},
		},
		"LD_PRELOAD of elsewhere": {
			[]string{"deployment/preload", "--xid", "79"}, []string{"LD_PRELOAD", "valueFrom"},
		},
		"protected namespace": {
			[]string{"deployment/coredns", "--xid", "79", "-n", "kube-system"}, []string{"kube-system", "protected"},
		},
		"no such namespace": {[]string{"deployment/web", "--xid", "79", "-n", "nowhere"}, []string{"nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := *c.env
			e.t = t
			sub := *c
			sub.env = &e
			sub.refuse(test.args, test.parts...)
		})
	}
	c.untouched()
	c.same(before, get())
}

// Where pods can only run on nodes that we have no shim for it is refused; one such node somewhere does no harm to
// others. The node is seen by all tests, so this one runs alone.
func TestE2ECudaForeignArchitecture(t *testing.T) {
	c := setupCUDA(t)
	c.foreignNode("riscv64")
	web := c.deployment("web")
	web.Spec.Replicas = new(int32(0))
	c.create(web)
	there := c.deployment("there")
	there.Spec.Replicas = new(int32(0))
	there.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/arch": "riscv64"}
	c.create(there)
	c.refuse([]string{"deployment/there", "--xid", "79"}, "no shim", "riscv64")
	r := c.ok("cuda", "inject", "deployment/web", "-n", c.namespace, "--xid", "79", "--dry-run=server")
	if !strings.Contains(r.stderr, "riscv64") {
		t.Errorf("it does not say that pods on some nodes would have no fault:\n%s", r.stderr)
	}
	c.untouched()
}

// foreignNode is one of another architecture that nothing runs on.
func (c *cuda) foreignNode(arch string) {
	c.t.Helper()
	nodes := c.cluster.Client.CoreV1().Nodes()
	name := "e2e-" + arch
	_ = nodes.Delete(c.t.Context(), name, metav1.DeleteOptions{})
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"kubernetes.io/arch": arch, "kubernetes.io/os": "linux"},
		},
		Spec: corev1.NodeSpec{Unschedulable: true},
	}
	if _, err := nodes.Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	status := []byte(`{"status":{"nodeInfo":{"architecture":"` + arch + `","operatingSystem":"linux"}}}`)
	if _, err := nodes.Patch(
		c.t.Context(), name, "application/merge-patch+json", status, metav1.PatchOptions{}, "status",
	); err != nil {
		c.t.Fatal(err)
	}
}

// The ConfigMap that does not fit the namespace's quota is the API server's refusal; the workload is not touched then.
func TestE2ECudaQuota(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	get := c.create(c.deployment("web"))
	pods := c.healthy("web", 1)
	before := asUserSees(t, get())
	quotas := c.cluster.Client.CoreV1().ResourceQuotas(c.namespace)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		// The cluster's CA
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": quantity("1")}},
	}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the quota is in force", func() (bool, string) {
		q, err := quotas.Get(t.Context(), "few", metav1.GetOptions{})
		return err == nil && len(q.Status.Used) > 0, "no status yet"
	})
	c.refuse([]string{"deployment/web", "--xid", "79"}, "quota", "kubectl describe quota -n "+c.namespace)
	c.same(before, get())
	if after := c.healthy("web", 1); after[0].UID != pods[0].UID {
		t.Error("the pod was replaced")
	}
}

// A namespace that is being deleted takes nothing new. What holds it here is a finalizer of the workload's.
func TestE2ECudaTerminatingNamespace(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	web := c.deployment("web")
	web.Spec.Replicas, web.Finalizers = new(int32(0)), []string{"e2e.gpufault.dev/hold"}
	c.create(web)
	client := c.cluster.Client
	t.Cleanup(func() {
		released := []byte(`{"metadata":{"finalizers":null}}`)
		deployments := client.AppsV1().Deployments(c.namespace)
		if _, err := deployments.Patch(
			context.Background(), "web", "application/merge-patch+json", released, metav1.PatchOptions{},
		); err != nil {
			t.Error(err)
		}
	})
	if err := client.CoreV1().Namespaces().Delete(t.Context(), c.namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the workload is being deleted too", func() (bool, string) {
		d, err := client.AppsV1().Deployments(c.namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return d.DeletionTimestamp != nil, "not yet"
	})
	c.refuse([]string{"deployment/web", "--xid", "79"}, "being deleted")
	c.untouched()
}
