package main

import (
	"context"
	"fmt"
	"slices"
)

// Limits for the cost of doctor on one node, relative to the cost of the peer.
const (
	ratioOfDoctor   = 1.0 / 5
	ratioOfRequests = 1.0 / 20
)

// measureDoctor compares doctor on one node with a script that starts a debug pod on each node and inspects the node
// with ten execs.
func (b *bench) measureDoctor(ctx context.Context) ([]row, error) {
	times, err := b.alternate(ctx,
		way{name: "doctor", do: func(ctx context.Context, _ int) error { return b.doctor(ctx, b.kubeconfig, b.node) }},
		way{
			name: "script",
			do:   func(ctx context.Context, i int) error { return b.lookAround(ctx, b.kubeconfig, i, b.node) },
		},
	)
	if err != nil {
		return nil, err
	}
	const peer = "a debug pod and ten execs"
	rows := []row{compared("doctor on one node", "s", times["doctor"], peer, times["script"]).within(ratioOfDoctor)}

	// The cost of an additional node, without the cost of reading the cluster, which doctor and the script each do
	// once.
	count := func(run func(kubeconfig string, nodes ...string) error) (one, each traffic, err error) {
		one, err = b.traffic(ctx, func(kubeconfig string) error { return run(kubeconfig, b.node) })
		if err != nil {
			return one, each, err
		}
		two, err := b.traffic(ctx, func(kubeconfig string) error { return run(kubeconfig, b.node, "node-a") })
		return one, two.minus(one), err
	}
	one, each, err := count(func(kubeconfig string, nodes ...string) error {
		return b.doctor(ctx, kubeconfig, nodes...)
	})
	if err != nil {
		return nil, err
	}
	peerOne, peerEach, err := count(func(kubeconfig string, nodes ...string) error {
		return b.lookAround(ctx, kubeconfig, b.rounds+1, nodes...)
	})
	if err != nil {
		return nil, err
	}
	rows = append(rows, one.rows("doctor on one node", peer, peerOne)...)
	perNode := each.rows("doctor, each additional node", peer, peerEach)
	perNode[0] = perNode[0].within(ratioOfRequests)
	rows = append(rows, perNode...)
	memory, err := b.memory(ctx, "doctor on one node", "kubectl get",
		[]string{"doctor", "--node", b.node, "--no-images", "--fail-on", "never"}, []string{"get", "pods", "-A"})
	return append(rows, memory), err
}

func (b *bench) doctor(ctx context.Context, kubeconfig string, nodes ...string) error {
	args := []string{"--kubeconfig", kubeconfig, "doctor", "--no-images", "--fail-on", "never"}
	for _, n := range nodes {
		args = append(args, "--node", n)
	}
	_, err := output(ctx, b.plugin, args...)
	return err
}

// questions are the commands that the script runs on a node, each with its own exec request.
var questions = []string{
	"cat /host/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml",
	"cat /host/etc/containerd/config.toml",
	"cat /host/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
	"cat /host/etc/k3s/config.toml",
	"cat /host/var/lib/containerd/config.toml",
	"grep -A5 nvidia /host/etc/containerd/config.toml",
	"ls -l /host/usr/bin/nvidia-container-runtime",
	"ls -l /host/usr/local/nvidia/toolkit",
	"grep -i error /host/var/log/services/containerd.log | grep -i -e nvidia -e runtime | tail -n 5",
	"ls -l /host/dev/nvidia0 /host/dev/nvidiactl",
}

// lookAround does what people do with scripts: it reads nodes, pods and the operator's DaemonSets, starts a privileged
// pod on each node, runs ten commands in each of these pods, and deletes the pods. It diagnoses nothing.
func (b *bench) lookAround(ctx context.Context, kubeconfig string, round int, nodes ...string) error {
	kubectl := func(args ...string) error {
		_, err := b.theirs(ctx, kubeconfig, args...)
		return err
	}
	daemonSet := []string{"get", "daemonset", "--ignore-not-found", "-n", "kube-system", "-o", "json"}
	for _, args := range [][]string{
		{"get", "nodes", "-o", "json"}, {"get", "pods", "--all-namespaces", "-o", "json"},
		append(slices.Clone(daemonSet), "nvidia-device-plugin-daemonset"),
		append(slices.Clone(daemonSet), "nvidia-container-toolkit-daemonset"),
	} {
		if err := kubectl(args...); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		name := fmt.Sprintf("debug-%s-%d", node, round)
		spec := fmt.Sprintf(
			`{"spec":{"nodeName":%q,"hostPID":true,"hostNetwork":true,"hostIPC":true,"terminationGracePeriodSeconds":0,"tolerations":[{"operator":"Exists"}],"containers":[{"name":"debug","image":%q,"command":["sleep","300"],"securityContext":{"privileged":true},"volumeMounts":[{"name":"host","mountPath":"/host","readOnly":true}]}],"volumes":[{"name":"host","hostPath":{"path":"/"}}]}}`,
			node, b.image,
		)
		if err := kubectl("run", name, "--image="+b.image, "--restart=Never", "--overrides="+spec); err != nil {
			return err
		}
		if err := kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name); err != nil {
			return err
		}
		for _, question := range questions {
			if err := kubectl("exec", name, "--", "sh", "-c", question+"; true"); err != nil {
				return err
			}
		}
		if err := kubectl("delete", "pod", name, "--wait=false"); err != nil {
			return err
		}
	}
	return nil
}
