package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/dra"
	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

// published is what the driver publishes for a node.
type published struct {
	version string              // of the ResourceSlice
	taints  map[string][]string // by UUID
	since   time.Time
}

// history has what the watches have seen. It watches, because times are measured, and a state that lasts for a moment
// must not be missed.
type history struct {
	mu        sync.Mutex
	published map[string]published         // by node
	vanished  []string                     // nodes whose ResourceSlice was deleted
	running   map[string]map[string]string // nodes: pods with a running driver: container IDs
	most      int                          // drivers that ran on a node at the same time
	started   map[string]bool              // container IDs of drivers that have run on the faulty node
	ended     time.Time                    // when a driver of the faulty node ended last
	ready     time.Time                    // when a driver of the faulty node became ready last
}

// follow updates the history until ctx ends.
func (h *history) follow(ctx context.Context, client kubernetes.Interface) error {
	slices, err := client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	go func() {
		for e := range slices.ResultChan() {
			if s, ok := e.Object.(*resourcev1.ResourceSlice); ok && s.Spec.Driver == driver && s.Spec.NodeName != nil {
				h.slice(e.Type, s)
			}
		}
	}()
	go func() {
		for e := range pods.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				h.pod(e.Type, p)
			}
		}
	}()
	return nil
}

func (h *history) slice(event watch.EventType, s *resourcev1.ResourceSlice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.published == nil {
		h.published = map[string]published{}
	}
	node := *s.Spec.NodeName
	if event == watch.Deleted {
		h.vanished = append(h.vanished, node)
		delete(h.published, node)
		return
	}
	now := published{version: s.ResourceVersion, taints: map[string][]string{}, since: time.Now()}
	for _, d := range s.Spec.Devices {
		id := d.Name
		if uuid := d.Attributes["uuid"].StringValue; uuid != nil {
			id = *uuid
		}
		now.taints[id] = []string{}
		for _, t := range d.Taints {
			now.taints[id] = append(now.taints[id], dra.TaintText(t))
		}
	}
	// The order of the devices in a slice changes when the driver starts.
	if was := h.published[node]; maps.EqualFunc(was.taints, now.taints, slices.Equal[[]string]) {
		now.since = was.since
	}
	h.published[node] = now
}

func (h *history) pod(event watch.EventType, p *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	node := p.Spec.NodeName
	if h.running == nil {
		h.running, h.started = map[string]map[string]string{}, map[string]bool{}
	}
	if h.running[node] == nil {
		h.running[node] = map[string]string{}
	}
	id := ""
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container && s.State.Running != nil && event != watch.Deleted {
			id = s.ContainerID
		}
	}
	before := h.running[node][p.Name]
	if id == "" {
		delete(h.running[node], p.Name)
	} else {
		h.running[node][p.Name] = id
	}
	h.most = max(h.most, len(h.running[node]))
	if node != faulty {
		return
	}
	if id != "" {
		h.started[id] = true
	}
	if before != "" && id == "" {
		h.ended, h.ready = time.Now(), time.Time{}
	}
	if h.ready.IsZero() && peers.IsReady(p) {
		h.ready = time.Now()
	}
}

// of returns what is published for a node.
func (h *history) of(node string) published {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.published[node]
}

// absence returns how long the faulty node had no ready driver when its pod was replaced last.
func (h *history) absence() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return peers.Elapsed(h.ended, h.ready)
}

// drivers returns how many drivers have run on the faulty node.
func (h *history) drivers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.started)
}

// calm returns an error if two drivers have run on a node at the same time, or a ResourceSlice was deleted.
func (h *history) calm() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.most > 1:
		return fmt.Errorf("%d drivers have run on a node at the same time", h.most)
	case len(h.vanished) > 0:
		return fmt.Errorf("the ResourceSlices of these nodes have vanished: %s", strings.Join(h.vanished, ", "))
	}
	return nil
}

// isCopy reports whether a pod is the copy with the shim.
func isCopy(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.InitContainers,
		func(c corev1.Container) bool { return c.Name == "gpu-fault-gate" })
}

// settled returns the pods by node. It returns an error unless each node has one, all are ready and the DaemonSet's,
// and that of the faulty node is the copy, or is not.
func settled(pods []corev1.Pod, copied bool) (map[string]corev1.Pod, error) {
	on := map[string]corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		owner := metav1.GetControllerOf(pod)
		switch {
		case pod.DeletionTimestamp != nil:
			return nil, fmt.Errorf("pod %s is being deleted", pod.Name)
		case !peers.IsReady(pod):
			return nil, fmt.Errorf("pod %s is not ready", pod.Name)
		case owner == nil || owner.Name != daemonSet:
			return nil, fmt.Errorf("pod %s is not the DaemonSet's", pod.Name)
		case isCopy(pod) != (copied && pod.Spec.NodeName == faulty):
			return nil, fmt.Errorf("pod %s is a copy: %t", pod.Name, isCopy(pod))
		}
		on[pod.Spec.NodeName] = *pod
	}
	if len(on) != len(pods) || len(on) != 2 {
		return nil, errors.New("not every node has one pod")
	}
	return on, nil
}

// sameRun returns an error if a pod was replaced, restarted or stopped between two looks at it.
func sameRun(before, after *corev1.Pod) error {
	switch {
	case before.UID != after.UID:
		return fmt.Errorf("pod %s was replaced by %s", before.Name, after.Name)
	case !peers.IsReady(after):
		return fmt.Errorf("pod %s is not ready", after.Name)
	case before.Status.ContainerStatuses[0].RestartCount != after.Status.ContainerStatuses[0].RestartCount:
		return fmt.Errorf("the container of pod %s was restarted", after.Name)
	}
	return nil
}

// claimed returns a claim for one GPU, and a pod on a node that has it and prints which device files it got. Without a
// UUID, the scheduler chooses.
func claimed(name, node, uuid string) (*resourcev1.ResourceClaim, *corev1.Pod) {
	request := &resourcev1.ExactDeviceRequest{DeviceClassName: driver}
	if uuid != "" {
		request.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes[%q].uuid == %q", driver, uuid),
		}}}
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: request}},
		}},
	}
	none := int64(0)
	return claim, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			TerminationGracePeriodSeconds: &none,
			ResourceClaims:                []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers: []corev1.Container{{
				Name: "gpu", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever,
				Command:   []string{"sh", "-c", "ls /dev/nvidia[0-9]*; sleep 10000"},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}
}
