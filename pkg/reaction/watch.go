package reaction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Limits above which one watch of everything is cheaper than several selective watches.
const (
	mostNodes      = 20
	mostNamespaces = 5
)

// startTimeout is the maximum time until the first states arrive.
const startTimeout = 30 * time.Second

// Options determine what to watch.
type Options struct {
	Client kubernetes.Interface
	// Targets are the nodes with the fault.
	Targets []string
	// AllNodes selects all nodes, for expectations about nodes that are not targets.
	AllNodes bool
	// Namespace and Selector select the pods of a workload, which matter on any node; see Tracker.Workload.
	Namespace string
	Selector  labels.Selector
	// OnlyReactions saves memory: News.Node is never set, and only the fields of nodes that affect reactions are kept.
	OnlyReactions bool
	// Each is called with each change. Calls do not overlap.
	Each func(News)
}

// News is a change in the cluster.
type News struct {
	Reactions []Reaction
	// Node is the node that has changed. It is nil if something else has changed, or if OnlyReactions is set.
	Node *corev1.Node
}

// Baseline is the state before the fault.
type Baseline struct {
	// Victims is the number of pods on each target that can be evicted.
	Victims map[string]int
}

// Watch follows the cluster until ctx ends. It returns as soon as the states before the fault are known, and continues
// in the background. Later changes are reactions.
func Watch(ctx context.Context, o Options) (Baseline, error) {
	w := &watcher{Options: o, tracker: NewTracker(o.Targets), failed: map[string]error{}}
	if o.Selector != nil {
		w.tracker.Workload = func(pod *corev1.Pod) bool {
			return pod.Namespace == o.Namespace && o.Selector.Matches(labels.Set(pod.Labels))
		}
	}
	namespaces, err := w.namespaces(ctx)
	if err != nil {
		return Baseline{}, err
	}
	core := o.Client.CoreV1()

	nodes := []string{""}
	if !o.AllNodes {
		nodes = selectors(o.Targets, "metadata.name=", "")
	}
	for _, selector := range nodes {
		w.follow(ctx, "nodes", selector, true, listWatch(core.Nodes().List, core.Nodes().Watch), &corev1.Node{},
			func(object any, _ bool, at time.Time) []Reaction { return w.tracker.Node(object.(*corev1.Node), at) },
			func(object any, at time.Time) []Reaction { return w.tracker.NodeGone(object.(*corev1.Node).Name, at) })
	}
	for _, namespace := range namespaces {
		pods := core.Pods(namespace)
		w.follow(ctx, "pods", "", true, listWatch(pods.List, pods.Watch), &corev1.Pod{},
			func(object any, atStart bool, at time.Time) []Reaction {
				return w.tracker.pod(object.(*podState), atStart, at)
			},
			func(object any, at time.Time) []Reaction { return w.tracker.podGone(object.(*podState), at) })
	}
	events := core.Events(metav1.NamespaceAll)
	for _, selector := range aboutNodes(o.Targets) {
		w.follow(ctx, "events", selector, true, listWatch(events.List, events.Watch), &corev1.Event{},
			func(object any, atStart bool, at time.Time) []Reaction {
				return w.tracker.Event(object.(*corev1.Event), atStart, at)
			}, nil)
	}
	maps := core.ConfigMaps(metav1.NamespaceAll)
	w.follow(ctx, "configmaps", "metadata.name=circuit-breaker", false, listWatch(maps.List, maps.Watch),
		&corev1.ConfigMap{},
		func(object any, _ bool, at time.Time) []Reaction {
			return w.tracker.Breaker(object.(*corev1.ConfigMap).Data["status"], at)
		}, nil)
	if err := w.wait(ctx); err != nil {
		return Baseline{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b := Baseline{Victims: map[string]int{}}
	for _, name := range o.Targets {
		b.Victims[name] = w.tracker.Victims(name)
	}
	return b, nil
}

type watcher struct {
	Options
	tracker *Tracker
	synced  []required

	mu     sync.Mutex
	failed map[string]error // the last error for each resource
}

type required struct {
	resource string
	synced   cache.InformerSynced
}

// namespaces returns the namespaces of the pods that can be evicted from the targets, in which their replacements will
// appear.
func (w *watcher) namespaces(ctx context.Context) ([]string, error) {
	var found []string
	if w.Selector != nil {
		found = append(found, w.Namespace)
	}
	for _, name := range w.Targets[:min(len(w.Targets), mostNodes)] {
		pods, err := w.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("list the pods on node %s: %w", name, err)
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; CanBeEvicted(pod) && !slices.Contains(found, pod.Namespace) {
				found = append(found, pod.Namespace)
			}
		}
	}
	if len(found) > mostNamespaces || len(w.Targets) > mostNodes {
		return []string{metav1.NamespaceAll}, nil
	}
	return found, nil
}

func listWatch[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, o)
		},
		WatchFuncWithContext: follow,
	}
}

// follow passes the states of all selected objects to the tracker. An optional resource may be unreadable.
func (w *watcher) follow(
	ctx context.Context, resource, selector string, must bool, from *cache.ListWatch, object runtime.Object,
	changed func(object any, atStart bool, at time.Time) []Reaction, gone func(object any, at time.Time) []Reaction,
) {
	list, follow := from.ListWithContextFunc, from.WatchFuncWithContext
	from.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = selector
		return list(ctx, o)
	}
	from.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = selector
		return follow(ctx, o)
	}
	// A fake client reports that it does not support streamed lists.
	informer := cache.NewSharedInformer(cache.ToListWatcherWithWatchListSemantics(from, w.Client), object, 0)
	// The informer transforms each object as it arrives, including objects in a streamed list.
	_ = informer.SetTransform(w.slim) // fails only after the start
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failed[resource] = err
	})
	report := func(object any, act func(at time.Time) []Reaction) {
		at := time.Now()
		w.mu.Lock()
		defer w.mu.Unlock()
		var node *corev1.Node
		if !w.OnlyReactions {
			node, _ = object.(*corev1.Node)
		}
		w.Each(News{Reactions: act(at), Node: node})
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, atStart bool) {
			report(object, func(at time.Time) []Reaction { return changed(object, atStart, at) })
		},
		UpdateFunc: func(_, object any) {
			report(object, func(at time.Time) []Reaction { return changed(object, false, at) })
		},
		DeleteFunc: func(object any) {
			if unknown, is := object.(cache.DeletedFinalStateUnknown); is {
				object = unknown.Obj
			}
			if gone != nil {
				report(object, func(at time.Time) []Reaction { return gone(object, at) })
			}
		},
	})
	if err == nil && must {
		w.synced = append(w.synced, required{resource, registration.HasSynced})
	}
	go informer.RunWithContext(ctx)
}

// slim returns the part of an object that stays in memory. An informer may pass an object that is already slim.
func (w *watcher) slim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return w.tracker.stateOf(o), nil
	case *corev1.Node:
		o.Status.Images, o.Status.VolumesAttached, o.Status.VolumesInUse = nil, nil, nil
		if w.OnlyReactions {
			*o = *w.tracker.memory.onlyReactions(o)
		}
		for i := range o.ManagedFields {
			o.ManagedFields[i].FieldsV1 = w.tracker.memory.fieldsV1(o.ManagedFields[i].FieldsV1)
		}
	}
	return object, nil
}

// onlyReactions returns a node with only the fields that nodeChanges and isClosed read.
func (m *memory) onlyReactions(node *corev1.Node) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, ManagedFields: node.ManagedFields,
			Labels: only(node.Labels, stateLabel), Annotations: only(node.Annotations, decisionOnNode),
		},
		Spec: corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
		Status: corev1.NodeStatus{
			NodeInfo:    corev1.NodeSystemInfo{BootID: node.Status.NodeInfo.BootID},
			Allocatable: onlyDevices(node.Status.Allocatable), Capacity: onlyDevices(node.Status.Capacity),
		},
	}
	for _, c := range node.Status.Conditions {
		slim.Status.Conditions = append(slim.Status.Conditions, corev1.NodeCondition{
			Type:   corev1.NodeConditionType(m.text(string(c.Type))),
			Status: corev1.ConditionStatus(m.text(string(c.Status))), Message: m.text(c.Message),
		})
	}
	return slim
}

// only returns a map with only the given key, or nil if the key has no value.
func only(all map[string]string, key string) map[string]string {
	if all[key] == "" {
		return nil
	}
	return map[string]string{key: all[key]}
}

func onlyDevices(all corev1.ResourceList) (kept corev1.ResourceList) {
	for name, quantity := range all {
		if !isDevice(name) {
			continue
		}
		if kept == nil {
			kept = corev1.ResourceList{}
		}
		kept[name] = quantity
	}
	return kept
}

// wait waits for the first states.
func (w *watcher) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("timeout"))
	defer cancel()
	for _, r := range w.synced {
		if cache.WaitForCacheSync(ctx.Done(), r.synced) {
			continue
		}
		w.mu.Lock()
		err := w.failed[r.resource]
		w.mu.Unlock()
		if err == nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("cannot watch %s: %w", r.resource, err)
	}
	return nil
}
