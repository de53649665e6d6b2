// Package target resolves names and selectors on the command line to a fault's target nodes.
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

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// Nodes selects nodes by exactly one of: names, a label selector, or a pod on the node.
type Nodes struct {
	Names    []string
	Selector string
	Pod      string // in Namespace
	// NamespaceGiven reports whether -n is set.
	NamespaceGiven bool
	// NoPod is set by commands without --pod.
	NoPod bool
	// Elsewhere is set if another flag selects the nodes when none of the above does.
	Elsewhere bool
}

// Validate returns an error unless exactly one method of selection is used.
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
			return errors.New("a node name is empty: is a variable unset?")
		case "none", "client", "server":
			return fmt.Errorf("%q was parsed as a node name: use --dry-run=%s", name, name)
		}
	}
	switch {
	case ways == 0 && n.Elsewhere:
		return nil
	case ways == 0 && n.NoPod:
		return errors.New(
			"no target: specify node names or -l SELECTOR (`kubectl get nodes` lists the nodes)",
		)
	case ways > 1 && n.NoPod:
		return errors.New("node names and -l SELECTOR cannot be used together")
	case ways == 0:
		return errors.New(
			"no target: specify node names, -l SELECTOR or --pod POD (`kubectl get nodes` lists the nodes)",
		)
	case ways > 1:
		return errors.New("specify only one of: node names, -l SELECTOR, --pod POD")
	}
	return nil
}

// Resolve returns the distinct nodes, sorted by name, and the pod if one is specified.
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
		return nil, fmt.Errorf("pod %s/%s has not been scheduled to a node yet (phase %s)", namespace, name, pod.Status.Phase)
	case pod.Status.Phase != corev1.PodRunning:
		return nil,
			fmt.Errorf("pod %s/%s is not running (phase %s): wait until the pod is running", namespace, name, pod.Status.Phase)
	}
	return pod, nil
}

func (n Nodes) selected(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	var names []string
	err := fault.EachNode(ctx, client, n.Selector, func(node *corev1.Node) { names = append(names, node.Name) })
	if err != nil {
		return nil, kube.Explain(fmt.Errorf("list nodes with label %s: %w", n.Selector, err))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no node matches the selector %q: see `kubectl get nodes --show-labels`", n.Selector)
	}
	slices.Sort(names)
	return names, nil
}
