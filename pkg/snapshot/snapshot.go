// Package snapshot is all the evidence that doctor has: objects of the API, logs, and what the helper read on nodes.
//
// A snapshot is data: package collect fills one from a cluster, Write makes a bundle of it, Read takes it from a bundle
// or a folder on any machine. What could not be seen is in Missing, so that nobody takes its absence for health.
// README.md beside this file has the layout.
package snapshot

import (
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Snapshot is a cluster at one moment. Slices are sorted by namespace and name.
type Snapshot struct {
	Meta Meta

	Nodes          []corev1.Node
	Namespaces     []corev1.Namespace
	Pods           []corev1.Pod // all that matter for GPUs, and some behind Services; Meta.PodsSeen counts all
	Events         []corev1.Event
	DaemonSets     []appsv1.DaemonSet
	RuntimeClasses []nodev1.RuntimeClass
	ResourceQuotas []corev1.ResourceQuota
	LimitRanges    []corev1.LimitRange
	ConfigMaps     []corev1.ConfigMap // of the device plugin and MIG manager only

	// NetworkPolicies are those of namespaces with GPU pods or components that are not well, and of the Services.
	NetworkPolicies []networkingv1.NetworkPolicy
	// Services are those that such pods ask for in vain, as far as their logs and commands name them; and the cluster's
	// DNS, if there are any.
	Services []corev1.Service

	ResourceSlices []resourcev1.ResourceSlice
	ResourceClaims []resourcev1.ResourceClaim
	DeviceClasses  []resourcev1.DeviceClass

	ClusterPolicies []unstructured.Unstructured // nvidia.com ClusterPolicy
	NVIDIADrivers   []unstructured.Unstructured
	ComputeDomains  []unstructured.Unstructured
	ServiceMonitors []unstructured.Unstructured
	Prometheuses    []unstructured.Unstructured
	// Names of the CustomResourceDefinitions of groups that matter: nvidia.com, monitoring.coreos.com, ...
	CRDs []string

	HelmReleases []HelmRelease
	Logs         []Log
	Hosts        map[string]*api.Diagnosis // what the helper read, by node
	Images       map[string]Image          // by the reference as pods have it
	// Runs are this tool's own faults that are open: their changes may be in place. Of those that are closed it has the
	// ones of the last days that wrote lines to kernel logs, because these stay.
	Runs []Run

	Missing []Missing
}

// Meta says where a snapshot comes from.
type Meta struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Created    time.Time `json:"created"` // by the clock of the client
	Client     string    `json:"client"`  // version of this tool
	// Server is the version of the API server: v1.36.3.
	Server  string `json:"server,omitempty"`
	Context string `json:"context,omitempty"`
	// APIOnly says that no node was to be read.
	APIOnly bool `json:"apiOnly,omitempty"`
	// Asked are the nodes that the user named; of the others it does not matter what could not be seen.
	Asked []string `json:"asked,omitempty"`
	// PodsSeen counts all pods of the cluster, also those that are not kept.
	PodsSeen int `json:"podsSeen,omitempty"`
}

// The kind of Meta.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Snapshot"
)

// Missing is evidence that was wanted and could not be had.
type Missing struct {
	// What names it as the bundle would: "api/pods", "logs/gpu-operator/nvidia-driver-x/nvidia-driver-ctr",
	// "nodes/node-a", "images/REF".
	What string `json:"what"`
	// Why is for people: "forbidden: ...", "node node-a is not Ready", "not asked for: it looks healthy".
	Why string `json:"why"`
	// NotStarted is what the kubelet and the runtime said when this tool's own pod did not start on the node, as far as
	// that is the node's doing: it is evidence by itself. Else empty.
	NotStarted string `json:"notStarted,omitempty"`
}

// Log is the end of one container's log, or its beginning.
type Log struct {
	Namespace, Pod, Container string
	Previous                  bool // of the container's run before
	Head                      bool // its beginning, where programs say on what they compute
	Text                      string
}

// NoLog reports whether the text is no log, but the kubelet's own words, in its place, for one that the runtime has not
// any more.
func NoLog(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "unable to retrieve container logs for ") && !strings.Contains(text, "\n")
}

// HelmRelease is what Helm keeps of a release, read from its Secret.
type HelmRelease struct {
	Namespace    string         `json:"namespace"`
	Name         string         `json:"name"`
	Chart        string         `json:"chart"`
	ChartVersion string         `json:"chartVersion"`
	AppVersion   string         `json:"appVersion,omitempty"`
	Revision     int            `json:"revision"`
	Status       string         `json:"status"`
	Values       map[string]any `json:"values,omitempty"` // the user's, not the chart's defaults
}

// Image is what a registry says of an image.
type Image struct {
	Platforms []string `json:"platforms,omitempty"` // linux/amd64, linux/arm64/v8
	Error     string   `json:"error,omitempty"`     // why it cannot be told
}

// Run is a fault of this tool.
type Run struct {
	ID      string    `json:"id"`
	Fault   string    `json:"fault"` // xid, cuda, runtime
	Summary string    `json:"summary"`
	By      string    `json:"by,omitempty"`
	Phase   string    `json:"phase"`
	Created time.Time `json:"created"`
	Until   time.Time `json:"until,omitzero"` // when it ends by itself; zero when it does not
	// Closed is when it ended; zero while it is open. Of a closed run only its lines in kernel logs are left.
	Closed time.Time `json:"closed,omitzero"`
	// Revert is the command that ends it.
	Revert  string   `json:"revert"`
	Targets []Target `json:"targets"`
}

// Target is what a run changed.
type Target struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Permanent says that the change cannot be taken back: a line in a kernel log.
	Permanent bool `json:"permanent,omitempty"`
	// Evidence are the texts that prove it: for a line in the kernel log the line itself, with "sequence N" in Source.
	Evidence []RunEvidence `json:"evidence,omitempty"`
}

// RunEvidence is one proof that a fault landed.
type RunEvidence struct {
	Source string    `json:"source"`
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
}
