// Package engine runs checks over the facts, and folds what they find below its causes.
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

// Need is a kind of evidence without which a check cannot tell anything.
type Need string

// The kinds of evidence.
const (
	NeedAPI    Need = "api"    // objects, which need no privilege but to read
	NeedLogs   Need = "logs"   // logs of pods
	NeedNode   Need = "node"   // what a privileged pod reads on the node
	NeedImages Need = "images" // what registries say
)

// Check looks for one thing that goes wrong.
type Check struct {
	ID    string
	Layer finding.Layer
	// Title says what it looks for: "the toolkit configures a containerd that the kubelet does not use".
	Title string
	Needs []Need
	// From are parts of the snapshot ("api/pods", "logs") without which it means nothing that nothing was found: the
	// check is unknown then.
	From []string
	// Reads says in detail what it reads, Why says how it concludes, and what it takes for healthy; both for `doctor
	// explain`.
	Reads, Why string
	// Explains are IDs of findings, or patterns such as "dp.*", that follow from this one where both concern the same
	// node or pod.
	Explains []string
	// ExplainsAs is what findings of a kind explain, in place of Explains, where one check finds several kinds; see
	// Finding.As.
	ExplainsAs map[string][]string
	// InfoExplains says that findings at Info explain as well: what is so on purpose, or only for a while. Else an Info
	// hides no error.
	InfoExplains bool
	Doc          string   // a link
	Sources      []string // threads and documents that show the failure: gpu-operator#1323
	Run          func(*facts.Facts, *Result)
}

// Result takes what one check finds.
type Result struct {
	Check    Check
	Findings []finding.Finding
	Unknowns []Unknown
	passed   int      // objects that were looked at and are fine
	Asked    []string // see snapshot.Meta
}

// Unknown is something that a check could not tell.
type Unknown struct {
	Check  string         `json:"check"`
	Layer  finding.Layer  `json:"layer"`
	Object finding.Object `json:"object,omitzero"`
	// Objects are all for which it is so, where there are several; Object is the first of them.
	Objects []finding.Object `json:"objects,omitempty"`
	Why     string           `json:"why"`
}

// NotAsked is how the reason begins for which a node was not read that nobody asked for (snapshot.Missing.Why).
const NotAsked = "not asked for"

// NotAsked reports whether it could be told, had the user asked for nodes to be read: nothing failed.
func (u Unknown) NotAsked() bool {
	if strings.HasSuffix(u.Why, "not read: --api-only") {
		return true
	}
	return strings.Contains(u.Why, NotAsked) &&
		!slices.ContainsFunc(u.All(), func(o finding.Object) bool { return o.Kind != "Node" })
}

// All returns the objects that it is about.
func (u Unknown) All() []finding.Object {
	if len(u.Objects) > 0 {
		return u.Objects
	}
	return []finding.Object{u.Object}
}

// Run runs the check. One that crashes over a snapshot that nobody foresaw must not cost the others their results.
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
	r.missed(f)
}

// missed says that the check is unknown where it found nothing in evidence that is not there.
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

// Add adds a finding. ID, layer and link are the check's where they are empty, and a finding without confidence is
// certain.
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

// Unknown says that something could not be told, and why. The zero Object is the whole cluster.
func (r *Result) Unknown(object finding.Object, format string, args ...any) {
	if object.Kind == "Node" && len(r.Asked) > 0 && !slices.Contains(r.Asked, object.Name) {
		return
	}
	why := fmt.Sprintf(format, args...)
	// A cluster may have thousands of nodes of which the same cannot be told.
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

// Pass says that an object was looked at, and is fine.
func (r *Result) Pass(finding.Object) { r.passed++ }

// Lacks reports whether any evidence with this prefix is missing ("api/events"), and then records the check as unknown.
func (r *Result) Lacks(f *facts.Facts, prefix string) bool {
	why := f.Missing(prefix)
	if why == "" {
		return false
	}
	r.Unknown(finding.Object{Kind: "Cluster"}, "%s: %s", prefix, why)
	return true
}

// EachHost calls do for each GPU node that was read by the helper, and records the others as unknown.
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
