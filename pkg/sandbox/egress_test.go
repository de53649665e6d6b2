package sandbox

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// The proxy connects to the hosts of its list, under their ports, and to no other.
func TestHosts(t *testing.T) {
	t.Parallel()
	model := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("model"))
	}))
	defer model.Close()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	hosts, err := ParseHosts([]string{model.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go hosts.Serve(t.Context(), listener)
	client := model.Client()
	transport := client.Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: listener.Addr().String()})
	client.Transport = transport
	if response, err := client.Get(model.URL); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("permitted: %v, %v", response, err)
	}
	if _, err := client.Get(other.URL); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("another port: %v", err)
	}
	if response, err := client.Get(plain.URL); err != nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("a plain request: %v, %v", response, err)
	}
}

// A list that names no host is refused with the value.
func TestParseHosts(t *testing.T) {
	t.Parallel()
	got, err := ParseHosts([]string{"API.example.com", "10.0.0.1:8080", "[::1]:9"})
	if err != nil || strings.Join(got, " ") != "api.example.com:443 10.0.0.1:8080 [::1]:9" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{
		"", "*", "https://api.example.com", "a:0", "a:70000", "a b", "*.example.com", "a:b:c",
	} {
		if _, err := ParseHosts([]string{bad}); err == nil || !strings.Contains(err.Error(), "HOST:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
