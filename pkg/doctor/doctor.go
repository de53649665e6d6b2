// Package doctor uses a snapshot to diagnose why GPU workloads do not run. It returns findings and their root causes.
//
// The package is pure: it converts a snapshot to a report on any machine. Each check is a value (engine.Check) in the
// package for its layer, and declares which findings its own findings explain. The engine groups consequences under
// their root causes. A check that lacks required evidence reports unknown with the reason, and never passes.
package doctor

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/cluster"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/deviceplugin"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/dra"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/hardware"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/injected"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/network"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/observability"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/operator"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/scheduling"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/workload"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Options selects what to check.
type Options struct {
	// Checks contains IDs, or patterns such as "rt.*". Empty selects all checks.
	Checks []string
	// Since excludes kernel log records that are older than this duration, based on each node's own clock. Zero
	// includes all records since boot.
	Since time.Duration
	// IgnoreInjected hides this tool's runs, so that injected faults are diagnosed like real ones.
	IgnoreInjected bool
	// Signatures are the user's own signatures, which precede the built-in ones.
	Signatures []*signatures.Signature
	// Ignore selects findings to hide.
	Ignore []engine.Ignore
}

// Report is the result of Examine.
type Report struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Snapshot   snapshot.Meta `json:"snapshot"`
	Created    time.Time     `json:"created"`
	Summary    Summary       `json:"summary"`
	// Items contains the findings: root causes first, sorted by severity, followed by the findings that they explain.
	Items   []finding.Finding `json:"items"`
	Unknown []engine.Unknown  `json:"unknown,omitempty"`
	// Edges contains the edges of the cause graph for Items.
	Edges  []finding.Edge `json:"edges,omitempty"`
	Layers []LayerResult  `json:"layers"`
	Nodes  []NodeResult   `json:"nodes"` // GPU nodes
	// Allocation shows which pods hold which GPUs and which pods are waiting for GPUs.
	Allocation *scheduler.AllocationView `json:"allocation,omitempty"`
	// Ignored is the number of findings that Options.Ignore hid.
	Ignored int `json:"ignored,omitempty"`
}

// Kind is the kind of a Report.
const Kind = "DoctorReport"

// Summary contains the totals of a report.
type Summary struct {
	Nodes    int `json:"nodes"`
	GPUNodes int `json:"gpuNodes"`
	// NodesRead is the number of GPU nodes from which the helper pod collected data.
	NodesRead int `json:"nodesRead"`
	GPUPods   int `json:"gpuPods"`
	// OtherPods is the number of pods that request other vendors' accelerators.
	OtherPods int `json:"otherPods,omitempty"`
	Checks    int `json:"checks"`
	Errors    int `json:"errors"`   // number of root causes
	Warnings  int `json:"warnings"` // number of root causes
	Unknown   int `json:"unknown"`
}

// LayerResult is the result for one layer: the number of checks with each outcome. The outcomes add up to Checks. A
// check with several findings has the outcome of its worst finding.
type LayerResult struct {
	Layer    finding.Layer `json:"layer"`
	Checks   int           `json:"checks"`
	Passed   int           `json:"passed"` // checked everything and found nothing
	Errors   int           `json:"errors"`
	Warnings int           `json:"warnings"`
	// Infos is the number of checks that found only harmless, explained or ignored problems.
	Infos   int `json:"infos"`
	NotRead int `json:"notRead"` // not run, because they need node data that the user did not request
	Unknown int `json:"unknown"` // lacking some of their evidence
}

// State is the state of one layer on one node.
type State string

// The states, from best to worst.
const (
	Good       State = "good"
	NotSeen    State = "unknown"
	Warned     State = "warning"
	Broken     State = "error"
	Consequent State = "consequence" // broken because of another layer
)

// NodeResult contains the state of each layer on a GPU node.
type NodeResult struct {
	Node   string                  `json:"node"`
	Layers map[finding.Layer]State `json:"layers"`
}

// Examine runs the checks on a snapshot.
func Examine(s *snapshot.Snapshot, o Options) Report {
	f := facts.New(narrowed(s, o))
	if len(o.Signatures) > 0 {
		f.Signatures = signatures.NewSet(slices.Concat(o.Signatures, signatures.Builtin()))
	}
	report := Report{
		APIVersion: snapshot.APIVersion, Kind: Kind, Snapshot: s.Meta, Created: f.Now, Items: []finding.Finding{},
	}
	report.Summary = Summary{
		Nodes: len(f.Nodes), GPUNodes: len(f.GPUNodes), GPUPods: len(f.GPUPods), OtherPods: len(f.Others()),
	}
	for _, n := range f.GPUNodes {
		if n.Host != nil {
			report.Summary.NodesRead++
		}
	}
	var checks []engine.Check
	var results []*engine.Result
	for _, c := range Checks() {
		if len(o.Checks) > 0 &&
			!slices.ContainsFunc(o.Checks, func(pattern string) bool { return engine.Matches(pattern, c.ID) }) {
			continue
		}
		r := &engine.Result{Check: c, Asked: s.Meta.Asked}
		r.Run(f)
		checks, results = append(checks, c), append(results, r)
		report.Unknown = append(report.Unknown, r.Unknowns...)
	}
	found, ignored := engine.Gather(results, o.Ignore, checks)
	report.Ignored = ignored
	report.Items, report.Edges = engine.Fold(found)
	report.Summary.Checks, report.Summary.Unknown = len(checks), len(report.Unknown)
	for _, f := range report.Items {
		switch {
		case f.Root && f.Severity == finding.Error:
			report.Summary.Errors++
		case f.Root && f.Severity == finding.Warning:
			report.Summary.Warnings++
		}
	}
	report.Layers = layers(results, report.Items, report.Summary.NodesRead > 0)
	report.Nodes = nodeResults(f, results, report.Items)
	allocation := scheduler.Allocation(f)
	report.Allocation = &allocation
	return report
}

// narrowed returns a copy of the snapshot that contains only what the options select.
func narrowed(s *snapshot.Snapshot, o Options) *snapshot.Snapshot {
	part := *s
	if o.IgnoreInjected {
		part.Runs = nil
	}
	if o.Since > 0 {
		part.Hosts = map[string]*api.Diagnosis{}
		for name, host := range s.Hosts {
			recent := *host
			from := clock(host, s).Add(-o.Since)
			recent.KernelLog = slices.DeleteFunc(slices.Clone(host.KernelLog), func(r api.KernelRecord) bool {
				return !r.Time.IsZero() && r.Time.Before(from)
			})
			part.Hosts[name] = &recent
		}
	}
	return &part
}

// clock returns the node's own time when its data was collected, so that a wrong node clock does not matter.
func clock(host *api.Diagnosis, s *snapshot.Snapshot) time.Time {
	if host.Probe.Time.IsZero() {
		return s.Meta.Created
	}
	return host.Probe.Time
}

// Worst returns the highest severity of the root causes, or "" if none is above Info.
func (r Report) Worst() finding.Severity {
	switch {
	case r.Summary.Errors > 0:
		return finding.Error
	case r.Summary.Warnings > 0:
		return finding.Warning
	}
	return ""
}

// Roots returns the findings that no other finding explains.
func (r Report) Roots() []finding.Finding {
	return slices.DeleteFunc(slices.Clone(r.Items), func(f finding.Finding) bool { return !f.Root })
}

// Checks returns all checks, ordered by layer and ID.
func Checks() []engine.Check {
	all := slices.Concat(
		injected.Checks(), hardware.Checks(), driver.Checks(), runtime.Checks(), operator.Checks(),
		deviceplugin.Checks(),
		dra.Checks(), cluster.Checks(),
		network.Checks(), scheduling.Checks(), access.Checks(), workload.Checks(), observability.Checks(),
	)
	order := map[finding.Layer]int{}
	for i, l := range finding.Layers() {
		order[l] = i
	}
	sorting.StableFunc(all, func(a, b engine.Check) int {
		return cmp.Or(cmp.Compare(order[a.Layer], order[b.Layer]), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// layers returns the result of each layer that has checks. read is true if data was collected from any node.
func layers(results []*engine.Result, items []finding.Finding, read bool) []LayerResult {
	all := make([]LayerResult, len(finding.Layers()))
	at, has := map[finding.Layer]*LayerResult{}, map[finding.Layer]bool{}
	for i, l := range finding.Layers() {
		all[i].Layer = l
		at[l] = &all[i]
	}
	for _, r := range results {
		has[r.Check.Layer] = true
		worst := worst(r, items)
		l := at[r.Check.Layer]
		if worst != nil {
			l = at[worst.Layer]
			has[worst.Layer] = true
		}
		l.Checks++
		switch {
		case worst != nil && worst.Severity == finding.Error:
			l.Errors++
		case worst != nil && worst.Severity == finding.Warning:
			l.Warnings++
		case worst != nil || len(r.Findings) > 0:
			l.Infos++
		case slices.ContainsFunc(r.Unknowns, func(u engine.Unknown) bool { return !u.NotAsked() }):
			l.Unknown++
		case len(r.Unknowns) > 0 && !read:
			l.NotRead++
		default:
			l.Passed++
		}
	}
	return slices.DeleteFunc(all, func(l LayerResult) bool { return !has[l.Layer] })
}

// worst returns the most severe of the check's items, or nil if none of them is shown.
func worst(r *engine.Result, items []finding.Finding) *finding.Finding {
	type kind struct {
		id    string
		layer finding.Layer
	}
	mine := map[kind]bool{} // a check may report the same finding for thousands of nodes
	for _, f := range r.Findings {
		mine[kind{f.ID, f.Layer}] = true
	}
	var worst *finding.Finding
	for i, item := range items {
		if mine[kind{item.ID, item.Layer}] &&
			(worst == nil || finding.Rank(item.Severity) < finding.Rank(worst.Severity)) {
			worst = &items[i]
		}
	}
	return worst
}

func nodeResults(f *facts.Facts, results []*engine.Result, items []finding.Finding) []NodeResult {
	states := map[string]map[finding.Layer]State{}
	for _, n := range f.GPUNodes {
		states[n.Name] = map[finding.Layer]State{}
		for _, r := range results {
			states[n.Name][r.Check.Layer] = Good
		}
	}
	worse := func(node string, l finding.Layer, s State) {
		if of := states[node]; of != nil && badness(s) > badness(of[l]) {
			of[l] = s
		}
	}
	for _, r := range results {
		for _, u := range r.Unknowns {
			for _, o := range u.All() {
				switch o.Kind {
				case "Node":
					worse(o.Name, r.Check.Layer, NotSeen)
				case "", "Cluster": // the finding does not concern a known node
					for _, n := range f.GPUNodes {
						worse(n.Name, r.Check.Layer, NotSeen)
					}
				}
			}
		}
	}
	for _, item := range items {
		for _, n := range item.Nodes {
			switch {
			case !item.Root:
				worse(n, item.Layer, Consequent)
			case item.Severity == finding.Error:
				worse(n, item.Layer, Broken)
			case item.Severity == finding.Warning:
				worse(n, item.Layer, Warned)
			}
		}
	}
	all := []NodeResult{}
	for _, n := range f.GPUNodes {
		all = append(all, NodeResult{n.Name, states[n.Name]})
	}
	return all
}

func badness(s State) int { return slices.Index([]State{Good, NotSeen, Consequent, Warned, Broken}, s) }
