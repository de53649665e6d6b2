//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// tenant is an administrator of one namespace, with Kubernetes' own role admin, and nothing elsewhere.
type tenant struct {
	*env
	user, namespace string
}

func newTenant(e *env) *tenant {
	e.t.Helper()
	n := &tenant{env: e, namespace: e.cluster.Namespace(e.t)}
	n.user = "tenant-" + n.namespace
	_, err := e.cluster.Client.RbacV1().RoleBindings(n.namespace).Create(e.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: n.user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: n.user}},
	}, metav1.CreateOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	e.inForce(n.user, fault.Permission{Verb: "create", Resource: "pods", Namespace: n.namespace})
	return n
}

// does runs kubectl as the tenant, which may do it.
func (n *tenant) does(object string, args ...string) {
	n.t.Helper()
	n.kubectlWith(object, append(args, "--as", n.user)...)
}

// TestAttackTenants: what someone may write in a namespace of their own is followed by no command of an administrator.
func TestAttackTenants(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	n := newTenant(e)
	w := &writer{
		env: &env{t: t, cluster: e.cluster, worker: e.worker, control: e.control, ledger: n.namespace}, user: n.user,
	}
	w.client = e.as(n.user)
	id := w.forge(ledger.Run{
		Steps: []ledger.Step{step(ledger.Target{Kind: "Node", Name: e.worker.Name}, "node-files", `{"files":[]}`)},
	})
	pods := func() string {
		list, err := e.cluster.Client.CoreV1().Pods(n.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(len(list.Items), " pods")
	}
	follow := "revert " + id

	t.Run("a record in their namespace, named by the victim", func(t *testing.T) {
		for _, args := range [][]string{
			{"revert", id, "--yes"}, {"revert", "--all", "--yes"}, {"revert", id, "--dry-run=client"}, {"list"},
		} {
			r := e.holds(t, pods, append(args, "--ledger-namespace", n.namespace)...)
			r.says(t, 1, "is not marked as a ledger")
			if strings.Contains(r.stdout+r.stderr, "handler") {
				t.Errorf("%v shows what the record claims:\n%s%s", args, r.stdout, r.stderr)
			}
		}
	})
	t.Run("a record in their namespace, found by leftovers", func(t *testing.T) {
		for _, args := range [][]string{{"leftovers"}, {"leftovers", "-o", "json"}, {"leftovers", "-o", "wide"}} {
			if r := e.holds(t, pods, args...); strings.Contains(r.stdout+r.stderr, follow) ||
				strings.Contains(r.stdout+r.stderr, "label namespace "+n.namespace) {
				t.Errorf("%v suggests to follow it:\n%s%s", args, r.stdout, r.stderr)
			}
		}
	})
	t.Run("a record in their namespace, found by list", func(t *testing.T) {
		if r := e.ok("list", "-A"); strings.Contains(r.stdout, id) ||
			!strings.Contains(r.stderr, "is not marked as a ledger") {
			t.Errorf("list -A:\n%s%s", r.stdout, r.stderr)
		}
	})
	t.Run("every other command that reads records", func(t *testing.T) {
		for _, args := range [][]string{
			{"cuda", "status", id}, {"cuda", "arm", id, "--yes"}, {"cuda", "disarm", id, "--yes"},
			{"xid", "explain", "79"}, {"doctor", "--api-only"}, {"scenario", "status"},
		} {
			r := e.holds(t, pods, append(args, "--ledger-namespace", n.namespace)...)
			if said := r.stdout + r.stderr; strings.Contains(said, follow) || strings.Contains(said, "--expired") {
				t.Errorf("%v suggests to follow it:\n%s", args, said)
			}
		}
	})
	t.Run("completion of their record", func(t *testing.T) {
		if r := e.plugin(
			"__complete", "revert", "--ledger-namespace", n.namespace, "",
		); strings.Contains(r.stdout, id) {
			t.Errorf("it is offered:\n%s", r.stdout)
		}
	})
	t.Run("the mark of a ledger", func(t *testing.T) {
		said := e.kubectlFails("", "label", "namespace", n.namespace, "gpufault.dev/ledger=true", "--as", n.user)
		if !strings.Contains(said, "forbidden") {
			t.Errorf("kubectl said: %s", said)
		}
	})
	t.Run("the mark on an object of theirs", func(t *testing.T) {
		n.does("", "label", "configmap", id, "-n", n.namespace, "gpufault.dev/ledger=true", "--overwrite")
		e.plugin("revert", id, "--yes", "--ledger-namespace", n.namespace).says(t, 1, "is not marked as a ledger")
	})
	t.Run("a ledger that does not exist yet", func(t *testing.T) {
		r := e.plugin("revert", id, "--yes", "--ledger-namespace", n.namespace+"-none")
		r.says(t, 1, id)
	})
	t.Run("objects with the tool's labels in their namespace", func(t *testing.T) {
		n.does(fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[
			{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"gpu-fault-cuda-222222","namespace":%[1]q,"labels":{"app.kubernetes.io/managed-by":"kubectl-gpu-fault","gpufault.dev/run":"cuda-222222"}}},
			{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node-%[2]s","namespace":%[1]q,"labels":{"app.kubernetes.io/managed-by":"kubectl-gpu-fault","gpufault.dev/run":"xid-222222"}},"spec":{"holderIdentity":"xid-222222"}},
			{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"xid-222222","namespace":%[1]q,"labels":{"app.kubernetes.io/managed-by":"kubectl-gpu-fault","gpufault.dev/run":"xid-222222"}},"spec":{"suspend":true,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"busybox:1.35"}]}}}}]}`,
			n.namespace, e.worker.Name), "create", "-f", "-")
		others := func() string {
			maps, err := e.cluster.Client.CoreV1().ConfigMaps("").List(t.Context(),
				metav1.ListOptions{LabelSelector: "!gpufault.dev/run"})
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, m := range maps.Items {
				if m.Namespace == "kube-system" || m.Namespace == "default" {
					all = append(all, m.Namespace+"/"+m.Name)
				}
			}
			return sorted(all)
		}
		e.holds(t, others, "leftovers", "--clean", "--yes")
	})
	t.Run("the lock of a node in their namespace", func(t *testing.T) {
		e.ok("xid", "43", e.worker.Name, "--gpu", "0", "--dry-run=server")
	})
	t.Run("a workload with the parts of a shim that nobody put there", func(t *testing.T) {
		c := e.cluster.Client.AppsV1().Deployments(n.namespace)
		n.does(fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"lure","namespace":%q},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b","gpufault.dev/run":"cuda-222222"}},"spec":{"containers":[{"name":"c","image":"busybox:1.35","env":[{"name":"LD_PRELOAD","value":"/gpu-fault/lib/x.so:/mine.so"}]}]}}}}`, n.namespace),
			"create", "-f", "-")
		e.plugin("leftovers", "--clean", "--yes")
		d, err := c.Get(t.Context(), "lure", metav1.GetOptions{})
		if err != nil || !strings.HasSuffix(d.Spec.Template.Spec.Containers[0].Env[0].Value, "/mine.so") {
			t.Errorf("what is the tenant's own was taken away: %v %v", d, err)
		}
	})
	t.Run("exec into the privileged pod of others", func(t *testing.T) {
		said := e.kubectlFails("", "auth", "can-i", "create", "pods/exec", "-n", e.ledger, "--as", n.user)
		if !strings.Contains(said, "no") {
			t.Errorf("kubectl said: %s", said)
		}
	})
	t.Run("a privileged pod where others may exec", func(t *testing.T) {
		// A namespace that an administrator has marked by mistake: the tenant works there.
		e.kubectlWith("", "label", "namespace", n.namespace, "gpufault.dev/ledger=true",
			"pod-security.kubernetes.io/enforce=privileged")
		t.Cleanup(func() {
			e.kubectlWith("", "label", "namespace", n.namespace, "gpufault.dev/ledger-",
				"pod-security.kubernetes.io/enforce-")
		})
		start := time.Now()
		r := e.holds(t, func() string { return "0 pods" }, "xid", "43", e.worker.Name, "--gpu", "0", "--yes",
			"--ledger-namespace", n.namespace)
		if !strings.Contains(r.stderr, "admin") && !strings.Contains(r.stderr, n.user) {
			t.Errorf("nobody is told who else is root there (%s): exit %d\n%s", time.Since(start), r.code, r.stderr)
		}
		e.plugin("revert", "--all", "--yes", "--ledger-namespace", n.namespace)
	})
}
