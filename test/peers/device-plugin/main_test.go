package main

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

// The log of the plugin with the shim, as the API server returns it.
const sample = `2026-11-28T15:17:07.519600000Z I1128 15:17:07.519511       1 health.go:64] Ignoring the following XIDs
2026-11-28T15:17:07.941000000Z gpu-fault: run cuda-zdcpqh: injected XID 48 into nvmlEventSetWait_v2, call 0, pid 1
2026-11-28T15:17:07.942000000Z I1128 15:17:07.941869       1 health.go:169] XidCriticalError: Xid=48 on Device=GPU-1
rpc error: the container is gone
2026-11-28T15:17:08.500000000Z I1128 15:17:08.500000       1 server.go:279] device marked unhealthy: GPU-1
`

func TestLog(t *testing.T) {
	log := peers.ParseLog(sample)
	if len(log) != 4 {
		t.Fatalf("%d lines: %v", len(log), log)
	}
	injected, ok := peers.Find(log, "gpu-fault: run ")
	marked, ok2 := peers.Find(log, "device marked unhealthy")
	if !ok || !ok2 || peers.Elapsed(injected.At, marked.At) != "559ms" {
		t.Errorf("%v, %v", injected, marked)
	}
	if _, ok := peers.Find(log, "Skipping event"); ok || matching(log, "health.go") != 2 {
		t.Errorf("found a line that the log does not have, or not both lines of health.go")
	}
	if n := between(log, injected.At, injected.At.Add(time.Second/2)); n != 2 {
		t.Errorf("%d lines in half a second", n)
	}
	if got := status(marked.At, injected.At); got != "node status as before" {
		t.Errorf("a state from before: %q", got)
	}
}

// pluginPod returns a ready pod of the plugin.
func pluginPod(node string, shim bool) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "plugin-" + node, UID: types.UID(node)},
		Spec:       corev1.PodSpec{NodeName: node, Containers: make([]corev1.Container, 1)},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: make([]corev1.ContainerStatus, 1),
		},
	}
	if shim {
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/shim.so"}}
	}
	return pod
}

func TestSettled(t *testing.T) {
	deleted, starting := pluginPod(faulty, true), pluginPod(faulty, true)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	starting.Status.Conditions = nil
	for name, test := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"both":         {[]corev1.Pod{pluginPod(faulty, true), pluginPod(other, true)}, ""},
		"one":          {[]corev1.Pod{pluginPod(faulty, true)}, "not every node"},
		"none":         {nil, "not every node"},
		"two on one":   {[]corev1.Pod{pluginPod(faulty, true), pluginPod(faulty, true)}, "not every node"},
		"old template": {[]corev1.Pod{pluginPod(faulty, true), pluginPod(other, false)}, "has the shim: false"},
		"deleted":      {[]corev1.Pod{deleted, pluginPod(other, true)}, "being deleted"},
		"starting":     {[]corev1.Pod{starting, pluginPod(other, true)}, "not ready"},
	} {
		err := settled(test.pods, []string{faulty, other})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestSameRun(t *testing.T) {
	before, restarted, replaced := pluginPod(faulty, false), pluginPod(faulty, false), pluginPod(faulty, false)
	restarted.Status.ContainerStatuses[0].RestartCount++
	replaced.UID = "new"
	if err := sameRun(&before, &before); err != nil {
		t.Error(err)
	}
	for _, now := range []corev1.Pod{restarted, replaced} {
		if sameRun(&before, &now) == nil {
			t.Errorf("a restart was not noticed: %v", now)
		}
	}
}

// The gauge keeps the time of the last change: a node reports the same number with each of its heartbeats.
func TestGauge(t *testing.T) {
	var g gauge
	g.set(0)
	_, first := g.read()
	g.set(0)
	if _, at := g.read(); first.IsZero() || at != first {
		t.Errorf("%v, then %v", first, at)
	}
	g.set(2)
	if n, at := g.read(); n != 2 || !at.After(first) {
		t.Errorf("%d since %v", n, at)
	}
}

// The steps name different things, and the manifest has the DaemonSet that the faults name.
func TestSteps(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range steps() {
		if seen[s.name] || s.do == nil {
			t.Errorf("step %q", s.name)
		}
		seen[s.name] = true
	}
	if want := 2 + 3*len(faults); len(seen) != want {
		t.Errorf("%d steps, want %d", len(seen), want)
	}
	_, text, _ := strings.Cut(manifest, "\n---\n")
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	container := set.Spec.Template.Spec.Containers[0]
	if set.Name != daemonSet || set.Namespace != namespace || container.Image != "@IMAGE@" {
		t.Errorf("%s/%s with the image %s", set.Namespace, set.Name, container.Image)
	}
}
