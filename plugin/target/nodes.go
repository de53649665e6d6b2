// Package target turns names and selectors of the command line into what a fault aims at.
package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// Nodes picks nodes: by name, by label selector, or as the node of a pod. Exactly one of the three.
type Nodes struct {
	Names    []string
	Selector string
	Pod      string // in Namespace
	// NamespaceGiven says that -n was given.
	NamespaceGiven bool
	// NoPod is for commands that do not have --pod.
	NoPod bool
}

// Validate refuses none and several ways at once, before the cluster is asked.
func (n Nodes) Validate() error {
	ways := 0
	for _, given := range []bool{len(n.Names) > 0, n.Selector != "", n.Pod != ""} {
		if given {
			ways++
		}
	}
	for _, name := range n.Names {
		switch strings.TrimSpace(name) {
		case "":
			return errors.New("the name of a node is empty: is a variable unset?")
		case "none", "client", "server":
			return fmt.Errorf("%q was read as the name of a node: write --dry-run=%s", name, name)
		}
	}
	switch {
	case ways == 0 && n.NoPod:
		return errors.New(
			"no target: give node names, or -l SELECTOR (completion lists the nodes; `kubectl get nodes` too)",
		)
	case ways > 1 && n.NoPod:
		return errors.New("give node names, or -l SELECTOR, not both")
	case ways == 0:
		return errors.New(
			"no target: give node names, or -l SELECTOR, or --pod POD (completion lists the nodes; `kubectl get nodes` too)",
		)
	case ways > 1:
		return errors.New("give node names, or -l SELECTOR, or --pod POD, not several of them")
	}
	return nil
}

// Resolve returns the nodes, sorted by name and each once, and the pod if one was given.
func (n Nodes) Resolve(
	ctx context.Context, client kubernetes.Interface, namespace string,
) ([]string, *corev1.Pod, error) {
	switch {
	case n.Pod != "":
		pod, err := n.pod(ctx, client, namespace)
		if err != nil {
			return nil, nil, err
		}
		return []string{pod.Spec.NodeName}, pod, nil
	case n.Selector != "":
		names, err := n.selected(ctx, client)
		return names, nil, err
	default:
		names := make([]string, len(n.Names))
		for i, name := range n.Names {
			names[i] = strings.TrimPrefix(strings.TrimPrefix(name, "nodes/"), "node/")
		}
		slices.Sort(names)
		return slices.Compact(names), nil, nil
	}
}

func (n Nodes) pod(ctx context.Context, client kubernetes.Interface, namespace string) (*corev1.Pod, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(n.Pod, "pods/"), "pod/")
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if n.NamespaceGiven {
			return nil,
				fmt.Errorf("pod %q not found in namespace %q: see kubectl get pods -n %s", name, namespace, namespace)
		}
		return nil, fmt.Errorf("pod %q not found in namespace %q: specify its namespace with -n", name, namespace)
	case err != nil:
		return nil, kube.Explain(fmt.Errorf("get pod %s/%s: %w", namespace, name, err))
	case pod.Spec.NodeName == "":
		return nil, fmt.Errorf("pod %s/%s is not on a node yet (phase %s)", namespace, name, pod.Status.Phase)
	case pod.Status.Phase != corev1.PodRunning:
		return nil,
			fmt.Errorf("pod %s/%s is not running (phase %s): its GPUs cannot be told", namespace, name,
				pod.Status.Phase)
	}
	return pod, nil
}

func (n Nodes) selected(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: n.Selector})
	if err != nil {
		return nil, kube.Explain(fmt.Errorf("list nodes with label %s: %w", n.Selector, err))
	}
	if len(nodes.Items) == 0 {
		return nil, fmt.Errorf("no node has the labels %q: see `kubectl get nodes --show-labels`", n.Selector)
	}
	names := make([]string, len(nodes.Items))
	for i, node := range nodes.Items {
		names[i] = node.Name
	}
	slices.Sort(names)
	return names, nil
}
