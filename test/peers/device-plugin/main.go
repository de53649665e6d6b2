// Command device-plugin runs NVIDIA's device plugin on a cluster of test/cluster, and verifies that it reacts to the
// faults of this tool. README.md explains how; `run` builds the plugin, starts the cluster, and takes it down again.
//
// The last line is `device-plugin steps A of B`; the exit code is 1 if a step was not seen.
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
	namespace = "nvidia-device-plugin" // cluster.yaml creates it
	daemonSet = "nvidia-device-plugin-daemonset"
	resource  = "nvidia.com/gpu"
	faulty    = "node-b" // the node with the faults
	other     = "node-a" // the node without them
	perNode   = 2        // GPUs
)

//go:embed cluster.yaml
var manifest string

// peer is the device plugin on the cluster.
type peer struct {
	peers.Cluster
	image       string
	allocatable gauge      // of the faulty node
	pod         corev1.Pod // of the plugin on the faulty node, before the fault
}

func main() {
	p := &peer{}
	flag.StringVar(&p.State, "state", "", "the state of a cluster of test/cluster")
	flag.StringVar(&p.image, "image", "", "the image with the device plugin, which the nodes have")
	flag.StringVar(&p.Plugin, "plugin", "bin/kubectl-gpu_fault", "the program under test")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	all := steps()
	seen, err := p.run(ctx, all)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin:", err)
	}
	fmt.Printf("device-plugin steps %d of %d\n", seen, len(all))
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
			return seen, fmt.Errorf("step %q was not seen: %w\nlog of the plugin:\n%s", s.name, err, p.tail())
		}
		seen++
		peers.Say("%s (%s)\n", s.name, measured)
	}
	return seen, nil
}

// replacePlugin deletes the simulated device plugin of the cluster, waits until the kubelets have noticed, and creates
// NVIDIA's.
func (p *peer) replacePlugin(ctx context.Context) error {
	if _, err := p.Kubectl(ctx, nil, "delete", "daemonset", daemonSet, "-n", "kube-system"); err != nil {
		return err
	}
	if err := p.allocatable.follow(ctx, p.Client, faulty); err != nil {
		return err
	}
	for _, node := range []string{faulty, other} {
		if err := p.untilAllocatable(ctx, node, 0); err != nil {
			return err
		}
	}
	_, err := p.Kubectl(ctx, strings.NewReader(strings.ReplaceAll(manifest, "@IMAGE@", p.image)), "apply", "-f", "-")
	return err
}

// untilAllocatable waits until the API server reports n GPUs of a node as allocatable.
func (p *peer) untilAllocatable(ctx context.Context, node string, n int64) error {
	return peers.Until(ctx, fmt.Sprintf("%d allocatable %s on %s", n, resource, node), func() error {
		got, err := p.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if have := gpus(got); have != n {
			return fmt.Errorf("%d are allocatable", have)
		}
		return nil
	})
}

// pluginPods returns the plugin's pods, including those that are being deleted.
func (p *peer) pluginPods(ctx context.Context) ([]corev1.Pod, error) {
	all, err := p.Client.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "name=nvidia-device-plugin-ds"})
	if err != nil {
		return nil, err
	}
	return all.Items, nil
}

// untilSettled waits until a pod of the plugin is ready on each node, on the given nodes with the shim, and returns
// the one of the faulty node.
func (p *peer) untilSettled(ctx context.Context, shim ...string) (pod corev1.Pod, err error) {
	err = peers.Until(ctx, "the plugin's pods", func() error {
		pods, err := p.pluginPods(ctx)
		if err != nil {
			return err
		}
		if err := settled(pods, shim); err != nil {
			return err
		}
		for _, each := range pods {
			if each.Spec.NodeName == faulty {
				pod = each
				return nil
			}
		}
		return errors.New("no pod is on " + faulty)
	})
	return pod, err
}

// logs returns the log of a pod of the plugin.
func (p *peer) logs(ctx context.Context, pod string) ([]peers.LogLine, error) {
	text, err := p.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Timestamps: true}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return peers.ParseLog(string(text)), nil
}

// tail returns what explains a step that was not seen: the end of the log on the faulty node.
func (p *peer) tail() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pods, err := p.pluginPods(ctx)
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
