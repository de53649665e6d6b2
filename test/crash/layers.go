package main

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// layers is the group of trials of one fault in every layer: a node and a Deployment of it, in one run.
const layers = "xid in every layer"

// layerKinds have a Deployment whose pod holds a GPU of the trial's node.
func layerKinds() []kind {
	inject := func(s *site) []string {
		return []string{
			"xid", "79", s.node.name, "--layers", "kernel,device,cuda", "--workload", "deployment/" + deploymentName,
			"-n", s.app.namespace, "--ttl", "10m", "--yes",
		}
	}
	return []kind{
		{
			name:    layers,
			prepare: (*site).deployOnGPU,
			command: inject,
			phases: []phase{
				says("waiting for processes to notice the change"), says("reporting 1 device as unhealthy"),
				says("waiting for the node's status"), says("writing 1 record"),
			},
			execs: 4,
		},
		{
			name: "revert of every layer",
			prepare: func(s *site) error {
				if err := s.deployOnGPU(); err != nil {
					return err
				}
				_, err := s.must(inject(s)...)
				return err
			},
			command: func(*site) []string { return []string{"revert", "--all", "--yes"} },
			phases: []phase{
				says("re-registering the device plugin"), says("waiting for running processes to notice that they are disarmed"),
			},
			execs: 1,
		},
	}
}

// deployOnGPU makes the trial's Deployment, unless it has one, with a pod that holds a GPU of the node. The node stays
// the trial's own: the fault is one of the node, too.
func (s *site) deployOnGPU() error {
	if s.app != nil {
		return nil
	}
	if err := s.takeGPU(); err != nil {
		return err
	}
	err := s.deployed(func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse("1"),
		}
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
			MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1)),
		}
	})
	if s.app != nil {
		s.app.onNode = true
	}
	return err
}
