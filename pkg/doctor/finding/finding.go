// Package finding defines doctor's findings, with their evidence and fixes, and which findings can follow from which
// others.
package finding

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // GPU workloads do not run or do not work as expected
	Warning Severity = "warning" // GPU workloads will fail, or do not work as well as they could
	Info    Severity = "info"    // worth knowing, or explained by a root cause
)

// Confidence is the certainty of a finding.
type Confidence string

// The confidence levels.
const (
	Certain  Confidence = "certain"  // directly proven by the evidence
	Likely   Confidence = "likely"   // the evidence has hardly any other explanation
	Possible Confidence = "possible" // consistent with the evidence
)

// Layer is the part of the system that a check examines. Layers returns the layers in reporting order.
type Layer string

// The layers, from the hardware up to the workload.
const (
	LayerHardware      Layer = "hardware"
	LayerDriver        Layer = "driver"
	LayerRuntime       Layer = "runtime"
	LayerOperator      Layer = "operator"
	LayerDevicePlugin  Layer = "device plugin"
	LayerDRA           Layer = "DRA"
	LayerCluster       Layer = "cluster"
	LayerNetwork       Layer = "network"
	LayerScheduling    Layer = "scheduling"
	LayerAccess        Layer = "access" // RBAC, quota, Pod Security
	LayerWorkload      Layer = "workload"
	LayerObservability Layer = "observability"
)

// Layers returns all layers in order.
func Layers() []Layer {
	return []Layer{
		LayerHardware, LayerDriver, LayerRuntime, LayerOperator, LayerDevicePlugin, LayerDRA, LayerCluster,
		LayerNetwork, LayerScheduling,
		LayerAccess, LayerWorkload, LayerObservability,
	}
}

// Object is the subject of a finding.
type Object struct {
	Kind      string `json:"kind"` // Node, Pod, DaemonSet, RuntimeClass, GPU, ...; Cluster for the whole cluster
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

func (o Object) String() string {
	switch {
	case o.Name == "":
		return o.Kind
	case o.Namespace == "":
		return o.Kind + " " + o.Name
	}
	return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
}

// Evidence is a verbatim quotation and its source.
type Evidence struct {
	// Source is the location of the text: "event of Pod default/train-0", "nodes/gpu-1/kernel.log sequence 812", "Node
	// gpu-1 .status.allocatable".
	Source string    `json:"source"`
	Time   time.Time `json:"time,omitzero"`
	Text   string    `json:"text"`
}

// Fix describes how to fix a problem, with the actual names, paths, units and values.
type Fix struct {
	Text string `json:"text"`
	// Commands contains commands that can be pasted into a shell in this order.
	Commands []string `json:"commands,omitempty"`
	// Values is YAML with values for the Helm chart that Text names.
	Values string `json:"values,omitempty"`
}

// OfPlugin is the kind (Finding.As) of findings about pods that advertise devices.
const OfPlugin = "plugin"

// FillsDisk is the kind (Finding.As) of findings about the eviction of a pod that filled its node's disk, and about
// disk pressure on that node.
const FillsDisk = "fills the disk"

// Finding is one conclusion of a check.
type Finding struct {
	ID         string     `json:"id"` // for example rt.wrong-instance
	Layer      Layer      `json:"layer"`
	Severity   Severity   `json:"severity"`
	Confidence Confidence `json:"confidence"`
	// Title is one sentence without the object's name, so that a finding about many objects is reported only once.
	Title string `json:"title"`
	// Cause explains the title, or states that the cause is unknown.
	Cause string `json:"cause,omitempty"`
	// Signature is the ID of the signature that provided the title, cause and fix, if any.
	Signature string `json:"signature,omitempty"`
	// Decisive is true if the signature names the root cause regardless of other findings.
	Decisive bool `json:"-"`
	// Object is the first of Objects.
	Object  Object   `json:"object"`
	Objects []Object `json:"objects,omitempty"` // all objects, if there are several
	// Subject is the object to change or create if it is not Object, for example a missing RuntimeClass that pods name.
	Subject Object `json:"subject,omitzero"`
	// Nodes lists the affected nodes. An empty list means the whole cluster. Findings that share a node can explain
	// each other.
	Nodes []string `json:"nodes,omitempty"`
	// Pods ("namespace/name") lists the affected pods that are known to the finding itself. The findings that it
	// explains may list others.
	Pods     []string   `json:"pods,omitempty"`
	Evidence []Evidence `json:"evidence"`
	Fix      Fix        `json:"fix"`
	Doc      string     `json:"doc,omitempty"` // URL

	// Root is true if no other finding explains this one. The severity of findings that a root cause explains is
	// lowered to Info.
	Root bool `json:"root"`
	// CausedBy lists the IDs of the findings that directly explain this one.
	CausedBy []string `json:"causedBy,omitempty"`
	PodScope []string `json:"-"` // the affected pods; see Finding.ForPods
	Mute     bool     `json:"-"` // the finding explains nothing; see Check.InfoExplains
	As       string   `json:"-"` // the kind of the finding for Check.ExplainsAs, or empty
	// Written is true if the only evidence is kernel log lines that a program, not the driver, wrote.
	Written bool `json:"-"`
	// Times lists when the problem happened, if it is over. An empty list means that the problem is ongoing or that the
	// times are unknown.
	Times []time.Time `json:"-"`
	// Failed is when a pod last failed, if the finding is about a failure. Problems that were over long before that
	// time are not the cause of the failure.
	Failed time.Time `json:"-"`
	// Began is when the problem began, as far as is known. A problem that began before a fault was injected is not an
	// effect of that fault.
	Began time.Time `json:"-"`
	// OfGPU is true if the finding is about a GPU although its layer is not hardware. OfRun is true if the only
	// evidence is lines that an open run wrote.
	OfGPU, OfRun bool `json:"-"`
	// Lab is set only if the finding is about a run with its own namespaces. It is the run's scope. The run explains
	// everything in this scope, including self-evident findings.
	Lab *Lab `json:"-"`
	// Crashed is the container that crashed, if the check knows nothing else about the failure.
	Crashed string `json:"-"`
	// Vague is true if the check does not interpret the message, so that any signature for the message is better.
	Vague bool `json:"-"`
	// Own is true if the pod itself reports the reason, so that problems with its node do not explain the finding.
	Own bool `json:"-"`
}

// Lab is the scope of one of this tool's exercises.
type Lab struct {
	Namespaces, Nodes []string
	// Devices lists the nodes on which the exercise made devices unhealthy.
	Devices []string
	// Objects lists the cluster-scoped objects that the exercise created or changed, in the format of Object.String,
	// for example "RuntimeClass nvidia".
	Objects []string
	Since   time.Time // when the exercise began
}

// Covers reports whether a finding is about something in the lab. A finding without a node, pod or namespace, for
// example about a RuntimeClass, may also belong to the lab. A problem with a node belongs to the lab if it affects only
// the lab's pods and the evidence is from one of the lab's objects.
func (l *Lab) Covers(f Finding) bool {
	foreign := func(pod string) bool {
		namespace, _, _ := strings.Cut(pod, "/")
		return !slices.Contains(l.Namespaces, namespace)
	}
	if len(f.Pods) > 0 && !slices.ContainsFunc(f.Pods, foreign) &&
		slices.ContainsFunc(f.Evidence, func(e Evidence) bool {
			return slices.ContainsFunc(l.Objects, func(o string) bool { return strings.HasPrefix(e.Source, o+" ") })
		}) {
		return true
	}
	if len(f.Nodes)+len(f.PodScope) == 0 && f.Object.Namespace == "" {
		return true
	}
	if f.Object.Namespace != "" && slices.Contains(l.Namespaces, f.Object.Namespace) {
		return true
	}
	// Nodes are shared with other users. A finding about a node belongs to the exercise only if the exercise's steps
	// can cause it; findings about other users' pods do not.
	if f.Object.Namespace == "" && AnyMatches(labEffects(), f.ID) && !f.Before(l.Since) &&
		slices.ContainsFunc(f.Nodes, func(n string) bool { return slices.Contains(l.Nodes, n) }) {
		return true
	}
	if f.ID == "dp.unhealthy" &&
		slices.ContainsFunc(f.Nodes, func(n string) bool { return slices.Contains(l.Devices, n) }) {
		return true
	}
	return slices.ContainsFunc(f.PodScope, func(p string) bool { return !foreign(p) }) || l.IsSource(f)
}

// IsSource reports whether all evidence of a problem is from pods in the lab.
func (l *Lab) IsSource(f Finding) bool {
	ours := func(e Evidence) bool {
		return slices.ContainsFunc(l.Namespaces, func(namespace string) bool {
			return strings.Contains(" "+e.Source, " "+namespace+"/")
		})
	}
	return len(f.Evidence) > 0 && !slices.ContainsFunc(f.Evidence, func(e Evidence) bool { return !ours(e) })
}

// Before reports whether the finding is known to predate the injection of a fault.
func (f Finding) Before(injected time.Time) bool {
	if injected.IsZero() {
		return false
	}
	newest := f.Began
	if newest.IsZero() {
		for _, e := range f.Evidence {
			if e.Time.After(newest) {
				newest = e.Time
			}
		}
	}
	if f.Failed.After(newest) {
		newest = f.Failed
	}
	return !newest.IsZero() && newest.Before(injected.Add(-ClockSkew))
}

// Edge records that one finding causes another. From and To are indexes in Report.Items.
type Edge struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// ForPods limits the finding to these pods ("namespace/name"): it can explain, and be explained by, only findings about
// them.
func (f Finding) ForPods(pods ...string) Finding {
	f.PodScope = append(f.PodScope, pods...)
	return f
}

// Most is the maximum number of quotations and of commands in a finding about many objects.
const Most = 8
