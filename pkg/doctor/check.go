package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
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
	Layer Layer
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
	// Finding.as.
	ExplainsAs map[string][]string
	// InfoExplains says that findings at Info explain as well: what is so on purpose, or only for a while. Else an Info
	// hides no error.
	InfoExplains bool
	Doc          string   // a link
	Sources      []string // threads and documents that show the failure: gpu-operator#1323
	Run          func(*Facts, *Result)
}

// Result takes what one check finds.
type Result struct {
	check    Check
	findings []Finding
	unknown  []Unknown
	passed   int      // objects that were looked at and are fine
	asked    []string // see snapshot.Meta
}

// Unknown is something that a check could not tell.
type Unknown struct {
	Check  string `json:"check"`
	Layer  Layer  `json:"layer"`
	Object Object `json:"object,omitzero"`
	// Objects are all for which it is so, where there are several; Object is the first of them.
	Objects []Object `json:"objects,omitempty"`
	Why     string   `json:"why"`
}

// NotAsked is how the reason begins for which a node was not read that nobody asked for (snapshot.Missing.Why).
const NotAsked = "not asked for"

// NotAsked reports whether it could be told, had the user asked for nodes to be read: nothing failed.
func (u Unknown) NotAsked() bool {
	if strings.HasSuffix(u.Why, "not read: --api-only") {
		return true
	}
	return strings.Contains(u.Why, NotAsked) &&
		!slices.ContainsFunc(u.All(), func(o Object) bool { return o.Kind != "Node" })
}

// All returns the objects that it is about.
func (u Unknown) All() []Object {
	if len(u.Objects) > 0 {
		return u.Objects
	}
	return []Object{u.Object}
}

// run runs the check. One that crashes over a snapshot that nobody foresaw must not cost the others their results.
func (r *Result) run(f *Facts) {
	defer func() {
		if crash := recover(); crash != nil {
			r.Unknown(Object{Kind: "Cluster"}, "this check failed: %s; please report it", clip(fmt.Sprint(crash)))
		}
	}()
	r.check.Run(f, r)
	weigh(f, r)
	r.missed(f)
}

// missed says that the check is unknown where it found nothing in evidence that is not there.
func (r *Result) missed(f *Facts) {
	if len(r.findings) > 0 || len(r.unknown) > 0 {
		return
	}
	for _, m := range f.Snapshot.Missing {
		if slices.Contains(r.check.From, m.What) {
			r.Unknown(Object{Kind: "Cluster"}, "%s: %s", m.What, m.Why)
			return
		}
	}
}

// Add adds a finding. ID, layer and link are the check's where they are empty, and a finding without confidence is
// certain.
func (r *Result) Add(f Finding) {
	if f.ID == "" {
		f.ID = r.check.ID
	}
	if f.Layer == "" {
		f.Layer = r.check.Layer
	}
	if f.Severity == "" {
		f.Severity = Error
	}
	if f.Confidence == "" {
		f.Confidence = Certain
	}
	if f.Doc == "" {
		f.Doc = r.check.Doc
	}
	if f.Object.Kind == "Node" && len(f.Nodes) == 0 {
		f.Nodes = []string{f.Object.Name}
	}
	if f.Object.Kind == "Pod" && len(f.pods) == 0 {
		f.pods = []string{f.Object.Namespace + "/" + f.Object.Name}
	}
	r.findings = append(r.findings, f)
}

// Unknown says that something could not be told, and why. The zero Object is the whole cluster.
func (r *Result) Unknown(object Object, format string, args ...any) {
	if object.Kind == "Node" && len(r.asked) > 0 && !slices.Contains(r.asked, object.Name) {
		return
	}
	why := fmt.Sprintf(format, args...)
	// A cluster may have thousands of nodes of which the same cannot be told.
	if n := len(r.unknown) - 1; n >= 0 && r.unknown[n].Why == why {
		last := &r.unknown[n]
		if len(last.Objects) == 0 {
			last.Objects = []Object{last.Object}
		}
		last.Objects = append(last.Objects, object)
		return
	}
	r.unknown = append(r.unknown, Unknown{Check: r.check.ID, Layer: r.check.Layer, Object: object, Why: why})
}

// Pass says that an object was looked at, and is fine.
func (r *Result) Pass(Object) { r.passed++ }

// Lacks reports whether any evidence with this prefix is missing ("api/events"), and then records the check as unknown.
func (r *Result) Lacks(f *Facts, prefix string) bool {
	why := f.Missing(prefix)
	if why == "" {
		return false
	}
	r.Unknown(Object{Kind: "Cluster"}, "%s: %s", prefix, why)
	return true
}

// EachHost calls do for each GPU node that was read by the helper, and records the others as unknown.
func (r *Result) EachHost(f *Facts, do func(n *Node, host *api.Diagnosis)) {
	if r.Lacks(f, "api/nodes") {
		return
	}
	if f.Meta.APIOnly && len(f.Hosts) == 0 && len(f.GPUNodes) > 0 {
		r.Unknown(Object{Kind: "Cluster"}, "nodes were not read: --api-only")
		return
	}
	for _, n := range f.GPUNodes {
		if n.Host == nil {
			r.Unknown(Object{Kind: "Node", Name: n.Name}, "%s", f.WhyNoHost(n.Name))
			continue
		}
		do(n, n.Host)
	}
}

// explains reports whether the check's findings explain those with the ID.
func (c Check) explains(id string) bool { return anyMatches(c.Explains, id) }

func anyMatches(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")
		return id == pattern || wild && strings.HasPrefix(id, prefix)
	})
}
