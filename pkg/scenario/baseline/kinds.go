package baseline

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ephemeral reports whether objects of the kind are created, deleted and changed automatically, and not by users.
func ephemeral(kind schema.GroupKind) bool {
	switch kind.Group {
	case "metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io", // computed for each request
		// Other views of existing objects.
		"authorization.openshift.io", "project.openshift.io", "packages.operators.coreos.com",
		"internal.apiserver.k8s.io",
		"wgpolicyk8s.io", "aquasecurity.github.io", "reports.kyverno.io", // reports
		"crd.projectcalico.org", "cilium.io": // addresses of pods
		return kind.Kind != "CiliumNetworkPolicy" && kind.Kind != "CiliumClusterwideNetworkPolicy" &&
			kind.Kind != "NetworkPolicy" && kind.Kind != "GlobalNetworkPolicy"
	}
	return slices.Contains([]string{
		"Event", "Event.events.k8s.io", "Endpoints", "EndpointSlice.discovery.k8s.io", "ComponentStatus",
		"Lease.coordination.k8s.io", "LeaseCandidate.coordination.k8s.io", "ControllerRevision.apps",
		"CertificateSigningRequest.certificates.k8s.io", "PodCertificateRequest.certificates.k8s.io",
		"VolumeAttachment.storage.k8s.io", "CSINode.storage.k8s.io", "CSIStorageCapacity.storage.k8s.io",
		"IPAddress.networking.k8s.io", "ResourceSlice.resource.k8s.io", "NodeFeature.nfd.k8s-sigs.io",
	}, kind.String())
}

// alwaysHashed reports whether objects of the kind are large and their values are not needed.
func alwaysHashed(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// hasIdentity reports whether recreating an object of the kind with the same content loses data.
func hasIdentity(kind schema.GroupKind) bool {
	return slices.Contains([]string{
		"Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim",
		"CustomResourceDefinition.apiextensions.k8s.io",
	}, kind.String())
}

// derived reports whether a controller created the object from another object. Differences are then reported for that
// other object instead.
func derived(kind schema.GroupKind, metadata map[string]any) bool {
	owners, _ := metadata["ownerReferences"].([]any)
	for _, each := range owners {
		owner, _ := each.(map[string]any)
		controls, _ := owner["controller"].(bool)
		version, _ := owner["apiVersion"].(string)
		switch {
		case kind.Group == rbacv1.GroupName && builtIn(schema.FromAPIVersionAndKind(version, "").Group):
			// No controller of Kubernetes creates such objects. The owner was added for the garbage collector.
		case kind == schema.GroupKind{Kind: "Pod"} && owner["kind"] == "Node":
			// A static pod, which no other object represents.
			return false
		// Objects that are created and deleted with their owner.
		case slices.Contains([]any{"Pod", "Node", "ReplicaSet", "Job"}, owner["kind"]):
			return true
		case !controls:
		case builtIn(kind.Group):
			// A candidate may change an operator's DaemonSet. But pods, and jobs of CronJobs, are created and deleted
			// automatically.
			return slices.Contains([]string{"Pod", "ReplicaSet.apps", "Job.batch", "ReplicationController"},
				kind.String())
		default:
			return true
		}
	}
	return false
}

func builtIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}
