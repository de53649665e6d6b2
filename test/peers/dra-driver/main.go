// Command dra-driver runs NVIDIA's DRA driver for GPUs on a cluster of test/cluster, and verifies that it reacts to
// XIDs of this tool, and that pods and the other node do not notice. README.md explains how; `run` builds the driver,
// starts the cluster, and takes it down again.
//
// The last line is `dra-driver steps A of B`; the exit code is 1 if a step was not seen.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

const (
	namespace = "dra-driver-nvidia-gpu" // cluster.yaml creates it
	daemonSet = "dra-driver-nvidia-gpu-kubelet-plugin"
	container = "gpus" // of the driver
	driver    = "gpu.nvidia.com"
	workloads = "default" // namespace of the pods with claims
	faulty    = "node-b"  // the node with the faults
	other     = "node-a"  // the node without them
	perNode   = 2         // GPUs
)

//go:embed cluster.yaml
var manifest string

// peer is the DRA driver on the cluster.
type peer struct {
	peers.Cluster
	image string
	seen  history
	bad   peers.GPU             // GPU 1 of the faulty node, which gets the faults
	own   map[string]corev1.Pod // of the DaemonSet, by node, before the fault
	slice string                // version of the ResourceSlice of the other node
	held  map[string]corev1.Pod // with claims, by name
}

func main() {
	p := &peer{held: map[string]corev1.Pod{}}
	flag.StringVar(&p.State, "state", "", "the state of a cluster of test/cluster")
	flag.StringVar(&p.image, "image", "", "the image with the driver, which the nodes have")
	flag.StringVar(&p.Plugin, "plugin", "bin/kubectl-gpu_fault", "the program under test")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	all := steps()
	seen, err := p.run(ctx, all)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dra-driver:", err)
	}
	fmt.Printf("dra-driver steps %d of %d\n", seen, len(all))
	if err != nil {
		os.Exit(1)
	}
}

// run goes through the steps, and returns the number of those that were seen. It stops at the first that was not.
func (p *peer) run(ctx context.Context, all []step) (seen int, err error) {
	if err := p.Open(); err != nil {
		return 0, err
	}
	if err := p.replacePlugin(ctx); err != nil {
		return 0, err
	}
	for _, s := range all {
		measured, err := s.do(ctx, p)
		if err != nil {
			return seen, fmt.Errorf("step %q was not seen: %w\nlog of the driver:\n%s", s.name, err, p.tail())
		}
		seen++
		if measured != "" {
			measured = " (" + measured + ")"
		}
		peers.Say("%s%s\n", s.name, measured)
	}
	return seen, nil
}

// replacePlugin deletes the simulated device plugin of the cluster, and creates NVIDIA's driver when no node has
// devices of the plugin any more.
func (p *peer) replacePlugin(ctx context.Context) error {
	gpus, err := p.GPUs(faulty)
	if err != nil {
		return err
	}
	if len(gpus) != perNode {
		return fmt.Errorf("node %s has %d GPUs, want %d", faulty, len(gpus), perNode)
	}
	p.bad = gpus[1]
	_, err = p.Kubectl(ctx, nil, "delete", "daemonset", "nvidia-device-plugin-daemonset", "-n", "kube-system")
	if err != nil {
		return err
	}
	for _, node := range []string{faulty, other} {
		err := peers.Until(ctx, "the end of the device plugin on "+node, func() error {
			now, err := p.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			if left := now.Status.Allocatable["nvidia.com/gpu"]; err == nil && !left.IsZero() {
				err = fmt.Errorf("%s GPUs are allocatable", left.String())
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := p.seen.follow(ctx, p.Client); err != nil {
		return err
	}
	_, err = p.Kubectl(ctx, strings.NewReader(strings.ReplaceAll(manifest, "@IMAGE@", p.image)), "apply", "-f", "-")
	return err
}

// driverPods returns the driver's pods, including those that are being deleted, and copies.
func (p *peer) driverPods(ctx context.Context) ([]corev1.Pod, error) {
	all, err := p.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return all.Items, nil
}

// untilSettled waits until each node has one pod of the driver, which is ready, and returns them by node. On the faulty
// node, it is the copy with the shim or the DaemonSet's own.
func (p *peer) untilSettled(ctx context.Context, copied bool) (on map[string]corev1.Pod, err error) {
	err = peers.Until(ctx, "the driver's pods", func() error {
		pods, err := p.driverPods(ctx)
		if err == nil {
			on, err = settled(pods, copied)
		}
		return err
	})
	return on, err
}

// logs returns the log of a pod of the driver.
func (p *peer) logs(ctx context.Context, pod string) ([]peers.LogLine, error) {
	text, err := p.Client.CoreV1().Pods(namespace).GetLogs(pod,
		&corev1.PodLogOptions{Container: container, Timestamps: true}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return peers.ParseLog(string(text)), nil
}

// injectedAt returns when the shim injected the fault.
func (p *peer) injectedAt(ctx context.Context, pod string) (at time.Time, err error) {
	err = peers.Until(ctx, "the shim", func() error {
		log, err := p.logs(ctx, pod)
		if err != nil {
			return err
		}
		line, ok := peers.Find(log, "gpu-fault: run ")
		if !ok {
			return errors.New("the shim has injected nothing")
		}
		at = line.At
		return nil
	})
	return at, err
}

// tail returns what explains a step that was not seen: the end of the log on the faulty node.
func (p *peer) tail() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pods, err := p.driverPods(ctx)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, pod := range pods {
		if pod.Spec.NodeName != faulty {
			continue
		}
		lines, err := p.logs(ctx, pod.Name)
		if err != nil {
			return err.Error()
		}
		for _, line := range lines[max(0, len(lines)-15):] {
			all = append(all, line.Text)
		}
	}
	return strings.Join(all, "\n")
}
