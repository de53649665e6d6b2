// Package report shows what doctor concluded: as text for people, as JUnit and SARIF for machines, and as a page of
// HTML. It is pure: a doctor.Report goes in. All that it prints of the cluster's own words is made safe first.
package report

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// Filter says which findings are shown, in every format.
type Filter struct {
	// Min is the least severity of the roots; empty means all. What a root explains is shown with it.
	Min finding.Severity
	// Namespace leaves out what concerns only workloads of other namespaces; empty means all.
	Namespace string
}

// Apply returns the report with only those findings, and with counts and edges that fit them. States of layers and
// nodes stay: they are what was found.
func (f Filter) Apply(r doctor.Report) doctor.Report {
	keep := make([]bool, len(r.Items))
	for i, item := range r.Items {
		if item.Root && f.shows(r, i) {
			keep[i] = true
			for _, c := range Consequences(r, i) {
				keep[c] = true
			}
		}
	}
	items, place := []finding.Finding{}, make([]int, len(r.Items))
	for i, item := range r.Items {
		if place[i] = len(items); keep[i] {
			items = append(items, item)
		}
	}
	var edges []finding.Edge
	for _, e := range r.Edges {
		if keep[e.From] && keep[e.To] {
			edges = append(edges, finding.Edge{From: place[e.From], To: place[e.To]})
		}
	}
	r.Items, r.Edges = items, edges
	r = ordered(r)
	if f.Namespace != "" {
		r.Unknown = slices.DeleteFunc(slices.Clone(r.Unknown),
			func(u engine.Unknown) bool { return !slices.ContainsFunc(u.All(), f.concerns) })
		r.Summary.Unknown = len(r.Unknown)
	}
	r.Summary.Errors, r.Summary.Warnings = len(Roots(r, finding.Error)), len(Roots(r, finding.Warning))
	return r
}

// ordered returns the report with its roots in the order in which they are told, in every format: the worst first, then
// those that explain the most.
func ordered(r doctor.Report) doctor.Report {
	var order []int
	for _, severity := range []finding.Severity{finding.Error, finding.Warning, finding.Info} {
		order = append(order, Roots(r, severity)...)
	}
	for i, f := range r.Items {
		if !f.Root {
			order = append(order, i)
		}
	}
	items, place := make([]finding.Finding, len(order)), make([]int, len(r.Items))
	for to, from := range order {
		items[to], place[from] = r.Items[from], to
	}
	edges := make([]finding.Edge, len(r.Edges))
	for i, e := range r.Edges {
		edges[i] = finding.Edge{From: place[e.From], To: place[e.To]}
	}
	slices.SortFunc(edges,
		func(a, b finding.Edge) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	r.Items, r.Edges = items, edges
	return r
}

// shows reports whether a root is shown. One of another namespace is also for what it leads to here, or on nodes.
func (f Filter) shows(r doctor.Report, i int) bool {
	root := r.Items[i]
	if f.Min != "" && rank(root.Severity) > rank(f.Min) {
		return false
	}
	ofWorkloads := []finding.Layer{
		finding.LayerWorkload, finding.LayerScheduling, finding.LayerAccess, finding.LayerNetwork, finding.LayerCluster,
	}
	if f.Namespace == "" || !slices.Contains(ofWorkloads, root.Layer) {
		return true
	}
	for _, j := range append([]int{i}, Consequences(r, i)...) {
		if slices.ContainsFunc(objects(r.Items[j]), f.concerns) {
			return true
		}
	}
	return false
}

// concerns reports whether an object is of the namespace, or of none. DaemonSets are components of the nodes.
func (f Filter) concerns(o finding.Object) bool {
	return o.Namespace == "" || o.Namespace == f.Namespace || o.Kind == "DaemonSet"
}

// AtLeast reports whether a root of the report is as bad as that.
func AtLeast(r doctor.Report, severity finding.Severity) bool {
	return slices.ContainsFunc(r.Items,
		func(f finding.Finding) bool { return f.Root && rank(f.Severity) <= rank(severity) })
}

// Roots returns the indexes of the roots of a severity, those that explain the most first.
func Roots(r doctor.Report, severity finding.Severity) []int {
	var all []int
	explains := map[int]int{}
	for i, f := range r.Items {
		if f.Root && f.Severity == severity {
			all = append(all, i)
			explains[i] = len(Consequences(r, i))
		}
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(explains[b], explains[a]) })
	return all
}

// Consequences returns the indexes of all that a finding explains, the nearest first.
func Consequences(r doctor.Report, root int) []int {
	seen, found := map[int]bool{root: true}, []int{root}
	for next := 0; next < len(found); next++ {
		for _, e := range r.Edges {
			if e.From == found[next] && !seen[e.To] && !r.Items[e.To].Root {
				seen[e.To] = true
				found = append(found, e.To)
			}
		}
	}
	return found[1:]
}

// Affected names the pods that suffer from a root, those of users first, and at most so many. Those that the root is on
// itself are left out. It is empty when there are none.
func Affected(r doctor.Report, root, n int) string {
	seen := map[string]bool{}
	for _, o := range objects(r.Items[root]) {
		seen[o.Namespace+"/"+o.Name] = o.Kind == "Pod"
	}
	var users, others []string
	for _, i := range append([]int{root}, Consequences(r, root)...) {
		f := r.Items[i]
		for _, pod := range f.Pods {
			switch {
			case seen[pod]:
				continue
			case slices.Contains([]finding.Layer{finding.LayerScheduling, finding.LayerAccess, finding.LayerWorkload},
				f.Layer):
				users = append(users, clean(pod))
			default:
				others = append(others, clean(pod))
			}
			seen[pod] = true
		}
	}
	all := append(users, others...)
	if len(all) == 0 {
		return ""
	}
	word := "pods"
	if len(all) == 1 {
		word = "pod"
	}
	if len(all) <= n+1 { // "and 1 more" is no shorter than its name
		n = len(all)
	}
	text := "Affected: " + word + " " + strings.Join(all[:n], ", ")
	if rest := len(all) - n; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

func rank(s finding.Severity) int {
	return slices.Index([]finding.Severity{finding.Error, finding.Warning, finding.Info}, s)
}

func objects(f finding.Finding) []finding.Object {
	if len(f.Objects) > 0 {
		return f.Objects
	}
	return []finding.Object{f.Object}
}

// some names the first n objects, and counts the others: "Node a, Node b and 3 more". n 0 means all.
func some(all []finding.Object, n int) string {
	if n <= 0 || len(all) <= n+1 { // "and 1 more" is no shorter than its name
		n = len(all)
	}
	var names []string
	for _, o := range all[:n] {
		names = append(names, clean(o.String()))
	}
	text := strings.Join(names, ", ")
	if rest := len(all) - n; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// Headline says the outcome in a line.
func Headline(r doctor.Report) string {
	errors, warnings := Roots(r, finding.Error), Roots(r, finding.Warning)
	switch {
	case len(errors) == 1:
		text := "1 problem: " + sentence(r.Items[errors[0]].Title)
		if len(warnings) > 0 {
			text += " (and " + count.Of(len(warnings), "warning") + ")"
		}
		return text
	case len(errors) > 0 && len(warnings) > 0:
		return count.Of(len(errors), "problem") + " and " + count.Of(len(warnings), "warning")
	case len(errors) > 0:
		return count.Of(len(errors), "problem")
	case len(warnings) == 1:
		return "1 warning: " + sentence(r.Items[warnings[0]].Title)
	case len(warnings) > 0:
		return count.Of(len(warnings), "warning")
	case r.Summary.GPUNodes == 0 && r.Summary.GPUPods == 0 && r.Summary.Nodes > 0:
		return "no GPUs: no node has NVIDIA GPUs, and no pod asks for one"
	case r.Summary.Unknown > 0 && len(r.Unknown) > 0 && len(failed(r).Unknown) == 0:
		return "no problem found in what was looked at"
	case r.Summary.Unknown > 0:
		return "no problem found in what could be seen"
	}
	return "no problem found"
}

// LookedAt returns what was looked at, and when.
func LookedAt(r doctor.Report) string {
	s := r.Summary
	nodes := count.Of(s.GPUNodes, "GPU node")
	switch {
	case s.GPUNodes == 0:
		nodes = count.Of(s.Nodes, "node") + " without GPUs"
	case s.NodesRead == 0:
		nodes += " (not read by a pod)"
	case s.NodesRead < s.GPUNodes:
		nodes += fmt.Sprintf(" (%d of them read by a pod)", s.NodesRead)
	default:
		nodes += " (read by a pod)"
	}
	if s.GPUNodes > 0 && s.Nodes > s.GPUNodes {
		nodes += fmt.Sprintf(" of %s", count.Of(s.Nodes, "node"))
	}
	text := fmt.Sprintf("Looked at %s and %s with %s", nodes, count.Of(s.GPUPods, "GPU pod"),
		count.Of(s.Checks, "check"))
	if r.Snapshot.Context != "" {
		text += ", in context " + clean(r.Snapshot.Context)
	}
	text += ", at " + r.Created.UTC().Format("2006-01-02 15:04:05 UTC")
	if r.Ignored > 0 {
		text += fmt.Sprintf("; %s hidden by the ignore file", count.Of(r.Ignored, "finding"))
	}
	return text + "."
}

// sentence returns a title as part of a longer line.
func sentence(title string) string { return strings.TrimSuffix(clean(title), ".") }

// Blind is one reason for which something could not be seen.
type Blind struct {
	Why     string
	Checks  []string
	Objects []finding.Object // those that have a name
}

// Blinds groups what could not be told by its reason, the most checks first.
func Blinds(r doctor.Report) []Blind {
	var all []Blind
	at := map[string]int{}
	checks, seen := map[[2]string]bool{}, map[string]map[finding.Object]bool{}
	for _, u := range r.Unknown {
		i, known := at[u.Why]
		if !known {
			i = len(all)
			at[u.Why], seen[u.Why] = i, map[finding.Object]bool{}
			all = append(all, Blind{Why: u.Why})
		}
		if key := [2]string{u.Why, u.Check}; !checks[key] {
			checks[key] = true
			all[i].Checks = append(all[i].Checks, u.Check)
		}
		for _, o := range u.All() {
			if o.Name != "" && !seen[u.Why][o] {
				seen[u.Why][o] = true
				all[i].Objects = append(all[i].Objects, o)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Blind) int { return cmp.Compare(len(b.Checks), len(a.Checks)) })
	return all
}

// failed returns the report without what could not be told because nobody asked for nodes to be read.
func failed(r doctor.Report) doctor.Report {
	r.Unknown = NotChecked(r)
	return r
}

// NotChecked returns what could not be told though it was asked for: rights were missing, a node could not be read, a
// check broke.
func NotChecked(r doctor.Report) []engine.Unknown {
	return slices.DeleteFunc(slices.Clone(r.Unknown), engine.Unknown.NotAsked)
}

// Gate says when a report fails for a program that asks.
type Gate struct {
	// FailOn is the least severity of a root that fails it.
	FailOn finding.Severity
	// Strict makes it fail, too, where something could not be checked.
	Strict bool
}

// Fails reports whether the report fails. Where that is because of what could not be checked, why says so.
func (g Gate) Fails(r doctor.Report) (fails bool, why string) {
	checks := map[string]bool{}
	for _, u := range NotChecked(r) {
		checks[u.Check] = true
	}
	if g.Strict && len(checks) > 0 {
		why = count.Of(len(checks), "check") +
			" could not see what they need, and --fail-on accepts that only with --allow-unknown"
		if len(checks) == 1 {
			why = "1 check could not see what it needs, and --fail-on accepts that only with --allow-unknown"
		}
	}
	return why != "" || AtLeast(r, g.FailOn), why
}

// Unread returns which nodes were not read because nobody asked for it, and how they are; empty when there are none.
func Unread(r doctor.Report) string {
	var nodes []string
	checks, seen, why := map[string]bool{}, map[string]bool{}, ""
	for _, u := range r.Unknown {
		if !u.NotAsked() {
			continue
		}
		checks[u.Check], why = true, u.Why
		for _, o := range u.All() {
			if o.Kind == "Node" && !seen[o.Name] {
				seen[o.Name] = true
				nodes = append(nodes, o.Name)
			}
		}
	}
	if len(checks) == 0 {
		return ""
	}
	slices.Sort(nodes)
	waits := count.Of(len(checks), "check") + " need that: "
	if len(checks) == 1 {
		waits = "1 check needs that: "
	}
	if r.Snapshot.APIOnly {
		return "No node was read, because of --api-only. " + waits + "leave it out to have them looked at."
	}
	named := make([]finding.Object, len(nodes))
	for i, name := range nodes {
		named[i] = finding.Object{Kind: name} // which is printed as it is
	}
	was := "were"
	if len(nodes) == 1 {
		was = "was"
	}
	text := count.Of(len(nodes), "GPU node")
	switch {
	case strings.Contains(why, "looks healthy") && len(nodes) == 1:
		text += " looks healthy by the API and was not read"
	case strings.Contains(why, "looks healthy") && r.Summary.NodesRead == 0:
		text += " look healthy by the API and were not read"
	case strings.Contains(why, "looks healthy"):
		text += " look healthy by the API, or like those that were read, and were not read"
	default:
		text += " " + was + " not to be read"
	}
	return text + ": " + some(named, someObjects) + ". " + waits + "kubectl gpu-fault doctor --all-gpu-nodes"
}

// Match reports whether an ID fits a pattern such as "rt.*".
func Match(pattern, id string) bool {
	ok, err := path.Match(pattern, id)
	return err == nil && ok || pattern == id
}
