package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// world is a running test cluster, and the plugin under test.
type world struct {
	plugin     string // path
	state      string // folder of the test cluster
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	trainer    string // image of the sample CUDA workload
	control    *node
	workers    []*node
}

// gpusOfANode is what those of the test cluster have.
const gpusOfANode = 2

// node is one node. Who holds its lock is alone on it.
type node struct {
	sync.Mutex
	name string
	root string        // its root file system, as this machine sees it
	was  tree          // before anything was done to it
	gpus chan struct{} // holds one for each GPU that a trial has

	script, state string
}

// openWorld reads the state of a test cluster that runs.
func openWorld(state, plugin string) (*world, error) {
	scripts, err := filepath.Abs("test/cluster")
	if err != nil {
		return nil, err
	}
	w := &world{plugin: plugin, state: state, kubeconfig: filepath.Join(state, "kubeconfig")}
	if w.config, err = clientcmd.BuildConfigFromFlags("", w.kubeconfig); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	w.config.QPS, w.config.Burst = 200, 400 // it polls
	if w.client, err = kubernetes.NewForConfig(w.config); err != nil {
		return nil, err
	}
	if w.trainer, err = loadTrainer(scripts, state); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(state, "inventory.json"))
	if err != nil {
		return nil, fmt.Errorf("not a cluster of test/cluster: %w", err)
	}
	var nodes []struct {
		Name         string
		ControlPlane bool
	}
	if err := json.Unmarshal(text, &nodes); err != nil {
		return nil, fmt.Errorf("inventory.json: %w", err)
	}
	for _, n := range nodes {
		pid, err := os.ReadFile(filepath.Join(state, "nodes", n.Name, "init.pid"))
		if err != nil {
			return nil, fmt.Errorf("node %s does not run: %w", n.Name, err)
		}
		node := &node{name: n.Name, root: "/proc/" + strings.TrimSpace(string(pid)) + "/root",
			script: filepath.Join(scripts, "node"), state: state,
			gpus: make(chan struct{}, gpusOfANode)}
		if n.ControlPlane {
			w.control = node
			continue
		}
		if node.was, err = readTree(node.root); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		if _, left := node.was["/var/lib/gpu-fault"]; left || len(node.processes()) > 0 {
			return nil, fmt.Errorf(
				"node %s is not clean to begin with: /var/lib/gpu-fault is there, or %v runs: take the cluster down and up again",
				n.Name, node.processes(),
			)
		}
		w.workers = append(w.workers, node)
	}
	return w, nil
}

// loadTrainer sees to it that all nodes have the image of the sample CUDA workload, and returns its name.
func loadTrainer(scripts, state string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(scripts, "trainer"))
	cmd.Env = append(os.Environ(), "STATE="+state)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("the image of the sample CUDA workload: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// sh runs a shell script on the node, as root in its namespaces.
func (n *node) sh(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, n.script, "sh", n.name, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "STATE="+n.state)
	cmd.WaitDelay = time.Second // a service that the script starts may keep its streams open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("on %s, %q: %w: %s", n.name, script, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// ours matches the command lines of our programs on a node.
var ours = regexp.MustCompile(`gpu-fault-(node|deadman|device)`)

// processes are our processes on the node: their numbers there, and command lines.
func (n *node) processes() map[int]string {
	found := map[int]string{}
	files, _ := filepath.Glob(n.root + "/proc/[0-9]*/cmdline")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil || !ours.Match(raw) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			found[pid] = strings.ReplaceAll(strings.TrimRight(string(raw), "\x00"), "\x00", " ")
		}
	}
	return found
}

// deadMan returns the number of the only dead man on the node, there.
func (n *node) deadMan() (int, error) {
	for pid, line := range n.processes() {
		if strings.Contains(line, "gpu-fault-deadman") {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no dead man runs on %s", n.name)
}

// changes returns what is not as before on the node's disk.
func (n *node) changes() error {
	now, err := readTree(n.root)
	if err != nil {
		return err
	}
	if lines := n.was.differences(now); len(lines) > 0 {
		return fmt.Errorf("%s is not as before: %s", n.name, strings.Join(lines, "; "))
	}
	return nil
}

// serves checks that the runtime answers, and not only the socket of one that is about to end.
func (n *node) serves(ctx context.Context) error {
	_, err := n.sh(ctx, "systemctl is-active containerd && ctr version")
	return err
}

// repair makes the node as it was after a trial failed, so that the next ones can be told from it.
func (n *node) repair(ctx context.Context) error {
	var pids []string
	for pid := range n.processes() {
		pids = append(pids, strconv.Itoa(pid))
	}
	if len(pids) > 0 {
		if _, err := n.sh(ctx, "kill -9 "+strings.Join(pids, " ")+"; true"); err != nil {
			return err
		}
	}
	if n.changes() == nil {
		return nil
	}
	if err := writeTree(n.root, n.was); err != nil {
		return err
	}
	_, err := n.sh(ctx, "systemctl restart containerd")
	return err
}

// pause waits; an error when ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// eventually tries until it works, or returns the last error.
func eventually(ctx context.Context, until time.Time, try func() error) error {
	for {
		start := time.Now()
		err := try()
		if err == nil || time.Now().After(until) {
			return err
		}
		if stopped := pause(ctx, max(100*time.Millisecond, 3*time.Since(start))); stopped != nil {
			return fmt.Errorf("%w; %w", stopped, err)
		}
	}
}
