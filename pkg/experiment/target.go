package experiment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// Nodes resolves a target to existing nodes. The function workload returns the pod selector of a workload (TYPE/NAME).
// If it is nil, SelectorOf is used.
func (t *Target) Nodes(
	ctx context.Context, client kubernetes.Interface,
	workload func(ctx context.Context, ref, namespace string) (labels.Selector, error),
) ([]string, error) {
	var found []string
	switch {
	case t.Node != "":
		if _, err := client.CoreV1().Nodes().Get(ctx, t.Node, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("node %s: %w", t.Node, err)
		}
		return []string{t.Node}, nil
	case t.Selector != "":
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: t.Selector})
		if err != nil {
			return nil, fmt.Errorf("list nodes with label %s: %w", t.Selector, err)
		}
		for _, n := range nodes.Items {
			found = append(found, n.Name)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("no node matches the selector %q", t.Selector)
		}
	case t.PodsOf != "":
		if workload == nil {
			workload = func(ctx context.Context, ref, namespace string) (labels.Selector, error) {
				return SelectorOf(ctx, client, ref, namespace)
			}
		}
		selector, err := workload(ctx, t.PodsOf, t.Namespace)
		if err != nil {
			return nil, err
		}
		t.Pods = selector
		pods, err := client.CoreV1().Pods(t.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
		if err != nil {
			return nil, fmt.Errorf("list the pods of %s: %w", t.PodsOf, err)
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil &&
				!slices.Contains(found, p.Spec.NodeName) {
				found = append(found, p.Spec.NodeName)
			}
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s in namespace %s has no running pods", t.PodsOf, t.Namespace)
		}
	default:
		return nil, fmt.Errorf("the experiment has no target: specify --node, -l or --pods-of")
	}
	slices.Sort(found)
	n, err := t.pick(len(found))
	if err != nil {
		return nil, err
	}
	if t.Seed != 0 {
		rand.New(rand.NewPCG(uint64(t.Seed), 0)).Shuffle(len(found), func(i, j int) { //nolint:gosec // to repeat it
			found[i], found[j] = found[j], found[i]
		})
	}
	found = found[:n]
	slices.Sort(found)
	return found, nil
}

// SelectorOf returns the pod selector of a workload of one of Kubernetes' own kinds.
func SelectorOf(
	ctx context.Context, client kubernetes.Interface, ref, namespace string,
) (labels.Selector, error) {
	kind, name, _ := strings.Cut(ref, "/")
	kind, _, _ = strings.Cut(strings.ToLower(kind), ".") // deployments.apps
	var selector *metav1.LabelSelector
	var err error
	get := metav1.GetOptions{}
	switch apps := client.AppsV1(); kind {
	case "deployment", "deployments", "deploy":
		o, e := apps.Deployments(namespace).Get(ctx, name, get)
		selector, err = o.Spec.Selector, e
	case "statefulset", "statefulsets", "sts":
		o, e := apps.StatefulSets(namespace).Get(ctx, name, get)
		selector, err = o.Spec.Selector, e
	case "replicaset", "replicasets", "rs":
		o, e := apps.ReplicaSets(namespace).Get(ctx, name, get)
		selector, err = o.Spec.Selector, e
	case "daemonset", "daemonsets", "ds":
		o, e := apps.DaemonSets(namespace).Get(ctx, name, get)
		selector, err = o.Spec.Selector, e
	case "job", "jobs":
		o, e := client.BatchV1().Jobs(namespace).Get(ctx, name, get)
		selector, err = o.Spec.Selector, e
	default:
		return nil, fmt.Errorf("unknown type in %q: must be deployment, statefulset, replicaset, daemonset or job", ref)
	}
	if err != nil {
		return nil, fmt.Errorf("%s in namespace %s: %w", ref, namespace, err)
	}
	return metav1.LabelSelectorAsSelector(selector)
}
