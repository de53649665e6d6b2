//go:build e2e

package e2e

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// The whole way from the fault to a node that takes pods again, each step in its order and by its author; nothing is
// left.
func TestExperimentMeasuresDetectToRecover(t *testing.T) {
	e := setup(t)
	namespace := e.cluster.Namespace(t)
	e.app(t, namespace)
	remediator{env: e, namespace: namespace}.start(t)
	file := experimentFile(t, "target: {podsOf: deployment/served, namespace: "+namespace+"}", `
- inject: {xid: 79}
- expect:
  - {name: detected, by: node-problem-detector, within: 1m}
  - {name: cordoned, by: NVSentinel, within: 1m}
  - {name: drained, within: 1m}
  - {name: rescheduled, within: 1m}
  - {name: served, within: 2m}
  - {name: remediated, by: fault-remediation, within: 2m}
  - {name: uncordoned, within: 2m}
  - {name: closed, within: 1m, reaction: cordon, by: any}
`)
	html, trace := filepath.Join(t.TempDir(), "report.html"), filepath.Join(t.TempDir(), "trace.json")
	got, r := e.experiment(file, "--allow-last-gpu-node", "--html", html, "--otlp-file", trace)
	if r.code != 0 || !got.Passed || len(got.LeftBehind) > 0 || got.Error != "" {
		t.Fatalf("exit %d, %+v", r.code, got)
	}
	last := -1.0
	for _, name := range []string{"cordoned", "drained", "uncordoned"} { // all from the node, so in its order
		v := e.verdict(got, name)
		if v.After < last {
			t.Errorf("%s happened after %.2f s, before what it follows", name, v.After)
		}
		last = v.After
	}
	if v := e.verdict(got, "cordoned"); v.By != "NVSentinel (fault-quarantine)" {
		t.Errorf("%+v", v)
	}
	if page, err := os.ReadFile(html); err != nil || !strings.Contains(string(page), "Passed: test") {
		t.Errorf("the report: %v", err)
	}
	spans, err := os.ReadFile(trace)
	for _, name := range []string{"experiment test", "inject xid 79", "expect drained", "revert xid-"} {
		if err != nil || !strings.Contains(string(spans), `"name":"`+name) {
			t.Errorf("the trace has no span %s: %v\n%s", name, err, spans)
		}
	}
	if open := e.runs(); len(open) > 0 {
		t.Errorf("open runs: %+v", open)
	}
	e.noPods()
}

// unschedulable reports whether the worker is cordoned.
func (e *env) unschedulable() bool {
	e.t.Helper()
	node, err := e.cluster.Client.CoreV1().Nodes().Get(e.t.Context(), e.worker.Name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return node.Spec.Unschedulable
}

// In a cluster without a remediator, this tool plays it: detected by node-problem-detector, the node is cordoned and
// drained, the pod moves and is ready again, and the node takes pods again. A cordon of somebody else is left alone.
func TestExperimentSimulatesTheRemediation(t *testing.T) {
	e := setup(t)
	namespace := e.cluster.Namespace(t)
	e.worker.RestartNPD(t) // it stops sending Events after 25 about a node
	e.app(t, namespace)
	file := experimentFile(t, "target: {podsOf: deployment/served, namespace: "+namespace+"}", `
- inject: {xid: 79}
- expect:
  - {name: detected, by: node-problem-detector, within: 1m}
  - {name: cordoned, within: 1m}
  - {name: drained, within: 1m}
  - {name: rescheduled, within: 1m}
  - {name: served, within: 2m}
  - {name: uncordoned, within: 2m}
`)
	got, r := e.experiment(file, "--allow-last-gpu-node", "--simulate-remediation", "detect,cordon,drain,uncordon")
	if r.code != 0 || !got.Passed || !strings.Contains(r.stderr, "The remediation is simulated") {
		t.Fatalf("exit %d, %+v", r.code, got)
	}
	if v := e.verdict(got, "cordoned"); !strings.HasPrefix(v.By, "simulated remediation") {
		t.Errorf("%+v", v)
	}
	if cordoned := e.unschedulable(); cordoned {
		t.Error("the node is still cordoned")
	}
	if open := e.runs(); len(open) > 0 {
		t.Errorf("open runs: %+v", open)
	}

	remediator{env: e}.patch(t, "kubectl-cordon", `{"spec":{"unschedulable":true}}`)
	t.Cleanup(func() { remediator{env: e}.patch(t, "test", asBefore) })
	file = experimentFile(t, "target: {node: "+e.worker.Name+"}", `
- inject: {xid: 79}
- expect: [{name: cordoned, within: 3s}]
`)
	got, r = e.experiment(file, "--allow-last-gpu-node", "--simulate-remediation", "cordon")
	if r.code != 1 || !strings.Contains(r.stderr, "already cordoned by kubectl-cordon") || !e.unschedulable() {
		t.Errorf("exit %d, %+v", r.code, got)
	}
}

// A load from inside the cluster shows what users notice while the pod moves: figures for each phase, an expectation
// about them, and no pod that stays.
func TestExperimentMeasuresLoad(t *testing.T) {
	e := setup(t)
	namespace := e.cluster.Namespace(t)
	e.app(t, namespace)
	_, err := e.cluster.Client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "served"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "served"}, Ports: []corev1.ServicePort{{Port: 8080}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := experimentFile(t, "target: {podsOf: deployment/served, namespace: "+namespace+`}
simulateRemediation: [cordon, drain]
load: [{name: requests, url: "http://served.`+namespace+`:8080/", rate: 10, timeout: 1s}]`, `
- wait: 3s
- inject: {xid: 79}
- expect:
  - {name: drained, within: 1m}
  - {name: served again, load: requests, expect: "ok == 1.0 && p95 < 0.5", window: 3s, within: 2m}
- revert: {}
- wait: 1s
`)
	html := filepath.Join(t.TempDir(), "report.html")
	got, r := e.experiment(file, "--allow-last-gpu-node", "--html", html)
	if r.code != 0 || !got.Passed || len(got.Load) != 1 {
		t.Fatalf("exit %d, %+v", r.code, got)
	}
	phases := map[experiment.Phase]experiment.LoadPhase{}
	for _, p := range got.Load[0].Phases {
		phases[p.Phase] = p
	}
	before, during := phases[experiment.PhaseBefore], phases[experiment.PhaseFault]
	after := phases[experiment.PhaseReverted]
	if before.OK != 1 || before.Requests < 10 || during.Requests < 20 || after.Requests == 0 {
		t.Errorf("%+v", got.Load)
	}
	if during.OK == 1 {
		t.Errorf("no request failed, although the only pod was evicted: %+v", during)
	}
	if page, err := os.ReadFile(html); err != nil || !strings.Contains(string(page), "P95") {
		t.Errorf("the report: %v", err)
	}
	if pods, err := e.cluster.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(pods.Items) != 1 {
		t.Errorf("%v, %d pods", err, len(pods.Items))
	}
	e.refused(e.plugin("run", "-f", experimentFile(t, "target: {node: "+e.worker.Name+`}
load: [{name: requests, url: "served:8080"}]`, "- wait: 1s\n"), "--yes"), "must be an address")
}

// An experiment fails if the reaction is missing, late, or somebody else's, and says so.
func TestExperimentFails(t *testing.T) {
	e := setup(t)
	namespace := e.cluster.Namespace(t)
	steps := `
- inject: {xid: 79}
- expect: [{name: cordoned, within: %s}]
- wait: %s
`
	head := "target: {node: " + e.worker.Name + "}"
	for name, c := range map[string]struct {
		remediator *remediator
		within     string
		wait       string
		state      experiment.State
		text       string
	}{
		"missing": {within: "2s", wait: "1ms", state: experiment.StateMissing},
		"late": {
			remediator: &remediator{until: "cordon", delay: 4 * time.Second}, within: "1s", wait: "20s",
			state: experiment.StateLate,
		},
		"by a person": {
			remediator: &remediator{until: "cordon", as: "kubectl-cordon"}, within: "8s", wait: "1ms",
			state: experiment.StateMissing, text: "cordoned by a person (kubectl-cordon)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := *e
			e.t = t
			if c.remediator != nil {
				c.remediator.env, c.remediator.namespace = &e, namespace
				c.remediator.start(t)
			}
			file := experimentFile(t, head, fmt.Sprintf(steps, c.within, c.wait))
			got, r := e.experiment(file, "--allow-last-gpu-node")
			v := e.verdict(got, "cordoned")
			if r.code != 2 || got.Passed || v.State != c.state || !strings.Contains(v.Text, c.text) {
				t.Errorf("exit %d, %+v", r.code, v)
			}
			e.noPods()
		})
	}
}

// If the steady state does not hold, or the target or a fault is refused, nothing is injected.
func TestExperimentThatDoesNotBegin(t *testing.T) {
	e := setup(t)
	steps := "- inject: {xid: 79}\n- expect: [{name: detected, within: 1s}]\n"
	head := "target: {node: " + e.worker.Name + "}\n"
	file := experimentFile(t, head+`
steady:
- name: the service exists
  object: {apiVersion: v1, kind: Service, namespace: default, name: nothing}
  expect: "o != null"
`, steps)
	got, r := e.experiment(file, "--allow-last-gpu-node")
	why := "the steady state does not hold, so nothing was injected: the service exists"
	if r.code != 2 || !strings.Contains(got.Error, why) {
		t.Errorf("exit %d, %q", r.code, got.Error)
	}
	e.refused(e.plugin("run", "xid79-recovery", "--node", "nowhere", "--yes"), "nothing was changed", "nowhere")
	e.refused(e.plugin("run", "xid79-recovery", "--pods-of", "deployment/nothing", "-n", "default", "--yes"),
		"nothing was changed", "nothing")
	e.refused(e.plugin("run", "xid79-recovery", "--node", e.worker.Name), "stdin is not a terminal; pass --yes")
	e.refused(e.plugin("run", "-f", experimentFile(t, head, "- inject: {xid: 79, flags: {via: smoke}}\n"), "--yes"),
		"nothing was changed", "--via")
	e.ok("run", "xid79-recovery", "--node", e.worker.Name, "--dry-run=client")
	e.untouched()
}

// Ctrl-C while it waits: the fault is reverted, and the exit code says so.
func TestExperimentInterrupted(t *testing.T) {
	e := setup(t)
	t.Cleanup(func() { e.plugin("revert", "--all", "--yes") })
	file := experimentFile(t, "target: {node: "+e.worker.Name+"}", `
- inject: {device: unhealthy, gpu: 0, flags: {allow-majority: true}}
- expect: [{name: cordoned, within: 10m}]
`)
	var out, said lockedBuffer
	cmd := e.command("run", "-f", file, "--yes")
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "it waits for the reaction", func() (bool, string) {
		return strings.Contains(said.String(), "waiting for cordoned") && e.allocatable() == 1, said.String()
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d\n%s", code, said.String())
	}
	if now := e.allocatable(); now != 2 {
		t.Errorf("%d GPUs are allocatable", now)
	}
	if open := e.runs(); len(open) > 0 {
		t.Errorf("open runs: %+v", open)
	}
	if !strings.Contains(out.String(), "UNKNOWN") {
		t.Errorf("the table says\n%s", out.String())
	}
	e.noPods()
}

// The GPU of a workload is lost: its program ends with an error, and after the revert it is ready again, on whatever
// node.
func TestExperimentWorkloadFailsFast(t *testing.T) {
	c := setupCUDA(t)
	train := c.create(c.deployment("train"))
	c.healthy("train", 1)
	before := asUserSees(t, train())
	r := c.plugin("run", "workload-fail-fast", "--pods-of", "deployment/train", "-n", c.namespace, "--yes",
		"-o", "json")
	var got experiment.Result
	c.decode(r.stdout, &got)
	if r.code != 0 || !got.Passed {
		t.Errorf("exit %d\n%s\n%s", r.code, r.stderr, r.stdout)
	}
	if v := c.verdict(got, "pod-failed"); !strings.Contains(v.Text, "exited with code") {
		t.Errorf("%+v", v)
	}
	c.same(before, train())
	c.nothingLeft()
}

// The whole way of the built-in experiment xid79-workload, with this tool as the remediator: the sample workload fails,
// moves, and is as before afterwards.
func TestExperimentXID79OnAWorkload(t *testing.T) {
	runOnWorkload(t, "xid79-workload", "--simulate-remediation", "detect,cordon,drain")
}

// runOnWorkload runs a built-in experiment on the sample workload, which must pass, and leave the workload as it was.
func runOnWorkload(t *testing.T, name string, more ...string) {
	t.Helper()
	c := setupCUDA(t)
	deployment := c.deployment("train", "RANK=1")
	deployment.Spec.Template.Spec.Tolerations, deployment.Spec.Template.Spec.Affinity = c.firstOnWorker()
	c.worker.RestartNPD(t) // it stops sending Events after 25 about a node
	// The pod, and with it the XID, may be on either node, and the conditions would stay.
	t.Cleanup(func() { c.worker.RestartNPD(t); c.control.RestartNPD(t) })
	train := c.create(deployment)
	c.healthy("train", 1)
	before := asUserSees(t, train())
	r := c.plugin(append([]string{
		"run", name, "--pods-of", "deployment/train", "-n", c.namespace, "--yes", "--allow-last-gpu-node",
		"--allow-majority", "--allow-control-plane", "-o", "json",
	}, more...)...)
	t.Logf("%s\n%s", r.stderr, r.stdout)
	var got experiment.Result
	c.decode(r.stdout, &got)
	if r.code != 0 || !got.Passed {
		t.Errorf("exit %d", r.code)
	}
	c.same(before, train())
	c.nothingLeft()
}

// The other built-in experiments on workloads, on the sample workload: it ends when its GPU is lost, and bears a slow
// rank and little memory.
func TestExperimentsOnWorkloads(t *testing.T) {
	for _, name := range []string{"rank-dies-in-allreduce", "straggler-rank", "gpu-memory-pressure"} {
		t.Run(name, func(t *testing.T) { runOnWorkload(t, name) })
	}
	t.Run("a StatefulSet", func(t *testing.T) { // whose pods keep their names and their controller
		c := setupCUDA(t)
		d := c.deployment("train", "RANK=1")
		train := c.create(&appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: "none",
		}})
		c.healthy("train", 1)
		before := asUserSees(t, train())
		r := c.plugin("run", "rank-dies-in-allreduce", "--pods-of", "statefulset/train", "-n", c.namespace, "--yes")
		if r.code != 0 {
			t.Errorf("exit %d\n%s\n%s", r.code, r.stdout, r.stderr)
		}
		c.same(before, train())
		c.nothingLeft()
	})
	c := setupCUDA(t)
	c.refused(c.plugin("run", "straggler-rank", "--node", c.worker.Name, "--yes"), "requires a workload")
}

// --expect on a fault: a table, JUnit, and the exit code; and watch shows what has happened.
func TestExpectOnAFault(t *testing.T) {
	e := setup(t)
	e.worker.RestartNPD(t) // it stops sending Events after 25 about a node
	r := e.plugin("xid", "79", e.worker.Name, "--allow-last-gpu-node", "--yes", "--expect", "detect",
		"--expect-not", "cordon", "--within", "10s", "-o", "junit")
	var report struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
	}
	if err := xml.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != 0 || report.Tests != 3 ||
		report.Failures != 0 {
		t.Errorf("exit %d, %+v, %v\n%s\n%s", r.code, report, err, r.stdout, r.stderr)
	}
	run := e.runs()[0].ID
	if seen := e.ok("watch", run, "--for", "2s"); !strings.Contains(seen.stdout, "detected") {
		t.Errorf("watch says\n%s\n%s", seen.stdout, seen.stderr)
	}
	r = e.plugin("xid", "43", e.worker.Name, "--allow-last-gpu-node", "--yes", "--expect", "cordon=NVSentinel",
		"--within", "cordon=2s")
	if r.code != 2 || !strings.Contains(r.stdout, "MISSING") {
		t.Errorf("exit %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	e.refused(e.plugin("xid", "79", e.worker.Name, "--expect", "cordonn"), "did you mean cordon")
	e.refused(e.plugin("xid", "79", e.worker.Name, "-o", "junit"), "requires --expect")
	e.refused(e.plugin("xid", "79", e.worker.Name, "-o", "prometheus"), "requires --expect")
	e.ok("revert", "--all", "--yes")
}
