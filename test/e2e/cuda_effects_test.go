//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// Effects without an error of their own, each seen by the program.
func TestE2ECudaMemLimit(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	d := c.deployment("train", "TRAINER_BYTES=268435456")
	// A pod that never gets ready would hold a rolling update up
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())
	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--mem-limit", "128Mi", "--at-start")
	if said := seen.has(2, 1); !strings.Contains(said, "in cuMemAlloc(&weights") ||
		!strings.Contains(said, " 128 of 128 MiB free") {
		t.Errorf("the program said:\n%s", said)
	}
	c.reverted(run, before, train)
	c.healthy("train", 1)
}

func TestE2ECudaHideDevices(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	train := c.create(c.deployment("train", "FAKECUDA_DEVICES=3"))
	first := c.healthy("train", 1)[0]
	if log := c.log(first, 0); !strings.Contains(log, "3 of 3 devices") {
		t.Errorf("before the fault: %s", log)
	}
	before := asUserSees(t, train())
	run := c.inject("deployment/train", "--hide-devices", "1", "--at-start")
	// CUDA's count and NVML's.
	if log := c.log(c.healthy("train", 1)[0], 0); !strings.Contains(log, "2 of 2 devices") {
		t.Errorf("with one hidden: %s", log)
	}
	c.reverted(run, before, train)
}

// New pods crash at once, so that the rolling update keeps the one of before: that is as far as it goes, and no reason
// to take all back.
func TestE2ECudaAtStartUnderARollingUpdate(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	d := c.deployment("train")
	d.Spec.MinReadySeconds = 5
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())
	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--fabric-not-ready")
	if said := seen.has(802, 1); !strings.Contains(said, "injected CUDA error 802 into cuInit") {
		t.Errorf("the program said:\n%s", said)
	}
	c.reverted(run, before, train)
	c.healthy("train", 1)
}

var stepLine = regexp.MustCompile(`(?m)^step \d+ `)

func TestE2ECudaLatency(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	// Each step copies twice, launches twice and waits once.
	train := c.create(c.deployment("train", "TRAINER_INTERVAL=20"))
	c.healthy("train", 1)
	before := asUserSees(t, train())
	run := c.inject("deployment/train", "--latency", "40ms", "--disarmed")
	pod := c.healthy("train", 1)[0]
	lines := func(least, most int) func() (bool, string) {
		return func() (bool, string) {
			n := len(stepLine.FindAllString(c.log(pod, 2), -1))
			return n >= least && n <= most, fmt.Sprint(n)
		}
	}
	cluster.Eventually(t, soon, "30 steps in two seconds", lines(30, 1000))
	c.ok("cuda", "arm", run, "-n", c.namespace, "--yes")
	cluster.Eventually(t, soon, "few steps in two seconds", lines(1, 12))
	view := c.statusOf(run)
	if len(view) != 1 || len(view[0].Processes) != 1 {
		t.Fatalf("the status has %+v, wanted one process", view)
	}
	// The heartbeat: which driver, what the shim took over and how the process came to it.
	p := view[0].Processes[0]
	for what, right := range map[string]bool{
		"its name and node":    view[0].Name == pod.Name && view[0].Node == pod.Spec.NodeName,
		"the pod is armed":     view[0].State == "armed",
		"the process":          p.Name == "trainer" && p.State == "tripped",
		"the driver's version": p.Driver == 12040,
		"hooks, and the way":   p.Hooks > 0 && strings.Contains(p.Paths, "cuGetProcAddress"),
		"what tripped":         p.Trips > 0 && strings.HasPrefix(p.Function, "cu"),
	} {
		if !right {
			t.Errorf("the status is wrong about %s: %+v", what, view[0])
		}
	}
	c.ok("cuda", "disarm", run, "-n", c.namespace, "--yes")
	cluster.Eventually(t, soon, "30 steps in two seconds again", lines(30, 1000))
	c.reverted(run, before, train)
}
