//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// These tests restart the worker's containerd, so none of them runs beside another test.

// files returns all of containerd's configuration on the node, with everything that a restore must bring back.
func (e *env) files() string {
	e.t.Helper()
	return e.worker.Sh(e.t, "sh", "-c", `find /etc/containerd /var/lib/gpu-fault /etc/containerd-decoy.toml /var/lib/k8s-containerd -type f 2>/dev/null | sort |
		while read -r f; do stat -c '%n %a %u %g %y %s' "$f"; sha256sum "$f"; done; pgrep -f '^gpu-fault-deadman' || true`)
}

// breaks runs `runtime break` on the worker, and reverts all when the test ends.
func (e *env) breaks(args ...string) ledger.Run {
	e.t.Helper()
	e.t.Cleanup(func() { e.plugin("revert", "--all", "--yes") })
	var run ledger.Run
	e.decode(e.ok(
		append([]string{"runtime", "break", e.worker.Name, "--allow-majority", "--yes", "-o", "json"}, args...)...,
	).stdout, &run)
	return run
}

// gpuPod creates a pod of runtime class nvidia on the worker, which ends at once unless it is given something to do.
func (e *env) gpuPod(name string, command ...string) {
	e.t.Helper()
	if len(command) == 0 {
		command = []string{"true"}
	}
	class := "nvidia"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: e.worker.Name, RuntimeClassName: &class, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{
				{Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever, Command: command},
			},
		},
	}
	if _, err := e.cluster.Client.CoreV1().Pods("default").Create(
		e.t.Context(), pod, metav1.CreateOptions{},
	); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = e.cluster.Client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// podRan waits until a pod of gpuPod has run.
func (e *env) podRan(name string) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, "pod "+name+" runs", func() (bool, string) {
		pod, err := e.cluster.Client.CoreV1().Pods("default").Get(e.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return pod.Status.Phase == corev1.PodSucceeded, string(pod.Status.Phase)
	})
}

// This is seed 002 from its fault to its cure: the event that users see, and the same pod running after the revert.
func TestAMissingHandlerIsSeenAndHeals(t *testing.T) {
	e := setup(t)
	before := e.files()
	run := e.breaks("--mode", "missing-handler", "--ttl", "10m")
	if run.Phase != ledger.Proven || len(run.Steps) != 1 || len(run.Steps[0].Evidence) < 2 ||
		time.Until(run.Until) > 10*time.Minute {
		t.Fatalf("%+v", run)
	}
	if running := run.Steps[0].Evidence[1]; !strings.Contains(running.Source, "CRI Status") ||
		!strings.Contains(running.Text, "handlers in memory: runc;") {
		t.Errorf("CRI's proof is %+v", running)
	}
	e.gpuPod("gpu-broken")
	const symptom = `no runtime for "nvidia" is configured`
	cluster.Eventually(t, patience, "the pod's event says "+symptom, func() (bool, string) {
		events, err := e.cluster.Client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.name", "gpu-broken").String(),
		})
		if err != nil {
			return false, err.Error()
		}
		said := ""
		for _, event := range events.Items {
			said += event.Message + "\n"
		}
		return strings.Contains(said, symptom), said
	})
	listed := e.ok("list", "-o", "wide").stdout
	for _, want := range []string{
		run.ID, "Proven", "restore the files that the node has recorded for the run, and restart the service that loads them",
		e.worker.Name, "in 9m",
	} {
		if !strings.Contains(listed, want) {
			t.Errorf("list does not say %q:\n%s", want, listed)
		}
	}
	e.mustSay(e.plugin("runtime", "break", e.worker.Name, "--mode", "cgroup-driver", "--yes", "--allow-majority"), 1,
		"locked by run "+run.ID)
	if out := e.ok("revert", run.ID, "--yes").stdout; !strings.Contains(out, e.worker.Name+": reverted") {
		t.Errorf("revert: %s", out)
	}
	if after := e.files(); after != before {
		t.Errorf("the node is not as it was.\nbefore:\n%s\nafter:\n%s", before, after)
	}
	e.podRan("gpu-broken")
	e.noPods()
}

// Every mode that leaves the node alive is proven by CRI, seen by a pod where there is something to see, and taken
// back.
func TestEveryMildModeHeals(t *testing.T) {
	e := setup(t)
	before := e.files()
	for _, mode := range []string{
		"wrong-instance", "binary-missing", "wrong-runtime-type", "cgroup-driver", "option-misplaced",
	} {
		args := []string{"--mode", mode}
		if mode != "option-misplaced" {
			args = append(args, "--probe")
		}
		run := e.breaks(args...)
		if want := 2 + len(args)/3; len(run.Steps[0].Evidence) < want {
			t.Errorf("%s: %d proofs, wanted %d: %+v", mode, len(run.Steps[0].Evidence), want, run.Steps[0].Evidence)
		}
		e.ok("revert", run.ID, "--yes")
		if after := e.files(); after != before {
			t.Fatalf("%s: the node is not as it was.\nbefore:\n%s\nafter:\n%s", mode, before, after)
		}
	}
}

// Edited and not restarted breaks nothing now, and must not restart anything when it is taken back.
func TestNoRestart(t *testing.T) {
	e := setup(t)
	before := e.files()
	pid := e.worker.Sh(t, "systemctl", "show", "-p", "MainPID", "--value", "containerd.service")
	run := e.breaks("--mode", "missing-handler", "--no-restart")
	if shown := e.ok("runtime", "show", e.worker.Name).stdout; !strings.Contains(shown, "memory") {
		t.Errorf("show does not tell disk from memory:\n%s", shown)
	}
	e.ok("revert", run.ID, "--yes")
	if now := e.worker.Sh(t, "systemctl", "show", "-p", "MainPID", "--value", "containerd.service"); now != pid {
		t.Errorf("containerd was restarted: pid %s, then %s", pid, now)
	}
	if after := e.files(); after != before {
		t.Errorf("the node is not as it was.\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// A node without containerd can only be healed by itself; it must be, and revert must confirm it.
func TestANodeThatIsLostComesBack(t *testing.T) {
	e := setup(t)
	before := e.files()
	run := e.breaks("--mode", "unparsable", "--allow-node-loss", "--ttl", cluster.TTL(30*time.Second).String())
	if text := fmt.Sprint(run.Steps[0].Evidence); !strings.Contains(text, "CRI does not respond") {
		t.Errorf("evidence: %s", text)
	}
	e.ok("revert", run.ID, "--yes")
	if late := time.Since(run.Until); late < 0 || late > patience {
		t.Errorf("reverted %s after its time", late)
	}
	if after := e.files(); after != before {
		t.Errorf("the node is not as it was.\nbefore:\n%s\nafter:\n%s", before, after)
	}
	// A kubelet that starts pods says NotReady no more, but may not yet have said Ready: tests that come after need
	// both.
	e.gpuPod("gpu-again")
	e.podRan("gpu-again")
	e.isReady(corev1.ConditionTrue)
}

// What somebody else changed meanwhile is theirs.
func TestAFileThatSomebodyChangedIsLeft(t *testing.T) {
	e := setup(t)
	const file = "/etc/containerd/config.toml"
	keep := e.worker.Sh(t, "sh", "-c", "cp -a "+file+" /run/keep.toml && cat "+file)
	run := e.breaks("--mode", "cgroup-driver", "--no-restart")
	t.Cleanup(func() {
		e.worker.Sh(t, "sh", "-c", "cp -a /run/keep.toml "+file+" && rm -f /run/keep.toml && rm -rf /var/lib/gpu-fault")
	})
	e.worker.Sh(t, "sh", "-c", "echo '# of somebody else' >>"+file)
	r := e.plugin("revert", run.ID, "--yes")
	e.mustSay(r, 2, "another client has changed the file since", "+# of somebody else",
		"not restored, because another client has changed")
	if !strings.Contains(r.stdout, "superseded") {
		t.Errorf("revert: %s", r.stdout)
	}
	if now := e.worker.Sh(t, "cat", file); now == keep || !strings.Contains(now, "# of somebody else") {
		t.Errorf("their file was touched:\n%s", now)
	}
	if runs := e.runs(); len(runs) > 0 {
		t.Errorf("the run is still open: %+v", runs)
	}
}

// Bad input changes nothing, and says what to do.
func TestBreakRefuses(t *testing.T) {
	e := setup(t)
	before := e.files()
	w := e.worker.Name
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{w}, "--mode MODE"},
		{[]string{w, "--mode", "smash"}, "missing-handler, wrong-instance"},
		{[]string{w, "--mode", "unparsable"}, "--allow-node-loss"},
		{[]string{w, "--mode", "missing-handler", "--ttl", "soon"}, "--ttl"},
		{[]string{w, "--mode", "missing-handler", "--ttl", "-1m"}, "negative"},
		{[]string{w, "--mode", "missing-handler", "--ttl", "25h"}, "24h"},
		{[]string{w, "--mode", "missing-handler", "--ttl", "0"}, "--reason"},
		{[]string{"node-z", "--mode", "missing-handler"}, "node-z"},
		{[]string{w, "--mode", "missing-handler", "--handler", "amd"}, `"amd"`},
		{[]string{w, "--mode", "dropin-shadow", "--allow-node-loss"}, "2.0"},
		{[]string{e.control.Name, "--mode", "missing-handler"}, "--allow-control-plane"},
	} {
		r := e.plugin(append([]string{"runtime", "break", "--yes", "--allow-majority"}, test.args...)...)
		e.refused(r, test.want)
	}
	if after := e.files(); after != before {
		t.Errorf("the node is not as it was.\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// A record that was edited by hand could make us write anything: it is refused, and the dead man heals the node.
func TestATamperedRecordIsNotBelieved(t *testing.T) {
	e := setup(t)
	before := e.files()
	run := e.breaks("--mode", "missing-handler", "--ttl", cluster.TTL(25*time.Second).String())
	maps := e.cluster.Client.CoreV1().ConfigMaps(e.ledger)
	cm, err := maps.Get(t.Context(), run.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data["run.json"] = strings.ReplaceAll(cm.Data["run.json"], "/etc/containerd/config.toml", "/etc/passwd")
	if _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.mustSay(e.plugin("revert", run.ID, "--yes"), 1, "changed by another client")
	cluster.Eventually(t, patience, "the dead man has healed the node", func() (bool, string) {
		now := e.files()
		return now == before, now
	})
	if late := time.Since(run.Until); late > patience {
		t.Errorf("it took %s after the end of the TTL", late)
	}
}
