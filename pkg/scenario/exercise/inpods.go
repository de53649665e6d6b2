package exercise

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

const (
	// inPodTimeout is the maximum time to wait for a pod to be running, and for a command in it to start.
	inPodTimeout = time.Minute
	// inPodCommand is the maximum time to wait for the command in a debug container. The command may keep running.
	inPodCommand = 5 * time.Second
)

// inPods acts in the pods of a workload, bypassing the workload object.
func (c *candidate) inPods(ctx context.Context, what scenario.InPods) error {
	pods, err := c.running(ctx, what)
	if err != nil {
		return err
	}
	for i := range pods {
		pod, name := &pods[i], cmp.Or(what.Container, pods[i].Spec.Containers[0].Name)
		switch {
		case len(what.Exec) > 0:
			var said strings.Builder
			limited, cancel := context.WithTimeout(ctx, inPodTimeout)
			err = debugpod.NewExecer(c.config).Exec(limited, pod, name, what.Exec,
				debugpod.Streams{In: strings.NewReader(""), Out: io.Discard, Err: &said})
			cancel()
			if err != nil && said.Len() > 0 {
				err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
			}
		case len(what.Debug) > 0:
			err = c.debug(ctx, pod, name, what.Debug)
		case len(what.Resize) > 0:
			err = c.patchPod(ctx, pod, "resize", "containers",
				map[string]any{"name": name, "resources": what.Resize})
		default:
			err = c.mergePod(ctx, pod, map[string]any{"metadata": what.Metadata})
		}
		if err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// running waits until pods with the labels are running, and returns them.
func (c *candidate) running(ctx context.Context, what scenario.InPods) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, inPodTimeout, true,
		func(ctx context.Context) (bool, error) {
			list, err := c.client.CoreV1().Pods(what.Namespace).
				List(ctx, metav1.ListOptions{LabelSelector: what.Labels})
			if err != nil {
				return false, final(err)
			}
			pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
				name := cmp.Or(what.Container, p.Spec.Containers[0].Name)
				statuses := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
				return p.DeletionTimestamp != nil || !slices.ContainsFunc(statuses,
					func(s corev1.ContainerStatus) bool { return s.State.Running != nil && s.Name == name })
			})
			return len(pods) > 0, nil
		})
	if err != nil {
		return nil, fmt.Errorf("wait for running pods with labels %s: %w", what.Labels, err)
	}
	return pods, nil
}

// debug adds a debug container, and waits until its command has exited or has been running for a while.
func (c *candidate) debug(ctx context.Context, pod *corev1.Pod, target string, command []string) error {
	name := "debugger-" + rand.String(5)
	err := c.patchPod(ctx, pod, "ephemeralcontainers", "ephemeralContainers", map[string]any{
		"name": name, "image": c.lab.probeImage(), "imagePullPolicy": corev1.PullIfNotPresent,
		"targetContainerName": target, "command": command,
	})
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, inPodTimeout, true,
		func(ctx context.Context) (bool, error) {
			now, err := c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return false, final(err)
			}
			if now.Status.Phase != corev1.PodRunning { // the command terminated the program
				return true, nil
			}
			for _, s := range now.Status.EphemeralContainerStatuses {
				if s.Name != name {
					continue
				}
				if ended := s.State.Terminated; ended != nil && ended.ExitCode != 0 {
					return false, errors.New("the command in the debug container failed: exit code " +
						fmt.Sprint(ended.ExitCode))
				}
				return s.State.Terminated != nil ||
					s.State.Running != nil && time.Since(s.State.Running.StartedAt.Time) > inPodCommand, nil
			}
			return false, nil
		})
}

// patchPod sets an item of a list in a pod's spec through a subresource.
func (c *candidate) patchPod(
	ctx context.Context, pod *corev1.Pod, subresource, list string, item map[string]any,
) error {
	return c.mergePod(ctx, pod, map[string]any{"spec": map[string]any{list: []any{item}}}, subresource)
}

// mergePod patches a pod or its subresource.
func (c *candidate) mergePod(ctx context.Context, pod *corev1.Pod, change map[string]any, subresource ...string) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{FieldManager: objects.ManagerPatch}, subresource...)
	return err
}
