package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Processes of unhealthy devices on a node.
const (
	deviceSwitch   = "gpu-fault-device-switch"
	deviceInjector = "gpu-fault-device-injector"
)

// unhealthy returns the command line that all trials use.
func unhealthy(s *site, flags ...string) []string {
	return append([]string{"device", "unhealthy", s.node.name, "--gpu", "0", "--yes"}, flags...)
}

// deviceKinds make a GPU of a node unhealthy. It is in the memory of processes, so no file tells.
func deviceKinds() []kind {
	runs := func(process string) phase {
		return phase{name: process + " runs", holds: func(n *node) bool { return len(n.named(process)) > 0 }}
	}
	return []kind{
		{
			name:    "device unhealthy",
			command: func(s *site) []string { return unhealthy(s, "--ttl", "10m") },
			phases: []phase{
				says("debug pod running"), runs(deviceSwitch), runs(deviceInjector),
				says("waiting for the node's status"),
			},
			execs: 3,
		},
		{
			name:    "revert of unhealthy devices",
			prepare: func(s *site) error { return s.failed("--ttl", "10m") },
			command: func(*site) []string { return []string{"revert", "--all", "--yes"} },
			phases:  []phase{says("re-registering the device plugin"), says("waiting for the node's status")},
			execs:   1,
		},
	}
}

// failed makes a GPU unhealthy, and checks that the node has fewer.
func (s *site) failed(flags ...string) error {
	if _, err := s.must(unhealthy(s, flags...)...); err != nil {
		return err
	}
	if s.devicesBack() == nil {
		return errors.New("no device is unhealthy, so this proves nothing")
	}
	return nil
}

// devicesBack checks that all GPUs of the node are allocatable.
func (s *site) devicesBack() error {
	n, err := s.world.client.CoreV1().Nodes().Get(s.ctx, s.node.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	q := n.Status.Allocatable["nvidia.com/gpu"]
	if q.Value() != gpusOfANode {
		return fmt.Errorf("%s GPUs of %s are allocatable, not %d", q.String(), s.node.name, gpusOfANode)
	}
	return nil
}

// named returns our processes with this name on the node, by their numbers there.
func (n *node) named(name string) (pids []string) {
	for pid, line := range n.processes() {
		if strings.HasPrefix(line, name) {
			pids = append(pids, strconv.Itoa(pid))
		}
	}
	return pids
}

// deviceDisturbances are what somebody does to unhealthy devices while they are made, or in place.
func deviceDisturbances() []trial {
	kill := func(name string) func(*site) error {
		return func(s *site) error {
			pids := s.node.named(name)
			if len(pids) == 0 {
				return fmt.Errorf("no process %s on %s", name, s.node.name)
			}
			_, err := s.node.sh(s.ctx, "kill -9 "+strings.Join(pids, " "))
			return err
		}
	}
	var all []trial
	for _, d := range []disturbance{
		{name: "injector killed", do: kill(deviceInjector), columns: []string{after, alone}},
		{name: "switch killed", do: kill(deviceSwitch), columns: []string{after, alone}},
		{name: "both killed", do: kill("gpu-fault-device-"), columns: []string{after}},
		{name: "kubelet restarted", do: onNode(restartKubelet), columns: []string{during, after, alone}},
		{name: "containerd killed", do: onNode(killContainerd), columns: []string{during, after, alone}},
		{name: "device plugin restarted", do: restartPlugin, columns: []string{during, after, alone}},
		{name: "debug pod deleted by force", do: deletePods(0), columns: []string{during}},
		{
			name: "record on the node deleted", do: onNode("rm -rf /run/gpu-fault/devices/*"),
			columns: []string{after, alone},
		},
		{name: "nothing", do: func(*site) error { return nil }, columns: []string{alone}},
	} {
		for _, column := range d.columns {
			run := map[string]func(*site) error{
				during: d.whileFailing, after: d.whileFailed, alone: d.failedUntilTheTTL,
			}[column]
			all = append(all, trial{"unhealthy devices, disturbed", d.name, column, run})
		}
	}
	return all
}

// whileFailing disturbs when the node has been asked to fail the device, and reverts.
func (d disturbance) whileFailing(s *site) error {
	said := make(chan struct{}, 1)
	c, err := s.launch(s.world.kubeconfig, func(_ *client, line string) {
		if strings.Contains(line, "reporting 1 device as unhealthy") {
			said <- struct{}{}
		}
	}, unhealthy(s, "--ttl", "10m")...)
	if err != nil {
		return err
	}
	if err = c.await(said); err == nil {
		err = d.do(s)
	}
	c.wait(s)
	return errors.Join(err, s.reverted())
}

// whileFailed disturbs an unhealthy device, and reverts.
func (d disturbance) whileFailed(s *site) error {
	if err := s.failed("--ttl", "10m"); err != nil {
		return err
	}
	return errors.Join(d.do(s), s.reverted())
}

// failedUntilTheTTL disturbs an unhealthy device, and reverts nothing: the node must end it in time.
func (d disturbance) failedUntilTheTTL(s *site) error {
	if err := s.failed(s.lasting(30 * time.Second)...); err != nil {
		return err
	}
	run, err := s.run()
	if err != nil {
		return err
	}
	err = d.do(s)
	late := run.Until.Add(max(healsWithin, s.slowest))
	return errors.Join(err, eventually(s.ctx, late, s.devicesBack), s.forgotten(run))
}

// restartPlugin has the kubelet restart the node's device plugin.
func restartPlugin(s *site) error {
	pods := s.world.client.CoreV1().Pods("kube-system")
	list, err := pods.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.node.name})
	if err != nil {
		return err
	}
	for _, pod := range list.Items {
		if strings.Contains(pod.Name, "device-plugin") {
			return pods.Delete(s.ctx, pod.Name, metav1.DeleteOptions{})
		}
	}
	return fmt.Errorf("%s has no device plugin", s.node.name)
}
