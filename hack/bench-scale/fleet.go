package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
)

const (
	namespace   = "bench-scale"
	podsPerNode = 10
	pendingPod  = "pending" // requests more GPUs than a node has
)

// prepare starts kwok and creates everything that does not depend on the number of nodes.
func (b *bench) prepare(ctx context.Context) error {
	old, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=kwok", Limit: 1})
	if err != nil {
		return err
	}
	if len(old.Items) > 0 {
		return errors.New("the cluster already has fake nodes: recreate it with test/cluster/down and test/cluster/up")
	}
	program, err := helper.For(runtime.GOARCH)
	if err != nil {
		return err
	}
	file := filepath.Join(b.folder, "helper")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(b.experiment(), []byte(experiment), 0o600); err != nil {
		return err
	}
	built, err := b.output(ctx, b.plugin, "image", "build", "-o", "json")
	if err != nil {
		return err
	}
	var image struct {
		Tag string `json:"tag"`
	}
	if err := json.Unmarshal(built, &image); err != nil {
		return err
	}
	b.image = "registry.example.com/gpu-fault-node:" + image.Tag
	if _, err := b.output(ctx, "env", "HELPER="+file, "LEASES=0", "test/cluster/kwok", "start", "0"); err != nil {
		return err
	}
	if err := b.namespace(ctx); err != nil {
		return err
	}
	if err := b.addNodes(ctx, 1); err != nil {
		return err
	}
	// The first run creates the ledger's namespace. The controller manager must be running to create its service
	// account.
	const seed = "xid 63 fake-00000 --yes --kubeconfig"
	if _, err := b.output(ctx, b.plugin, append(strings.Fields(seed), b.proxy.kubeconfig)...); err != nil {
		return err
	}
	if err := b.revert(ctx); err != nil {
		return err
	}
	_, err = b.output(ctx, "test/cluster/node", "sh", "node-a", "systemctl", "stop", "kube-controller-manager")
	return err
}

// revert closes all runs, because doctor would report open ones.
func (b *bench) revert(ctx context.Context) error {
	_, err := b.output(ctx, b.plugin, "revert", "--all", "--yes", "--kubeconfig", b.proxy.kubeconfig)
	return err
}

func (b *bench) output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "STATE="+b.state)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said.String())
	}
	return out, nil
}

// namespace creates the namespace of the pods, and waits for its service account, which the controller manager creates.
func (b *bench) namespace(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err := b.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return until(ctx, "a service account", func() (bool, error) {
		_, err := b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreMissing(err)
	})
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// grow creates more nodes and their pods, and waits until they are ready.
func (b *bench) grow(ctx context.Context, nodes int) error {
	start := time.Now()
	if err := b.addNodes(ctx, nodes); err != nil {
		return err
	}
	err := parallel(ctx, podsPerNode*b.filled, podsPerNode*nodes, func(ctx context.Context, i int) error {
		return b.pod(ctx, fmt.Sprintf("pod-%05d", i), nodeName(i/podsPerNode), i%podsPerNode == 0)
	})
	if err == nil && b.filled == 0 {
		err = b.pod(ctx, pendingPod, "", true)
	}
	if err != nil {
		return err
	}
	b.filled = nodes
	err = until(ctx, "pods to run", func() (bool, error) {
		list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "status.phase!=Running", Limit: 2, // one of these is the pod that stays pending
		})
		return err == nil && len(list.Items) <= 1, err
	})
	fmt.Fprintf(os.Stderr, "%d nodes and %d pods are ready after %s\n", nodes, podsPerNode*nodes,
		time.Since(start).Round(time.Second))
	return err
}

// addNodes creates nodes until there are n, and waits for kwok to make them ready.
func (b *bench) addNodes(ctx context.Context, n int) error {
	if err := parallel(ctx, b.nodes, n, b.node); err != nil {
		return err
	}
	b.nodes = n
	return until(ctx, "nodes to be ready", func() (bool, error) {
		list, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=kwok"})
		if err != nil {
			return false, err
		}
		for _, n := range list.Items {
			if n.Status.DaemonEndpoints.KubeletEndpoint.Port == 0 {
				return false, nil
			}
		}
		return len(list.Items) >= n, nil
	})
}

// parallel invokes the function do for each number in a range.
func parallel(ctx context.Context, from, to int, do func(context.Context, int) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(16)
	for i := from; i < to; i++ {
		if ctx.Err() != nil {
			break
		}
		workers.Go(func() error { return do(ctx, i) })
	}
	return workers.Wait()
}

// until polls a condition.
func until(ctx context.Context, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		if ok, err := holds(); err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out waiting for %s", what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func nodeName(i int) string { return fmt.Sprintf("fake-%05d", i) }

// node creates a node with eight GPUs, and with the labels and images of a node in use. kwok makes it ready.
func (b *bench) node(ctx context.Context, i int) error {
	has := corev1.ResourceList{}
	for name, amount := range map[corev1.ResourceName]string{
		"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8",
	} {
		has[name] = resource.MustParse(amount)
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i), Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels: map[string]string{
				"type":                   "kwok", // keeps the device plugin off the node
				"kubernetes.io/hostname": nodeName(i),
				"kubernetes.io/arch":     runtime.GOARCH,
				"kubernetes.io/os":       "linux",
				"nvidia.com/gpu.present": "true",
				"nvidia.com/gpu.count":   "8",
				"nvidia.com/gpu.product": "NVIDIA-H200",
			},
		},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "kwok.x-k8s.io/node", Value: "fake", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: runtime.GOARCH, OperatingSystem: "linux", OSImage: "Debian GNU/Linux 12",
				KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.3.7",
			},
		},
	}
	for l := range 60 {
		n.Labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE%02d", l)] = "true"
	}
	for l := range 50 {
		name := fmt.Sprintf("registry.example.com/team/image-%d", l)
		names := []string{fmt.Sprintf("%s@sha256:%064d", name, l), name + ":v1.2.3"}
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: names, SizeBytes: 1 << 30})
	}
	_, err := b.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

// pod creates a pod. If the pod is on a node, kwok makes it Running. A pod without a node requests more GPUs than a
// node has.
func (b *bench) pod(ctx context.Context, name, on string, gpus bool) error {
	app, asks := "web", corev1.ResourceList{"cpu": resource.MustParse("1")}
	var class *string
	if gpus {
		nvidia := "nvidia"
		app, asks["nvidia.com/gpu"], class = "train", resource.MustParse("8"), &nvidia
	}
	if on == "" {
		asks["nvidia.com/gpu"] = resource.MustParse("9")
	}
	image := "registry.example.com/team/" + app + ":v1.2.3"
	container := corev1.Container{
		Name: app, Image: image, Resources: corev1.ResourceRequirements{Requests: asks, Limits: asks},
	}
	for e := range 12 {
		container.Env = append(container.Env,
			corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: "some value of it"})
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": app, "pod-template-hash": "5b7c9d"},
			Annotations: map[string]string{"cni.projectcalico.org/podIP": "10.1.2.3/32"},
		},
		Spec: corev1.PodSpec{
			NodeName: on, RuntimeClassName: class,
			Containers:                   []corev1.Container{container},
			InitContainers:               []corev1.Container{{Name: "init", Image: image, Env: container.Env}},
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: new(bool),
		},
	}
	_, err := b.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}
