//go:build e2e

package e2e

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A client that was killed in the middle of an injection has left what another one needs to restore everything.
func TestE2ECudaRevertAfterTheClientWasKilled(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	get := c.create(c.deployment("train"))
	pods := c.healthy("train", 1)
	before := asUserSees(t, get())
	// The ConfigMap is made by then. A dry run of the patch comes before it.
	isPatch := func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/deployments/train") &&
			r.URL.Query().Get("dryRun") == ""
	}
	for _, test := range []struct {
		name     string
		answered bool
	}{{"before the patch", false}, {"after the patch", true}} {
		out := c.killedAt(isPatch, test.answered, "cuda", "inject", "deployment/train", "-n", c.namespace, "--xid",
			"79", "--yes")
		runs := c.runs()
		if len(runs) != 1 {
			t.Fatalf("%s: open runs %+v; the client had said:\n%s", test.name, runs, out)
		}
		if text := asUserSees(t, get()); strings.Contains(text, "libgpufault.so") != test.answered {
			t.Errorf("%s: the template has the shim: %t", test.name, !test.answered)
		}
		c.ok("revert", "--all", "--yes", "--force")
		c.same(before, get())
		c.nothingLeft()
		if after := c.healthy("train", 1); !test.answered && after[0].UID != pods[0].UID {
			t.Errorf("%s: the pod was replaced", test.name)
		}
	}
}

// killedAt runs the plugin and kills it with SIGKILL at the first request that matches: when it comes, or with answered
// when it is done. It returns what the plugin had said.
func (c *cuda) killedAt(match func(*http.Request) bool, answered bool, args ...string) string {
	c.t.Helper()
	var (
		once    sync.Once
		killed  atomic.Bool
		process = make(chan *os.Process, 1)
	)
	kill := func(r *http.Request) (now bool) {
		if !match(r) {
			return false
		}
		once.Do(func() { killed.Store(true); _ = (<-process).Kill() })
		return true
	}
	dead := errors.New("the client is dead")
	target, err := url.Parse(c.cluster.RESTConfig.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	upstream := rest.CopyConfig(c.cluster.RESTConfig)
	upstream.NextProtos = []string{"http/1.1"} // exec upgrades its connection, which HTTP/2 cannot
	transport, err := rest.TransportFor(upstream)
	if err != nil {
		c.t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0),
		ModifyResponse: func(r *http.Response) error {
			if answered && kill(r.Request) {
				return dead
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if !errors.Is(err, dead) {
				http.Error(w, err.Error(), http.StatusBadGateway)
			}
		},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answered && kill(r) {
			return
		}
		// Else the server closes the body of a request that is answered before its end was read, and the forwarding of
		// both breaks off.
		_ = http.NewResponseController(w).EnableFullDuplex()
		forward.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	defer server.CloseClientConnections()

	client := &started{Cmd: c.command(args...)}
	client.Env = append(client.Env, "KUBECONFIG="+c.kubeconfigOf(server))
	client.Stdout, client.Stderr = &client.stdout, &client.stderr
	if err := client.Start(); err != nil {
		c.t.Fatal(err)
	}
	process <- client.Process
	_ = client.Wait()
	said := client.stdout.String() + client.stderr.String()
	if !killed.Load() {
		c.t.Fatalf("it ended before it could be killed:\n%s", said)
	}
	return said
}

// kubeconfigOf leads to a proxy, which has the credentials.
func (c *cuda) kubeconfigOf(server *httptest.Server) string {
	c.t.Helper()
	const name = "proxy"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatal(err)
	}
	return path
}
