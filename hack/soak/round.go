package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const trainer = "trainer"

// kinds contains the command lines of the faults; NODE stands for the name of the node.
var kinds = [][]string{
	{"xid", "79", "NODE", "--gpu", "0", "--yes"},
	{"xid", "48,63", "NODE", "--gpu", "1", "--count", "20", "--yes"},
	{"runtime", "break", "NODE", "--mode", "missing-handler", "--ttl", "10m", "--yes", "--allow-majority"},
	{"device", "unhealthy", "NODE", "--gpu", "0", "--ttl", "10m", "--yes", "--allow-majority"},
	{"cuda", "inject", "deployment/" + trainer, "-n", namespace, "--xid", "79", "--ttl", "10m", "--yes"},
	{"network", "partition", "--pod", "peer", "-n", namespace, "--ttl", "10m", "--yes", "--allow-majority"},
}

// disturbances are events during a fault; half of the faults have none.
var disturbances = []string{
	"", "", "", "", "", "client killed", "client killed", "revert killed", "kubelet restarted", "containerd restarted",
	"debug pod deleted",
}

// round injects a fault, disturbs it, reverts it, and checks that nothing remains.
func (s *soak) round(ctx context.Context) {
	kind := kinds[s.random.IntN(len(kinds))]
	disturbance := disturbances[s.random.IntN(len(disturbances))]
	args := make([]string, len(kind))
	for i, a := range kind {
		args[i] = strings.ReplaceAll(a, "NODE", s.node)
	}
	name := strings.Join(args[:2], " ")
	if disturbance != "" {
		name += ", " + disturbance
	}
	start := time.Now()
	s.faults++
	s.inject(ctx, name, disturbance, args)
	switch disturbance {
	case "kubelet restarted":
		s.restart(ctx, "kubelet")
	case "containerd restarted":
		s.restart(ctx, "containerd")
	case "revert killed":
		if runs, err := s.others(ctx); err == nil && len(runs) > 0 {
			s.kill(ctx, append([]string{"revert", "--yes"}, runs...))
		}
	}
	err := s.until(ctx, "the revert", func() error {
		runs, err := s.others(ctx)
		if err != nil || len(runs) == 0 {
			return err
		}
		return s.revert(ctx, runs...)
	})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.fail("%s: %v", name, err)
	}
	err = s.until(ctx, "nothing to remain", func() error { return s.nothingLeft(ctx) })
	if err != nil && ctx.Err() == nil {
		s.leak(name, err.Error())
	}
	fmt.Fprintf(os.Stderr, "%4d  %-55s %5.1f s\n", s.faults, name, time.Since(start).Seconds())
}

// inject runs the command, or only starts it if it will be disturbed.
func (s *soak) inject(ctx context.Context, name, disturbance string, args []string) {
	switch disturbance {
	case "client killed":
		s.kill(ctx, args)
	case "debug pod deleted":
		done := make(chan error, 1)
		go func() {
			_, err := s.ours(ctx, args...)
			done <- err
		}()
		time.Sleep(time.Duration(s.random.IntN(1000)) * time.Millisecond)
		atOnce := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		_ = s.client.CoreV1().Pods(ledgerNamespace).DeleteCollection(ctx, atOnce,
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.node})
		s.restarts++
		<-done // the command may fail
	default:
		if _, err := s.ours(ctx, args...); err != nil && ctx.Err() == nil {
			s.fail("%s: %v", name, err)
		}
	}
}

// kill starts the program and kills it with SIGKILL after a random time.
func (s *soak) kill(ctx context.Context, args []string) {
	cmd := exec.CommandContext(ctx, s.plugin, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	if err := cmd.Start(); err != nil {
		s.fail("start: %v", err)
		return
	}
	time.Sleep(time.Duration(50+s.random.IntN(1500)) * time.Millisecond)
	if cmd.Process.Kill() == nil {
		s.killed++
	}
	_ = cmd.Wait()
}

// restart restarts a service on the node, and waits until the node is ready.
func (s *soak) restart(ctx context.Context, unit string) {
	if _, err := s.onNode(ctx, s.node, "systemctl restart "+unit); err != nil {
		s.fail("restart %s: %v", unit, err)
		return
	}
	s.restarts++
	err := s.until(ctx, s.node+" to be ready", func() error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Errorf("not ready: %s", c.Message)
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.fail("%v", err)
	}
}

// revert reverts runs, as a user who finds them would.
func (s *soak) revert(ctx context.Context, runs ...string) error {
	_, err := s.ours(ctx, append([]string{"revert", "--yes"}, runs...)...)
	return err
}

// runs returns the IDs of the open runs.
func (s *soak) runs(ctx context.Context) ([]string, error) {
	out, err := s.ours(ctx, "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct{ ID string }
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	var ids []string
	for _, r := range list.Items {
		ids = append(ids, r.ID)
	}
	return ids, nil
}

// others returns the open runs of the mixed faults.
func (s *soak) others(ctx context.Context) ([]string, error) {
	runs, err := s.runs(ctx)
	return slices.DeleteFunc(runs, func(id string) bool { return id == s.long }), err
}

// ours runs the program under test, and returns its standard output.
func (s *soak) ours(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.plugin, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String())
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said[max(0, len(said)-600):])
	}
	return stdout.String(), nil
}

// onNode runs a shell script on a node.
func (s *soak) onNode(ctx context.Context, node, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "test/cluster/node", "sh", node, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "STATE="+s.state())
	cmd.WaitDelay = time.Second // a service started by the script may keep its streams open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("on %s, %q: %w: %s", node, script, err, stderr.String())
	}
	return stdout.String(), nil
}

// deploy creates the workload for cuda, and the pod for partitions, both on the node.
func (s *soak) deploy(ctx context.Context) error {
	load := exec.CommandContext(ctx, "test/cluster/trainer")
	load.Env = append(os.Environ(), "STATE="+s.state())
	image, err := load.Output()
	if err != nil {
		return fmt.Errorf("find the image of the sample workload: %w", err)
	}
	labels := map[string]string{"app": trainer}
	_, err = s.client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: trainer},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"kubernetes.io/hostname": s.node},
				Containers: []corev1.Container{{
					Name: "main", Image: strings.TrimSpace(string(image)), ImagePullPolicy: corev1.PullNever,
				}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "peer"},
		Spec: corev1.PodSpec{NodeName: s.node, Containers: []corev1.Container{{
			Name: "main", Image: "busybox:1.35", Command: []string{"sleep", "86400"},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return s.until(ctx, "the pods of "+namespace, func() error {
		pods, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
			}
		}
		return nil
	})
}
