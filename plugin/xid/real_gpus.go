package xid

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/realxid"
)

// checkGPUs returns a node with a free GPU that is neither shared nor partitioned, so that an error on the GPU affects
// no other program.
func checkGPUs(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("not found; to list the nodes, run: kubectl get nodes")
	}
	if err != nil {
		return nil, fmt.Errorf("get the node: %w", err)
	}
	if err := checkWhole(node); err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods on the node: %w", err)
	}
	return node, checkFree(node, pods.Items)
}

// checkWhole returns an error if the GPUs of a node are shared by pods or partitioned into MIG instances. An error in
// one program could then destroy the contexts of others.
func checkWhole(node *corev1.Node) error {
	const prefix = "nvidia.com/"
	const advice = ": an error in one program could affect the others; choose a node whose GPUs are not shared, or omit --real"
	if strategy := node.Labels[prefix+"gpu.sharing-strategy"]; strategy != "" && strategy != "none" {
		return fmt.Errorf("the GPUs are shared by pods (label %sgpu.sharing-strategy=%s)%s", prefix, strategy, advice)
	}
	if text := node.Labels[prefix+"gpu.replicas"]; text != "" {
		if n, err := strconv.Atoi(text); err != nil || n > 1 {
			return fmt.Errorf("the GPUs are shared by pods (label %sgpu.replicas=%s)%s", prefix, text, advice)
		}
	}
	// With the single MIG strategy, MIG instances have the resource name of whole GPUs, and only the labels differ.
	if product := node.Labels[prefix+"gpu.product"]; strings.Contains(product, "-MIG-") {
		return fmt.Errorf("the GPUs are partitioned into MIG instances (label %sgpu.product=%s)%s", prefix, product, advice)
	}
	if _, ok := node.Labels[prefix+"gpu.slices.gi"]; ok {
		return fmt.Errorf("the GPUs are partitioned into MIG instances (label %sgpu.slices.gi)%s", prefix, advice)
	}
	for _, list := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
		for resource, quantity := range list {
			rest, ours := strings.CutPrefix(string(resource), prefix)
			switch {
			case !ours || quantity.IsZero():
			case strings.HasSuffix(rest, ".shared"):
				return fmt.Errorf("the GPUs are shared by pods (resource %s)%s", resource, advice)
			case strings.HasPrefix(rest, "mig-"):
				return fmt.Errorf("the GPUs are partitioned into MIG instances (resource %s)%s", resource, advice)
			}
		}
	}
	return nil
}

// checkFree returns an error if no GPU on the node is free. The error names the pods that hold the GPUs.
func checkFree(node *corev1.Node, pods []corev1.Pod) error {
	quantity := node.Status.Allocatable[realxid.GPUResource]
	all, held := quantity.Value(), int64(0)
	if all == 0 {
		return fmt.Errorf("the node has no allocatable %s: --real requires a GPU that the device plugin can allocate to a pod",
			realxid.GPUResource)
	}
	var holders []string
	for i := range pods {
		pod := &pods[i]
		n := facts.GPURequests(pod)[realxid.GPUResource]
		if pod.Spec.NodeName == node.Name && n > 0 && !facts.Ended(pod) {
			held += n
			holders = append(holders, fmt.Sprintf("%s/%s (%d)", pod.Namespace, pod.Name, n))
		}
	}
	if held >= all {
		return fmt.Errorf("none of the node's %s is free (held by %s): choose another node, or delete a pod",
			count.Of(int(all), "GPU"), listed(holders))
	}
	return nil
}

// listed returns the first few names in a list.
func listed(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
