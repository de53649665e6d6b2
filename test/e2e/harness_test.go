//go:build e2e

// Package e2e runs the built plugin against the real cluster of test/cluster.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// patience is for what the cluster does by itself; commands have their own deadlines.
const patience = 60 * time.Second

// env is one test's view of the cluster: a ledger namespace of its own, so that tests may run side by side.
type env struct {
	t       *testing.T
	cluster *cluster.Cluster
	ledger  string
	worker  cluster.Node
	control cluster.Node
	limit   time.Duration // of a command; 0 for three minutes
}

// setup gives the test a ledger namespace that does not exist yet, as on a user's first day.
func setup(t *testing.T) *env {
	t.Helper()
	c := cluster.Require(t)
	e := &env{t: t, cluster: c, worker: c.Workers()[0], control: c.ControlPlane()}
	e.ledger = "ledger-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	if len(e.ledger) > 63 {
		e.ledger = strings.TrimRight(e.ledger[:63], "-")
	}
	e.removeLedger()
	t.Cleanup(e.removeLedger)
	return e
}

func (e *env) removeLedger() {
	namespaces := e.cluster.Client.CoreV1().Namespaces()
	_ = namespaces.Delete(context.Background(), e.ledger, metav1.DeleteOptions{})
	cluster.Eventually(e.t, patience, "namespace "+e.ledger+" is gone", func() (bool, string) {
		ns, err := namespaces.Get(context.Background(), e.ledger, metav1.GetOptions{})
		return err != nil, string(ns.Status.Phase)
	})
}

// result is what a command did.
type result struct {
	stdout, stderr string
	code           int
	took           time.Duration
}

// plugin runs the plugin with the test's ledger.
func (e *env) plugin(args ...string) result {
	e.t.Helper()
	return e.pluginWith(nil, args...)
}

// ok runs the plugin and fails the test when it fails.
func (e *env) ok(args ...string) result {
	e.t.Helper()
	r := e.plugin(args...)
	if r.code != 0 {
		e.t.Fatalf("kubectl gpu-fault %s: exit %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), r.code, r.stdout,
			r.stderr)
	}
	return r
}

// pluginWith runs it with a changed environment.
func (e *env) pluginWith(environ []string, args ...string) result {
	e.t.Helper()
	cmd := e.command(args...)
	cmd.Env = append(cmd.Env, environ...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.t.Fatalf("run the plugin: %v (make build makes it)", err)
	}
	r := result{
		stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode(), took: time.Since(start),
	}
	for _, text := range []string{"panic:", "goroutine ", "runtime error"} {
		if strings.Contains(r.stderr, text) {
			e.t.Errorf("the plugin showed the user a %q:\n%s", text, r.stderr)
		}
	}
	return r
}

// command returns the plugin, ready to start.
func (e *env) command(args ...string) *exec.Cmd {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(e.limit, 10*time.Minute))
	e.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary(e.t, "kubectl-gpu_fault"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.cluster.Kubeconfig, "KUBECTL_GPU_FAULT_LEDGER_NAMESPACE="+e.ledger)
	return cmd
}

// binary returns a program that make built.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// refused checks that a command failed with exit code 1, said each of the parts, and touched nothing.
func (e *env) refused(r result, parts ...string) {
	e.t.Helper()
	if r.code != 1 {
		e.t.Errorf("exit %d, wanted 1\nstdout: %s\nstderr: %s", r.code, r.stdout, r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			e.t.Errorf("the error does not say %q:\n%s", part, r.stderr)
		}
	}
	if r.stdout != "" {
		e.t.Errorf("an error wrote to stdout: %q", r.stdout)
	}
	e.noPods()
}

// untouched checks that the run left no record, because it never began.
func (e *env) untouched() {
	e.t.Helper()
	if runs := e.runs("--all"); len(runs) > 0 {
		e.t.Errorf("the ledger has records though the input was refused: %+v", runs)
	}
}

// noPods waits until no debug pod of this test is left.
func (e *env) noPods() {
	e.t.Helper()
	cluster.Eventually(e.t, patience, "no debug pod is left in "+e.ledger, func() (bool, string) {
		pods, err := e.cluster.Client.CoreV1().Pods(e.ledger).List(e.t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var names []string
		for _, p := range pods.Items {
			names = append(names, p.Name+" "+string(p.Status.Phase))
		}
		return len(names) == 0, strings.Join(names, ", ")
	})
}

// runs returns the records that list prints.
func (e *env) runs(args ...string) []ledger.Run {
	e.t.Helper()
	var list struct {
		Items []ledger.Run `json:"items"`
	}
	e.decode(e.ok(append([]string{"list", "-o", "json"}, args...)...).stdout, &list)
	return list.Items
}

func (e *env) decode(text string, into any) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		e.t.Fatalf("stdout is not JSON: %v\n%s", err, text)
	}
}

// condition returns a node's condition; empty when it has none of that type.
func (e *env) condition(node, conditionType string) corev1.NodeCondition {
	e.t.Helper()
	n, err := e.cluster.Client.CoreV1().Nodes().Get(e.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if string(c.Type) == conditionType {
			return c
		}
	}
	return corev1.NodeCondition{}
}
