package baseline

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ephemeral reports whether objects of the kind come, go and change by themselves, so that nobody's work is in them.
func ephemeral(kind schema.GroupKind) bool {
	switch kind.Group {
	case "metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io", // measured at each question
		// Other views of what is there already
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

// alwaysHashed reports whether objects of the kind are long and nobody asks what was in them.
func alwaysHashed(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// hasIdentity reports whether another object of the same name and content is another one: what it held is lost with the
// old one.
func hasIdentity(kind schema.GroupKind) bool {
	return slices.Contains([]string{
		"Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim",
		"CustomResourceDefinition.apiextensions.k8s.io",
	}, kind.String())
}

// derived reports whether a controller made the object from another one, which tells all: the owner's differences are
// told.
func derived(kind schema.GroupKind, metadata map[string]any) bool {
	owners, _ := metadata["ownerReferences"].([]any)
	for _, each := range owners {
		owner, _ := each.(map[string]any)
		controls, _ := owner["controller"].(bool)
		switch {
		case kind == schema.GroupKind{Kind: "Pod"} && owner["kind"] == "Node":
			// A static pod: nothing else stands for it
			return false
		case slices.Contains([]any{"Pod", "Node", "ReplicaSet", "Job"}, owner["kind"]): // comes and goes with it
			return true
		case !controls:
		case builtIn(kind.Group):
			// An operator's DaemonSet may be a candidate's mistake as well as anybody's; pods, and jobs of CronJobs,
			// come and go.
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
