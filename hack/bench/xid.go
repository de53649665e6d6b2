package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// ratioOfInject is the maximum time for injecting an XID, relative to the time of a bare pod and of kubectl debug.
const ratioOfInject = 0.15

// measureXID measures the time to write one verified XID line to a node's kernel log. This is the time of the xid
// command from start to exit: when the command exits, the line is verified and the API server has accepted the deletion
// of the pod.
func (b *bench) measureXID(ctx context.Context) ([]row, error) {
	ways := []way{
		{name: "xid", do: func(ctx context.Context, _ int) error { return b.inject(ctx, b.plugin, b.kubeconfig) }},
		{name: "bare pod", do: b.barePod},
		{name: "kubectl debug", do: func(ctx context.Context, i int) error { return b.debug(ctx, b.kubeconfig, i) }},
	}
	if b.base != "" {
		ways = append(ways, way{
			name: "-base", do: func(ctx context.Context, _ int) error { return b.inject(ctx, b.base, b.kubeconfig) },
		})
	}
	times, err := b.alternate(ctx, ways...)
	if err != nil {
		return nil, err
	}
	rows := []row{
		compared("xid", "s", times["xid"], "bare pod", times["bare pod"]).within(ratioOfInject),
		compared("xid", "s", times["xid"], "kubectl debug", times["kubectl debug"]).within(ratioOfInject),
	}
	if b.base != "" {
		rows = append(rows, compared("xid", "s", times["xid"], "-base", times["-base"]).judged())
	}
	ready, err := b.podReady(ctx)
	if err != nil {
		return nil, err
	}
	rows = append(rows, compared("xid", "s", times["xid"], "bare pod, until it runs", ready).judged())
	ours, err := b.traffic(ctx, func(kubeconfig string) error { return b.inject(ctx, b.plugin, kubeconfig) })
	if err != nil {
		return nil, err
	}
	peer, err := b.traffic(ctx, func(kubeconfig string) error { return b.debug(ctx, kubeconfig, b.rounds+1) })
	if err != nil {
		return nil, err
	}
	rows = append(rows, ours.rows("xid", "kubectl debug", peer)...)
	memory, err := b.memory(ctx, "xid", "kubectl get", []string{"xid", "79", b.node, "--gpu", b.gpu, "--yes"},
		[]string{"get", "pods"})
	return append(rows, memory), err
}

func (b *bench) inject(ctx context.Context, plugin, kubeconfig string) error {
	_, err := output(ctx, plugin, "--kubeconfig", kubeconfig, "xid", "79", b.node, "--gpu", b.gpu, "--yes")
	return err
}

// barePod does the minimum: it creates a pod whose image is on the node, waits until the pod has succeeded, reads its
// log and deletes it.
func (b *bench) barePod(ctx context.Context, round int) error {
	name := fmt.Sprintf("bare-%d", round)
	if err := b.podIn(ctx, name, corev1.PodSucceeded, "echo", "done"); err != nil {
		return err
	}
	pods := b.client.CoreV1().Pods(namespace)
	log, err := pods.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(log)) != "done" {
		return fmt.Errorf("the pod's log is %q", log)
	}
	return pods.Delete(ctx, name, metav1.DeleteOptions{})
}

// podReady returns the time until the API server reports that a bare pod is running. An injection cannot be faster.
func (b *bench) podReady(ctx context.Context) (sample, error) {
	name := func(i int) string { return fmt.Sprintf("running-%d", i) }
	atOnce := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	times, err := b.alternate(ctx, way{
		"running",
		func(ctx context.Context, i int) error {
			return b.podIn(ctx, name(i), corev1.PodRunning, "sleep", "600")
		},
		func(ctx context.Context, i int) error {
			return b.client.CoreV1().Pods(namespace).Delete(ctx, name(i), atOnce)
		},
	})
	return times["running"], err
}

// podIn creates a pod on the node, and waits until it is in the given phase.
func (b *bench) podIn(ctx context.Context, name string, phase corev1.PodPhase, command ...string) error {
	pods := b.client.CoreV1().Pods(namespace)
	watch, err := pods.Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return err
	}
	defer watch.Stop()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: b.node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: b.image, Command: command}},
		},
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	for event := range watch.ResultChan() {
		if p, ok := event.Object.(*corev1.Pod); ok && p.Status.Phase == phase {
			return nil
		}
	}
	return fmt.Errorf("the watch of pod %s ended", name)
}

// debug does the same work by hand: it writes the line, checks that the line is in the log, and reads the output.
func (b *bench) debug(ctx context.Context, kubeconfig string, round int) error {
	kubectl := func(args ...string) (string, error) {
		return b.theirs(ctx, kubeconfig, args...)
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

// debugPod finds the name of the pod that kubectl debug created, which kubectl does not always print.
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
	return "", fmt.Errorf("kubectl debug created no pod: %q", said)
}
