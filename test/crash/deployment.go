package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// deployment is the workload of one trial: a Deployment of the sample CUDA program on the trial's node, in a namespace
// of its own.
type deployment struct {
	namespace string
	was       string // before anything was done to it, as read returns it
	exercise  bool   // it is for exercises, not for cuda
	onNode    bool   // the fault is one of the node too
}

// deploymentName is that of all of them.
const deploymentName = "train"

// deploy makes the trial's Deployment, unless it has one. Nobody waits for its pod: the injection does.
func (s *site) deploy() error {
	if s.app != nil {
		return nil
	}
	return s.deployed(func(*appsv1.Deployment) {})
}

// deployed makes the Deployment, with a change.
func (s *site) deployed(change func(*appsv1.Deployment)) error {
	d := &deployment{namespace: s.ledger + "-app"}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.namespace}}
	if _, err := s.world.client.CoreV1().Namespaces().Create(s.ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	s.app = d
	labels := map[string]string{"app": deploymentName}
	object := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: deploymentName},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector:                  map[string]string{corev1.LabelHostname: s.node.name},
					TerminationGracePeriodSeconds: new(int64(0)),
					Containers: []corev1.Container{
						{Name: "main", Image: s.world.trainer, ImagePullPolicy: corev1.PullNever},
					},
				},
			},
		},
	}
	change(object)
	_, err := s.world.client.AppsV1().Deployments(d.namespace).Create(s.ctx, object,
		metav1.CreateOptions{FieldManager: "crash-user"})
	if err != nil {
		return err
	}
	d.was, err = d.read(s)
	return err
}

// takeGPU waits for one of the node's GPUs, while others work on the node. Those that came first have one first: the
// scheduler would prefer whoever comes when one is free.
func (s *site) takeGPU() error {
	return s.leave(func() error {
		select {
		case s.node.gpus <- struct{}{}:
			s.gpu = true
			return nil
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	})
}

// read returns all that a revert has to bring back, with who owns which field, and without what controllers write and
// times.
func (d *deployment) read(s *site) (string, error) {
	now, err := s.world.client.AppsV1().Deployments(d.namespace).Get(s.ctx, deploymentName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	delete(now.Annotations, "deployment.kubernetes.io/revision")
	if len(now.Annotations) == 0 {
		now.Annotations = nil
	}
	owners := slices.DeleteFunc(now.ManagedFields,
		func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "kube-controller-manager" })
	for i := range owners {
		owners[i].Time = nil
	}
	text, err := json.Marshal(
		map[string]any{"labels": now.Labels, "annotations": now.Annotations, "spec": now.Spec, "owners": owners},
	)
	return string(text), err
}

// restored checks that the Deployment is as before, also in who owns its fields, and that no ConfigMap of ours is
// beside it.
func (d *deployment) restored(s *site) error {
	now, err := d.read(s)
	if err == nil && now != d.was {
		err = fmt.Errorf("the Deployment is not as before: it was\n%s\nand is\n%s", d.was, now)
	}
	ours := metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy}
	left, listErr := s.world.client.CoreV1().ConfigMaps(d.namespace).List(s.ctx, ours)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	for _, cm := range left.Items {
		err = errors.Join(err, fmt.Errorf("configmap %s is left", cm.Name))
	}
	return err
}

// remove deletes the Deployment and its namespace, also when the trial was stopped.
func (s *site) remove() {
	if s.gpu {
		defer func() { <-s.node.gpus }()
	}
	if s.app == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Minute)
	defer cancel()
	_ = s.world.client.CoreV1().Namespaces().Delete(ctx, s.app.namespace, metav1.DeleteOptions{})
}
