package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// partitioned is the prefix of the pods that partitions cut off, one on each node.
const partitioned = "crash-partition-"

// networkKinds cut a pod of the node off. The rules are in the memory of the node's kernel.
func networkKinds() []kind {
	command := func(s *site) []string {
		return []string{
			"network", "partition", "--namespace", metav1.NamespaceDefault, "--pod", partitioned + s.node.name,
			"--ttl", "10m", "--yes",
		}
	}
	return []kind{
		{
			name:    "network partition",
			prepare: (*site).podToPartition,
			command: command,
			phases:  []phase{says("debug pod running"), says("adding a firewall rule")},
			execs:   1,
		},
		{
			name: "revert of a network partition",
			prepare: func(s *site) error {
				if err := s.podToPartition(); err != nil {
					return err
				}
				if _, err := s.must(command(s)...); err != nil {
					return err
				}
				if s.connected() == nil {
					return errors.New("the node has no rules, so this proves nothing")
				}
				return nil
			},
			command: func(*site) []string { return []string{"revert", "--all", "--yes"} },
			phases:  []phase{says("removing the firewall rule")},
			execs:   1,
		},
	}
}

// tables lists the tables of partitions on a node.
const tables = "nft list tables 2>/dev/null | grep gpu-fault- || true"

// connected checks that no rule of a partition is left on the node.
func (s *site) connected() error {
	out, err := s.node.sh(s.ctx, tables)
	if err == nil && out != "" {
		err = fmt.Errorf("left on %s: %s", s.node.name, strings.TrimSpace(out))
	}
	return err
}

// podToPartition creates the pod of the node, unless it exists, and waits until it runs.
func (s *site) podToPartition() error {
	pods := s.world.client.CoreV1().Pods(metav1.NamespaceDefault)
	name := partitioned + s.node.name
	_, err := pods.Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "crash-partition"}},
		Spec: corev1.PodSpec{
			NodeName: s.node.name, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever,
				Command: []string{"sleep", "100000"},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return eventually(s.ctx, time.Now().Add(patience), func() error {
		pod, err := pods.Get(s.ctx, name, metav1.GetOptions{})
		if err == nil && (pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "") {
			err = fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
		}
		return err
	})
}
