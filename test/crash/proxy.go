package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"

	"encoding/pem"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// When a client is killed, as seen from one of its steps.
const (
	before = "BEFORE" // the API server never gets the request
	after  = "AFTER"  // the API server has done it, and the client does not learn of it
)

// moment is a step of a client, on one side of it.
type moment struct {
	step string // with its number, when the same comes several times: "exec 2"
	side string
}

// proxy stands between a client and the API server, and counts the steps of the client.
type proxy struct {
	kubeconfig string // leads to it
	server     *httptest.Server

	mu    sync.Mutex
	times map[string]int
	steps []string // in their order
}

type stepKey struct{}

var errKilled = errors.New("the client was killed")

// newProxy starts a proxy to the API server that config leads to. When reached returns true the client is dead, and
// gets no answer.
func newProxy(config *rest.Config, dir string, reached func(moment) (killed bool)) (*proxy, error) {
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("the API server's address: %w", err)
	}
	upstream := rest.CopyConfig(config)
	upstream.NextProtos = []string{"http/1.1"} // exec upgrades its connection, which HTTP/2 cannot
	transport, err := rest.TransportFor(upstream)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	p := &proxy{times: map[string]int{}}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // of clients that are dead, on purpose
		ModifyResponse: func(r *http.Response) error {
			if name, ok := r.Request.Context().Value(stepKey{}).(string); ok && reached(moment{name, after}) {
				return errKilled
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errKilled) {
				return
			}
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, err := step(r)
		if err != nil {
			return // the client went away in the middle of its request
		}
		if name != "" {
			name = p.count(name)
			if reached(moment{name, before}) {
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), stepKey{}, name))
		}
		// Else net/http closes the request's body when the answer begins, and a large one breaks off.
		_ = http.NewResponseController(w).EnableFullDuplex()
		forward.ServeHTTP(w, r)
	}))
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	p.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := p.writeKubeconfig(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// count numbers a step that comes again.
func (p *proxy) count(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times[name]++
	if n := p.times[name]; n > 1 {
		name = fmt.Sprintf("%s %d", name, n)
	}
	p.steps = append(p.steps, name)
	return name
}

// seen returns the steps so far.
func (p *proxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.steps...)
}

func (p *proxy) writeKubeconfig() error {
	const name = "crash"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server: p.server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw},
		),
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{} // the proxy has the credentials
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, p.kubeconfig); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

func (p *proxy) close() {
	p.server.CloseClientConnections()
	p.server.Close()
}
