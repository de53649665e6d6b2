// Package report prints doctor's conclusions as text for people, as JUnit and SARIF for machines, and as an HTML page.
// Its only input is a doctor.Report. It sanitizes all strings that come from the cluster.
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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Filter selects the findings to show in all formats.
type Filter struct {
	// Min is the lowest severity of root causes to show. Empty means all. The consequences of these root causes are
	// also shown.
	Min finding.Severity
	// Namespace hides findings that concern only workloads in other namespaces. Empty means all.
	Namespace string
}

// Apply returns the report with only the selected findings, and with matching counts and edges. The states of layers
// and nodes do not change, because they reflect all findings.
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

// ordered returns the report with its root causes in the order used by all formats: by severity, then by number of
// consequences.
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
	sorting.Func(edges,
		func(a, b finding.Edge) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	r.Items, r.Edges = items, edges
	return r
}

// shows reports whether to show a root cause. A root cause in another namespace is shown if it has consequences in this
// namespace or on nodes.
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

// concerns reports whether an object is in the namespace or is not namespaced. DaemonSets count as not namespaced,
// because they are components of the nodes.
func (f Filter) concerns(o finding.Object) bool {
	return o.Namespace == "" || o.Namespace == f.Namespace || o.Kind == "DaemonSet"
}

// AtLeast reports whether the report has a root cause with this severity or a higher one.
func AtLeast(r doctor.Report, severity finding.Severity) bool {
	return slices.ContainsFunc(r.Items,
		func(f finding.Finding) bool { return f.Root && rank(f.Severity) <= rank(severity) })
}

// Roots returns the indexes of the root causes with the given severity, starting with those that explain the most
// findings.
func Roots(r doctor.Report, severity finding.Severity) []int {
	var all []int
	explains := map[int]int{}
	for i, f := range r.Items {
		if f.Root && f.Severity == severity {
			all = append(all, i)
			explains[i] = len(Consequences(r, i))
		}
	}
	sorting.StableFunc(all, func(a, b int) int { return cmp.Compare(explains[b], explains[a]) })
	return all
}

// Consequences returns the indexes of all findings that a finding explains, nearest first.
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

// Affected returns the names of at most n pods affected by a root cause, user pods first. It omits the pods that are
// objects of the root cause itself. It returns "" if there are none.
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
	if len(all) <= n+1 { // "and 1 more" is no shorter than the name
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

// some returns the names of the first n objects and the number of the others, as in "Node a, Node b and 3 more". If n
// is 0, it returns all names.
func some(all []finding.Object, n int) string {
	if n <= 0 || len(all) <= n+1 { // "and 1 more" is no shorter than the name
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

// Headline returns the outcome in one line.
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
	case r.Summary.GPUNodes == 0 && r.Summary.GPUPods == 0 && r.Summary.OtherPods > 0:
		return "no problem found, but the checks of nodes and drivers are only for NVIDIA GPUs; " +
			count.Of(r.Summary.OtherPods, "pod") + " requested other accelerators"
	case r.Summary.GPUNodes == 0 && r.Summary.GPUPods == 0 && r.Summary.Nodes > 0:
		return "no NVIDIA GPUs: no node has one, and no pod requests one"
	case r.Summary.Unknown > 0 && len(r.Unknown) > 0 && len(failed(r).Unknown) == 0:
		return "no problem found in what was checked"
	case r.Summary.Unknown > 0:
		return "no problem found, but not everything could be checked"
	}
	return "no problem found"
}

// LookedAt returns a description of what was inspected, and when.
func LookedAt(r doctor.Report) string {
	s := r.Summary
	nodes := count.Of(s.GPUNodes, "GPU node")
	switch {
	case s.GPUNodes == 0:
		nodes = count.Of(s.Nodes, "node") + " without NVIDIA GPUs"
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
	pods := " and " + count.Of(s.GPUPods, "GPU pod")
	if s.OtherPods > 0 {
		pods = ", " + count.Of(s.GPUPods, "GPU pod") + " and " + count.Of(s.OtherPods, "pod") +
			" with other accelerators,"
	}
	text := fmt.Sprintf("Inspected %s%s with %s", nodes, pods, count.Of(s.Checks, "check"))
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

// Blind is one reason why checks could not run, with the checks and objects concerned.
type Blind struct {
	Why     string
	Checks  []string
	Objects []finding.Object // only objects with a name
}

// Blinds groups what could not be checked by reason, sorted by descending number of checks.
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
	sorting.StableFunc(all, func(a, b Blind) int { return cmp.Compare(len(b.Checks), len(a.Checks)) })
	return all
}

// failed returns the report without the entries for items that were not checked only because reading the nodes was not
// requested.
func failed(r doctor.Report) doctor.Report {
	r.Unknown = NotChecked(r)
	return r
}

// NotChecked returns what was requested but could not be checked, for example because permissions were missing, a node
// could not be read, or a check failed.
func NotChecked(r doctor.Report) []engine.Unknown {
	return slices.DeleteFunc(slices.Clone(r.Unknown), engine.Unknown.NotAsked)
}

// Gate is the condition for a report to fail. It determines the exit code and the result in machine-readable formats.
type Gate struct {
	// FailOn is the lowest severity of a root cause that makes the report fail.
	FailOn finding.Severity
	// Strict also makes the report fail if something could not be checked.
	Strict bool
}

// Fails reports whether the report fails. If the cause is something that could not be checked, the result why contains
// the reason.
func (g Gate) Fails(r doctor.Report) (fails bool, why string) {
	checks := map[string]bool{}
	for _, u := range NotChecked(r) {
		checks[u.Check] = true
	}
	if g.Strict && len(checks) > 0 {
		why = count.Of(len(checks), "check") +
			" could not run; to accept this with --fail-on, also specify --allow-unknown"
		if len(checks) == 1 {
			why = "1 check could not run; to accept this with --fail-on, also specify --allow-unknown"
		}
	}
	return why != "" || AtLeast(r, g.FailOn), why
}

// Unread describes the nodes that were not read because reading them was not requested. It returns "" if there are
// none.
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
	waits := "To complete " + count.Of(len(checks), "check") + ", "
	if r.Snapshot.APIOnly {
		return "No nodes were inspected because of --api-only. " + waits + "omit it."
	}
	named := make([]finding.Object, len(nodes))
	for i, name := range nodes {
		named[i] = finding.Object{Kind: name} // printed unchanged
	}
	was := "were"
	if len(nodes) == 1 {
		was = "was"
	}
	text := count.Of(len(nodes), "GPU node")
	switch {
	case strings.Contains(why, "looks healthy") && len(nodes) == 1:
		text += " looks healthy according to the API and was not inspected"
	case strings.Contains(why, "looks healthy") && r.Summary.NodesRead == 0:
		text += " look healthy according to the API and were not inspected"
	case strings.Contains(why, "looks healthy"):
		text += " were not inspected, because, according to the API, they look healthy or are similar to inspected " +
			"nodes"
	default:
		text += " " + was + " not selected"
	}
	return text + ": " + some(named, someObjects) + ". " + waits + "run: kubectl gpu-fault doctor --all-gpu-nodes"
}

// Match reports whether an ID matches a pattern such as "rt.*".
func Match(pattern, id string) bool {
	ok, err := path.Match(pattern, id)
	return err == nil && ok || pattern == id
}
