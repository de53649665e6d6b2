package devicehealth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const (
	// statusTimeout is how long to wait for the kubelet to report a change: by default it updates its node's status
	// every 10 s.
	statusTimeout = time.Minute
	// podTimeout is how long to wait for the kubelet to report the health of devices in a pod's status, after the
	// node's status has changed. If the feature gate ResourceHealthStatus is disabled, the kubelet never reports it.
	podTimeout = 15 * time.Second
	pollEvery  = 100 * time.Millisecond
	// podPollEvery is longer, because each poll lists all pods on the node.
	podPollEvery = 500 * time.Millisecond
)

// prove waits until the API server shows what the kubelet has recorded: fewer allocatable devices, and the health of
// the failed devices in the statuses of the pods that hold them.
func (in *Injection) prove(
	ctx context.Context, nodeName string, failed api.FailedDevices, before int64,
) ([]ledger.Evidence, error) {
	healthy := int64(failed.Healthy)
	if err := awaitAllocatable(ctx, in.Client, nodeName, failed.Resource, healthy, healthy); err != nil {
		return nil, err
	}
	evidence := []ledger.Evidence{ledger.NewEvidence("node status", "allocatable %s: %d -> %d", failed.Resource, before,
		failed.Healthy)}
	if len(failed.Pods) == 0 {
		return evidence, nil
	}
	shown, missing, err := in.podsShow(ctx, nodeName, failed)
	if err != nil {
		return append(evidence, ledger.NewEvidence("pod status", "could not be read: %v", err)), context.Cause(ctx)
	}
	for _, text := range shown {
		evidence = append(evidence, ledger.NewEvidence("pod status", "%s", text))
	}
	if len(missing) > 0 {
		evidence = append(evidence, ledger.NewEvidence("pod status",
			"does not show the health of devices for %s: the kubelet's ResourceHealthStatus feature gate is "+
				"disabled, or the kubelet version is too old; only the node's allocatable resources show the "+
				"fault", strings.Join(missing, ", ")))
	}
	return evidence, context.Cause(ctx)
}

// awaitAllocatable waits until the number of allocatable devices in the node's status is within the bounds.
func awaitAllocatable(
	ctx context.Context, client kubernetes.Interface, nodeName, resource string, want, most int64,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, errors.New("timed out"))
	defer cancel()
	var last string
	for {
		all, err := fault.Allocatable(ctx, client, nodeName)
		now := all[corev1.ResourceName(resource)]
		switch {
		case err != nil:
			last = err.Error()
		case now >= want && now <= most:
			return nil
		default:
			last = fmt.Sprintf("the kubelet has recorded %d healthy devices of %s, but the node's status shows %d allocatable",
				want, resource, now)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s; is the kubelet on node %s running?", context.Cause(ctx), last, nodeName)
		case <-time.After(pollEvery):
		}
	}
}

// podsShow waits until the statuses of the pods that hold failed devices show the devices' health. It returns the
// devices of each pod whose status shows it, and the names of the other pods. The error comes from the API server.
func (in *Injection) podsShow(
	ctx context.Context, nodeName string, failed api.FailedDevices,
) (shown, missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	for {
		pods, err := in.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodeName).String(),
		})
		if err != nil {
			return nil, nil, err
		}
		if shown, missing = statuses(pods.Items, failed); len(missing) == 0 {
			return shown, nil, nil
		}
		select {
		case <-ctx.Done():
			return shown, missing, nil
		case <-time.After(podPollEvery):
		}
	}
}

// statuses returns the failed devices that pod statuses show as unhealthy, and the names of the pods that hold failed
// devices but whose statuses do not show this.
func statuses(pods []corev1.Pod, failed api.FailedDevices) (shown, missing []string) {
	for _, pod := range pods {
		if !slices.Contains(failed.Pods, string(pod.UID)) {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		if ids := unhealthy(pod, failed); len(ids) > 0 {
			shown = append(shown, fmt.Sprintf("%s: %s %s Unhealthy", name, failed.Resource, strings.Join(ids, ", ")))
		} else {
			missing = append(missing, name)
		}
	}
	return shown, missing
}

// unhealthy returns the failed devices that a pod's status shows as unhealthy.
func unhealthy(pod corev1.Pod, failed api.FailedDevices) (ids []string) {
	for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, resource := range container.AllocatedResourcesStatus {
			if string(resource.Name) != failed.Resource {
				continue
			}
			for _, device := range resource.Resources {
				id := string(device.ResourceID)
				if device.Health == corev1.ResourceHealthStatusUnhealthy && slices.Contains(failed.Devices, id) {
					ids = append(ids, id)
				}
			}
		}
	}
	return ids
}
