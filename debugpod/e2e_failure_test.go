//go:build e2e

package debugpod_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// TestDeletedPod holds that the helper ends with its pod, though it shares the node's PID namespace.
func TestDeletedPod(t *testing.T) {
	c := connect(t)
	session := c.start(t, "deleted")
	all := records(200, "deleted")
	for i := range all {
		all[i].Delay = 100 * time.Millisecond
	}
	var once sync.Once
	start := time.Now()
	written, err := session.WriteKmsg(t.Context(), api.WriteKmsg{Records: all}, func([]api.WrittenKmsg) {
		once.Do(func() {
			go func() {
				_ = c.client.CoreV1().Pods(c.namespace).Delete(context.WithoutCancel(t.Context()), session.Pod().Name,
					metav1.DeleteOptions{})
			}()
		})
	})
	t.Logf("%d written, after %v: %v", len(written), time.Since(start), err)
	if err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
	time.Sleep(time.Second)
	before := count(t, "deleted")
	time.Sleep(time.Second)
	if after := count(t, "deleted"); after != before || before == 0 {
		t.Errorf("the helper outlives its pod: %d records, then %d", before, after)
	}
}

// TestKilledClient holds what is left when the client is killed: nothing is written any more, and the pod ends at its
// deadline.
func TestKilledClient(t *testing.T) {
	if os.Getenv(victimNamespace) != "" {
		victim(t)
		return
	}
	c := connect(t)
	spec := c.spec("killed")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledClient$", "-test.v")
	cmd.Env = append(os.Environ(), victimNamespace+"="+c.namespace)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "WRITTEN 3") {
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	time.Sleep(time.Second)
	before := count(t, c.namespace)
	time.Sleep(2 * time.Second)
	if after := count(t, c.namespace); after != before || before == 0 {
		t.Errorf("the helper goes on without its client: %d records, then %d", before, after)
	}
	name := debugpod.PodName(spec.Run, spec.Node)
	for start := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		pod, err := c.client.CoreV1().Pods(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if pod.Status.Phase != corev1.PodRunning {
			t.Logf("pod %s %s after %v", pod.Status.Phase, pod.Status.Reason, time.Since(start))
			return
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal("the pod outlives its deadline")
		}
	}
}

// victim is the client that TestKilledClient kills.
func victim(t *testing.T) {
	c := connect(t)
	spec := c.spec("killed")
	spec.Deadline = 8 * time.Second
	session, err := c.runner.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	all := records(1000, c.namespace)
	for i := range all {
		all[i].Delay = 250 * time.Millisecond
	}
	n := 0
	_, err = session.WriteKmsg(t.Context(), api.WriteKmsg{Records: all}, func(w []api.WrittenKmsg) {
		n += len(w)
		fmt.Println("WRITTEN", n)
	})
	t.Fatal(err)
}

// count returns how many records of this machine's kernel log have the text: the nodes of the test cluster share it.
func count(t *testing.T, text string) int {
	t.Helper()
	out, err := exec.Command("dmesg").Output()
	if err != nil {
		t.Fatalf("read the kernel log that the test cluster shares with this machine: dmesg: %v", err)
	}
	return strings.Count(string(out), "gpu-fault-e2e: "+text)
}

func TestStartFailures(t *testing.T) {
	c := connect(t)
	for name, tc := range map[string]struct {
		change func(*debugpod.Spec)
		want   string
	}{
		"image not there": {
			func(s *debugpod.Spec) { s.Image, s.PullPolicy = "example.invalid/none:1", corev1.PullNever },
			"ErrImageNeverPull",
		},
		"image not valid": {func(s *debugpod.Spec) { s.Image = "a:b:c" }, "InvalidImageName"},
		"pull fails":      {func(s *debugpod.Spec) { s.Image = "127.0.0.1:1/none:1" }, "ErrImagePull"},
		"no namespace":    {func(s *debugpod.Spec) { s.Namespace = "dbg-none" }, debugpod.ReasonNamespaceMissing},
		"no node":         {func(s *debugpod.Spec) { s.Node = "none" }, debugpod.ReasonNodeMissing},
	} {
		t.Run(name, func(t *testing.T) {
			spec := c.spec("fails" + strings.ReplaceAll(name, " ", ""))
			tc.change(&spec)
			start := time.Now()
			_, err := c.runner.Start(t.Context(), spec)
			var failure *debugpod.StartError
			if !errors.As(err, &failure) || failure.Reason != tc.want &&
				(tc.want != debugpod.ReasonNodeMissing || failure.Reason != debugpod.ReasonDeleted) {
				t.Errorf("got %v, want reason %s", err, tc.want)
			}
			t.Logf("%v: %v", time.Since(start), err)
		})
	}
}

func TestPodSecurityRefuses(t *testing.T) {
	c := connect(t)
	_, err := c.client.CoreV1().Namespaces().Patch(t.Context(), c.namespace, "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var failure *debugpod.StartError
	if err := c.runner.DryRun(t.Context(), c.spec("psa")); !errors.As(err, &failure) ||
		failure.Reason != debugpod.ReasonPodSecurity {
		t.Errorf("dry run: %v", err)
	}
	if _, err := c.runner.Start(t.Context(), c.spec("psa")); !errors.As(err, &failure) ||
		failure.Reason != debugpod.ReasonPodSecurity {
		t.Errorf("start: %v", err)
	}
}

// TestMedians measures; it fails only when something does not work.
func TestMedians(t *testing.T) {
	c := connect(t)
	const rounds = 10
	times := map[string][]time.Duration{}
	measure := func(what string, f func() error) {
		t.Helper()
		start := time.Now()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		times[what] = append(times[what], time.Since(start))
	}
	for i := range rounds {
		var session *debugpod.Session
		measure("1 create to Running", func() (err error) {
			session, err = c.runner.Start(t.Context(), c.spec(fmt.Sprint("median", i)))
			return err
		})
		inspect := func() error { _, err := session.Inspect(t.Context(), api.Inspect{}); return err }
		write := func(n int) func() error {
			return func() error {
				_, err := session.WriteKmsg(t.Context(), api.WriteKmsg{Records: records(n, "median")}, nil)
				return err
			}
		}
		measure("2 first Do: upload and inspect", inspect)
		measure("3 second Do: inspect", inspect)
		measure("4 write 1 record", write(1))
		measure("5 write 1,000 records", write(1000))
		measure("6 Close", func() error { return session.Close(t.Context()) })
		times["7 Close to gone"] = append(times["7 Close to gone"], c.untilGone(t, session.Pod().Name))
	}
	for what, all := range times {
		slices.Sort(all)
		t.Logf("%-32s median %v, %v to %v", what, all[rounds/2], all[0], all[rounds-1])
	}
}
