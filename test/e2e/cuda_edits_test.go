//go:build e2e

package e2e

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// preloads is the LD_PRELOAD of a Deployment's container.
func (c *cuda) preload(app string) string {
	c.t.Helper()
	d, err := c.cluster.Client.AppsV1().Deployments(c.namespace).Get(c.t.Context(), app, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		if v.Name == "LD_PRELOAD" {
			return v.Value
		}
	}
	return ""
}

// edit changes a Deployment as somebody else would.
func (c *cuda) edit(app string, change func(*appsv1.Deployment)) {
	c.t.Helper()
	api := c.cluster.Client.AppsV1().Deployments(c.namespace)
	for range 10 { // its controller writes too
		d, err := api.Get(c.t.Context(), app, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		change(d)
		if _, err = api.Update(c.t.Context(), d, metav1.UpdateOptions{FieldManager: "e2e-somebody"}); err == nil {
			return
		}
	}
	c.t.Fatal("cannot be edited")
}

// The user's own LD_PRELOAD goes on to work, behind the shim, and is what the revert leaves.
func TestE2ECudaChainsTheUsersPreload(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	d := c.deployment("train", "LD_PRELOAD=libc.so.6")
	get := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, get())
	run := c.inject("deployment/train", "--xid", "79", "--disarmed")
	if now := c.preload("train"); now != "/gpu-fault/lib/libgpufault.so:libc.so.6" {
		t.Errorf("LD_PRELOAD=%s", now)
	}
	c.healthy("train", 1)
	r := c.plugin("cuda", "inject", "deployment/train", "-n", c.namespace, "--xid", "48", "--yes")
	c.mustSay(r, 1, run, "kubectl gpu-fault revert "+run)
	if runs := c.runs("--all"); len(runs) != 1 {
		t.Errorf("the second injection left a record: %+v", runs)
	}
	c.reverted(run, before, get)
}

// What somebody else changes during the fault is theirs: a new variable stays, and nothing of ours does.
func TestE2ECudaEditOfSomebodyElseStays(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	get := c.create(c.deployment("train"))
	c.healthy("train", 1)
	run := c.inject("deployment/train", "--xid", "79", "--disarmed")
	theirs := corev1.EnvVar{Name: "THEIRS", Value: "1"}
	c.edit("train", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Env = append(d.Spec.Template.Spec.Containers[0].Env, theirs)
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	})
	out := c.ok("revert", run, "--yes").stdout
	if !strings.Contains(out, "reverted") {
		t.Errorf("revert: %s", out)
	}
	text := asUserSees(t, get())
	for _, want := range []string{`"THEIRS"`, `"terminationGracePeriodSeconds": 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s of somebody else is gone:\n%s", want, text)
		}
	}
	c.nothingOfOurs(get())
	c.nothingLeft()
	c.healthy("train", 1)
}

// What somebody wrote over a value of ours is left and reported, exactly; the rest of ours goes.
func TestE2ECudaOverwrittenValueIsSuperseded(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	get := c.create(c.deployment("train"))
	c.healthy("train", 1)
	run := c.inject("deployment/train", "--xid", "79", "--disarmed")
	c.edit("train", func(d *appsv1.Deployment) {
		for i := range d.Spec.Template.Spec.Containers[0].Env {
			if v := &d.Spec.Template.Spec.Containers[0].Env[i]; v.Name == "LD_PRELOAD" {
				v.Value = "libc.so.6"
			}
		}
	})
	r := c.plugin("revert", run, "--yes")
	c.mustSay(r, 2, "env[name=LD_PRELOAD]", "libc.so.6", "another client set it to")
	if !strings.Contains(r.stdout, "superseded") {
		t.Errorf("revert: %s", r.stdout)
	}
	if now := c.preload("train"); now != "libc.so.6" {
		t.Errorf("LD_PRELOAD=%s, and somebody had set it to libc.so.6", now)
	}
	c.nothingOfOurs(get())
	c.nothingLeft()
	if runs := c.runs("--all"); len(runs) != 1 || runs[0].Steps[0].State != ledger.StateSuperseded {
		t.Errorf("the record does not say superseded: %+v", runs)
	}
	c.healthy("train", 1)
	c.inject("deployment/train", "--xid", "79", "--disarmed") // free for the next
	if now, want := c.preload("train"), "/gpu-fault/lib/libgpufault.so:libc.so.6"; now != want {
		t.Errorf("LD_PRELOAD=%s, wanted %s", now, want)
	}
}
