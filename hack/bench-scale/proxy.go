package main

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// proxy forwards requests to the API server, and counts them and their bytes on the wire.
type proxy struct {
	*httptest.Server
	kubeconfig string // for clients

	requests, sent, received atomic.Int64 // as seen by the client
}

func (p *proxy) reset() {
	p.requests.Store(0)
	p.sent.Store(0)
	p.received.Store(0)
}

func serve(config *rest.Config, folder string) (*proxy, error) {
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	p := &proxy{kubeconfig: filepath.Join(folder, "kubeconfig")}
	forward := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport: transport, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // ignore errors of requests that the client cancels
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		forward.ServeHTTP(w, r)
	}))
	p.Listener = &listener{p.Listener, p}
	p.EnableHTTP2 = true // like the API server
	p.Config.ErrorLog = forward.ErrorLog
	p.StartTLS()
	return p, os.WriteFile(p.kubeconfig, kubeconfig(p.URL, p.Certificate()), 0o600)
}

func kubeconfig(server string, authority *x509.Certificate) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: scale
clusters: [{name: scale, cluster: {server: %q, certificate-authority-data: %q}}]
contexts: [{name: scale, context: {cluster: scale}}]
`, server, base64.StdEncoding.EncodeToString(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw})))
}

// listener counts the bytes of its connections.
type listener struct {
	net.Listener
	proxy *proxy
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &connection{c, l.proxy}, err
}

type connection struct {
	net.Conn
	proxy *proxy
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.proxy.sent.Add(int64(n))
	return n, err
}

func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.proxy.received.Add(int64(n))
	return n, err
}
