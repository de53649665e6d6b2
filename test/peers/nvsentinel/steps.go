package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

const (
	faulty   = "node-b" // the node with the fault, and NVSentinel's monitor
	workload = "served" // the namespace and the name of a Deployment on it; cluster.yaml creates both

	stateLabel = "dgxc.nvidia.com/nvsentinel-state"
	detected   = "detected: condition SysLogsXIDError with code 79 and the GPU"
	cordoned   = "cordoned: unschedulable, annotation quarantineHealthEvent"
	remediated = "remediated: a RebootNode was created, label remediation-succeeded"
)

// within is the deadline of an expectation.
var within = regexp.MustCompile(`within: \w+`)

// step is a state of the node, or of the workload, that NVSentinel must bring about.
type step struct {
	name string
	node func(w *watcher, node *corev1.Node) bool
	pod  func(w *watcher, pod *corev1.Pod) bool
}

// chain is what NVSentinel does about the fault.
var chain = []step{
	{name: detected, node: func(w *watcher, n *corev1.Node) bool {
		c := condition(n)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "ErrorCode:79") &&
			strings.Contains(c.Message, w.gpu.PCI)
	}},
	{name: cordoned, node: func(_ *watcher, n *corev1.Node) bool {
		return n.Spec.Unschedulable && n.Annotations["quarantineHealthEvent"] != ""
	}},
	{name: "drained: label drain-succeeded", node: hasState("drain-succeeded")},
	{name: "moved: the workload is ready on another node", pod: func(w *watcher, p *corev1.Pod) bool {
		return p.Spec.NodeName != "" && p.Spec.NodeName != faulty && peers.IsReady(p)
	}},
	{name: remediated, node: hasState("remediation-succeeded")},
}

// undone is what it does after a reset of the GPU.
var undone = []step{
	{name: "cleared: condition SysLogsXIDError is False", node: func(_ *watcher, n *corev1.Node) bool {
		return condition(n).Status == corev1.ConditionFalse
	}},
	{name: "uncordoned: schedulable", node: func(_ *watcher, n *corev1.Node) bool { return !n.Spec.Unschedulable }},
}

func hasState(state string) func(*watcher, *corev1.Node) bool {
	return func(_ *watcher, n *corev1.Node) bool { return n.Labels[stateLabel] == state }
}

// watcher records when each step was first seen. It watches, because some states of the label last for milliseconds.
type watcher struct {
	gpu  peers.GPU
	stop context.CancelFunc

	mu      sync.Mutex
	last    *corev1.Node
	seen    map[string]time.Time
	changed chan struct{} // closed, and replaced, at each change
}

func (p *peer) watch(ctx context.Context) (*watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{
		gpu: p.gpu, stop: cancel, seen: map[string]time.Time{}, changed: make(chan struct{}),
	}
	nodes, err := p.Client.CoreV1().Nodes().Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + faulty})
	if err != nil {
		cancel()
		return nil, err
	}
	pods, err := p.Client.CoreV1().Pods(workload).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	go w.follow(ctx, nodes.ResultChan(), pods.ResultChan())
	return w, nil
}

func (w *watcher) follow(ctx context.Context, nodes, pods <-chan watch.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-nodes:
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				return
			}
			w.take(n, nil)
		case e := <-pods:
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				return
			}
			w.take(nil, p)
		}
	}
}

// take records the steps that a change of the node or of a pod completes.
func (w *watcher) take(n *corev1.Node, p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	steps := chain
	if n != nil {
		w.last = n
	}
	// A step of the end looks like the state before the fault.
	if !w.seen[detected].IsZero() && !w.seen[cordoned].IsZero() {
		steps = append(steps[:len(steps):len(steps)], undone...)
	}
	for _, s := range steps {
		if !w.seen[s.name].IsZero() {
			continue
		}
		if n != nil && s.node != nil && s.node(w, n) || p != nil && s.pod != nil && s.pod(w, p) {
			w.seen[s.name] = time.Now()
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// wait waits for a step, and returns when it was seen.
func (w *watcher) wait(ctx context.Context, name string) (time.Time, error) {
	late := time.After(peers.Patience)
	for {
		w.mu.Lock()
		at, changed := w.seen[name], w.changed
		w.mu.Unlock()
		if !at.IsZero() {
			return at, nil
		}
		select {
		case <-changed:
		case <-late:
			return at, fmt.Errorf("timed out after %s", peers.Patience)
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}

// describe returns what explains a step that was not seen.
func (w *watcher) describe() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		return "not seen"
	}
	return fmt.Sprintf("unschedulable %t, label %q, condition %q", w.last.Spec.Unschedulable,
		w.last.Labels[stateLabel], condition(w.last).Message)
}

// placeWorkload waits until the only pod of the workload is ready on the node, and deletes it elsewhere.
func (p *peer) placeWorkload(ctx context.Context) error {
	pods := p.Client.CoreV1().Pods(workload)
	return peers.Until(ctx, "the workload on "+faulty, func() error {
		all, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(all.Items) != 1 {
			return fmt.Errorf("%d pods", len(all.Items))
		}
		pod := &all.Items[0]
		if pod.Spec.NodeName == faulty && peers.IsReady(pod) {
			return nil
		}
		if pod.Spec.NodeName != "" && pod.Spec.NodeName != faulty {
			_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
		}
		return fmt.Errorf("pod %s is on node %q", pod.Name, pod.Spec.NodeName)
	})
}
