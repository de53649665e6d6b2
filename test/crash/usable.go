package main

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// usable returns the trials of the end: on every node that was broken so often a pod of the runtime class still starts,
// and nobody has rights any more.
func usable(workers []*node) []trial {
	var all []trial
	for _, n := range workers {
		all = append(all, trial{
			"in the end", "a GPU pod starts on " + n.name, after, func(s *site) error { return s.startsPod(n.name) },
		})
	}
	return append(all, trial{"in the end", "no role of an exercise", after, (*site).noLab})
}

// startsPod runs a pod of the runtime class nvidia, on whichever node.
func (s *site) startsPod(nodeName string) error {
	pods := s.world.client.CoreV1().Pods(metav1.NamespaceDefault)
	class := "nvidia"
	pod, err := pods.Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "crash-"},
		Spec: corev1.PodSpec{
			NodeName: nodeName, RuntimeClassName: &class, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{
				{Name: "true", Image: "busybox:1.35", Command: []string{"true"}, ImagePullPolicy: corev1.PullNever},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = eventually(s.ctx, time.Now().Add(2*patience), func() error {
		now, err := pods.Get(s.ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("the pod is %s: %+v", now.Status.Phase, now.Status.ContainerStatuses)
		}
		return err
	})
	return errors.Join(err, pods.Delete(s.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}
