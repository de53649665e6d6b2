// Package cluster gives Go tests a real Kubernetes cluster of several nodes on this machine, with simulated GPUs.
// README.md says how it works; the scripts beside it start it and take it down.
package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// KubeconfigEnv names the kubeconfig of a cluster of ours that runs elsewhere than in .cluster; its other state
	// lies beside it.
	KubeconfigEnv = "GPU_FAULT_TEST_KUBECONFIG"
	// SwitchEnv set to "off" skips the tests that need a cluster.
	SwitchEnv = "GPU_FAULT_TEST_CLUSTER"
)

// Cluster is a running test cluster.
type Cluster struct {
	Kubeconfig string // path
	RESTConfig *rest.Config
	Client     kubernetes.Interface

	nodes   []Node
	trainer func() (string, error)
	addons  func() error // all, once
	addon   func(what string) error
}

// GPU is one simulated GPU of a node.
type GPU struct {
	PCI   string // as the driver writes it in XID lines: 0000:17:00
	UUID  string // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
	Index int    // nvidia-smi's: PCI order
	Minor int    // of /dev/nvidiaN; on every second node not the index
}

// Option is something a test wants of the cluster.
type Option func(*wanted)

type wanted struct{ nodes int }

// Nodes asks for at least n nodes. The default is two: one control plane and one worker.
func Nodes(n int) Option { return func(w *wanted) { w.nodes = n } }

// Require returns the running cluster and starts it first if need be; it stays up after the test, for
// `test/cluster/down`. The test fails where no cluster can be had, and is skipped only when SwitchEnv says so. It may
// be called by several test binaries at once: `up` has a lock, and whoever comes second finds the cluster running.
func Require(t testing.TB, options ...Option) *Cluster {
	t.Helper()
	if os.Getenv(SwitchEnv) == "off" {
		t.Skipf("needs the test cluster, and %s=off", SwitchEnv)
	}
	w := wanted{nodes: 2}
	for _, o := range options {
		o(&w)
	}
	c, err := start()
	if err != nil {
		t.Fatalf("the test cluster: %v", err)
	}
	if len(c.nodes) < w.nodes {
		t.Fatalf("the test cluster has %d nodes, and this test needs %d: take it down and start it with NODES=%d",
			len(c.nodes), w.nodes, w.nodes)
	}
	return c
}

// start is done once per process.
var start = sync.OnceValues(func() (*Cluster, error) {
	kubeconfig := os.Getenv(KubeconfigEnv)
	scripts, err := scriptsDir()
	if err != nil {
		return nil, err
	}
	if kubeconfig == "" {
		var said bytes.Buffer
		up := exec.Command(filepath.Join(scripts, "up"))
		up.Stdout, up.Stderr = &said, &said
		if err := up.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", up.Path, err, said.String())
		}
		state := os.Getenv("STATE")
		if state == "" {
			state = filepath.Join(scripts, "..", "..", ".cluster")
		}
		kubeconfig = filepath.Join(state, "kubeconfig")
	}
	return open(kubeconfig, scripts)
})

// open reads the state of a cluster that runs.
func open(kubeconfig, scripts string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 200, 400 // tests poll
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	state := filepath.Dir(kubeconfig)
	c := &Cluster{
		Kubeconfig: kubeconfig, RESTConfig: config, Client: client,
		trainer: sync.OnceValues(func() (string, error) { return loadTrainer(scripts, state) }),
		addons:  sync.OnceValue(func() error { return runAddon(scripts, state, "all") }),
		addon:   func(what string) error { return runAddon(scripts, state, what) },
	}
	text, err := os.ReadFile(filepath.Join(state, "inventory.json"))
	if err != nil {
		return nil, fmt.Errorf("not a cluster of test/cluster: %w", err)
	}
	if err := json.Unmarshal(text, &c.nodes); err != nil {
		return nil, fmt.Errorf("inventory.json: %w", err)
	}
	for i := range c.nodes {
		c.nodes[i].client, c.nodes[i].script, c.nodes[i].state = client, filepath.Join(scripts, "node"), state
	}
	return c, nil
}

// scriptsDir finds test/cluster from the folder of the package under test. (With -trimpath the runtime does not know
// where sources lie.)
func scriptsDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		scripts := filepath.Join(dir, "test", "cluster")
		if _, err := os.Stat(filepath.Join(scripts, "up")); err == nil {
			return scripts, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no test/cluster/up in this folder or above it")
		}
	}
}

// ControlPlane returns node-a, which has the label node-role.kubernetes.io/control-plane and GPUs, and runs pods like
// the others.
func (c *Cluster) ControlPlane() Node { return c.nodes[0] }

// Workers returns all nodes but the control plane.
func (c *Cluster) Workers() []Node { return c.nodes[1:] }

// Nodes returns all of them, the control plane first.
func (c *Cluster) Nodes() []Node { return c.nodes }
