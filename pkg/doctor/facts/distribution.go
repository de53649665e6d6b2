package facts

import (
	"strings"
)

// Distribution is the Kubernetes distribution of a node. It determines what is normal on the node.
type Distribution string

// The distributions with GPU-specific differences.
const (
	Generic      Distribution = "" // kubeadm, kubespray and all others with a separate containerd
	K3s          Distribution = "k3s"
	RKE2         Distribution = "rke2"
	MicroK8s     Distribution = "microk8s"
	CanonicalK8s Distribution = "canonical-k8s"
	K0s          Distribution = "k0s"
	Talos        Distribution = "talos"
	Bottlerocket Distribution = "bottlerocket"
	GKE          Distribution = "gke"
	EKS          Distribution = "eks"
	AKS          Distribution = "aks"
	OpenShift    Distribution = "openshift"
)

// distribution detects the distribution from the node's status, labels and provider ID.
func distribution(n *Node) Distribution {
	info := n.Status.NodeInfo
	has := func(label string) bool { _, ok := n.Labels[label]; return ok }
	provider, _, _ := strings.Cut(n.Spec.ProviderID, "://")
	switch {
	case strings.HasPrefix(info.OSImage, "Talos"):
		return Talos
	case strings.HasPrefix(info.OSImage, "Bottlerocket"):
		return Bottlerocket
	case has("node.openshift.io/os_id"), strings.HasPrefix(info.OSImage, "Red Hat Enterprise Linux CoreOS"):
		return OpenShift
	case has("cloud.google.com/gke-nodepool"), strings.Contains(info.KubeletVersion, "-gke."):
		return GKE
	case has("eks.amazonaws.com/nodegroup"), strings.Contains(info.KubeletVersion, "-eks-"):
		return EKS
	case has("kubernetes.azure.com/cluster"), has("kubernetes.azure.com/agentpool"),
		has("kubernetes.azure.com/node-image-version"), has("karpenter.azure.com/aksnodeclass"),
		provider == "azure" && has("agentpool"):
		return AKS
	case strings.Contains(info.KubeletVersion, "+rke2"):
		return RKE2
	case strings.Contains(info.KubeletVersion, "+k3s"):
		return K3s
	case strings.Contains(info.KubeletVersion, "+k0s"):
		return K0s
	case has("microk8s.io/cluster"):
		return MicroK8s
	case has("k8sd.io/role"):
		return CanonicalK8s
	}
	return Generic
}

// IsCRIO reports whether the node's runtime is CRI-O. CRI-O has no containerd configuration and often no GPU handler.
func (n *Node) IsCRIO() bool {
	return strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "cri-o://")
}

// IsContainerd reports whether the node's runtime is containerd.
func (n *Node) IsContainerd() bool {
	return strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://")
}
