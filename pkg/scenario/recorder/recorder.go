// Package recorder implements a proxy between a candidate and the API server, on the candidate's machine. It records
// requests (verb, object, time, status), but never the contents of objects, tokens, or terminal sessions.
package recorder

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Line is one request.
type Line struct {
	Time        time.Time `json:"time"`
	Verb        string    `json:"verb"` // as in RBAC: get, list, watch, create, ...
	Group       string    `json:"group,omitempty"`
	Resource    string    `json:"resource,omitempty"`
	Namespace   string    `json:"namespace,omitempty"`
	Name        string    `json:"name,omitempty"`
	Subresource string    `json:"subresource,omitempty"` // log, exec, scale
	Path        string    `json:"path,omitempty"`        // for requests that are not for a resource: /version
	Labels      string    `json:"labels,omitempty"`      // selectors of a list
	Fields      string    `json:"fields,omitempty"`
	// Table is set if the client requested table rows, as kubectl get does, instead of full objects.
	Table     bool     `json:"table,omitempty"`
	DryRun    bool     `json:"dryRun,omitempty"` // nothing was changed
	As        string   `json:"as,omitempty"`     // the impersonated user
	Container string   `json:"container,omitempty"`
	Command   []string `json:"command,omitempty"` // for exec, without likely credentials
	Status    int      `json:"status"`            // 0 means no response
	Millis    int64    `json:"millis"`            // time until the response began
	Error     string   `json:"error,omitempty"`
}

// Proxy records requests. Clients need the kubeconfig that it issues, so other users on the machine have no access.
type Proxy struct {
	// Now returns the time to record; nil means the local clock. The API server's time makes transcripts from several
	// machines comparable.
	Now func() time.Time

	namespace string
	target    *url.URL
	// plain connects to the API server over HTTP/2 or HTTP/1.1; upgrade uses HTTP/1.1, as required by exec and
	// port-forward.
	plain, upgrade http.RoundTripper
	certificate    tls.Certificate
	ca             []byte
	token          string

	mu     sync.Mutex
	out    io.Writer
	failed error
	stop   context.CancelFunc
}

// New returns a proxy to the API server in config, which is the candidate's configuration. The proxy writes a line to
// out for each request. out is a File or another writer that accepts whole lines. namespace is the default namespace in
// the kubeconfig that the proxy issues.
func New(config *rest.Config, namespace string, out io.Writer) (*Proxy, error) {
	config = rest.CopyConfig(config)
	config.DisableCompression = true // pass on compressed data unchanged
	p := &Proxy{namespace: namespace, out: out, token: hex.EncodeToString(randomBytes())}
	var err error
	if p.target, _, err = rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("invalid address of the API server in the candidate's kubeconfig: %w", err)
	}
	if p.plain, err = rest.TransportFor(config); err != nil {
		return nil, fmt.Errorf("connect as the candidate: %w", err)
	}
	config.NextProtos = []string{"http/1.1"}
	if p.upgrade, err = rest.TransportFor(config); err != nil {
		return nil, fmt.Errorf("connect as the candidate: %w", err)
	}
	if p.certificate, p.ca, err = selfSigned(time.Now()); err != nil {
		return nil, fmt.Errorf("create certificate for the local proxy: %w", err)
	}
	return p, nil
}

func randomBytes() []byte {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return b
}

// Kubeconfig returns the kubeconfig with which the candidate uses a proxy on the given address. It has the same default
// namespace as the candidate's original kubeconfig, but no direct access to the API server.
func (p *Proxy) Kubeconfig(address net.Addr) ([]byte, error) {
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			"lab": {Server: "https://" + address.String(), CertificateAuthorityData: p.ca},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"candidate": {Token: p.token}},
		Contexts: map[string]*clientcmdapi.Context{
			"lab": {Cluster: "lab", AuthInfo: "candidate", Namespace: p.namespace},
		},
		CurrentContext: "lab",
	})
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig for the candidate: %w", err)
	}
	return text, nil
}

// Listen opens a listener that accepts only local connections.
func Listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the candidate's kubectl: %w", err)
	}
	return listener, nil
}

// Serve handles requests on the listener until ctx is done, and then closes the listener. It fails if lines cannot be
// written, because the transcript is then incomplete.
func (p *Proxy) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.stop = cancel
	p.mu.Unlock()
	quiet := log.New(io.Discard, "", 0)
	server := &http.Server{
		Handler:           p.handler(quiet),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{p.certificate}, MinVersion: tls.VersionTLS12},
		BaseContext:       func(net.Listener) context.Context { return ctx }, // also ends watches and terminal sessions
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          quiet,
	}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	err := server.ServeTLS(listener, "", "")
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed != nil:
		return fmt.Errorf("write the transcript: %w", p.failed)
	case ctx.Err() != nil && errors.Is(err, http.ErrServerClosed):
		return nil
	}
	return fmt.Errorf("serve requests from the candidate's kubectl: %w", err)
}

// Recording is a running proxy.
type Recording struct {
	// Kubeconfig is the kubeconfig for the candidate.
	Kubeconfig []byte
	// Done is closed when recording has stopped; Stop returns the reason.
	Done <-chan struct{}

	cancel context.CancelFunc
	err    error
}

// Start starts a new proxy on this machine. The proxy records until Stop is called, or until ctx is done. The parameter
// now sets Proxy.Now; for config, namespace and out, see New. If the listener is nil, Start creates one with Listen.
func Start(
	ctx context.Context, config *rest.Config, namespace string, out io.Writer, now func() time.Time,
	listener net.Listener,
) (*Recording, error) {
	p, err := New(config, namespace, out)
	if err != nil {
		return nil, err
	}
	p.Now = now
	if listener == nil {
		if listener, err = Listen(); err != nil {
			return nil, err
		}
	}
	kubeconfig, err := p.Kubeconfig(listener.Addr())
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	r := &Recording{Kubeconfig: kubeconfig, Done: done, cancel: cancel}
	go func() {
		defer close(done)
		r.err = p.Serve(ctx, listener)
	}()
	return r, nil
}

// Stop stops recording. If recording had already stopped because lines could not be written, it returns the error.
func (r *Recording) Stop() error {
	r.cancel()
	<-r.Done
	return r.err
}

// asked is the state of a request until the response.
type asked struct {
	line  Line
	began time.Time
}

type askedKey struct{}

func (p *Proxy) handler(quiet *log.Logger) http.Handler {
	reverse := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(p.target)
			r.Out.Header.Del("Authorization") // remove the proxy's token; the transport sets the candidate's
		},
		Transport:     p,
		FlushInterval: -1, // for watches and logs
		ErrorLog:      quiet,
		ModifyResponse: func(response *http.Response) error {
			p.answered(response.Request.Context(), response.StatusCode, "")
			if response.StatusCode == http.StatusUnauthorized {
				response.Header.Add("Warning",
					`299 - "the token of this exercise has expired, or the exercise has ended"`)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.answered(r.Context(), 0, err.Error())
			refuse(w, http.StatusBadGateway, metav1.StatusReasonServiceUnavailable,
				fmt.Sprintf("the recording proxy cannot reach the API server: %v", err))
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if subtle.ConstantTimeCompare([]byte(given), []byte(p.token)) != 1 {
			refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized,
				"unauthorized: use the kubeconfig of this recording proxy")
			return
		}
		line := lineOf(r)
		line.Time = p.now().UTC()
		reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), askedKey{}, asked{line, time.Now()})))
	})
}

func (p *Proxy) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

// RoundTrip forwards a request.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return p.upgrade.RoundTrip(r)
	}
	return p.plain.RoundTrip(r)
}

// answered writes the line for a request when the response begins, because a terminal session may stay open for an
// hour.
func (p *Proxy) answered(ctx context.Context, status int, problem string) {
	request, is := ctx.Value(askedKey{}).(asked)
	if !is {
		return
	}
	line := request.line
	line.Status, line.Error, line.Millis = status, cut(problem), time.Since(request.began).Milliseconds()
	text, err := json.Marshal(line)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.failed == nil {
		_, err = p.out.Write(append(text, '\n'))
	}
	if err != nil && p.failed == nil {
		p.failed = err
		p.stop()
	}
}

// refuse responds like an API server, so that kubectl shows the message.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code),
		Reason: reason, Message: message,
	})
}
