package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

type bench struct {
	plugin, state string
	sizes         []int
	most          int

	client kubernetes.Interface
	config *rest.Config
	proxy  *proxy
	image  string // image for debug pods with the helper, which fake nodes do not have to pull
	folder string // for temporary files

	nodes, filled int // number of fake nodes, and of those with pods
}

func (b *bench) experiment() string { return filepath.Join(b.folder, "experiment.yaml") }

// measurement is the cost of one command.
type measurement struct {
	Command  string  `json:"command"`
	Nodes    int     `json:"nodes"`
	Wall     float64 `json:"wallSeconds"`
	CPU      float64 `json:"cpuSeconds"`
	Memory   int64   `json:"memoryBytes"` // maximum resident set size
	Requests int64   `json:"requests"`
	Sent     int64   `json:"bytesSent"`
	Received int64   `json:"bytesReceived"`
}

// command is one of the commands to measure.
type command struct {
	name   string
	args   func(b *bench) []string
	pods   bool // whether the command starts debug pods
	rounds int
	check  func(output string, nodes int) error
}

// experiment cordons the nodes into which it injects faults, as a remediator would. The faults are injected into a
// tenth of the nodes, but the experiment watches all nodes for reactions.
const experiment = `apiVersion: gpufault.dev/v1alpha1
kind: Experiment
metadata: {name: scale}
steps:
- inject: {xid: 63}
- expect:
  - {name: cordoned, within: 5m}
`

// commands are measured in this order. The test cluster's detector has no rule for any of the XIDs that they inject,
// because a rule would make a real node unhealthy.
var commands = []command{
	{name: "doctor", rounds: 3, args: args("doctor", "--api-only", "--no-images", "-o", "json"), check: oneRoot},
	{name: "xid -l", rounds: 1, pods: true, args: args("xid", "63", "-l", "type=kwok", "--allow-majority", "--yes"),
		check: injected},
	{name: "watch", rounds: 1, pods: true, args: func(b *bench) []string {
		return []string{"watch", b.newestRun(), "--for", "10s"}
	}},
	{name: "list", rounds: 3, args: args("list")},
	{name: "leftovers", rounds: 3, args: args("leftovers")},
	{name: "revert --all", rounds: 1, pods: true, args: args("revert", "--all", "--yes")},
	{name: "xid -l --image", rounds: 1, pods: true, check: injected, args: func(b *bench) []string {
		return []string{"xid", "63", "-l", "type=kwok", "--allow-majority", "--yes", "--image", b.image}
	}},
	{name: "leftovers --nodes", rounds: 1, pods: true, args: args("leftovers", "--nodes")},
	{name: "run --pick 10%", rounds: 1, pods: true, args: func(b *bench) []string {
		return []string{"run", "-f", b.experiment(), "-l", "type=kwok", "--pick", "10%",
			"--seed", "7", "--simulate-remediation", "cordon,uncordon", "--allow-majority", "--yes"}
	}},
}

// newestRun returns the ID of the newest run, or a word that no command accepts.
func (b *bench) newestRun() string {
	kubeconfig := filepath.Join(b.state, "kubeconfig")
	out, _ := exec.Command(b.plugin, "--kubeconfig", kubeconfig, "list", "-o", "name").Output()
	first, _, _ := strings.Cut(string(out), "\n")
	return cmp.Or(strings.TrimPrefix(first, "run/"), "no-run")
}

func args(words ...string) func(*bench) []string { return func(*bench) []string { return words } }

func (b *bench) run(ctx context.Context, only string) (all []measurement, err error) {
	if b.folder, err = os.MkdirTemp("", "bench-scale-*"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	chosen, err := choose(only)
	if err != nil {
		return nil, err
	}
	if b.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(b.state, "kubeconfig")); err != nil {
		return nil, err
	}
	b.config.QPS = -1 // no client-side rate limit
	b.config.ContentType = "application/vnd.kubernetes.protobuf"
	if b.client, err = kubernetes.NewForConfig(b.config); err != nil {
		return nil, err
	}
	if b.proxy, err = serve(b.config, b.folder); err != nil {
		return nil, err
	}
	defer b.proxy.Close()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	for _, n := range b.sizes {
		if err := b.grow(ctx, n); err != nil {
			return all, err
		}
		for _, c := range chosen {
			if c.pods && n > b.most {
				continue
			}
			m, err := b.measure(ctx, c, n)
			if err != nil {
				return all, fmt.Errorf("%s on %d nodes: %w", c.name, n, err)
			}
			fmt.Fprintln(os.Stderr, row(m))
			all = append(all, m)
		}
		if err := b.revert(ctx); err != nil {
			return all, err
		}
	}
	return all, nil
}

// choose returns the commands with these names.
func choose(only string) (chosen []command, err error) {
	if only == "" {
		return commands, nil
	}
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
		if i < 0 {
			var names []string
			for _, c := range commands {
				names = append(names, c.name)
			}
			return nil, fmt.Errorf("invalid value %q for -only: supported values: %s", name, strings.Join(names, ","))
		}
		chosen = append(chosen, commands[i])
	}
	return chosen, nil
}

// measure returns the best of several rounds, because other load on the machine only adds to the cost.
func (b *bench) measure(ctx context.Context, c command, nodes int) (best measurement, err error) {
	for i := range c.rounds {
		m, err := b.once(ctx, c, nodes)
		if err != nil {
			return m, err
		}
		if i == 0 {
			best = m
		}
		best.Wall, best.CPU, best.Memory = min(best.Wall, m.Wall), min(best.CPU, m.CPU), min(best.Memory, m.Memory)
	}
	return best, nil
}

func (b *bench) once(ctx context.Context, c command, nodes int) (m measurement, err error) {
	out, err := os.Create(filepath.Join(b.folder, "out"))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var said bytes.Buffer
	b.proxy.reset()
	u, err := launch(ctx, b.plugin, append([]string{"--kubeconfig", b.proxy.kubeconfig}, c.args(b)...), out, &said)
	if err != nil || u.Code != 0 && u.Code != 2 { // exit code 2 means findings or leftovers
		return m, fmt.Errorf("exit code %d: %w: %s", u.Code, err, said.String())
	}
	m = measurement{
		Command: c.name, Nodes: nodes, Wall: u.Wall, CPU: u.CPU, Memory: u.Memory,
		Requests: b.proxy.requests.Load(), Sent: b.proxy.sent.Load(), Received: b.proxy.received.Load(),
	}
	if c.check != nil {
		output, err := os.ReadFile(out.Name())
		if err != nil {
			return m, err
		}
		return m, c.check(string(output), nodes)
	}
	return m, nil
}

// injected checks that the line was verified on every node.
func injected(output string, nodes int) error {
	if got := strings.Count(output, "NVRM: Xid"); got != nodes {
		return fmt.Errorf("%d lines were verified:\n%s", got, output)
	}
	return nil
}

// oneRoot checks that doctor reports a single root cause: the only pod that cannot run.
func oneRoot(output string, nodes int) error {
	var r doctor.Report
	if err := json.Unmarshal([]byte(output), &r); err != nil {
		return err
	}
	var roots []string
	for _, f := range r.Items {
		if f.Root && f.Severity != finding.Info {
			roots = append(roots, fmt.Sprintf("%s (%s)", f.ID, f.Object))
		}
	}
	if len(roots) != 1 || !strings.Contains(roots[0], pendingPod) || r.Summary.GPUNodes < nodes {
		return fmt.Errorf("doctor found the root causes %q on %d GPU nodes, expected only the one for %s", roots,
			r.Summary.GPUNodes, pendingPod)
	}
	return nil
}
