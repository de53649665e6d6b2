package network

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// podsByNode are the target pods, by node.
type podsByNode map[string][]corev1.Pod

// checkPod returns an error if the pod must not or cannot be cut off.
func checkPod(pod *corev1.Pod, ledgerNamespace string) error {
	name := pod.Namespace + "/" + pod.Name
	target := ledger.Target{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
	if err := fault.CheckNamespace(target, pod.Namespace, ledgerNamespace); err != nil {
		return err
	}
	switch {
	case pod.Spec.HostNetwork:
		return fmt.Errorf("pod %s uses the node's network: its packets cannot be distinguished from the node's packets", name)
	case len(addressesOf(pod)) == 0:
		return fmt.Errorf("pod %s has no address", name)
	}
	return nil
}

// ofWorkload returns the running pods of a workload.
func ofWorkload(ctx context.Context, cluster *kube.Cluster, workload string) ([]corev1.Pod, error) {
	selector, err := experiment.SelectorOf(ctx, cluster.Client, workload, cluster.Namespace)
	if err != nil {
		return nil, kube.Explain(err)
	}
	pods, err := cluster.Client.CoreV1().Pods(cluster.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, kube.Explain(fmt.Errorf("list the pods of %s: %w", workload, err))
	}
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !isRunning(p) })
	if len(running) == 0 {
		return nil, fmt.Errorf("%s in namespace %q has no running pods", workload, cluster.Namespace)
	}
	return running, nil
}

func isRunning(pod corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Spec.NodeName != ""
}

// pods returns the pods to cut off on the nodes, and a description of the pods that are omitted on these nodes.
func (p *partition) pods(
	ctx context.Context, cluster *kube.Cluster, nodes []string, pod *corev1.Pod, ledgerNamespace string,
) (chosen podsByNode, omitted string, err error) {
	chosen = podsByNode{}
	switch {
	case pod != nil:
		chosen[pod.Spec.NodeName] = []corev1.Pod{*pod}
		return chosen, "", checkPod(pod, ledgerNamespace)
	case p.workload == "":
		return ofNodes(ctx, cluster, nodes, ledgerNamespace)
	}
	pods, err := ofWorkload(ctx, cluster, p.workload)
	if err != nil {
		return nil, "", err
	}
	for _, pod := range pods {
		if !slices.Contains(nodes, pod.Spec.NodeName) {
			continue
		}
		if err := checkPod(&pod, ledgerNamespace); err != nil {
			return nil, "", err
		}
		chosen[pod.Spec.NodeName] = append(chosen[pod.Spec.NodeName], pod)
	}
	for _, node := range nodes {
		if len(chosen[node]) == 0 {
			return nil, "", fmt.Errorf("%s has no running pods on node %q", p.workload, node)
		}
	}
	return chosen, "", nil
}

// ofNodes returns the pods on the nodes, except those that cannot be cut off.
func ofNodes(
	ctx context.Context, cluster *kube.Cluster, nodes []string, ledgerNamespace string,
) (podsByNode, string, error) {
	chosen, omitted := podsByNode{}, 0
	for _, node := range nodes {
		pods, err := cluster.Client.CoreV1().Pods("").List(ctx,
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return nil, "", kube.Explain(fmt.Errorf("list the pods on node %q: %w", node, err))
		}
		for _, pod := range pods.Items {
			switch {
			case !isRunning(pod):
			case checkPod(&pod, ledgerNamespace) != nil:
				omitted++
			default:
				chosen[node] = append(chosen[node], pod)
			}
		}
		if len(chosen[node]) == 0 {
			return nil, "", fmt.Errorf("node %q has no pods that can be cut off: pods in the host network and in protected "+
				"namespaces, such as kube-system, cannot", node)
		}
	}
	if omitted == 0 {
		return chosen, "", nil
	}
	return chosen, count.Of(omitted, "pod") + " in the host network or in protected namespaces, such as kube-system", nil
}

// request returns the pods on a node for the helper.
func (p podsByNode) request(node string) (all []api.PartitionedPod) {
	for _, pod := range p[node] {
		all = append(all, api.PartitionedPod{
			Name: pod.Namespace + "/" + pod.Name, UID: string(pod.UID), Addresses: addressesOf(&pod),
		})
	}
	return all
}

// names returns the names of the pods, with their namespaces.
func (p podsByNode) names() (all []string) {
	for _, node := range slices.Sorted(maps.Keys(p)) {
		for _, pod := range p[node] {
			all = append(all, pod.Namespace+"/"+pod.Name)
		}
	}
	return all
}
