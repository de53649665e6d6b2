package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Hosts are host names with ports, such as api.example.com:443, to which a program may connect through the proxy that
// Serve runs.
type Hosts []string

// ParseHosts parses HOST or HOST:PORT. The default port is 443.
func ParseHosts(all []string) (Hosts, error) {
	var hosts Hosts
	for _, one := range all {
		host, port, err := net.SplitHostPort(one)
		if err != nil {
			host, port = one, "443"
		}
		host = strings.ToLower(host)
		number, err := net.LookupPort("tcp", port)
		if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 || err != nil || number == 0 {
			return nil, fmt.Errorf("invalid host %q: must be HOST or HOST:PORT, such as api.example.com:443", one)
		}
		hosts = append(hosts, net.JoinHostPort(host, fmt.Sprint(number)))
	}
	return hosts, nil
}

// Serve runs an HTTP proxy on the listener until ctx is done. The proxy connects only to these hosts, with the CONNECT
// method, and does not see the transmitted data.
func (h Hosts) Serve(ctx context.Context, listener net.Listener) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_ = server.Serve(listener)
}

// ServeHTTP connects the client to a host.
func (h Hosts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || !slices.Contains(h, strings.ToLower(r.Host)) {
		http.Error(w, "not permitted from this sandbox: "+r.Method+" "+r.Host, http.StatusForbidden)
		return
	}
	dialer := net.Dialer{Timeout: 30 * time.Second}
	server, err := dialer.DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = server.Close() }()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, buffered)
		if half, is := server.(*net.TCPConn); is {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(client, server)
}
