// Package peers has what the tests with programs of other projects share: a cluster of test/cluster, and the program
// under test.
package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/util/podutils"
)

// Patience is the timeout for something that takes seconds.
const Patience = 2 * time.Minute

// GPU is a simulated GPU.
type GPU struct{ PCI, UUID string }

// Cluster is a running cluster, and the program under test.
type Cluster struct {
	State, Plugin string // the directory with the state of the cluster; the program under test
	Kubeconfig    string
	Client        kubernetes.Interface
}

// Open reads the state of the cluster.
func (c *Cluster) Open() error {
	c.Kubeconfig = filepath.Join(c.State, "kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	c.Client, err = kubernetes.NewForConfig(config)
	return err
}

// GPUs returns the GPUs of a node in the order of their indices. A node without one is an error.
func (c *Cluster) GPUs(node string) ([]GPU, error) {
	text, err := os.ReadFile(filepath.Join(c.State, "inventory.json"))
	if err != nil {
		return nil, err
	}
	var nodes []struct {
		Name string
		GPUs []GPU
	}
	if err := json.Unmarshal(text, &nodes); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Name == node && len(n.GPUs) > 0 {
			return n.GPUs, nil
		}
	}
	return nil, fmt.Errorf("the cluster has no node %q with a GPU", node)
}

// Command returns a command of the program under test.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Plugin, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it reverts its fault
	cmd.WaitDelay = time.Minute
	return cmd
}

// Tool runs a command of the program under test.
func (c *Cluster) Tool(ctx context.Context, args ...string) error {
	_, err := Output(c.Command(ctx, args...))
	return err
}

// Kubectl runs the cluster's own kubectl, and returns what it writes to stdout.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.State, "bin", "kubectl"),
		append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdin = stdin
	return Output(cmd)
}

// IsReady reports whether a pod is ready and not being deleted.
func IsReady(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && podutils.IsPodReady(p) }

// Say prints progress on stderr: stdout is for the last line.
func Say(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }

// Output runs a program, and returns what it writes to stdout; an error has its stderr.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}

// Until calls a function until it returns no error, for two minutes at most.
func Until(ctx context.Context, what string, try func() error) error {
	for deadline := time.Now().Add(Patience); ; {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("timed out waiting for %s: %w", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// LogLine is a line of a container's log, with the time at which it was written.
type LogLine struct {
	At   time.Time
	Text string
}

// ParseLog reads a log with timestamps. Other lines are ignored.
func ParseLog(log string) []LogLine {
	var all []LogLine
	for line := range strings.Lines(log) {
		stamp, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
			all = append(all, LogLine{at, text})
		}
	}
	return all
}

// Find returns the first line that contains a text.
func Find(log []LogLine, text string) (LogLine, bool) {
	i := slices.IndexFunc(log, func(l LogLine) bool { return strings.Contains(l.Text, text) })
	if i < 0 {
		return LogLine{}, false
	}
	return log[i], true
}

// Elapsed returns the time from one moment to another.
func Elapsed(from, to time.Time) string {
	return max(0, to.Sub(from)).Round(100 * time.Microsecond).String()
}
