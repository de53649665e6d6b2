//go:build e2e

package debugpod_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
)

// These tests run on the cluster of KUBECONFIG, whose nodes must have GPU_FAULT_E2E_IMAGE (docker.io/library/busybox:1.35), on
// GPU_FAULT_E2E_NODE or the last node. They write some thousand records to that node's kernel log.

type cluster struct {
	client    kubernetes.Interface
	runner    *debugpod.Runner
	node      *corev1.Node
	namespace string
}

func connect(t *testing.T) *cluster {
	t.Helper()
	return connectThrough(t, func(*rest.Config) {})
}

// connectThrough connects with a configuration that is changed before.
func connectThrough(t *testing.T, change func(*rest.Config)) *cluster {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Skip("KUBECONFIG is not set: there is no cluster to test on")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	change(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	chosen := &nodes.Items[len(nodes.Items)-1]
	for i, n := range nodes.Items {
		if n.Name == os.Getenv("GPU_FAULT_E2E_NODE") {
			chosen = &nodes.Items[i]
		}
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "dbg-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return &cluster{client, debugpod.NewRunner(client, config, helper.For), chosen, ns.Name}
}

func (c *cluster) spec(run string) debugpod.Spec {
	image := os.Getenv("GPU_FAULT_E2E_IMAGE")
	if image == "" {
		image = "docker.io/library/busybox:1.35"
	}
	return debugpod.Spec{Run: run, Node: c.node.Name, Namespace: c.namespace, Arch: c.node.Status.NodeInfo.Architecture, Image: image, Deadline: time.Minute}
}

func (c *cluster) start(t *testing.T, run string) *debugpod.Session {
	t.Helper()
	session, err := c.runner.Start(t.Context(), c.spec(run))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return session
}

// untilGone returns how long the pod still took to vanish.
func (c *cluster) untilGone(t *testing.T, name string) time.Duration {
	t.Helper()
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		_, err := c.client.CoreV1().Pods(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return time.Since(start)
		}
	}
	t.Fatalf("pod %s is still there", name)
	return 0
}

func records(n int, text string) []node.KmsgRecord {
	all := make([]node.KmsgRecord, n)
	for i := range all {
		all[i].Data = fmt.Sprintf("<6>gpu-fault-e2e: %s %d\n", text, i)
	}
	return all
}

func TestWholeLife(t *testing.T) {
	c := connect(t)
	if err := c.runner.DryRun(t.Context(), c.spec("life")); err != nil {
		t.Fatal(err)
	}
	session := c.start(t, "life")
	info, err := session.Inspect(t.Context(), node.Inspect{PodUIDs: []string{string(session.Pod().UID)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", *info)
	if info.Hostname == session.Pod().Name || info.KernelRelease != c.node.Status.NodeInfo.KernelVersion || info.BootID == "" {
		t.Errorf("not the node's: %+v; want kernel %s", *info, c.node.Status.NodeInfo.KernelVersion)
	}
	if use := info.Pods[string(session.Pod().UID)]; use.PID == 0 || use.Process != "sh" {
		t.Errorf("our own pod's process is %+v", use)
	}
	one, err := session.WriteKmsg(t.Context(), node.WriteKmsg{Records: []node.KmsgRecord{{Data: "<4>gpu-fault-e2e: a\\b\ttab é\n"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", one)
	if age := time.Since(one[0].Time); age < 0 || age > 5*time.Second {
		t.Errorf("written %v ago", age)
	}
	start := time.Now()
	many, err := session.WriteKmsg(t.Context(), node.WriteKmsg{Records: records(1000, "burst")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("1,000 records, sequences %d to %d, in %v", many[0].Sequence, many[999].Sequence, time.Since(start))
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("gone after %v", c.untilGone(t, session.Pod().Name))
}

// throughOldProxy goes through a proxy that does not know WebSockets.
func throughOldProxy(t *testing.T, refused *atomic.Int32) func(*rest.Config) {
	return func(config *rest.Config) {
		to, err := url.Parse(config.Host)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(to)
		// HTTP/1.1, as upgrades have it.
		config.NextProtos = []string{"http/1.1"}
		if proxy.Transport, err = rest.TransportFor(rest.CopyConfig(config)); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
				refused.Add(1)
				http.Error(w, "no websockets", http.StatusBadRequest)
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		*config = rest.Config{Host: server.URL, QPS: config.QPS, Burst: config.Burst}
	}
}

func TestCancelStopsBetweenRecords(t *testing.T) {
	t.Run("WebSocket", func(t *testing.T) { cancelStops(t, connect(t)) })
	t.Run("SPDY", func(t *testing.T) {
		var refused atomic.Int32
		cancelStops(t, connectThrough(t, throughOldProxy(t, &refused)))
		if refused.Load() == 0 {
			t.Error("no WebSocket was tried")
		}
	})
}

func cancelStops(t *testing.T, c *cluster) {
	session := c.start(t, "cancel")
	for _, uploaded := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		all := records(100, fmt.Sprint("slow, uploaded ", uploaded))
		for i := range all {
			all[i].Delay = 300 * time.Millisecond
		}
		var heard int
		start := time.Now()
		written, err := session.WriteKmsg(ctx, node.WriteKmsg{Records: all}, func(w []node.WrittenKmsg) {
			if heard += len(w); heard >= 3 {
				cancel()
			}
		})
		var failure *node.Error
		if !errors.As(err, &failure) || failure.Code != node.CodeInterrupted || !errors.Is(err, context.Canceled) {
			t.Errorf("uploaded %v: %v", uploaded, err)
		}
		t.Logf("%d written, %v after %v", len(written), err, time.Since(start))
		if len(written) < 3 || len(written) > 10 {
			t.Errorf("uploaded %v: %d records are proven, after 3 were heard of", uploaded, len(written))
		}
		cancel()
	}
}

// TestKilledClient holds what is left when the client is killed: nothing is written any more, and the pod ends at its deadline.
func TestKilledClient(t *testing.T) {
	c := connect(t)
	spec := c.spec("killed")
	if os.Getenv("GPU_FAULT_E2E_VICTIM") != "" {
		t.Skip("this is the victim")
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestVictim", "-test.v")
	cmd.Env = append(os.Environ(), "GPU_FAULT_E2E_VICTIM="+c.namespace)
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
	before := count(t, "victim")
	time.Sleep(2 * time.Second)
	if after := count(t, "victim"); after != before || before == 0 {
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

// TestVictim is the client that TestKilledClient kills.
func TestVictim(t *testing.T) {
	namespace := os.Getenv("GPU_FAULT_E2E_VICTIM")
	if namespace == "" {
		t.Skip("only TestKilledClient runs it")
	}
	c := connect(t)
	c.namespace = namespace
	spec := c.spec("killed")
	spec.Deadline = 8 * time.Second
	session, err := c.runner.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	all := records(1000, "victim")
	for i := range all {
		all[i].Delay = 250 * time.Millisecond
	}
	n := 0
	_, err = session.WriteKmsg(t.Context(), node.WriteKmsg{Records: all}, func(w []node.WrittenKmsg) {
		n += len(w)
		fmt.Println("WRITTEN", n)
	})
	t.Fatal(err)
}

// count is how many records of this machine's kernel log have the text: the nodes of the test cluster share it.
func count(t *testing.T, text string) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the kernel log is read on this machine")
	}
	out, err := exec.Command("dmesg").Output()
	if err != nil {
		t.Skipf("dmesg: %v", err)
	}
	return strings.Count(string(out), "gpu-fault-e2e: "+text)
}

func TestStartFailures(t *testing.T) {
	c := connect(t)
	for name, tc := range map[string]struct {
		change func(*debugpod.Spec)
		want   string
	}{
		"image not there": {func(s *debugpod.Spec) { s.Image, s.PullPolicy = "example.invalid/none:1", corev1.PullNever }, "ErrImageNeverPull"},
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
			if !errors.As(err, &failure) || failure.Reason != tc.want && (tc.want != debugpod.ReasonNodeMissing || failure.Reason != debugpod.ReasonDeleted) {
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
	if err := c.runner.DryRun(t.Context(), c.spec("psa")); !errors.As(err, &failure) || failure.Reason != debugpod.ReasonPodSecurity {
		t.Errorf("dry run: %v", err)
	}
	if _, err := c.runner.Start(t.Context(), c.spec("psa")); !errors.As(err, &failure) || failure.Reason != debugpod.ReasonPodSecurity {
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
		inspect := func() error { _, err := session.Inspect(t.Context(), node.Inspect{}); return err }
		write := func(n int) func() error {
			return func() error {
				_, err := session.WriteKmsg(t.Context(), node.WriteKmsg{Records: records(n, "median")}, nil)
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
