//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// Whoever has the printed roles can do all of it in that namespace.
func TestE2ECudaRolesAreEnough(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	get := c.create(c.deployment("train"))
	c.healthy("train", 1)
	before := asUserSees(t, get())
	user := "e2e-" + c.namespace
	c.refuse([]string{"deployment/train", "--xid", "79", "--as", user}, "cannot get resource \"deployments\"",
		"kubectl gpu-fault rbac")

	role := c.ok("rbac", "cuda", "--user", user, "-n", c.namespace, "-o", "yaml").stdout
	apply := exec.CommandContext(t.Context(), binary(t, "kubectl"), "--kubeconfig", c.cluster.Kubeconfig, "apply", "-f",
		"-")
	apply.Stdin = strings.NewReader(role)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply of the printed role: %v\n%s\n%s", err, out, role)
	}
	t.Cleanup(func() {
		remove := exec.Command(binary(t, "kubectl"), "--kubeconfig", c.cluster.Kubeconfig, "delete",
			"--ignore-not-found", "--wait=false", "-f", "-")
		remove.Stdin = strings.NewReader(role)
		_ = remove.Run()
	})
	run := c.inject("deployment/train", "--xid", "79", "--disarmed", "--as", user)
	for _, args := range [][]string{
		{"cuda", "arm", run, "--latency", "5ms"}, {"cuda", "status", run}, {"cuda", "disarm", run}, {"revert", run},
	} {
		args = append(args, "-n", c.namespace, "--as", user)
		if args[1] != "status" {
			args = append(args, "--yes")
		}
		if r := c.ok(args...); strings.Contains(r.stderr, "forbidden") {
			t.Errorf("%v: %s", args, r.stderr)
		}
	}
	c.same(before, get())
	c.nothingLeft()
}

// A dry run tells what would be done, and does nothing.
func TestE2ECudaDryRun(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	get := c.create(c.deployment("train"))
	pods := c.healthy("train", 1)
	before, version := asUserSees(t, get()), get().GetGeneration()
	for _, how := range []string{"client", "server"} {
		var planned ledger.Run
		c.decode(c.ok("cuda", "inject", "deployment/train", "-n", c.namespace, "--xid", "79", "--dry-run="+how, "-o",
			"json").stdout, &planned)
		if planned.Phase != ledger.Planned || len(planned.Steps) != 1 || planned.Steps[0].Target.Name != "train" ||
			planned.ID != "" {
			t.Errorf("--dry-run=%s -o json: %+v", how, planned)
		}
		r := c.ok("cuda", "inject", "deployment/train", "-n", c.namespace, "--xid", "79", "--dry-run="+how)
		done, fault := "deployment.apps/train injected ("+how+" dry run)",
			"XID 79: running processes 999 (sticky), new ones 100 and NVML 15"
		if !strings.Contains(r.stdout, done) || !strings.Contains(r.stderr, fault) {
			t.Errorf("--dry-run=%s: %s%s", how, r.stdout, r.stderr)
		}
	}
	c.refuse([]string{"deployment/train", "--xid", "79", "--yes=false"}, "--yes") // no terminal to ask on
	c.same(before, get())
	if now := get().GetGeneration(); now != version {
		t.Errorf("generation %d, then %d", version, now)
	}
	if after := c.healthy("train", 1); after[0].UID != pods[0].UID {
		t.Error("the pod was replaced")
	}
	c.nothingLeft()
	c.untouched()
}

// When even the ledger is lost, what is in the workload is found and taken out. It looks at all namespaces, so this
// test runs alone.
func TestE2ECudaShimWithoutARecordIsFound(t *testing.T) {
	c := setupCUDA(t)
	get := c.create(c.deployment("train", "LD_PRELOAD=libc.so.6"))
	c.healthy("train", 1)
	before := fmt.Sprint(get().Object["spec"])
	run := c.inject("deployment/train", "--xid", "79", "--disarmed")
	if found := c.left(c.namespace); len(found) != 0 {
		t.Errorf("leftovers of an open run: %v", found)
	}
	if err := c.cluster.Client.CoreV1().Namespaces().Delete(t.Context(), c.ledger, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the ledger is lost", func() (bool, string) {
		_, err := c.cluster.Client.CoreV1().Namespaces().Get(context.Background(), c.ledger, metav1.GetOptions{})
		return err != nil, "not yet"
	})
	found := c.left(c.namespace)
	for _, name := range []string{"deployment.apps/train", "configmap/gpu-fault-" + run} {
		if _, ok := found[name]; !ok {
			t.Errorf("%s was not found: %v", name, found)
		}
	}
	c.plugin("leftovers", "--clean", "--yes") // its exit code is about all namespaces
	cluster.Eventually(t, patience, "nothing is left once the pods were replaced", func() (bool, string) {
		left := c.left(c.namespace)
		return len(left) == 0, fmt.Sprint(left)
	})
	if after := fmt.Sprint(get().Object["spec"]); after != before {
		t.Errorf("the workload is not as it was:\n%s\n%s", before, after)
	}
	c.healthy("train", 1)
}
