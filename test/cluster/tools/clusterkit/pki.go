package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// authority issues the certificates of one cluster into dir.
type authority struct {
	dir    string
	serial int64
	cert   *x509.Certificate
	key    crypto.Signer
	pem    []byte
}

// writePKI writes what the control plane of one throw-away cluster needs to trust
// itself: a CA, serving and client certificates, the service-account key, and a
// kubeconfig for each client.
//
//	clusterkit pki DIR SERVER SAN[,SAN...] NODE[,NODE...]
//
// SERVER is the address in the kubeconfigs, such as https://10.99.0.2.
func writePKI(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("usage: clusterkit pki DIR SERVER SAN[,SAN...] NODE[,NODE...]")
	}
	a := &authority{dir: args[0]}
	server := args[1]
	must(os.MkdirAll(a.dir, 0o700))

	a.pem, _ = a.issue("ca", pkix.Name{CommonName: "cluster-ca"}, nil, true)
	a.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"}, strings.Split(args[2], ","), false)
	a.issue("apiserver-kubelet-client",
		pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}}, nil, false)
	a.writeKey("sa", newKey()) // signs and checks service-account tokens

	client := func(file string, name pkix.Name) { a.kubeconfig(file, server, name) }
	client("admin", pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}})
	client("controller-manager", pkix.Name{CommonName: "system:kube-controller-manager"})
	client("scheduler", pkix.Name{CommonName: "system:kube-scheduler"})
	client("kube-proxy", pkix.Name{CommonName: "system:kube-proxy"})
	client("npd", pkix.Name{CommonName: "system:node-problem-detector"})
	for _, n := range strings.Split(args[3], ",") {
		client("kubelet-"+n, pkix.Name{CommonName: "system:node:" + n, Organization: []string{"system:nodes"}})
	}
	return nil
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	return key
}

func (a *authority) writeKey(name string, key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalECPrivateKey(key) // SEC 1: the form in which the API server takes sa.key
	must(err)
	out := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	must(os.WriteFile(filepath.Join(a.dir, name+".key"), out, 0o600))
	return out
}

func (a *authority) issue(name string, subject pkix.Name, sans []string, isCA bool) (cert, key []byte) {
	a.serial++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial),
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},

		BasicConstraintsValid: true,
	}
	for _, s := range sans {
		if ip := net.ParseIP(s); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, s)
		}
	}
	k := newKey()
	parent, signer := a.cert, a.key
	if isCA {
		tmpl.IsCA, tmpl.KeyUsage, tmpl.ExtKeyUsage = true, tmpl.KeyUsage|x509.KeyUsageCertSign, nil
		parent, signer = tmpl, k
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, k.Public(), signer)
	must(err)
	if isCA {
		a.key = k
		a.cert, err = x509.ParseCertificate(der)
		must(err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	must(os.WriteFile(filepath.Join(a.dir, name+".crt"), cert, 0o644))
	return cert, a.writeKey(name, k)
}

func (a *authority) kubeconfig(file, server string, subject pkix.Name) {
	cert, key := a.issue(file, subject, nil, false)
	b64 := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: gpu-fault-test
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: admin
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: gpu-fault-test
  context: {cluster: gpu-fault-test, user: admin}
current-context: gpu-fault-test
`, server, b64(a.pem), b64(cert), b64(key))
	must(os.WriteFile(filepath.Join(a.dir, file+".kubeconfig"), []byte(text), 0o600))
}
