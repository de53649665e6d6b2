//go:build e2e

package debugpod_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
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
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
)

// These tests run on the cluster of KUBECONFIG, whose nodes must have GPU_FAULT_E2E_IMAGE
// (docker.io/library/busybox:1.35), on GPU_FAULT_E2E_NODE or the last node. They write some thousand records to that
// node's kernel log.

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
		t.Fatal("KUBECONFIG is not set: there is no cluster to test on (make test sets it)")
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
	c := &cluster{client, debugpod.NewRunner(client, config, helper.For), chosen, os.Getenv(victimNamespace)}
	if c.namespace == "" {
		c.namespace = ownNamespace(t, client)
	}
	return c
}

// victimNamespace is the environment variable that makes TestKilledClient the victim in that namespace: the client is
// killed, and would leave its own.
const victimNamespace = "GPU_FAULT_E2E_VICTIM"

func ownNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "dbg-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(
			context.WithoutCancel(t.Context()), ns.Name, metav1.DeleteOptions{},
		); err != nil {
			t.Error(err)
		}
	})
	return ns.Name
}

func (c *cluster) spec(run string) debugpod.Spec {
	image := os.Getenv("GPU_FAULT_E2E_IMAGE")
	if image == "" {
		image = "docker.io/library/busybox:1.35"
	}
	return debugpod.Spec{
		Run: run, Node: c.node.Name, Namespace: c.namespace, Arch: c.node.Status.NodeInfo.Architecture, Image: image,
		Deadline: time.Minute,
	}
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

func records(n int, text string) []api.KmsgRecord {
	all := make([]api.KmsgRecord, n)
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
	info, err := session.Inspect(t.Context(), api.Inspect{PodUIDs: []string{string(session.Pod().UID)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", *info)
	if info.Hostname == session.Pod().Name || info.KernelRelease != c.node.Status.NodeInfo.KernelVersion ||
		info.BootID == "" {
		t.Errorf("not the node's: %+v; want kernel %s", *info, c.node.Status.NodeInfo.KernelVersion)
	}
	if use := info.Pods[string(session.Pod().UID)]; use.PID == 0 || use.Process != "sh" {
		t.Errorf("our own pod's process is %+v", use)
	}
	one, err := session.WriteKmsg(t.Context(),
		api.WriteKmsg{Records: []api.KmsgRecord{{Data: "<4>gpu-fault-e2e: a\\b\ttab é\n"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", one)
	if age := time.Since(one[0].Time); age < 0 || age > 5*time.Second {
		t.Errorf("written %v ago", age)
	}
	start := time.Now()
	many, err := session.WriteKmsg(t.Context(), api.WriteKmsg{Records: records(1000, "burst")}, nil)
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
		written, err := session.WriteKmsg(ctx, api.WriteKmsg{Records: all}, func(w []api.WrittenKmsg) {
			if heard += len(w); heard >= 3 {
				cancel()
			}
		})
		var failure *api.Error
		if !errors.As(err, &failure) || failure.Code != api.CodeInterrupted || !errors.Is(err, context.Canceled) {
			t.Errorf("uploaded %v: %v", uploaded, err)
		}
		t.Logf("%d written, %v after %v", len(written), err, time.Since(start))
		if len(written) < 3 || len(written) > 10 {
			t.Errorf("uploaded %v: %d records are proven, after 3 were heard of", uploaded, len(written))
		}
		cancel()
	}
}
