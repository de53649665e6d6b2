//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// remediator is a stand-in for NVSentinel: it reacts to the Events of node-problem-detector, and writes what
// NVSentinel's programs write, under their names.
type remediator struct {
	*env
	namespace string        // whose pods it evicts
	delay     time.Duration // before the cordon
	as        string        // who cordons; fault-quarantine if empty
	until     string        // the last step: decide, cordon, drain or uncordon
}

const (
	quarantined = `{"spec":{"unschedulable":true},"metadata":{"annotations":{"quarantineHealthEvent":"{}"}}}`
	asBefore    = `{"spec":{"unschedulable":null},"metadata":{"annotations":{"quarantineHealthEvent":null}}}`
)

func (r remediator) patch(t *testing.T, by, format string, args ...any) {
	t.Helper()
	_, err := r.cluster.Client.CoreV1().Nodes().Patch(context.Background(), r.worker.Name, types.MergePatchType,
		fmt.Appendf(nil, format, args...), metav1.PatchOptions{FieldManager: by})
	if err != nil {
		t.Errorf("%s: %v", by, err)
	}
}

func (r remediator) state(t *testing.T, by, state string) {
	t.Helper()
	r.patch(t, by, `{"metadata":{"labels":{"dgxc.nvidia.com/nvsentinel-state":%q}}}`, state)
}

// events returns how often node-problem-detector has reported an XID of the worker.
func (r remediator) events(ctx context.Context) int32 {
	all, err := r.cluster.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + r.worker.Name + ",reason=Xid",
	})
	if err != nil {
		return 0
	}
	var n int32
	for _, e := range all.Items {
		n += max(e.Count, 1)
	}
	return n
}

// start runs the remediator until the test ends, and then makes the node as it was.
func (r remediator) start(t *testing.T) {
	t.Helper()
	r.worker.RestartNPD(t) // it stops sending Events after 25 about a node
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	before := r.events(ctx)
	running.Go(func() { r.run(ctx, t, before) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		r.patch(t, "test", `{"metadata":{"labels":{"dgxc.nvidia.com/nvsentinel-state":null}}}`)
		r.patch(t, "test", asBefore)
	})
}

func (r remediator) run(ctx context.Context, t *testing.T, before int32) {
	for r.events(ctx) <= before {
		if !sleep(ctx, 50*time.Millisecond) {
			return
		}
	}
	if !sleep(ctx, r.delay) {
		return
	}
	by := r.as
	if by == "" {
		by = "fault-quarantine"
	}
	if r.until == "decide" { // NVSentinel's dry run
		r.patch(t, by, `{"metadata":{"annotations":{"quarantineHealthEvent":"{}"}}}`)
		return
	}
	r.patch(t, by, quarantined)
	if r.until == "cordon" {
		return
	}
	r.state(t, "node-drainer", "draining")
	pods := r.cluster.Client.CoreV1().Pods(r.namespace)
	for {
		all, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + r.worker.Name})
		if err == nil && len(all.Items) == 0 {
			break
		}
		if err == nil {
			for _, p := range all.Items {
				_ = pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name}})
			}
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return
		}
	}
	r.state(t, "node-drainer", "drain-succeeded")
	if r.until == "drain" {
		return
	}
	r.state(t, "fault-remediation", "remediating")
	r.state(t, "fault-remediation", "remediation-succeeded")
	r.patch(t, "fault-quarantine", asBefore)
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// firstOnWorker is for pods that prefer the worker, where the detector is, and may also run on the other node.
func (e *env) firstOnWorker() ([]corev1.Toleration, *corev1.Affinity) {
	onWorker := []corev1.NodeSelectorRequirement{{
		Key: corev1.LabelHostname, Operator: "In", Values: []string{e.worker.Name},
	}}
	return []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Operator: "Exists"}},
		&corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: onWorker},
			}},
		}}
}

// app runs a Deployment whose pod prefers the worker, and may also run on the other node.
func (e *env) app(t *testing.T, namespace string) {
	t.Helper()
	labels := map[string]string{"app": "served"}
	tolerations, affinity := e.firstOnWorker()
	_, err := e.cluster.Client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "served"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(0)),
					Tolerations:                   tolerations, Affinity: affinity,
					Containers: []corev1.Container{{
						Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever,
						Command: []string{"sh", "-c", "mkdir /tmp/w; echo >/tmp/w/index.html; httpd -f -h /tmp/w -p 8080"},
					}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the pod runs on the worker", func() (bool, string) {
		all, err := e.cluster.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 {
			return false, fmt.Sprint(err, len(all.Items))
		}
		p := all.Items[0]
		return p.Status.Phase == corev1.PodRunning && p.Spec.NodeName == e.worker.Name, p.Spec.NodeName
	})
}

// lockedBuffer is output that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// experimentFile writes an experiment with these steps.
func experimentFile(t *testing.T, head, steps string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "experiment.yaml")
	text := "apiVersion: gpufault.dev/v1alpha1\nkind: Experiment\nmetadata: {name: test}\n" + head +
		"\nsteps:\n" + steps
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// experiment runs an experiment file on the worker.
func (e *env) experiment(file string, more ...string) (experiment.Result, result) {
	e.t.Helper()
	r := e.plugin(append([]string{"run", "-f", file, "--yes", "-o", "json"}, more...)...)
	var got experiment.Result
	if r.stdout != "" {
		e.decode(r.stdout, &got)
	}
	e.t.Logf("%s\n%s", r.stderr, r.stdout)
	return got, r
}

func (e *env) verdict(all experiment.Result, name string) experiment.Verdict {
	e.t.Helper()
	i := slices.IndexFunc(all.Verdicts, func(v experiment.Verdict) bool { return v.Name == name })
	if i < 0 {
		e.t.Fatalf("no verdict %s", name)
	}
	return all.Verdicts[i]
}
