// Package snapshot contains all evidence for doctor: API objects, logs, and data that the helper read on nodes.
//
// A snapshot is plain data: package collect fills one from a cluster, Write creates a bundle, and Read reads a bundle
// or a directory on any machine. Missing lists evidence that could not be collected, so that its absence is not
// mistaken for health. See README.md in this directory for the layout.
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

// Snapshot is the state of a cluster at one time. Slices are sorted by namespace and name.
type Snapshot struct {
	Meta Meta

	Nodes          []corev1.Node
	Namespaces     []corev1.Namespace
	Pods           []corev1.Pod // all pods that are relevant for GPUs, and some behind Services; Meta.PodsSeen counts all pods
	Events         []corev1.Event
	DaemonSets     []appsv1.DaemonSet
	RuntimeClasses []nodev1.RuntimeClass
	ResourceQuotas []corev1.ResourceQuota
	LimitRanges    []corev1.LimitRange
	ConfigMaps     []corev1.ConfigMap // only of GPU components

	// NetworkPolicies are those in the namespaces of unhealthy GPU pods and components, and in the namespaces of the
	// Services below.
	NetworkPolicies []networkingv1.NetworkPolicy
	// Services contains the Services that unhealthy GPU pods and components fail to reach, according to their logs and
	// commands. If there are such pods, it also contains the Services of the cluster's DNS.
	Services []corev1.Service

	ResourceSlices []resourcev1.ResourceSlice
	ResourceClaims []resourcev1.ResourceClaim
	DeviceClasses  []resourcev1.DeviceClass

	ClusterPolicies []unstructured.Unstructured // nvidia.com ClusterPolicy
	NVIDIADrivers   []unstructured.Unstructured
	ComputeDomains  []unstructured.Unstructured
	ServiceMonitors []unstructured.Unstructured
	Prometheuses    []unstructured.Unstructured
	// Queues are the queues of batch schedulers: ClusterQueues and LocalQueues (Kueue), and Queues (Volcano, KAI
	// Scheduler).
	Queues []unstructured.Unstructured
	// Queued are the objects waiting in the queues: Workloads (Kueue) and PodGroups (Volcano, KAI Scheduler).
	Queued []unstructured.Unstructured
	// PersistentVolumes contains the volumes of unscheduled pods if these volumes cannot be attached to nodes in other
	// zones. Each volume is reduced to its location.
	PersistentVolumes []unstructured.Unstructured
	// PersistentVolumeClaims contains the unbound claims of unscheduled pods, reduced to their storage classes.
	PersistentVolumeClaims []unstructured.Unstructured
	// CRDs are the names of the CustomResourceDefinitions in relevant groups: nvidia.com,
	// monitoring.coreos.com, ...
	CRDs []string

	HelmReleases []HelmRelease
	Logs         []Log
	Hosts        map[string]*api.Diagnosis // by node, as read by the helper
	Images       map[string]Image          // by reference, as in pods
	// Runs contains this tool's own faults: open ones, whose changes may be in place, and recently closed ones that
	// wrote lines to kernel logs, because these lines remain.
	Runs []Run

	Missing []Missing
}

// Meta describes the origin of a snapshot.
type Meta struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Created    time.Time `json:"created"` // according to the client's clock
	Client     string    `json:"client"`  // version of this tool
	// Server is the version of the API server, such as v1.36.3.
	Server  string `json:"server,omitempty"`
	Context string `json:"context,omitempty"`
	// APIOnly is set if the user did not want nodes to be read.
	APIOnly bool `json:"apiOnly,omitempty"`
	// Asked contains the nodes that the user specified. Missing evidence about other nodes is irrelevant.
	Asked []string `json:"asked,omitempty"`
	// PodsSeen counts all pods in the cluster, including those that the snapshot does not contain.
	PodsSeen int `json:"podsSeen,omitempty"`
	// Redacted is the number of secrets that were removed, by location, such as "pods env".
	Redacted map[string]int `json:"redacted,omitempty"`
}

// APIVersion and Kind of Meta.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Snapshot"
)

// Missing is evidence that could not be collected.
type Missing struct {
	// What identifies the evidence by its name in the bundle, for example "api/pods",
	// "logs/gpu-operator/nvidia-driver-x/nvidia-driver-ctr", "nodes/node-a" or "images/REF".
	What string `json:"what"`
	// Why contains the reason in a form for display, such as "forbidden: ...", "node node-a is not Ready" or "not asked
	// for: it looks healthy".
	Why string `json:"why"`
	// NotStarted is the error of the kubelet or the runtime if this tool's own pod did not start because of a problem
	// on the node. Such an error is evidence in itself. Otherwise, NotStarted is empty.
	NotStarted string `json:"notStarted,omitempty"`
}

// Log is the end or the beginning of one container's log.
type Log struct {
	Namespace, Pod, Container string
	Previous                  bool // from the container before its last restart
	Head                      bool // the beginning, where programs log their devices
	Text                      string
}

// NoLog reports whether the text is not a log, but the kubelet's message that the runtime no longer has the log.
func NoLog(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "unable to retrieve container logs for ") && !strings.Contains(text, "\n")
}

// HelmRelease is the part of a release, read from Helm's Secret, that doctor needs.
type HelmRelease struct {
	Namespace    string         `json:"namespace"`
	Name         string         `json:"name"`
	Chart        string         `json:"chart"`
	ChartVersion string         `json:"chartVersion"`
	AppVersion   string         `json:"appVersion,omitempty"`
	Revision     int            `json:"revision"`
	Status       string         `json:"status"`
	Values       map[string]any `json:"values,omitempty"` // values set by the user; excludes the chart's defaults
}

// Image is what a registry reports about an image.
type Image struct {
	Platforms []string `json:"platforms,omitempty"` // linux/amd64, linux/arm64/v8
	Error     string   `json:"error,omitempty"`     // the reason why the platforms are unknown
}

// Run is a fault created by this tool.
type Run struct {
	ID      string    `json:"id"`
	Fault   string    `json:"fault"` // xid, cuda, runtime
	Summary string    `json:"summary"`
	By      string    `json:"by,omitempty"`
	Phase   string    `json:"phase"`
	Created time.Time `json:"created"`
	Until   time.Time `json:"until,omitzero"` // when the run expires; zero if it does not
	// Closed is the time at which the run was closed, or zero while it is open. After a run is closed, only its kernel
	// log lines remain.
	Closed time.Time `json:"closed,omitzero"`
	// Revert is the command that reverts the run.
	Revert  string   `json:"revert"`
	Targets []Target `json:"targets"`
}

// Target is an object that a run changed.
type Target struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Permanent is set if the change cannot be reverted because it is a line in a kernel log.
	Permanent bool `json:"permanent,omitempty"`
	// Evidence verifies the change. For a line in the kernel log, it is the line itself, with "sequence N" in
	// Source.
	Evidence []RunEvidence `json:"evidence,omitempty"`
}

// RunEvidence is evidence that a fault took effect.
type RunEvidence struct {
	Source string    `json:"source"`
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
}
