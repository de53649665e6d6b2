package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// traffic is the load of a command on the API server.
type traffic struct {
	requests int
	bytes    int64 // bytes on all connections, in both directions, as encrypted and compressed on the wire
}

// traffic runs a command with a kubeconfig whose server is a proxy that counts bytes, and counts the command's requests
// in the audit log.
func (b *bench) traffic(ctx context.Context, run func(kubeconfig string) error) (traffic, error) {
	log := filepath.Join(b.state(), "nodes", "node-a", "log", "audit.json")
	info, err := os.Stat(log)
	if err != nil {
		return traffic{}, fmt.Errorf("the API server's audit log: %w; recreate the cluster if it was created before the audit log was introduced", err)
	}
	p, err := b.newProxy(ctx)
	if err != nil {
		return traffic{}, err
	}
	err = run(p.kubeconfig)
	bytes := p.close()
	if err != nil {
		return traffic{}, err
	}
	// The API server logs the end of watches and of exec requests with a short delay.
	time.Sleep(500 * time.Millisecond)
	requests, err := audited(log, info.Size())
	return traffic{requests: requests, bytes: bytes}, err
}

// minus returns the traffic by which t exceeds other.
func (t traffic) minus(other traffic) traffic {
	return traffic{t.requests - other.requests, t.bytes - other.bytes}
}

// rows compares t with the traffic that a peer causes for the same work.
func (t traffic) rows(what, against string, peer traffic) []row {
	count := func(n int) sample { return sample{float64(n)} }
	kib := func(n int64) sample { return sample{float64(n) / 1024} }
	return []row{
		compared(what, "requests", count(t.requests), against, count(peer.requests)).judged(),
		compared(what, "KiB", kib(t.bytes), against, kib(peer.bytes)).judged(),
	}
}

// clients are prefixes of the user agents to count: the program's, kubectl's, and the one that both use for exec
// requests.
var clients = []string{"kubectl", "Go-http-client"}

// audited counts the requests of clients in the audit log, starting at an offset. A watch has several lines with the
// same ID.
func audited(path string, offset int64) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct{ AuditID, UserAgent string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if slices.ContainsFunc(clients, func(c string) bool { return strings.HasPrefix(e.UserAgent, c) }) {
			seen[e.AuditID] = true
		}
	}
	return len(seen), lines.Err()
}

// proxy forwards TCP connections to the API server.
type proxy struct {
	kubeconfig string
	listener   net.Listener
	bytes      atomic.Int64
	stop       context.CancelFunc
}

func (b *bench) newProxy(ctx context.Context) (*proxy, error) {
	raw, err := clientcmd.LoadFromFile(b.kubeconfig)
	if err != nil {
		return nil, err
	}
	p := &proxy{}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	server := ""
	for _, cluster := range raw.Clusters { // the certificate is also valid for 127.0.0.1
		server = strings.TrimPrefix(cluster.Server, "https://")
		cluster.Server = "https://" + p.listener.Addr().String()
	}
	if !strings.Contains(server, ":") {
		server += ":443"
	}
	dir, err := os.MkdirTemp("", "gpu-fault-bench-")
	if err != nil {
		return nil, err
	}
	p.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*raw, p.kubeconfig); err != nil {
		return nil, err
	}
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		for {
			connection, err := p.listener.Accept()
			if err != nil {
				return
			}
			go p.pass(ctx, connection, server)
		}
	}()
	return p, nil
}

func (p *proxy) pass(ctx context.Context, client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	api, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	for _, c := range [][2]net.Conn{{client, api}, {api, client}} {
		go func() {
			_, _ = io.Copy(&counted{c[1], &p.bytes}, c[0])
			ended <- struct{}{}
		}()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
	_ = api.Close()
}

// close stops the proxy, and returns the number of forwarded bytes.
func (p *proxy) close() int64 {
	p.stop()
	_ = errors.Join(p.listener.Close(), os.RemoveAll(filepath.Dir(p.kubeconfig)))
	return p.bytes.Load()
}

// counted is a connection that counts the bytes written to it.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c *counted) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	c.bytes.Add(int64(n))
	return n, err
}
