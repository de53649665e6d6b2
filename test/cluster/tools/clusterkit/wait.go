package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster/tools/inventory"
)

// wait polls the API server until each condition holds, and says when on stderr:
//
//	api                              /readyz answers
//	node/NAME[+gpus][+npd]           Ready; with allocatable GPUs; with condition GPUXid
//	registered/NAME                  the Node exists
//	namespaced/NS/RESOURCE/NAME      a core object exists
//	deployment/NS/NAME               has an available replica
func wait(args []string) error {
	f := flag.NewFlagSet("wait", flag.ExitOnError)
	pki := f.String("pki", "", "folder with ca.crt, admin.crt and admin.key")
	ca := f.String("ca", "", "ca.crt alone: enough for the condition api")
	cert := f.String("cert", "", "client certificate, in place of -pki")
	key := f.String("key", "", "its key")
	server := f.String("server", "", "API server: https://10.99.0.2")
	timeout := f.Duration("timeout", time.Minute, "for all conditions together")
	since := f.Float64("since", 0, "time that counts as 0.0s, in seconds of the epoch")
	var alive pidFiles
	f.Var(&alive, "alive", "pid file of a process that must live on; again and again")
	_ = f.Parse(args)
	client, err := newClient(*pki, *ca, *cert, *key)
	if err != nil {
		return err
	}
	start := time.Now()
	if *since != 0 {
		start = time.UnixMicro(int64(*since * 1e6))
	}
	deadline := time.Now().Add(*timeout)
	for _, condition := range f.Args() {
		for patience := time.Now().Add(10 * time.Second); ; {
			state, err := holds(client, *server, condition)
			if err != nil {
				return err
			}
			if state == "" {
				break
			}
			if err := alive.check(); err != nil {
				return err
			}
			if time.Now().After(patience) {
				patience = time.Now().Add(10 * time.Second)
				fmt.Fprintf(os.Stderr, "%6.1fs  still waiting for %s: %s\n", time.Since(start).Seconds(), condition,
					state)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("gave up after %s waiting for %s: %s", *timeout, condition, state)
			}
			time.Sleep(50 * time.Millisecond)
		}
		fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(start).Seconds(), describe(condition))
	}
	return nil
}

// describe says in words that a condition holds.
func describe(condition string) string {
	kind, rest, _ := strings.Cut(condition, "/")
	switch kind {
	case "api":
		return "API server ready"
	case "node":
		name, more, _ := strings.Cut(rest, "+")
		return name + " Ready" +
			strings.NewReplacer("gpus", ", GPUs allocatable", "npd", ", XIDs watched", "+", "").Replace(more)
	case "deployment":
		return "Deployment " + rest + " available"
	}
	return rest + " there"
}

// holds returns "" if the condition holds, or else what is missing.
func holds(c *http.Client, server, condition string) (state string, err error) {
	kind, rest, _ := strings.Cut(condition, "/")
	switch kind {
	case "api":
		return get(c, server+"/readyz", nil), nil
	case "node":
		parts := strings.Split(rest, "+")
		return nodeState(c, server, parts[0], parts[1:]), nil
	case "registered":
		return get(c, server+"/api/v1/nodes/"+rest, nil), nil
	case "namespaced":
		p := strings.Split(rest, "/")
		if len(p) != 3 {
			break
		}
		return get(c, fmt.Sprintf("%s/api/v1/namespaces/%s/%s/%s", server, p[0], p[1], p[2]), nil), nil
	case "deployment":
		var d struct {
			Status struct{ AvailableReplicas int }
		}
		ns, name, _ := strings.Cut(rest, "/")
		state = get(c, fmt.Sprintf("%s/apis/apps/v1/namespaces/%s/deployments/%s", server, ns, name), &d)
		if state == "" && d.Status.AvailableReplicas == 0 {
			state = "no replica is available"
		}
		return state, nil
	}
	return "", fmt.Errorf("condition %q is not known", condition)
}

func nodeState(c *http.Client, server, name string, want []string) string {
	var n struct {
		Spec   struct{ Taints []struct{ Key string } }
		Status struct {
			Allocatable map[string]string
			Conditions  []struct{ Type, Status, Reason, Message string }
		}
	}
	if state := get(c, server+"/api/v1/nodes/"+name, &n); state != "" {
		return state
	}
	conditions := map[string]string{"Ready": "no condition Ready", "GPUXid": "no condition GPUXid"}
	for _, k := range n.Status.Conditions {
		conditions[k.Type] = fmt.Sprintf("%s=%s %s %s", k.Type, k.Status, k.Reason, k.Message)
	}
	if !strings.HasPrefix(conditions["Ready"], "Ready=True") {
		return conditions["Ready"]
	}
	// The controller takes the taint of a node that was not ready away in its own time, and evicts pods until then.
	for _, taint := range n.Spec.Taints {
		if strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			return "Ready, but still tainted " + taint.Key
		}
	}
	for _, w := range want {
		switch w {
		case "gpus":
			if got := n.Status.Allocatable["nvidia.com/gpu"]; got != strconv.Itoa(inventory.PerNode) {
				return fmt.Sprintf("allocatable nvidia.com/gpu is %q, wanted %d", got, inventory.PerNode)
			}
		case "npd":
			if !strings.HasPrefix(conditions["GPUXid"], "GPUXid=") {
				return conditions["GPUXid"]
			}
		}
	}
	return ""
}

// get fetches url into v (unless nil) and returns "" or what went wrong.
func get(c *http.Client, url string, v any) string {
	resp, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err.Error()
	case resp.StatusCode != http.StatusOK:
		return resp.Status
	case v == nil:
		return ""
	}
	if err := json.Unmarshal(body, v); err != nil {
		return err.Error()
	}
	return ""
}

func newClient(pki, ca, cert, key string) (*http.Client, error) {
	if pki != "" {
		ca, cert, key = filepath.Join(pki, "ca.crt"), filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key")
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", ca)
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	// No proxy: the API server is on this machine.
	return &http.Client{
		Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true},
	}, nil
}

type pidFiles []string

func (p *pidFiles) String() string     { return strings.Join(*p, " ") }
func (p *pidFiles) Set(s string) error { *p = append(*p, s); return nil }

func (p *pidFiles) check() error {
	for _, file := range *p {
		dir := filepath.Dir(file)
		pid, err := os.ReadFile(file)
		var command []byte
		if err == nil {
			command, err = os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
		}
		// gone, a zombie, or another process by now
		if errors.Is(err, os.ErrNotExist) || err == nil && !bytes.Contains(command, []byte("unshare")) {
			log, _ := os.ReadFile(filepath.Join(dir, "log", "node.log"))
			return fmt.Errorf("%s does not run any more; its log ends so:\n%s", filepath.Base(dir),
				log[max(0, len(log)-800):])
		}
	}
	return nil
}
