//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// replicaSet returns the one that a Deployment's pods are of now.
func (c *cuda) replicaSet(app string) string {
	c.t.Helper()
	sets, err := c.cluster.Client.AppsV1().ReplicaSets(c.namespace).List(c.t.Context(),
		metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		c.t.Fatal(err)
	}
	var used []string
	for _, set := range sets.Items {
		if set.Spec.Replicas == nil || *set.Spec.Replicas > 0 {
			used = append(used, set.Name)
		}
	}
	return strings.Join(used, " and ")
}

// status returns what `cuda status` prints for people.
func (c *cuda) status(run string) string {
	c.t.Helper()
	return c.ok("cuda", "status", run, "-n", c.namespace).stdout
}

// The whole story of XID 79: the processes end as with a GPU that fell off the bus, the status says so, disarmed they
// are healthy without being replaced, the revert brings back the former template and its ReplicaSet, and nobody else
// noticed.
func TestE2ECudaFromInjectionToRevert(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	train := c.create(onEachNode(c.deployment("train")))
	other := c.create(c.deployment("other"))
	c.healthy("train", 2)
	untouched := c.healthy("other", 1)
	before, otherBefore, set := asUserSees(t, train()), asUserSees(t, other()), c.replicaSet("train")

	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--xid", "79")
	if runs := c.runs(); len(runs) != 1 || runs[0].ID != run || runs[0].Phase != ledger.Proven ||
		len(runs[0].Steps[0].Evidence) == 0 {
		t.Errorf("the ledger has %+v, wanted the one proven run %s", runs, run)
	}
	for code, call := range map[int]string{999: "cu", 100: "cuInit"} { // of processes that ran, and of their successors
		want := fmt.Sprintf("gpu-fault: run %s: injected CUDA error %d into %s", run, code, call)
		if said := seen.has(code, 2); !strings.Contains(said, want) {
			t.Errorf("the shim does not say %q:\n%s", want, said)
		}
	}
	pods := c.pods("train")
	status := c.status(run)
	for _, p := range pods {
		if !strings.Contains(status, p.Name) || !strings.Contains(status, p.Spec.NodeName) {
			t.Errorf("the status has no pod %s on %s:\n%s", p.Name, p.Spec.NodeName, status)
		}
	}

	c.ok("cuda", "disarm", run, "-n", c.namespace, "--yes")
	if after := c.healthy("train", 2); !slices.Equal(uids(after), uids(pods)) {
		t.Errorf("disarming replaced pods: %v, then %v", uids(pods), uids(after))
	}
	c.reverted(run, before, train)
	c.healthy("train", 2)
	if now := c.replicaSet("train"); now != set {
		t.Errorf("the pods are of %s, and were of %s", now, set)
	}
	c.same(otherBefore, other())
	if after := c.healthy("other", 1); !slices.Equal(uids(after), uids(untouched)) ||
		after[0].Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("the pods of another Deployment were replaced or restarted")
	}
	c.ok("revert", run, "--yes") // once more does no harm
}

// Rolled out idle, the fault comes and goes without a restart by us: running processes get 999, their successors 100
// from cuInit.
func TestE2ECudaArmAndDisarm(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	train := c.create(onEachNode(c.deployment("train")))
	c.healthy("train", 2)
	before := asUserSees(t, train())

	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--xid", "79", "--disarmed")
	pods := c.healthy("train", 2)
	for _, pod := range c.statusOf(run) {
		if pod.State != "disarmed" || len(pod.Processes) != 1 || pod.Processes[0].State != "disarmed" ||
			pod.Processes[0].Hooks == 0 {
			t.Errorf("the status says of a pod with one process, where all calls pass: %+v", pod)
		}
	}
	seen.none(2 * time.Second)

	armed := time.Now()
	c.ok("cuda", "arm", run, "-n", c.namespace, "--yes")
	if said := seen.has(999, 2); !strings.Contains(said, "injected CUDA error 999 into ") {
		t.Errorf("the shim does not say what it injected:\n%s", said)
	}
	t.Logf("both processes ended with 999 %s after `cuda arm` began", time.Since(armed).Round(time.Millisecond))
	seen.has(100, 2)
	status := c.status(run)
	if !strings.Contains(status, "999") && !strings.Contains(status, "100") {
		t.Errorf("the status does not tell an error:\n%s", status)
	}

	disarmed := time.Now()
	c.ok("cuda", "disarm", run, "-n", c.namespace, "--yes")
	after := c.healthy("train", 2)
	t.Logf("healthy %s after `cuda disarm` began", time.Since(disarmed).Round(time.Millisecond))
	if !slices.Equal(uids(after), uids(pods)) {
		t.Errorf("pods were replaced: %v, then %v", uids(pods), uids(after))
	}
	c.reverted(run, before, train)
	c.healthy("train", 2)
}

// By LD_AUDIT the same happens, in programs that nothing preloads into: the variable is the audit one, the fault lands,
// and goes.
func TestE2ECudaAudit(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	train := c.create(c.deployment("train"))
	c.healthy("train", 1)
	before := asUserSees(t, train())

	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--xid", "79", "--audit")
	seen.has(999, 1)
	if template := asUserSees(t, train()); !strings.Contains(template, `"LD_AUDIT"`) ||
		strings.Contains(template, `"LD_PRELOAD"`) {
		t.Errorf("the template does not load the shim by LD_AUDIT alone:\n%s", template)
	}
	c.ok("cuda", "disarm", run, "-n", c.namespace, "--yes")
	c.healthy("train", 1)
	c.reverted(run, before, train)
	c.healthy("train", 1)
}

// A bad node breaks what runs on it. The pod that is made in its place elsewhere is healthy, with the fault still in
// the template.
func TestE2ECudaBadNode(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	bad, good := c.control.Name, c.worker.Name
	d := c.deployment("train")
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	d.Spec.Template.Spec.Affinity = apartFrom(map[string]string{"app": "blocker"})
	d.Spec.Template.Spec.Affinity.NodeAffinity =
		&corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{bad}},
			}},
		}}}
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())

	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--xid", "79", "--only-on-node", bad)
	seen.has(999, 1)
	first := c.pods("train")[0]
	if first.Spec.NodeName != bad {
		t.Fatalf("the pod is on %s, and prefers %s", first.Spec.NodeName, bad)
	}

	// A cordon would keep pods of other tests away too.
	blocker := c.deployment("blocker")
	blocker.Spec.Template.Spec.NodeName = bad
	c.create(blocker)
	c.healthy("blocker", 1)
	if err := c.cluster.Client.CoreV1().Pods(c.namespace).Delete(
		t.Context(), first.Name, metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	var second corev1.Pod
	cluster.Eventually(t, patience, "another pod on "+good, func() (bool, string) {
		pods := c.pods("train")
		if len(pods) != 1 || pods[0].UID == first.UID {
			return false, fmt.Sprint(len(pods))
		}
		second = pods[0]
		return second.Spec.NodeName == good, second.Spec.NodeName
	})
	c.healthy("train", 1)
	for _, crash := range seen.all() {
		if crash.node != bad {
			t.Errorf("%s ended with %s on %s", crash.pod, crash.code, crash.node)
		}
	}
	if status := c.status(run); !strings.Contains(status, second.Name) || !strings.Contains(status, "excluded (node)") {
		t.Errorf("the status does not say that the node is none of the bad ones:\n%s", status)
	}
	c.reverted(run, before, train)
}

// When the time is up the processes go on by themselves, without any client: calls that hang return, and all later ones
// pass. The template has the shim until somebody reverts.
func TestE2ECudaExpiry(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	train := c.create(c.deployment("train"))
	c.healthy("train", 1)
	before := asUserSees(t, train())

	run := c.inject("deployment/train", "--hang", "--ttl", cluster.TTL(30*time.Second).String())
	pod := c.pods("train")[0]
	cluster.Eventually(t, soon, "it makes no step any more", func() (bool, string) {
		log := c.log(pod, 2)
		return !strings.Contains(log, "step "), log
	})
	after := c.healthy("train", 1)[0]
	runs := c.runs()
	if len(runs) != 1 || time.Now().Before(runs[0].Until) {
		t.Fatalf("healthy at %s: %+v", time.Now(), runs)
	}
	if restarts := after.Status.ContainerStatuses[0].RestartCount; after.UID != pod.UID || restarts != 0 {
		t.Errorf("the process did not go on: pod %s, then %s, %d restarts", pod.Name, after.Name, restarts)
	}
	if text := asUserSees(t, train()); !strings.Contains(text, "libgpufault.so") {
		t.Errorf("somebody took the shim out of the template:\n%s", text)
	}
	if out := c.ok("list").stdout; !strings.Contains(out, "Expired") {
		t.Errorf("list does not call the run expired:\n%s", out)
	}
	if out := c.ok("revert", "--expired", "--yes").stdout; !strings.Contains(out, run) {
		t.Errorf("revert --expired: %s", out)
	}
	c.same(before, train())
	c.nothingLeft()
	c.healthy("train", 1)
}

// What happens together on real hardware: the line in the node's kernel log, and the programs on it.
func TestE2ECudaTogetherWithXID(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	d := c.deployment("train")
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: c.worker.Name}
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())

	seen := c.watchCrashes("train")
	line := c.env.inject("79", c.worker.Name)
	run := c.inject("deployment/train", "--xid", "79")
	seen.has(999, 1)
	for _, crash := range seen.all() {
		if crash.node != line.Nodes[0].Node {
			t.Errorf("%s ended on %s, and the line is in the log of %s", crash.pod, crash.node, line.Nodes[0].Node)
		}
	}
	var open []string
	for _, r := range c.runs() {
		open = append(open, r.ID+" "+string(r.Phase))
	}
	slices.Sort(open)
	if want := []string{run + " Proven", line.ID + " Proven"}; !slices.Equal(open, want) {
		t.Errorf("open are %v, wanted %v", open, want)
	}
	out := c.ok("revert", "--all", "--yes").stdout
	if !strings.Contains(out, run) || !strings.Contains(out, line.ID) {
		t.Errorf("revert --all: %s", out)
	}
	c.same(before, train())
	c.nothingLeft()
}
