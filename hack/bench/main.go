// Command bench compares the duration of commands with the minimum for their work, in one run on one cluster.
//
// bench -what xid measures the time to write one verified XID line to a node's kernel log:
//
//	inject         the inject command, from start to exit; by then, the line is verified and the pod's deletion accepted
//	floor          a pod whose image is on the node: create it, wait until it has succeeded, read its log
//	base           inject with another build (-base)
//	kubectl-debug  the same write done manually: kubectl debug node/..., wait, read the line in its log
//
// bench -what runtime measures the time until a broken containerd configuration is verified:
//
//	break          the break command, from start to exit (and a revert, not measured)
//	floor          a similar debug pod: create it, wait until it runs, restart containerd from it, wait until
//	               containerd responds
//
// bench -what cuda measures the time until the pods of a Deployment run with the shim, as seen in their processes:
//
//	inject         the inject command, from start to exit: it exits when the heartbeat of each new pod was read (and a
//	               revert, not measured)
//	restart        kubectl rollout restart of the same Deployment, and kubectl rollout status
//
// The measurements alternate, so that other load on the machine affects all of them. The results are medians; the last
// line has the ratios.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const namespace = "bench-inject"

type bench struct {
	plugin, base, kubectl, kubeconfig string
	node, gpu, image                  string
	client                            kubernetes.Interface
	prepare                           func(context.Context) error // called once before the first round; may be nil
}

func main() {
	b := bench{}
	rounds := flag.Int("n", 10, "rounds")
	what := flag.String("what", "xid", "xid, runtime or cuda")
	flag.StringVar(&b.plugin, "plugin", "bin/kubectl-gpu_fault", "our program")
	flag.StringVar(&b.base, "base", "", "another build of our program, to compare with in the same run (only for xid)")
	flag.StringVar(&b.kubectl, "kubectl", "bin/kubectl", "kubectl")
	flag.StringVar(&b.kubeconfig, "kubeconfig", ".cluster/kubeconfig", "the cluster")
	flag.StringVar(&b.node, "node", "node-b", "the node")
	flag.StringVar(&b.gpu, "gpu", "0", "the GPU, as for --gpu")
	flag.StringVar(&b.image, "image",
		"registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9",
		"an image that is on the node")
	flag.Parse()
	ways := map[string][]way{
		"xid":     {{"inject", b.inject, nil}, {"floor", b.floor, nil}, {"kubectl-debug", b.debug, nil}},
		"runtime": {{"break", b.breakRuntime, b.revert}, {"floor", b.restart, b.settle}},
		"cuda":    {{"inject", b.injectCUDA, b.revertCUDA}, {"restart", b.rollout, b.still}},
	}[*what]
	if ways == nil {
		fmt.Fprintf(os.Stderr, "bench: -what %s: choose xid, runtime or cuda\n", *what)
		os.Exit(2)
	}
	if b.base != "" && *what == "xid" {
		ways = append(ways, way{"base", b.injectBase, nil})
	}
	if *what == "cuda" {
		b.prepare = b.deploy
	}
	if err := b.run(context.Background(), ways, *rounds, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// way is one of the alternatives to measure.
type way struct {
	name  string
	do    func(context.Context, int) error
	after func(context.Context, int) error // not measured; may be nil
}

func (b *bench) run(ctx context.Context, ways []way, rounds int, out io.Writer) error {
	config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
	if err != nil {
		return err
	}
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   namespace,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged", ledger.LabelLedger: "true"},
	}}
	// The namespace of a previous run may still be terminating.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		_, err := b.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsAlreadyExists(err) || time.Now().After(deadline) {
			return err
		}
	}
	defer func() { _ = b.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}) }()
	if err := b.serviceAccount(ctx); err != nil {
		return err
	}

	if b.prepare != nil {
		if err := b.prepare(ctx); err != nil {
			return err
		}
	}

	times := map[string][]time.Duration{}
	for i := range rounds + 1 {
		for _, way := range ways {
			start := time.Now()
			if err := way.do(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if i > 0 { // skip the first round, which warms up caches
				times[way.name] = append(times[way.name], time.Since(start))
			}
			if way.after != nil {
				if err := way.after(ctx, i); err != nil {
					return fmt.Errorf("after %s: %w", way.name, err)
				}
			}
		}
	}

	fmt.Fprintf(out, "%-14s %8s %8s %8s   (seconds, %d rounds)\n", "WAY", "MEDIAN", "MIN", "MAX", rounds)
	for _, way := range ways {
		all := times[way.name]
		fmt.Fprintf(out, "%-14s %8.3f %8.3f %8.3f\n", way.name, median(all).Seconds(), slices.Min(all).Seconds(),
			slices.Max(all).Seconds())
	}
	ours := median(times[ways[0].name]).Seconds()
	var ratios []string
	for _, way := range ways[1:] {
		ratios = append(ratios,
			fmt.Sprintf("%s/%s %.2f", ways[0].name, way.name, ours/median(times[way.name]).Seconds()))
	}
	fmt.Fprintln(out, strings.Join(ratios, " "))
	return nil
}

func (b *bench) serviceAccount(ctx context.Context) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (b *bench) inject(ctx context.Context, _ int) error { return b.injectWith(ctx, b.plugin) }

func (b *bench) injectBase(ctx context.Context, _ int) error { return b.injectWith(ctx, b.base) }

func (b *bench) injectWith(ctx context.Context, plugin string) error {
	_, err := output(ctx, plugin, "--kubeconfig", b.kubeconfig, "xid", "79", b.node, "--gpu", b.gpu, "--yes")
	return err
}

func (b *bench) floor(ctx context.Context, round int) error {
	pods := b.client.CoreV1().Pods(namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("floor-%d", round)},
		Spec: corev1.PodSpec{
			NodeName: b.node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: b.image, Command: []string{"echo", "done"}}},
		},
	}
	watch, err := pods.Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String()})
	if err != nil {
		return err
	}
	defer watch.Stop()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	for event := range watch.ResultChan() {
		if p, ok := event.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodSucceeded {
			break
		}
	}
	log, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(log)) != "done" {
		return fmt.Errorf("the pod's log is %q", log)
	}
	return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
}

// debug does the same work manually: write the line, check that it is in the log, and read the output.
func (b *bench) debug(ctx context.Context, round int) error {
	kubectl := func(args ...string) (string, error) {
		return output(ctx, b.kubectl,
			append([]string{"--kubeconfig", b.kubeconfig, "--namespace", namespace}, args...)...)
	}
	line := fmt.Sprintf("kernel: NVRM: Xid (PCI:0000:2f:00): 79, pid=%d, name=bench, GPU has fallen off the bus.",
		100000+round)
	said, err := kubectl("debug", "node/"+b.node, "--image="+b.image, "--profile=sysadmin", "--quiet", "--attach=false",
		"--",
		"sh", "-c", fmt.Sprintf("echo '<4>%s' >/dev/kmsg && dmesg | grep -F '%s'", line, line))
	if err != nil {
		return err
	}
	name, err := debugPod(ctx, b.client, said)
	if err != nil {
		return err
	}
	if _, err := kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s", "pod/"+name); err != nil {
		return err
	}
	log, err := kubectl("logs", name)
	if err != nil {
		return err
	}
	if !strings.Contains(log, line) {
		return fmt.Errorf("the line is not in the log of the debug pod: %q", log)
	}
	_, err = kubectl("delete", "pod", name, "--wait=false")
	return err
}

// debugPod returns the name of the pod that kubectl debug created, because kubectl does not always print it.
func debugPod(ctx context.Context, client kubernetes.Interface, said string) (string, error) {
	for _, word := range strings.Fields(said) {
		if strings.HasPrefix(word, "node-debugger-") {
			return strings.Trim(word, ".\""), nil
		}
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, pod := range pods.Items {
		if strings.HasPrefix(pod.Name, "node-debugger-") && pod.DeletionTimestamp == nil {
			return pod.Name, nil
		}
	}
	return "", fmt.Errorf("kubectl debug made no pod: %q", said)
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String() + stderr.String(), nil
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
