// Package finding is what doctor says: findings with their evidence, what to do about them, and which of them may
// follow from which.
package finding

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // GPU workloads do not run, or not as they should
	Warning Severity = "warning" // it will fail, or is worse than it should be
	Info    Severity = "info"    // worth knowing; also what a root explains
)

// Confidence says how sure a finding is.
type Confidence string

// The confidences.
const (
	Certain  Confidence = "certain"  // the evidence says so itself
	Likely   Confidence = "likely"   // the evidence has hardly another explanation
	Possible Confidence = "possible" // the evidence fits
)

// Layer is the part of the system that a check looks at. Layers are reported in the order of Layers.
type Layer string

// The layers, from the metal to the workload.
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

// Layers returns all layers in their order.
func Layers() []Layer {
	return []Layer{
		LayerHardware, LayerDriver, LayerRuntime, LayerOperator, LayerDevicePlugin, LayerDRA, LayerCluster,
		LayerNetwork, LayerScheduling,
		LayerAccess, LayerWorkload, LayerObservability,
	}
}

// Object is what a finding is about.
type Object struct {
	Kind      string `json:"kind"` // Node, Pod, DaemonSet, RuntimeClass, GPU, ...; Cluster for all of it
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

// Evidence is a quotation, never a paraphrase, and the place where it stands.
type Evidence struct {
	// Source is where to look: "event of Pod default/train-0", "nodes/gpu-1/kernel.log sequence 812", "Node gpu-1
	// .status.allocatable".
	Source string    `json:"source"`
	Time   time.Time `json:"time,omitzero"`
	Text   string    `json:"text"`
}

// Fix is what to do, written for this instance: with its names, paths, units and values.
type Fix struct {
	Text string `json:"text"`
	// Commands can be pasted into a shell, in this order.
	Commands []string `json:"commands,omitempty"`
	// Values is YAML for the chart that Text names.
	Values string `json:"values,omitempty"`
}

// Finding is one conclusion.
type Finding struct {
	ID         string     `json:"id"` // rt.wrong-instance
	Layer      Layer      `json:"layer"`
	Severity   Severity   `json:"severity"`
	Confidence Confidence `json:"confidence"`
	// Title is one sentence, without the object's name, so that the same finding on many objects is told once.
	Title string `json:"title"`
	// Object is the first of Objects.
	Object  Object   `json:"object"`
	Objects []Object `json:"objects,omitempty"` // all, when there are several
	// Subject is what has to be changed or made, where that is not Object: the RuntimeClass that pods name and that
	// does not exist.
	Subject Object `json:"subject,omitzero"`
	// Nodes are those that it concerns; none means the whole cluster. Findings that share a node can explain each
	// other.
	Nodes []string `json:"nodes,omitempty"`
	// Pods ("namespace/name") are those that it concerns, as far as it knows them itself; what it explains may name
	// more.
	Pods     []string   `json:"pods,omitempty"`
	Evidence []Evidence `json:"evidence"`
	Fix      Fix        `json:"fix"`
	Doc      string     `json:"doc,omitempty"` // a link

	// Root says that no other finding explains this one. What a root explains has its severity lowered to Info.
	Root bool `json:"root"`
	// CausedBy are the IDs of the findings that explain it directly.
	CausedBy []string `json:"causedBy,omitempty"`
	PodScope []string `json:"-"` // those that it concerns; see Finding.ForPods
	Mute     bool     `json:"-"` // it explains nothing; see Check.InfoExplains
	As       string   `json:"-"` // its kind, for Check.ExplainsAs; or empty
	// Written says that it rests on nothing but lines which a program wrote into the kernel log, and not the driver.
	Written bool `json:"-"`
	// Times are when it happened, where it is over since; none when it lasts, or nobody knows.
	Times []time.Time `json:"-"`
	// Failed is when a pod failed last, for a finding that says so: what was over long before is not its cause.
	Failed time.Time `json:"-"`
	// Began is since when it is so, as far as anybody knows: what was so before a fault was injected is not its doing.
	Began time.Time `json:"-"`
	// OfGPU says that it is about a GPU, though its layer is another; OfRun, that it rests on nothing but lines that an
	// open run wrote.
	OfGPU, OfRun bool `json:"-"`
	// Lab is what follows from this one whatever else proves it, for a run that has whole namespaces to itself; else
	// nil.
	Lab *Lab `json:"-"`
	// Own says that the pod names a reason of its own, which nothing that is wrong with its node explains.
	Own bool `json:"-"`
}

// Lab is what an exercise of this tool has to itself.
type Lab struct {
	Namespaces, Nodes []string
	// Without a namespace, which it made or changed, as Object.String has them: "RuntimeClass nvidia"
	Objects []string
	Since   time.Time // when it began
}

// Covers reports whether a finding is about something in the lab. What is about no place at all, as a RuntimeClass, may
// be of the lab too. What a node lacks is the lab's when only its own pods miss it, and they do because of an object of
// its own.
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
	// Nodes are shared with others: of what is wrong with them only what its steps lead to is the exercise's, and
	// nothing of others' pods.
	if f.Object.Namespace == "" && AnyMatches(labEffects(), f.ID) && !f.Before(l.Since) &&
		slices.ContainsFunc(f.Nodes, func(n string) bool { return slices.Contains(l.Nodes, n) }) {
		return true
	}
	return slices.ContainsFunc(f.PodScope, func(p string) bool { return !foreign(p) })
}

// Before reports whether the finding is known to be older than a fault that was injected then.
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

// Edge says that one finding is the cause of another: indexes of Report.Items.
type Edge struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// ForPods narrows what the finding can explain, or be explained by, to these pods ("namespace/name").
func (f Finding) ForPods(pods ...string) Finding {
	f.PodScope = append(f.PodScope, pods...)
	return f
}

// Most is how many quotations and commands a finding about many objects keeps.
const Most = 8
