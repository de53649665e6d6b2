// Package engine runs checks on the facts and groups their findings under the root causes.
package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Need is a kind of evidence that a check requires.
type Need string

// The kinds of evidence.
const (
	NeedAPI    Need = "api"    // API objects, which require only read access
	NeedLogs   Need = "logs"   // pod logs
	NeedNode   Need = "node"   // data that a privileged pod reads on the node
	NeedImages Need = "images" // image data from registries
)

// Check detects one kind of failure.
type Check struct {
	ID    string
	Layer finding.Layer
	// Title describes the failure: "the toolkit configures a containerd that the kubelet does not use".
	Title string
	Needs []Need
	// From lists the parts of the snapshot ("api/pods", "logs") that the check depends on. If one of them is missing
	// and the check finds nothing, its result is unknown.
	From []string
	// Reads describes in detail what the check reads. Why describes how the check draws its conclusions and what it
	// considers healthy. `doctor explain` prints both.
	Reads, Why string
	// Explains lists the IDs of findings, or patterns such as "dp.*", that this check's findings can cause on the same
	// node or pod.
	Explains []string
	// ExplainsAs replaces Explains for a check that reports several kinds of findings. The key is Finding.As.
	ExplainsAs map[string][]string
	// InfoExplains is true if the check's Info findings can also be causes, because they report intentional or
	// temporary states. Otherwise, an Info finding does not hide an error.
	InfoExplains bool
	// Last is true if the findings of other checks about the same object take precedence.
	Last bool
	// Symptom determines how the findings take their title, cause and fix from signatures.
	Symptom Symptom
	Doc     string   // URL
	Sources []string // issues and documents that describe the failure, for example gpu-operator#1323
	Run     func(*facts.Facts, *Result)
}

// Symptom determines how a check's findings use the signatures of messages.
type Symptom int

// The kinds of symptoms.
const (
	NoSymptom   Symptom = iota
	Precise             // the check knows the cause; only a decisive signature replaces it
	Explained           // the check knows the cause in general; a likely signature replaces it
	Unexplained         // the check does not know the cause
	Known               // findings are kept only if a signature matches
)

// Result collects the findings of one check.
type Result struct {
	Check    Check
	Findings []finding.Finding
	Unknowns []Unknown
	passed   int      // number of healthy objects
	Asked    []string // see snapshot.Meta
}

// Unknown is a result that a check could not determine.
type Unknown struct {
	Check  string         `json:"check"`
	Layer  finding.Layer  `json:"layer"`
	Object finding.Object `json:"object,omitzero"`
	// Objects lists all affected objects if there are several. Object is the first of them.
	Objects []finding.Object `json:"objects,omitempty"`
	Why     string           `json:"why"`
}

// NotAsked is the prefix of snapshot.Missing.Why for a node that was not read because the user did not request it.
const NotAsked = "not asked for"

// NotAsked reports whether the result is unknown only because the user did not request node data.
func (u Unknown) NotAsked() bool {
	if strings.HasSuffix(u.Why, "not read: --api-only") {
		return true
	}
	return strings.Contains(u.Why, NotAsked) &&
		!slices.ContainsFunc(u.All(), func(o finding.Object) bool { return o.Kind != "Node" })
}

// All returns the affected objects.
func (u Unknown) All() []finding.Object {
	if len(u.Objects) > 0 {
		return u.Objects
	}
	return []finding.Object{u.Object}
}

// Run runs the check. A panic in one check must not discard the results of the others.
func (r *Result) Run(f *facts.Facts) {
	defer func() {
		if crash := recover(); crash != nil {
			r.Unknown(
				finding.Object{Kind: "Cluster"}, "this check failed: %s; please report it",
				words.Clip(fmt.Sprint(crash)),
			)
		}
	}()
	r.Check.Run(f, r)
	weigh(f, r)
	r.Name(f)
	r.adapt(f)
	r.owned(f)
	r.missed(f)
}

// missed marks the check as unknown if it found nothing and part of its evidence is missing.
func (r *Result) missed(f *facts.Facts) {
	if len(r.Findings) > 0 || len(r.Unknowns) > 0 {
		return
	}
	for _, m := range f.Snapshot.Missing {
		if slices.Contains(r.Check.From, m.What) {
			r.Unknown(finding.Object{Kind: "Cluster"}, "%s: %s", m.What, m.Why)
			return
		}
	}
}

// Add adds a finding. If the finding has no ID, layer or link, Add sets them to the check's values. The default
// confidence is Certain.
func (r *Result) Add(f finding.Finding) {
	if f.ID == "" {
		f.ID = r.Check.ID
	}
	if f.Layer == "" {
		f.Layer = r.Check.Layer
	}
	if f.Severity == "" {
		f.Severity = finding.Error
	}
	if f.Confidence == "" {
		f.Confidence = finding.Certain
	}
	if f.Doc == "" {
		f.Doc = r.Check.Doc
	}
	if f.Object.Kind == "Node" && len(f.Nodes) == 0 {
		f.Nodes = []string{f.Object.Name}
	}
	if f.Object.Kind == "Pod" && len(f.PodScope) == 0 {
		f.PodScope = []string{f.Object.Namespace + "/" + f.Object.Name}
	}
	r.Findings = append(r.Findings, f)
}

// Unknown records that the state of an object could not be determined, and the reason. The zero Object stands for the
// whole cluster.
func (r *Result) Unknown(object finding.Object, format string, args ...any) {
	if object.Kind == "Node" && len(r.Asked) > 0 && !slices.Contains(r.Asked, object.Name) {
		return
	}
	why := fmt.Sprintf(format, args...)
	// In a large cluster, thousands of nodes may have an unknown state for the same reason.
	if n := len(r.Unknowns) - 1; n >= 0 && r.Unknowns[n].Why == why {
		last := &r.Unknowns[n]
		if len(last.Objects) == 0 {
			last.Objects = []finding.Object{last.Object}
		}
		last.Objects = append(last.Objects, object)
		return
	}
	r.Unknowns = append(r.Unknowns, Unknown{Check: r.Check.ID, Layer: r.Check.Layer, Object: object, Why: why})
}

// Pass records that an object was checked and is healthy.
func (r *Result) Pass(finding.Object) { r.passed++ }

// Lacks reports whether any evidence with the given prefix, such as "api/events", is missing. If so, it records the
// check as unknown.
func (r *Result) Lacks(f *facts.Facts, prefix string) bool {
	why := f.Missing(prefix)
	if why == "" {
		return false
	}
	r.Unknown(finding.Object{Kind: "Cluster"}, "%s: %s", prefix, why)
	return true
}

// EachHost calls the function do for each GPU node that the helper pod read, and records the other GPU nodes as
// unknown.
func (r *Result) EachHost(f *facts.Facts, do func(n *facts.Node, host *api.Diagnosis)) {
	if r.Lacks(f, "api/nodes") {
		return
	}
	if f.Meta.APIOnly && len(f.Hosts) == 0 && len(f.GPUNodes) > 0 {
		r.Unknown(finding.Object{Kind: "Cluster"}, "nodes were not read: --api-only")
		return
	}
	for _, n := range f.GPUNodes {
		if n.Host == nil {
			r.Unknown(finding.Object{Kind: "Node", Name: n.Name}, "%s", f.WhyNoHost(n.Name))
			continue
		}
		do(n, n.Host)
	}
}
