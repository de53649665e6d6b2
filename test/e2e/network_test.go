//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// network has three pods with a server each: a and b on the worker, c on the other node.
type network struct {
	*env
	namespace string
	ips       map[string]string
}

const serve = "mkdir /tmp/www; hostname > /tmp/www/index.html; exec busybox httpd -f -p 8080 -h /tmp/www"

func setupNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{env: setup(t), ips: map[string]string{}}
	n.namespace = n.cluster.Namespace(t)
	t.Cleanup(func() { n.plugin("revert", "--all", "--yes", "--allow-control-plane") })
	pods := n.cluster.Client.CoreV1().Pods(n.namespace)
	for name, node := range map[string]string{"a": n.worker.Name, "b": n.worker.Name, "c": n.control.Name} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: serving(node)}
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		cluster.Eventually(t, patience, name+" runs", func() (bool, string) {
			pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			n.ips[name] = pod.Status.PodIP
			return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "", string(pod.Status.Phase)
		})
	}
	for _, to := range []string{"b", "c"} {
		n.connects("a", to)
	}
	return n
}

func serving(node string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeName: node, TerminationGracePeriodSeconds: new(int64(0)),
		Containers: []corev1.Container{{
			Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", serve},
		}},
	}
}

// get asks the server of a pod from another pod.
func (n *network) get(from, to string) (string, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(n.t, "kubectl"), "--kubeconfig", n.cluster.Kubeconfig, "exec",
		"-n", n.namespace, from, "--", "get", "-T", "2", "http://"+n.ips[to]+":8080/")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// connects waits until a pod reaches another.
func (n *network) connects(from, to string) {
	n.t.Helper()
	cluster.Eventually(n.t, patience, from+" reaches "+to, func() (bool, string) {
		out, err := n.get(from, to)
		return err == nil && out == to, out
	})
}

// cutOff checks that a pod does not reach another.
func (n *network) cutOff(from, to string) {
	n.t.Helper()
	if out, err := n.get(from, to); err == nil || !strings.Contains(out, "deadline exceeded") {
		n.t.Errorf("%s reaches %s: %q, %v", from, to, out, err)
	}
}

// tables returns the tables of this tool on the worker.
func (n *network) tables() string {
	return n.worker.Sh(n.t, "sh", "-c", "nft list tables | grep gpu-fault || true")
}

// says checks the exit code, and that the output has each of the parts.
func (n *network) says(r result, code int, parts ...string) {
	n.t.Helper()
	r.stderr = r.stdout + r.stderr
	n.mustSay(r, code, parts...)
}

func (n *network) partition(args ...string) result {
	n.t.Helper()
	return n.plugin(append([]string{"network", "partition", "-n", n.namespace, "--yes"}, args...)...)
}

// TestLoss holds that about the share of the packets that was specified is lost, on the way to the peer only, and none
// after the revert.
func TestLoss(t *testing.T) {
	n := setupNetwork(t)
	r := n.plugin("network", "loss", "-n", n.namespace, "--pod", "a", "--to", "pod/b", "--percent", "40", "--yes")
	n.says(r, 0, "numgen random mod 100 < 40", "some of the copies (28) of a UDP packet to "+n.ips["b"],
		"losing packets on node")
	// 40 are expected, with a standard deviation of 5
	if lost := n.lost("a", "b"); lost < 10 || lost > 70 {
		t.Errorf("%d of 100 packets were lost, wanted about 40", lost)
	}
	if lost := n.lost("a", "c"); lost > 0 {
		t.Errorf("%d of 100 packets to another pod were lost", lost)
	}
	n.says(n.plugin("revert", n.runs()[0].ID, "--yes"), 0, "the rule had dropped ")
	if lost := n.lost("a", "b"); lost > 0 {
		t.Errorf("after the revert, %d of 100 packets were lost", lost)
	}
}

// TestSlow holds that what a pod receives from a peer is limited to the rate that was specified, that nothing else is,
// that nothing remains after the revert, and that a latency that the kernel cannot add is rejected before anything
// changes.
func TestSlow(t *testing.T) {
	n := setupNetwork(t)
	qdiscs := func() string { return n.worker.Sh(t, "sh", "-c", "tc qdisc show | grep htb || true") }
	r := n.plugin("network", "slow", "-n", n.namespace, "--pod", "a", "--from", "pod/b", "--rate", "80k", "--yes")
	n.says(r, 0, "a response from "+n.ips["b"]+":9 to pod "+n.namespace+"/a was delayed and took ", "rate 80k bit/s",
		"slow on node")
	// 40 replies of 1.4 kB, 16 KiB of them in a burst, take four seconds.
	if longest := n.roundTrip("a", "b"); longest < time.Second {
		t.Errorf("the longest round trip to the peer was %s", longest)
	}
	if longest := n.roundTrip("a", "c"); longest > 500*time.Millisecond {
		t.Errorf("the longest round trip to another pod was %s", longest)
	}
	n.says(n.plugin("revert", n.runs()[0].ID, "--yes"), 0, "the rule had slowed down ", "of 1 pod link were removed")
	if longest := n.roundTrip("a", "b"); longest > 500*time.Millisecond {
		t.Errorf("after the revert, the longest round trip was %s", longest)
	}
	if left := n.tables() + qdiscs(); left != "" {
		t.Errorf("after the revert: %s", left)
	}

	r = n.plugin("network", "slow", "-n", n.namespace, "--pod", "a", "--latency", "1s", "--yes")
	if r.code == 0 { // on another kernel
		n.ok("revert", "--all", "--yes")
		return
	}
	n.says(r, 1, "nothing was changed: the node's kernel lacks netem (CONFIG_NET_SCH_NETEM)")
	if left := n.tables() + qdiscs(); left != "" {
		t.Errorf("after the rejection: %s", left)
	}
}

// roundTrip sends 40 echo requests of 1.4 kB, and returns the longest time that a reply took.
func (n *network) roundTrip(from, to string) time.Duration {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), binary(n.t, "kubectl"), "--kubeconfig", n.cluster.Kubeconfig, "exec",
		"-n", n.namespace, from, "--", "ping", "-q", "-c", "40", "-i", "0.02", "-s", "1400", "-W", "10", n.ips[to])
	out, err := cmd.CombinedOutput()
	_, rest, _ := strings.Cut(string(out), "round-trip min/avg/max = ")
	var least, mean, most float64
	if _, scan := fmt.Sscanf(rest, "%f/%f/%f ms", &least, &mean, &most); err != nil || scan != nil {
		n.t.Fatalf("ping: %v, %v\n%s", err, scan, out)
	}
	return time.Duration(most * float64(time.Millisecond))
}

// lost sends 100 echo requests from a pod to another, and returns how many of them had no reply.
func (n *network) lost(from, to string) (lost int) {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), binary(n.t, "kubectl"), "--kubeconfig", n.cluster.Kubeconfig, "exec",
		"-n", n.namespace, from, "--", "ping", "-q", "-c", "100", "-i", "0.02", "-W", "1", n.ips[to])
	out, _ := cmd.CombinedOutput() // ping fails without any reply
	_, rest, _ := strings.Cut(string(out), "packets transmitted, ")
	if _, err := fmt.Sscanf(rest, "%d packets received, %d%% packet loss", new(int), &lost); err != nil {
		n.t.Fatalf("ping: %v\n%s", err, out)
	}
	return lost
}

// TestPartition holds that a pod is cut off from exactly the peer, in exactly the direction, that was specified, and
// that nothing remains after the revert.
func TestPartition(t *testing.T) {
	n := setupNetwork(t)
	r := n.partition("--pod", "a", "--to", "pod/b", "--ttl", "10m")
	n.says(r, 0, "a UDP packet to "+n.ips["b"]+":9 from pod "+n.namespace+"/a", "the kernel removes the rule in")
	n.cutOff("a", "b")
	n.cutOff("b", "a") // the answers are lost
	n.connects("a", "c")
	n.connects("c", "a")
	run := n.runs()[0]
	n.says(n.partition("--pod", "b"), 1, "locked by run "+run.ID)
	n.says(n.plugin("revert", run.ID, "--yes"), 0, "the rule had dropped ")
	n.connects("a", "b")
	if left := n.tables(); left != "" {
		t.Errorf("after the revert: %s", left)
	}

	r = n.partition("--pod", "a", "--from", "pod/c", "--port", "8080", "--protocol", "tcp")
	n.says(r, 0, "1 rule could only be read back")
	n.cutOff("c", "a")
	n.connects("b", "a")
	n.connects("a", "c") // the answers come to another port of the pod
	n.ok("revert", "--all", "--yes")
	n.connects("c", "a")

	r = n.partition("--pod", "a", "--to", "dns")
	n.says(r, 0, "a UDP packet to 10.96.0.10:53", "a TCP packet to 10.96.0.10:53")
	n.connects("a", "b")
	n.ok("revert", "--all", "--yes")

	// Overlapping peers, of which the first one drops all packets.
	n.says(n.partition("--pod", "a", "--to", "10.0.0.0/8", "--to", "pod/b", "--to", "dns"), 0,
		"a UDP packet to "+n.ips["b"]+":9", "a UDP packet to 10.96.0.10:53")
	n.cutOff("a", "b")
	n.ok("revert", "--all", "--yes")

	// The pod a cannot send packets to itself that leave its network.
	n.says(n.partition(n.worker.Name, "--to", "pod/a"), 0, "to "+n.ips["a"]+":9 from pod "+n.namespace+"/b")
	n.cutOff("b", "a")
	n.ok("revert", "--all", "--yes")
	n.noPods()
}

// TestPartitionUntilTheTTL holds that the kernel of the node ends the fault by itself, and that a revert then removes
// what is left of it.
func TestPartitionUntilTheTTL(t *testing.T) {
	n := setupNetwork(t)
	n.says(n.partition("--pod", "a", "--ttl", cluster.TTL(20*time.Second).String()), 0, "partitioned on node")
	n.cutOff("a", "c")
	n.connects("a", "c")
	n.says(n.plugin("revert", "--all", "--yes"), 0, "its rule had already expired")
	if left := n.tables(); left != "" {
		t.Errorf("after the revert: %s", left)
	}
}

// TestPartitionOfAKilledClient holds that the fault of a client that was killed can be reverted by another client,
// whatever the client had done.
func TestPartitionOfAKilledClient(t *testing.T) {
	n := setupNetwork(t)
	for delay := 50 * time.Millisecond; delay < 1200*time.Millisecond; delay = delay * 3 / 2 {
		cmd := n.command("network", "partition", "-n", n.namespace, "--pod", "a", "--ttl", "10m", "--yes")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(delay, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		cluster.Eventually(t, patience, "the run is reverted", func() (bool, string) {
			r := n.plugin("revert", "--all", "--yes", "--force")
			return r.code == 0, r.stderr
		})
		n.connects("a", "b")
		if left := n.tables(); left != "" {
			t.Errorf("killed after %s: %s", delay, left)
		}
	}
	n.noPods()
}

// TestPartitionOfAWorkload holds that all pods of a workload are cut off, or only those on a node, and all pods of a
// node without those of kube-system.
func TestPartitionOfAWorkload(t *testing.T) {
	n := setupNetwork(t)
	n.runOnBothNodes()
	all := []string{
		"--workload", "daemonset/train", "--to", "pod/c", "--allow-control-plane", "--allow-majority",
		"--allow-last-gpu-node",
	}
	n.says(n.partition(all...), 0, "partitioned on 2 nodes")
	n.connects("a", "c")
	n.ok("revert", "--all", "--yes", "--allow-control-plane")
	n.says(n.partition(append(all, n.worker.Name)...), 0, "partitioned on node "+n.worker.Name)
	n.ok("revert", "--all", "--yes")
	n.says(n.partition(n.worker.Name, "--to", "pod/c"), 0, "Not cut off: ", "partitioned on node")
	n.cutOff("a", "c")
	n.cutOff("b", "c")
	n.connects("a", "b")
	n.ok("revert", "--all", "--yes")
}

// runOnBothNodes creates the DaemonSet train, and waits for its pods.
func (n *network) runOnBothNodes() {
	n.t.Helper()
	labels := map[string]string{"app": "train"}
	_, err := n.cluster.Client.AppsV1().DaemonSets(n.namespace).Create(n.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "train"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: ofSet()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	cluster.Eventually(n.t, patience, "both pods run", func() (bool, string) {
		set, err := n.cluster.Client.AppsV1().DaemonSets(n.namespace).Get(n.t.Context(), "train", metav1.GetOptions{})
		return err == nil && set.Status.NumberReady == 2, "not ready"
	})
}

func ofSet() corev1.PodSpec {
	spec := serving("")
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return spec
}

// TestPartitionRefused holds that bad input is refused before anything is changed, and that a partition that drops
// nothing is removed at once.
func TestPartitionRefused(t *testing.T) {
	n := setupNetwork(t)
	for want, args := range map[string][]string{
		"no target":                           {},
		`invalid value "10.0.0.5/8" for --to`: {"--pod", "a", "--to", "10.0.0.5/8"},
		`pod "nobody" not found`:              {"--pod", "nobody"},
		`peer pod/nobody: pod "nobody" not`:   {"--pod", "a", "--to", "pod/nobody"},
		"--ttl 0 is not supported":            {"--pod", "a", "--ttl", "0", "--reason", "x"},
		"address of Service kube-system/":     {"--pod", "a", "--to", "10.96.0.10"},
		"--allow-control-plane":               {"--pod", "c"},
		"same family as fd00::1/128":          {"--pod", "a", "--to", "fd00::1"},
		"is protected":                        {"-n", "kube-system", "--workload", "deployment/coredns"},
	} {
		n.refused(n.partition(args...), want)
	}
	n.untouched()

	gateway := n.worker.Sh(t, "sh", "-c", "ip route get "+n.ips["a"]+" | sed 's/.* src \\([0-9.]*\\).*/\\1/; q'")
	r := n.partition("--pod", "a", "--to", strings.TrimSpace(gateway))
	n.refused(r, "no packet reached the rule", "the rules were removed")
	if left := n.tables(); left != "" {
		t.Errorf("a rule that drops nothing was left: %s", left)
	}
	if runs := n.runs("--all"); len(runs) != 1 || runs[0].Phase != ledger.Failed {
		t.Errorf("%+v", runs)
	}
}

// TestPartitionExperiment holds that the built-in experiment partitions all pods of a workload on all of its nodes, and
// that a server which nobody reaches goes on.
func TestPartitionExperiment(t *testing.T) {
	n := setupNetwork(t)
	n.runOnBothNodes()
	r := n.plugin("run", "network-partition", "--pods-of", "daemonset/train", "-n", n.namespace, "--yes",
		"--allow-control-plane", "--allow-majority", "--allow-last-gpu-node")
	nodes := []string{n.worker.Name, n.control.Name}
	slices.Sort(nodes)
	line := "network partition " + strings.Join(nodes, " ") + " --workload daemonset/train --namespace " + n.namespace
	n.says(r, 0, line, "passed: 3 expectations met")
	if left := n.tables(); left != "" {
		t.Errorf("after the experiment: %s", left)
	}
	if runs := n.runs("--all"); len(runs) != 1 || runs[0].Phase != ledger.Reverted {
		t.Errorf("%+v", runs)
	}
}
