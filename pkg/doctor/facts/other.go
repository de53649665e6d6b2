package facts

// Product returns the model of a node's GPUs, based on the node's labels.
func Product(n *Node) string {
	for _, label := range []string{
		"nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator",
		"karpenter.k8s.aws/instance-gpu-name",
		"kubernetes.azure.com/accelerator", "accelerator",
	} {
		if value := n.Labels[label]; value != "" {
			return value
		}
	}
	return ""
}
