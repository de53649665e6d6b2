package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// exerciseKinds are exercises on somebody's Deployment: they patch what is not theirs, give a candidate rights there,
// and keep records of their own beside the ledger's.
func exerciseKinds() []kind {
	return []kind{
		{name: "scenario start", prepare: (*site).exercised, command: startExercise},
		{
			name: "scenario end",
			prepare: func(s *site) error {
				if err := s.exercised(); err != nil {
					return err
				}
				_, err := s.must(startExercise(s)...)
				return err
			},
			command: func(*site) []string { return []string{"scenario", "end", "--yes"} },
		},
	}
}

// startExercise returns the command line that all trials use. Each use writes another file.
func startExercise(s *site) []string {
	file := filepath.Join(s.dir, fmt.Sprintf("candidate-%d", time.Now().UnixNano()))
	return []string{"scenario", "start", "gpu-resources", "--workload", "deployment/" + deploymentName, "-n",
		s.app.namespace, "--seed", "1", "--set", "kind=count",
		"--kubeconfig-out", file, "--allow-control-plane", "--allow-majority", "--allow-last-gpu-node", "--yes"}
}

// exercised makes the trial's Deployment one with a GPU, and waits until it runs: an exercise begins with what works.
// It waits while others work on the node, as some of them have its GPUs.
func (s *site) exercised() error {
	if s.app == nil {
		if err := s.takeGPU(); err != nil {
			return err
		}
		err := s.deployed(func(d *appsv1.Deployment) {
			pod := &d.Spec.Template.Spec
			pod.Containers[0].Image, pod.Containers[0].Command = "busybox:1.35", []string{"sleep", "100000"}
			pod.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		})
		if err != nil {
			return err
		}
		s.app.exercise = true
	}
	err := s.leave(func() error {
		return eventually(s.ctx, time.Now().Add(trialTimeout), func() error {
			d, err := s.world.client.AppsV1().Deployments(s.app.namespace).Get(s.ctx, deploymentName,
				metav1.GetOptions{})
			if err == nil &&
				(d.Status.ObservedGeneration < d.Generation || d.Status.AvailableReplicas < 1 ||
					d.Status.Replicas != 1) {
				err = fmt.Errorf("the Deployment is not rolled out: %+v", d.Status)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	return s.settledNode()
}

// ended ends the exercise, if there is one, and checks that nothing of it is left in the Deployment's namespace. The
// exit code 2 of `scenario end` says that the cluster is another one than before, which it is: other trials are at work
// in it.
func (s *site) ended() error {
	running, err := s.exercises()
	if err != nil {
		return err
	}
	for _, id := range running {
		if _, stderr, code, err := s.plugin("scenario", "end", id, "--yes"); err != nil || code != 0 && code != 2 {
			return errors.Join(err, fmt.Errorf("`scenario end` exits with %d: %s", code, stderr))
		}
	}
	if running, err = s.exercises(); err != nil || len(running) > 0 {
		return errors.Join(err, fmt.Errorf("exercises run still: %v", running))
	}
	roles, err := s.world.client.RbacV1().Roles(s.app.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	bindings, err := s.world.client.RbacV1().RoleBindings(s.app.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	accounts, err := s.world.client.CoreV1().ServiceAccounts(s.app.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var left []string
	for _, o := range roles.Items {
		left = append(left, "Role "+o.Name)
	}
	for _, o := range bindings.Items {
		left = append(left, "RoleBinding "+o.Name)
	}
	for _, o := range accounts.Items {
		if o.Name != "default" {
			left = append(left, "ServiceAccount "+o.Name)
		}
	}
	return leftover(left)
}

// exercises returns those that run.
func (s *site) exercises() ([]string, error) {
	stdout, err := s.must("scenario", "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		return nil, fmt.Errorf("what `scenario status -o json` prints: %w", err)
	}
	var ids []string
	for _, item := range list.Items {
		ids = append(ids, item.ID)
	}
	return ids, nil
}

// noLab checks, when all is over, that no role of an exercise is left in the cluster.
func (s *site) noLab() error {
	roles, err := s.world.client.RbacV1().ClusterRoles().List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	bindings, err := s.world.client.RbacV1().ClusterRoleBindings().List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var left []string
	for _, o := range roles.Items {
		if strings.HasPrefix(o.Name, "lab-") {
			left = append(left, "ClusterRole "+o.Name)
		}
	}
	for _, o := range bindings.Items {
		if strings.HasPrefix(o.Name, "lab-") {
			left = append(left, "ClusterRoleBinding "+o.Name)
		}
	}
	return leftover(left)
}
