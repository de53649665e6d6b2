// Command bench-doctor measures the cost of doctor on a large cluster with a real API server: CPU time, memory, wall
// time, and requests.
//
//	CLUSTER=second SUBNET=10.98.0 STATE=/tmp/second test/cluster/up
//	STATE=/tmp/second test/cluster/node sh node-a systemctl stop kube-controller-manager
//	go run ./hack/bench-doctor -kubeconfig /tmp/second/kubeconfig -nodes 5000 -pods 50000
//
// This command creates nodes and pods with the status that a kubelet would set. Nothing renews the status: the
// heartbeats of 5,000 kwok nodes alone would overload two cores. Therefore the controller manager, which would mark the
// nodes as dead, must not run. Delete the cluster afterwards. A second run continues with the existing objects. With
// -for, creation stops early, and the existing objects are measured.
//
// One pod cannot pull its image. Doctor must report it as the only root cause.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

const namespace = "bench-doctor"

type bench struct {
	plugin, kubeconfig string
	nodes, pods        int
	fill               time.Duration
	rounds             int
	client             kubernetes.Interface
	config             *rest.Config
}

func main() {
	var b bench
	flag.StringVar(&b.plugin, "plugin", "bin/kubectl-gpu_fault", "our program")
	flag.StringVar(&b.kubeconfig, "kubeconfig", "", "a test cluster of its own, without a controller manager")
	flag.IntVar(&b.nodes, "nodes", 5000, "nodes")
	flag.IntVar(&b.pods, "pods", 50000, "pods")
	flag.IntVar(&b.rounds, "n", 3, "rounds")
	flag.DurationVar(&b.fill, "for", 10*time.Minute, "how long to write nodes and pods at most")
	flag.Parse()
	if err := b.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench-doctor:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) error {
	var err error
	if b.config, err = clientcmd.BuildConfigFromFlags("", b.kubeconfig); err != nil {
		return err
	}
	b.config.QPS = -1 // no client-side rate limit
	b.config.ContentType = "application/vnd.kubernetes.protobuf"
	if b.client, err = kubernetes.NewForConfig(b.config); err != nil {
		return err
	}
	if err := b.write(ctx); err != nil {
		return err
	}
	for range b.rounds {
		if err := b.doctor(ctx, b.kubeconfig); err != nil {
			return err
		}
	}
	return b.count(ctx)
}

// write creates the nodes and then the pods, until all exist or the time limit is reached.
func (b *bench) write(ctx context.Context) error {
	start := time.Now()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := b.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return err
	}
	// Without the default service account, which the controller manager would create, pods are rejected.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := b.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, step := range []struct {
		what string
		n    int
		do   func(context.Context, int) error
	}{{"nodes", b.nodes, b.node}, {"pods", b.pods, b.pod}} {
		workers, ctx := errgroup.WithContext(ctx)
		workers.SetLimit(16)
		var there atomic.Int64
		for i := range step.n {
			if time.Since(start) > b.fill || ctx.Err() != nil {
				break
			}
			workers.Go(func() error {
				err := step.do(ctx, i)
				if err == nil {
					there.Add(1)
				}
				return err
			})
		}
		if err := workers.Wait(); err != nil {
			return err
		}
		fmt.Printf("%d of %d %s are there after %s\n", there.Load(), step.n, step.what,
			time.Since(start).Round(time.Second))
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("fake-%05d", i) }

// node creates a node that is Ready and has eight GPUs.
func (b *bench) node(ctx context.Context, i int) error {
	has := corev1.ResourceList{}
	for name, amount := range map[corev1.ResourceName]string{
		"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8",
	} {
		has[name] = resource.MustParse(amount)
	}
	now := metav1.Now()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			"kubernetes.io/hostname": nodeName(i), "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
			"type":                   "kwok", // keeps the device plugin off the node
			"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200",
		}},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "kwok.x-k8s.io/node", Value: "fake", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now,
				LastTransitionTime: now,
			}},
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: "amd64", OperatingSystem: "linux", OSImage: "Debian GNU/Linux 12",
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
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// pod creates the i-th pod. One of every ten pods on a node uses all its GPUs. The last such pod cannot pull its image.
func (b *bench) pod(ctx context.Context, i int) error {
	name, on, app := fmt.Sprintf("pod-%05d", i), nodeName(i%b.nodes), "web"
	asks := corev1.ResourceList{"cpu": resource.MustParse("1")}
	var class *string
	if i < b.nodes {
		nvidia := "nvidia"
		app, asks["nvidia.com/gpu"], class = "train", resource.MustParse("8"), &nvidia
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
	pods := b.client.CoreV1().Pods(namespace)
	made, err := pods.Create(ctx, p, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now := metav1.Now()
	status := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Ready: true, Image: image,
			ImageID:     image + "@sha256:" + strings.Repeat("b", 64),
			ContainerID: "containerd://" + strings.Repeat("c", 64),
		}
	}
	first, main := status("init"), status(app)
	first.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}
	main.Started, main.State.Running = new(true), &corev1.ContainerStateRunning{StartedAt: now}
	made.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.1.2.3", HostIP: "10.0.0.1", StartTime: &now,
		ContainerStatuses: []corev1.ContainerStatus{main}, InitContainerStatuses: []corev1.ContainerStatus{first},
	}
	ready := corev1.ConditionTrue
	if i == b.nodes/2 {
		ready = corev1.ConditionFalse
		made.Status.Phase = corev1.PodPending
		made.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: app, Image: image}
		made.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{
			Reason: "ImagePullBackOff",
			Message: fmt.Sprintf(
				"Back-off pulling image %[1]q: ErrImagePull: failed to resolve reference %[1]q: %[1]s: not found",
				image,
			),
		}
	}
	for _, kind := range []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	} {
		condition := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
		if kind == corev1.ContainersReady || kind == corev1.PodReady {
			condition.Status = ready
		}
		made.Status.Conditions = append(made.Status.Conditions, condition)
	}
	_, err = pods.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// doctor runs doctor, and prints its resource usage and the root causes that it found.
func (b *bench) doctor(ctx context.Context, kubeconfig string) error {
	cmd := exec.CommandContext(ctx, b.plugin, "doctor", "--api-only", "--no-images", "-o", "json", "--kubeconfig",
		kubeconfig)
	file, err := os.CreateTemp("", "bench-doctor-*.json")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(file.Close(), os.Remove(file.Name())) }()
	cmd.Stdout = file
	start := time.Now()
	err = cmd.Run()
	wall := time.Since(start)
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 2 {
		return fmt.Errorf("doctor: %w", err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		return err
	}
	var report doctor.Report
	if err := json.Unmarshal(text, &report); err != nil {
		return err
	}
	var roots []string
	for _, f := range report.Items {
		if f.Root && f.Severity != finding.Info {
			roots = append(roots, fmt.Sprintf("%s (%s)", f.ID, f.Object))
		}
	}
	state := cmd.ProcessState
	fmt.Printf("%d GPU nodes, %d GPU pods: %.1f s of processor time, %d MiB, %.1f s; roots: %s\n",
		report.Summary.GPUNodes, report.Summary.GPUPods,
		(state.UserTime() + state.SystemTime()).Seconds(), state.SysUsage().(*syscall.Rusage).Maxrss>>10,
		wall.Seconds(), strings.Join(roots, ", "))
	return nil
}

// count runs doctor again, through a proxy that counts requests and bytes.
func (b *bench) count(ctx context.Context) error {
	server, err := url.Parse(b.config.Host)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(b.config)
	if err != nil {
		return err
	}
	var requests, received atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(server)
	proxy.Transport = transport
	proxy.ModifyResponse = func(r *http.Response) error {
		requests.Add(1)
		r.Body = &counted{r.Body, &received}
		return nil
	}
	local := httptest.NewServer(proxy)
	defer local.Close()
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: big
clusters: [{name: big, cluster: {server: %q}}]
contexts: [{name: big, context: {cluster: big}}]
`, local.URL)
	folder, err := os.MkdirTemp("", "bench-doctor-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	file := filepath.Join(folder, "kubeconfig")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	if err := b.doctor(ctx, file); err != nil {
		return err
	}
	fmt.Printf("that was through a proxy, which saw %d requests and %d MiB of answers, most of them compressed\n",
		requests.Load(), received.Load()>>20)
	return nil
}

// counted is a response body that counts its bytes.
type counted struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}
