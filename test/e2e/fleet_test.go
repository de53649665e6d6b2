//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// A fleet is injected from inside the cluster, by an image of ours that is on the nodes only: it lands on each node,
// with a proof in the record of each pod's run, and is reverted as one. Whether its client is interrupted or killed,
// the pods undo what they did, and no object is left.
func TestFleet(t *testing.T) {
	e := setup(t)
	t.Cleanup(func() { e.worker.RestartNPD(t); e.control.RestartNPD(t) }) // to the next test, no GPU is lost
	image := e.pluginImage()
	e.refused(e.plugin(e.fleet(image, "79")...), `service account "gpu-fault-fleet" not found`,
		"rbac print --for xid --in-cluster --ledger-namespace "+e.ledger+" | kubectl apply -f -")
	e.grantFleet()
	for name, test := range map[string]func(*env, string){
		"lands": fleetLands, "interrupted": fleetInterrupted, "killed": fleetKilled, "undone": fleetUndone,
		"devices": fleetDevices,
	} {
		t.Run(name, func(t *testing.T) {
			own := *e
			own.t = t
			test(&own, image)
		})
	}
}

// fleet returns the command line of a fleet with a pod for each of two nodes: the control plane and a worker.
func (e *env) fleet(image, code string, more ...string) []string {
	return append([]string{
		"xid", code, e.control.Name, e.worker.Name, "--in-cluster", "--nodes-per-pod", "1", "--image", image,
		"--image-pull-policy", "Never", "--allow-control-plane", "--allow-last-gpu-node", "--allow-majority", "--yes",
	}, more...)
}

// pluginImage loads the image with the plugin into the nodes, and returns its name.
func (e *env) pluginImage() string {
	t := e.t
	t.Helper()
	file := t.TempDir() + "/image.tar"
	image := strings.TrimSpace(e.ok("image", "save", "gpu-fault-fleet", "--with-plugin", "-f", file).stdout)
	for _, node := range e.cluster.Nodes() {
		load := node.Command(t.Context(), "ctr", "-n", "k8s.io", "images", "import", "-")
		archive := exec.CommandContext(t.Context(), "cat", file)
		pipe, err := archive.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		load.Stdin = pipe
		if err := archive.Start(); err != nil {
			t.Fatal(err)
		}
		if out, err := load.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", node.Name, err, out)
		}
		_ = archive.Wait()
	}
	return image
}

// grantFleet creates the service account of fleets, as the error of a missing one says.
func (e *env) grantFleet() {
	t := e.t
	t.Helper()
	apply := exec.CommandContext(t.Context(), binary(t, "kubectl"), "apply", "-f", "-")
	apply.Env = append(apply.Environ(), "KUBECONFIG="+e.cluster.Kubeconfig)
	apply.Stdin = strings.NewReader(e.ok("rbac", "print", "--for", "xid,runtime,device", "--in-cluster").stdout)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		roles := e.cluster.Client.RbacV1()
		for _, feature := range []string{"xid", "runtime", "device"} {
			name := "gpu-fault-" + feature + "-in-cluster"
			e.drop(roles.ClusterRoles(), name)
			e.drop(roles.ClusterRoleBindings(), name)
			e.drop(roles.Roles("default"), name)
			e.drop(roles.RoleBindings("default"), name)
		}
	})
}

func fleetLands(e *env, image string) {
	t := e.t
	var out struct {
		ID     string
		Landed []string
		Runs   []ledger.Run
	}
	e.decode(e.ok(e.fleet(image, "79", "-o", "json")...).stdout, &out)
	if len(out.Landed) != 2 || len(out.Runs) != 2 {
		t.Fatalf("landed on %v with %d runs", out.Landed, len(out.Runs))
	}
	for i, run := range out.Runs {
		step := run.Steps[0]
		if run.ID != ledger.FleetRun(out.ID, i) || step.State != ledger.StateProven || len(step.Evidence) == 0 ||
			!strings.Contains(step.Evidence[0].Text, "GPU has fallen off the bus") {
			t.Errorf("run %s: %+v", run.ID, step)
		}
		if !strings.Contains(run.From, "for kubernetes-admin") {
			t.Errorf("run %s does not say for whom it was made: from %q", run.ID, run.From)
		}
	}
	e.noFleet()
	if r := e.ok("list"); !strings.Contains(r.stdout, out.ID+" ") {
		t.Errorf("list:\n%s", r.stdout)
	}
	if r := e.ok("revert", out.ID, "--yes"); strings.Count(r.stdout, "permanent") != 2 {
		t.Errorf("revert:\n%s", r.stdout)
	}
	e.mustSay(e.plugin("revert", "fleet-222222", "--yes"), 1, "run fleet-222222 not found")
	if open := e.runs(); len(open) > 0 {
		t.Errorf("open after revert: %+v", open)
	}
}

// applying starts a fleet that writes for a minute, and returns when both of its pods write.
func (e *env) applying(image string) *started {
	e.t.Helper()
	s := &started{Cmd: e.command(e.fleet(image, "63", "--count", "300", "--interval", "200ms")...)}
	s.Stdout, s.Stderr = &s.stdout, &s.stderr
	if err := s.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = s.Process.Kill(); _, _ = s.Process.Wait() })
	cluster.Eventually(e.t, patience, "both pods write", func() (bool, string) {
		writing := 0
		for _, run := range e.runs() {
			if run.Steps[0].State == ledger.StateApplying {
				writing++
			}
		}
		return writing == 2, fmt.Sprintf("%d write\n%s", writing, s.stderr.String())
	})
	return s
}

func fleetInterrupted(e *env, image string) {
	s := e.applying(image)
	fleet := e.runs()[0].Fleet
	if err := s.Process.Signal(syscall.SIGINT); err != nil {
		e.t.Fatal(err)
	}
	_ = s.Wait()
	if code := s.ProcessState.ExitCode(); code != 130 {
		e.t.Errorf("exit %d after Ctrl-C, wanted 130", code)
	}
	for _, part := range []string{"landed on 0 of 2 nodes; undo: kubectl gpu-fault revert fleet-", "was stopped"} {
		if !strings.Contains(s.stderr.String(), part) {
			e.t.Errorf("stderr lacks %q:\n%s", part, s.stderr.String())
		}
	}
	e.noFleet()
	stopped := 0
	for _, run := range e.runs("--all") {
		if run.Fleet != fleet {
			continue
		}
		if stopped++; run.Phase != ledger.Interrupted {
			e.t.Errorf("run %s is %s", run.ID, run.Phase)
		}
	}
	if stopped != 2 {
		e.t.Errorf("%d of 2 runs of %s were stopped", stopped, fleet)
	}
	e.ok("revert", "--all", "--yes")
}

// fleetUndone interrupts the client while a pod of the fleet has a changed file on the node: the pod restores the file
// before it ends.
func fleetUndone(e *env, image string) {
	const file = "/etc/containerd/config.toml"
	content := func() string { return e.worker.Sh(e.t, "sha256sum", file) }
	before := content()
	s := &started{Cmd: e.command("runtime", "break", e.worker.Name, "--mode", "missing-handler", "--in-cluster",
		"--image", image, "--image-pull-policy", "Never", "--allow-last-gpu-node", "--allow-majority", "--yes")}
	s.Stdout, s.Stderr = &s.stdout, &s.stderr
	if err := s.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = s.Process.Kill(); _, _ = s.Process.Wait() })
	cluster.Eventually(e.t, patience, "the file is changed", func() (bool, string) {
		now := content()
		return now != before, now
	})
	if err := s.Process.Signal(syscall.SIGINT); err != nil {
		e.t.Fatal(err)
	}
	_ = s.Wait()
	if strings.Contains(s.stderr.String(), "landed on 1 of 1 node") { // the pod had finished before the signal
		e.ok("revert", "--all", "--yes")
	}
	if now := content(); now != before {
		e.t.Errorf("%s is %s, before %s\n%s%s", file, now, before, s.stdout.String(), s.stderr.String())
	}
	e.noFleet()
	e.ok("revert", "--all", "--yes")
}

// fleetDevices makes a GPU of each node unhealthy: the faults last when the pods of the fleet have ended, until they
// are reverted.
func fleetDevices(e *env, image string) {
	before := e.allocatable()
	r := e.ok("device", "unhealthy", e.control.Name, e.worker.Name, "--gpu", "1", "--ttl", "10m", "--in-cluster",
		"--nodes-per-pod", "1", "--image", image, "--image-pull-policy", "Never", "--allow-control-plane",
		"--allow-last-gpu-node", "--allow-majority", "--yes")
	if !strings.Contains(r.stdout, "landed   2") {
		e.t.Errorf("stdout:\n%s", r.stdout)
	}
	e.noFleet()
	if now := e.allocatable(); now != before-1 {
		e.t.Errorf("%d GPUs are allocatable, before %d", now, before)
	}
	e.ok("revert", e.runs()[0].Fleet, "--allow-control-plane", "--yes")
	if now := e.allocatable(); now != before {
		e.t.Errorf("%d GPUs are allocatable after the revert, before %d", now, before)
	}
}

func fleetKilled(e *env, image string) {
	s := e.applying(image)
	_ = s.Process.Kill()
	_ = s.Wait()
	fleet := e.runs()[0].Fleet
	e.ok("revert", fleet, "--yes")
	e.noFleet()
	if open := e.runs(); len(open) > 0 {
		e.t.Errorf("open after revert: %+v", open)
	}
}

// noFleet checks that neither a pod of the test, nor the Job and the plan of a fleet are left.
func (e *env) noFleet() {
	e.t.Helper()
	e.noPods()
	options := metav1.ListOptions{LabelSelector: ledger.LabelFleet + ",!" + ledger.LabelFault}
	cluster.Eventually(e.t, patience, "no Job and no plan of a fleet is left", func() (bool, string) {
		jobs, err := e.cluster.Client.BatchV1().Jobs(e.ledger).List(e.t.Context(), options)
		if err != nil {
			return false, err.Error()
		}
		plans, err := e.cluster.Client.CoreV1().ConfigMaps(e.ledger).List(e.t.Context(), options)
		if err != nil {
			return false, err.Error()
		}
		left := fmt.Sprintf("%d Jobs, %d plans", len(jobs.Items), len(plans.Items))
		return len(jobs.Items)+len(plans.Items) == 0, left
	})
}
