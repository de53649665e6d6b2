// Command nvsentinel runs NVSentinel beside a cluster of test/cluster, and verifies that it reacts to what this tool
// writes. README.md explains how; `run` builds NVSentinel, starts the cluster, and takes everything down again.
//
// The last line is `nvsentinel steps A of B`; the exit code is 1 if a step was not seen.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

const builtin = "xid79-recovery"

// peer is NVSentinel beside the cluster.
type peer struct {
	peers.Cluster
	source, programs string // its source, and the programs built from it
	gpu              peers.GPU
	host             string // the machine's address on the network of the nodes
	work             string // results and logs
	running          sync.WaitGroup
	databaseDir      string
	confirmed        map[string]bool // steps
}

func main() {
	p := &peer{confirmed: map[string]bool{}}
	flag.StringVar(&p.source, "source", "", "the source of NVSentinel")
	flag.StringVar(&p.programs, "programs", "", "the directory of the programs built from it")
	flag.StringVar(&p.State, "state", "", "the state of a cluster of test/cluster with JOURNALD=persistent")
	flag.StringVar(&p.host, "host", "", "the machine's address on the network of the nodes")
	flag.StringVar(&p.Plugin, "plugin", "bin/kubectl-gpu_fault", "the program under test")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	err := p.run(ctx)
	cancel()
	stop()
	p.running.Wait()
	_ = os.RemoveAll(p.databaseDir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nvsentinel:", err)
	}
	expected := len(chain) + len(undone) + 2 // the experiments
	fmt.Printf("nvsentinel steps %d of %d\n", len(p.confirmed), expected)
	if err != nil || len(p.confirmed) < expected {
		fmt.Fprintln(os.Stderr, "nvsentinel: its logs are in", p.work)
		os.Exit(1)
	}
	_ = os.RemoveAll(p.work)
}

func (p *peer) run(ctx context.Context) error {
	if err := p.open(); err != nil {
		return err
	}
	if err := p.startDatabase(ctx); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := p.startNVSentinel(ctx); err != nil {
		return err
	}
	if err := p.recovers(ctx); err != nil {
		return err
	}
	if err := p.passes(ctx); err != nil {
		return err
	}
	return p.failsAtCordon(ctx)
}

// open reads the state of the cluster.
func (p *peer) open() error {
	if err := p.Open(); err != nil {
		return err
	}
	gpus, err := p.GPUs(faulty)
	if err != nil {
		return err
	}
	p.gpu = gpus[0]
	p.work, err = os.MkdirTemp("", "gpu-fault-nvsentinel-")
	return err
}

// recovers writes XID 79, and waits for each step of NVSentinel until the node is schedulable again.
func (p *peer) recovers(ctx context.Context) error {
	if err := p.placeWorkload(ctx); err != nil {
		return err
	}
	w, err := p.watch(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	if err := p.Tool(ctx, "xid", "79", faulty, "--gpu", "0", "--ttl", "1h", "--yes"); err != nil {
		return err
	}
	from := time.Now()
	peers.Say("XID 79 is in the kernel log of %s, GPU %s\n", faulty, p.gpu.PCI)
	if err := p.await(ctx, w, from, chain); err != nil {
		return err
	}
	if err := p.Tool(ctx, "revert", "--all", "--yes"); err != nil {
		return err
	}
	return p.resetGPU(ctx, w)
}

// await waits for steps, and prints the time of each.
func (p *peer) await(ctx context.Context, w *watcher, from time.Time, steps []step) error {
	for _, s := range steps {
		at, err := w.wait(ctx, s.name)
		if err != nil {
			return fmt.Errorf("step %q was not seen (%w); the node: %s", s.name, err, w.describe())
		}
		p.confirmed[s.name] = true
		peers.Say("  %5.1fs  %s\n", max(0, at.Sub(from).Seconds()), s.name)
	}
	return nil
}

// resetGPU reports a reset of the GPU as NVSentinel's own reset job does, waits until the node is schedulable again,
// and completes the remediation in place of the janitor, which would reboot the node.
func (p *peer) resetGPU(ctx context.Context, w *watcher) error {
	from := time.Now()
	line := fmt.Sprintf("GPU reset executed: %s, success: true", p.gpu.UUID)
	if err := p.onNode(ctx, nil, "logger", "-t", "nvsentinel-gpu-reset", line); err != nil {
		return err
	}
	peers.Say("the reset of the GPU is in the journal of %s\n", faulty)
	if err := p.await(ctx, w, from, undone); err != nil {
		return err
	}
	_, err := p.Kubectl(ctx, nil, "delete", "rebootnodes.janitor.dgxc.nvidia.com", "--all")
	return err
}

// passes runs the built-in experiment, which must pass.
func (p *peer) passes(ctx context.Context) error {
	if err := p.placeWorkload(ctx); err != nil {
		return err
	}
	w, err := p.watch(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	got, err := p.experiment(ctx, builtin)
	if err != nil {
		return err
	}
	if !got.Passed {
		return fmt.Errorf("experiment %s did not pass", builtin)
	}
	p.confirmed[builtin+" passes"] = true
	if _, err := w.wait(ctx, remediated); err != nil {
		return err
	}
	return p.resetGPU(ctx, w)
}

// failsAtCordon stops fault-quarantine and runs the experiment again: NVSentinel still detects the fault, and cordoned
// is the first expectation that is not met. The deadlines are shorter, because the experiment waits for all of them.
func (p *peer) failsAtCordon(ctx context.Context) error {
	if err := p.placeWorkload(ctx); err != nil {
		return err
	}
	if err := p.onNode(ctx, nil, "pkill", "-f", "/usr/local/bin/fault-quarantine"); err != nil {
		return fmt.Errorf("stop fault-quarantine: %w", err)
	}
	peers.Say("fault-quarantine is stopped; the deadlines are now 30s\n")
	source, err := experiment.Source(builtin)
	if err != nil {
		return err
	}
	file := filepath.Join(p.work, builtin+".yaml")
	if err := os.WriteFile(file, within.ReplaceAll(source, []byte("within: 30s")), 0o600); err != nil {
		return err
	}
	got, err := p.experiment(ctx, "-f", file)
	if err != nil {
		return err
	}
	if len(got.Verdicts) < 2 || !got.Verdicts[0].OK {
		return errors.New("without fault-quarantine, the experiment does not detect the fault either")
	}
	if v := got.Verdicts[1]; v.Name != "cordoned" || v.State != experiment.StateMissing || got.Passed {
		return fmt.Errorf("without fault-quarantine, %s is %s, and the experiment passed: %t", v.Name, v.State, got.Passed)
	}
	p.confirmed[builtin+" fails at cordoned"] = true
	return nil
}

// experiment runs an experiment on the node of the workload, and prints its report.
func (p *peer) experiment(ctx context.Context, what ...string) (experiment.Result, error) {
	var got experiment.Result
	file := filepath.Join(p.work, "result.json")
	cmd := p.Command(ctx, append([]string{"run", "--pods-of", "deployment/" + workload, "-n", workload, "--yes",
		"--json", file}, what...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 2) {
		return got, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(text, &got)
}

// condition returns the node's condition that NVSentinel sets for XIDs.
func condition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == "SysLogsXIDError" {
			return c
		}
	}
	return corev1.NodeCondition{}
}
