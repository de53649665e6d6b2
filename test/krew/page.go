package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	host      = "github.com"
	downloads = "/gpu-fault/kubectl-gpu-fault/releases/download/"
)

// page plays the page of a release on github.com, for programs that take its proxy and trust its certificate: so the
// manifest is used as it is, and whoever wants to go elsewhere is noticed.
type page struct {
	site, proxy *httptest.Server
	certificate string // path of its PEM file
	mux         *http.ServeMux

	mu     sync.Mutex
	strays []string // other hosts that were asked for
	served int
}

func newPage(dir string) (*page, error) {
	p := &page{certificate: filepath.Join(dir, "github.pem"), mux: http.NewServeMux()}
	certificate, err := selfSigned(p.certificate)
	if err != nil {
		return nil, err
	}
	p.site = httptest.NewUnstartedServer(p.mux)
	p.site.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	p.site.StartTLS()
	p.proxy = httptest.NewServer(http.HandlerFunc(p.connect))
	return p, nil
}

// publish offers the files of a folder as those of a release.
func (p *page) publish(version, folder string) {
	prefix := downloads + version + "/"
	files := http.StripPrefix(prefix, http.FileServer(http.Dir(folder)))
	p.mux.HandleFunc(prefix, func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.served++
		p.mu.Unlock()
		files.ServeHTTP(w, r)
	})
}

// environment sends a Go program here.
func (p *page) environment() []string {
	return []string{"HTTPS_PROXY=" + p.proxy.URL, "HTTP_PROXY=" + p.proxy.URL, "SSL_CERT_FILE=" + p.certificate}
}

// connect ties whoever wants to speak with github.com to the page.
func (p *page) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Host != host+":443" {
		p.mu.Lock()
		p.strays = append(p.strays, r.Host)
		p.mu.Unlock()
		http.Error(w, "only the release's page is here", http.StatusForbidden)
		return
	}
	site, err := net.Dial("tcp", p.site.Listener.Addr().String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer site.Close()
	client, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	if _, err := fmt.Fprint(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(site, client) // ends when either side hangs up
		site.Close()
	}()
	_, _ = io.Copy(client, site)
}

// asked returns how many files were fetched, and which other hosts somebody wanted.
func (p *page) asked() (served int, strays []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served, slices.Clone(p.strays)
}

func (p *page) close() {
	p.proxy.CloseClientConnections()
	p.proxy.Close()
	p.site.CloseClientConnections()
	p.site.Close()
}

// selfSigned makes a certificate for github.com that is good for an hour, and writes it to a PEM file for those who are
// to trust it.
func selfSigned(file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: now.Add(-time.Minute),
		NotAfter: now.Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, os.WriteFile(file, text, 0o644)
}
