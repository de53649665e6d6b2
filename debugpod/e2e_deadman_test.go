//go:build e2e

package debugpod_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
	testcluster "github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// These tests change the containerd configuration of a worker of the test cluster, and restart its services.

const (
	configPath = "/etc/containerd/config.toml"
	criSocket  = "/run/containerd/containerd.sock"
)

type worker struct {
	testcluster.Node
	c         *testcluster.Cluster
	runner    *debugpod.Runner
	namespace string
	before    []byte // the configuration
	look      string // and all that is beside it
}

func onWorker(t *testing.T) *worker {
	t.Helper()
	c := testcluster.Require(t)
	w := &worker{
		Node: c.Workers()[0], c: c, runner: debugpod.NewRunner(c.Client, c.RESTConfig, helper.For),
		namespace: c.Namespace(t),
	}
	w.before, w.look = w.read(t), w.attributes(t)
	t.Cleanup(func() {
		// Whatever a test does, the node is as it was.
		testcluster.Eventually(t, time.Minute, "the node is as it was", func() (bool, string) {
			if now := w.read(t); !bytes.Equal(now, w.before) {
				return false, "its configuration is:\n" + string(now)
			}
			if now := w.attributes(t); now != w.look {
				return false, fmt.Sprintf("the configuration has %s, before %s", now, w.look)
			}
			left := w.Sh(t, "sh", "-c",
				"ls -d /var/lib/gpu-fault /etc/containerd/.*.gpu-fault 2>/dev/null; for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep ^gpu-fault-deadman; done; true")
			return left == "", "it has left: " + left
		})
		testcluster.Eventually(t, time.Minute, "containerd is active", func() (bool, string) {
			out, err := w.TrySh(context.Background(), "systemctl", "is-active", "containerd")
			return err == nil, out
		})
	})
	return w
}

func (w *worker) read(t *testing.T) []byte {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(w.Sh(t, "base64", configPath), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (w *worker) attributes(t *testing.T) string {
	t.Helper()
	return w.Sh(t, "stat", "-c", "%a %u:%g %y %s %F", configPath)
}

func (w *worker) start(t *testing.T, run string) *debugpod.Session {
	t.Helper()
	spec := debugpod.Spec{
		Run: run, Node: w.Name, Namespace: w.namespace, Arch: "amd64", Image: "docker.io/library/busybox:1.35",
		Stays: true,
	}
	var session *debugpod.Session
	// The test before may have had containerd down for a while: the kubelet says so later than it comes back.
	testcluster.Eventually(t, time.Minute, "the debug pod starts", func() (bool, string) {
		started, err := w.runner.Start(t.Context(), spec)
		var failed *debugpod.StartError
		if err != nil && (!errors.As(err, &failed) || failed.Reason != debugpod.ReasonNodeNotReady) {
			t.Fatal(err)
		}
		session = started
		return err == nil, fmt.Sprint(err)
	})
	t.Cleanup(func() {
		if err := session.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return session
}

// change appends text to the configuration.
func (w *worker) change(t *testing.T, text string) deadman.Change {
	t.Helper()
	edits := []patch.Edit{{Offset: len(w.before), New: []byte(text)}}
	after, err := patch.Apply(w.before, edits)
	if err != nil {
		t.Fatal(err)
	}
	return deadman.Change{
		TTL:     time.Minute,
		Files:   []deadman.File{{Path: configPath, Before: patch.Sum(w.before), After: patch.Sum(after), Edits: edits}},
		Service: &deadman.Service{Unit: "containerd.service", Socket: criSocket},
	}
}

// handler adds a handler, which CRI shows.
const handler = "\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gpu-fault-e2e]\n  runtime_type = 'io.containerd.runc.v2'\n"

// apply makes a change, which must be applied, and returns what was said.
func (w *worker) apply(t *testing.T, session *debugpod.Session, change deadman.Change) *deadman.Status {
	t.Helper()
	start := time.Now()
	var phases []deadman.Phase
	status, err := session.Change(t.Context(), change, func(s deadman.Status) { phases = append(phases, s.Phase) })
	t.Logf("%v after %v", phases, time.Since(start))
	if err != nil {
		t.Fatalf("%v; %+v", err, status)
	}
	return status
}

func (w *worker) running(t *testing.T, session *debugpod.Session) string {
	t.Helper()
	found, err := session.InspectRuntime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if found.Instance == nil || found.Instance.CRI == nil {
		t.Fatalf("no CRI: %+v", found)
	}
	return containerd.ConfigSum(found.Instance.CRI.Config)
}

func hasHandler(info *cri.Info) bool {
	return info != nil && strings.Contains(string(info.Config), "gpu-fault-e2e")
}

// TestChangeAndRestore is the whole life of a fault: the change is proven by CRI, through the restart that cuts the
// connection, and the restore gives back every byte and attribute, and the configuration that CRI showed.
func TestChangeAndRestore(t *testing.T) {
	w := onWorker(t)
	session := w.start(t, "whole-life")
	change := w.change(t, handler)
	change.Service.Config = w.running(t, session)
	status := w.apply(t, session, change)
	if !status.Restarted || !hasHandler(status.CRI) || status.PID == 0 {
		t.Errorf("not proven: %+v", status)
	}
	if group := w.Sh(t, "cat", fmt.Sprintf("/proc/%d/cgroup", status.PID)); group != w.Sh(t, "cat", "/proc/1/cgroup") {
		t.Errorf("the dead man is in %s", group)
	}
	start := time.Now()
	restored, err := session.Restore(t.Context(), deadman.Restore{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("restored after %v", time.Since(start))
	if len(restored.Files) != 1 || restored.Files[0].Outcome != deadman.OutcomeRestored || !restored.Restarted ||
		!restored.SameConfig || hasHandler(restored.CRI) || restored.RecordMissing {
		t.Errorf("got %+v", restored)
	}
	again, err := session.Restore(t.Context(), deadman.Restore{})
	if err != nil || len(again.Files) != 0 || again.Restarted || !again.RecordMissing ||
		!bytes.Equal(w.read(t), w.before) {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// TestTTL: nobody asks, and the node heals in time.
func TestTTL(t *testing.T) {
	w := onWorker(t)
	session := w.start(t, "ttl")
	change := w.change(t, handler)
	change.TTL, change.Service.Config = testcluster.TTL(10*time.Second), w.running(t, session)
	status := w.apply(t, session, change)
	w.untilHealed(t, status.Until, 4*time.Second)
}

// untilHealed waits until the file is as it was, which must be so not before, nor long after that.
func (w *worker) untilHealed(t *testing.T, after time.Time, within time.Duration) {
	t.Helper()
	testcluster.Eventually(t, time.Until(after)+within, "healed", func() (bool, string) {
		now := w.read(t)
		return bytes.Equal(now, w.before), "changed"
	})
	if early := time.Until(after); early > time.Second {
		t.Errorf("healed %v too early", early)
	}
	t.Logf("healed %v after the time was up", time.Since(after))
}

// TestDeletedPodHeals: deleting the pod ends the fault, though the dead man is outside of it.
func TestDeletedPodHeals(t *testing.T) {
	w := onWorker(t)
	session := w.start(t, "pod-gone")
	change := w.change(t, handler)
	change.TTL = 0
	w.apply(t, session, change)
	if err := w.c.Client.CoreV1().Pods(w.namespace).Delete(
		t.Context(), session.Pod().Name, metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	w.untilHealed(t, time.Now(), 20*time.Second)
	testcluster.Eventually(t, time.Minute, "the pod is gone", func() (bool, string) {
		_, err := w.c.Client.CoreV1().Pods(w.namespace).Get(t.Context(), session.Pod().Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

// TestSurvives: the dead man outlives restarts of the kubelet and of containerd, and another client restores, by the
// node's record.
func TestSurvives(t *testing.T) {
	w := onWorker(t)
	session := w.start(t, "survives")
	change := w.change(t, "# gpu-fault-e2e\n")
	change.TTL = 10 * time.Minute
	status := w.apply(t, session, change)
	w.Sh(t, "systemctl", "restart", "kubelet")
	w.Sh(t, "sh", "-c", "kill -9 $(systemctl show -p MainPID --value containerd)")
	w.Sh(t, "sh", "-c",
		fmt.Sprintf("tr '\\0' ' ' </proc/%d/cmdline | grep '^gpu-fault-deadman survives guard survives'", status.PID))
	testcluster.Eventually(t, time.Minute, "another client restores", func() (bool, string) {
		restored, err := session.Restore(t.Context(), deadman.Restore{})
		if err != nil {
			return false, err.Error()
		}
		if restored.Files[0].Outcome != deadman.OutcomeRestored || restored.RecordMissing {
			t.Errorf("got %+v", restored)
		}
		return true, ""
	})
}

// TestClientGone: the client leaves in the middle; the change is finished, and heals in time.
func TestClientGone(t *testing.T) {
	w := onWorker(t)
	session := w.start(t, "client-gone")
	change := w.change(t, handler)
	change.TTL, change.Service.Config = testcluster.TTL(10*time.Second), w.running(t, session)
	ctx, cancel := context.WithCancel(t.Context())
	start := time.Now()
	_, err := session.Change(ctx, change, func(s deadman.Status) {
		if s.Phase == deadman.PhaseWritten {
			cancel()
		}
	})
	// A change that is finished within the grace period of the connection is reported nevertheless.
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.untilHealed(t, start.Add(change.TTL), 10*time.Second)
}

// TestServiceThatFails: a change with which containerd does not start is taken back at once, unless that is what is
// wanted; then it is proven, and heals in time, also though no command can be run on the node.
func TestServiceThatFails(t *testing.T) {
	w := onWorker(t)
	t.Cleanup(func() { w.Settle(t) }) // containerd is away for so long that the kubelet says so
	session := w.start(t, "fails")
	change := w.change(t, "\nthis is no TOML\n")
	change.Service.Config = w.running(t, session)
	status, err := session.Change(t.Context(), change, nil)
	if err == nil || status == nil || status.Phase != deadman.PhaseFailed ||
		!strings.Contains(status.Message, "does not respond") || !bytes.Equal(w.read(t), w.before) {
		t.Fatalf("%+v, %v", status, err)
	}
	t.Log(err)
	if _, err := session.Restore(t.Context(), deadman.Restore{}); err != nil {
		t.Fatal(err)
	}
	change.MayFail, change.TTL = true, testcluster.TTL(25*time.Second)
	start := time.Now()
	status, err = session.Change(t.Context(), change, nil)
	if err != nil || status.CRI != nil || status.ServiceError == "" {
		t.Fatalf("%+v, %v", status, err)
	}
	t.Logf("proven after %v: %s", time.Since(start), status.ServiceError)
	restored, err := session.Restore(t.Context(), deadman.Restore{})
	if err != nil || !restored.RecordMissing || !bytes.Equal(w.read(t), w.before) {
		t.Errorf("%+v, %v", restored, err)
	}
	t.Logf("restored after %v", time.Since(start))
}

// TestChangedMeanwhile: what is not as the client saw it is not touched, and what somebody changed later is left.
func TestChangedMeanwhile(t *testing.T) {
	w := onWorker(t)
	session := w.start(t, "meanwhile")
	change := w.change(t, "# gpu-fault-e2e\n")
	change.Files[0].Before = patch.Sum([]byte("something else"))
	_, err := session.Change(t.Context(), change, nil)
	var failure *api.Error
	if !errors.As(err, &failure) || failure.Code != api.CodeChanged {
		t.Errorf("got %v", err)
	}
	left, err := session.Leftovers(t.Context(), api.Leftovers{})
	if err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}
