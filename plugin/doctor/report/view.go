// Package report shows what doctor concluded: as text for people, as JUnit and SARIF for machines, and as a page of HTML. It is pure: a
// doctor.Report goes in. All that it prints of the cluster's own words is made safe first.
package report

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
)

// Filter says which findings are shown, in every format.
type Filter struct {
	// Min is the least severity of the roots; empty means all. What a root explains is shown with it.
	Min doctor.Severity
	// Namespace leaves out what concerns only workloads of other namespaces; empty means all.
	Namespace string
}

// Apply returns the report with only those findings, and with counts and edges that fit them. States of layers and nodes stay: they are
// what was found.
func (f Filter) Apply(r doctor.Report) doctor.Report {
	keep := make([]bool, len(r.Items))
	for i, item := range r.Items {
		if item.Root && f.shows(item) {
			keep[i] = true
			for _, c := range Consequences(r, i) {
				keep[c] = true
			}
		}
	}
	items, place := []doctor.Finding{}, make([]int, len(r.Items))
	for i, item := range r.Items {
		if place[i] = len(items); keep[i] {
			items = append(items, item)
		}
	}
	var edges []doctor.Edge
	for _, e := range r.Edges {
		if keep[e.From] && keep[e.To] {
			edges = append(edges, doctor.Edge{From: place[e.From], To: place[e.To]})
		}
	}
	r.Items, r.Edges = items, edges
	r.Summary.Errors, r.Summary.Warnings = len(Roots(r, doctor.Error)), len(Roots(r, doctor.Warning))
	return r
}

func (f Filter) shows(root doctor.Finding) bool {
	if f.Min != "" && rank(root.Severity) > rank(f.Min) {
		return false
	}
	ofWorkloads := []doctor.Layer{doctor.LayerWorkload, doctor.LayerScheduling, doctor.LayerAccess}
	if f.Namespace == "" || !slices.Contains(ofWorkloads, root.Layer) {
		return true
	}
	return slices.ContainsFunc(objects(root), func(o doctor.Object) bool { return o.Namespace == "" || o.Namespace == f.Namespace })
}

// AtLeast is whether a root of the report is as bad as that.
func AtLeast(r doctor.Report, severity doctor.Severity) bool {
	return slices.ContainsFunc(r.Items, func(f doctor.Finding) bool { return f.Root && rank(f.Severity) <= rank(severity) })
}

// Roots are the indexes of the roots of a severity, those that explain the most first.
func Roots(r doctor.Report, severity doctor.Severity) []int {
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

// Consequences are the indexes of all that a finding explains, the nearest first.
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

func rank(s doctor.Severity) int {
	return slices.Index([]doctor.Severity{doctor.Error, doctor.Warning, doctor.Info}, s)
}

func objects(f doctor.Finding) []doctor.Object {
	if len(f.Objects) > 0 {
		return f.Objects
	}
	return []doctor.Object{f.Object}
}

// some names the first n objects, and counts the others: "Node a, Node b and 3 more". n 0 means all.
func some(all []doctor.Object, n int) string {
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
	errors, warnings := Roots(r, doctor.Error), Roots(r, doctor.Warning)
	switch {
	case len(errors) == 1:
		text := "1 problem: " + sentence(r.Items[errors[0]].Title)
		if len(warnings) > 0 {
			text += " (and " + count(len(warnings), "warning") + ")"
		}
		return text
	case len(errors) > 0 && len(warnings) > 0:
		return count(len(errors), "problem") + " and " + count(len(warnings), "warning")
	case len(errors) > 0:
		return count(len(errors), "problem")
	case len(warnings) == 1:
		return "1 warning: " + sentence(r.Items[warnings[0]].Title)
	case len(warnings) > 0:
		return count(len(warnings), "warning")
	case r.Summary.GPUNodes == 0 && r.Summary.GPUPods == 0 && r.Summary.Nodes > 0:
		return "no GPUs: no node has NVIDIA GPUs, and no pod asks for one"
	case r.Summary.Unknown > 0:
		return "no problem found in what could be seen"
	}
	return "no problem found"
}

// LookedAt says what was looked at, and when.
func LookedAt(r doctor.Report) string {
	s := r.Summary
	nodes := count(s.GPUNodes, "GPU node")
	switch {
	case s.GPUNodes == 0:
		nodes = count(s.Nodes, "node") + " without GPUs"
	case s.NodesRead == 0:
		nodes += " (not read by a pod)"
	case s.NodesRead < s.GPUNodes:
		nodes += fmt.Sprintf(" (%d of them read by a pod)", s.NodesRead)
	default:
		nodes += " (read by a pod)"
	}
	if s.GPUNodes > 0 && s.Nodes > s.GPUNodes {
		nodes += fmt.Sprintf(" of %s", count(s.Nodes, "node"))
	}
	text := fmt.Sprintf("Looked at %s and %s with %s", nodes, count(s.GPUPods, "GPU pod"), count(s.Checks, "check"))
	if r.Snapshot.Context != "" {
		text += ", in context " + clean(r.Snapshot.Context)
	}
	text += ", at " + r.Created.UTC().Format("2006-01-02 15:04:05 UTC")
	if r.Ignored > 0 {
		text += fmt.Sprintf("; %s hidden by the ignore file", count(r.Ignored, "finding"))
	}
	return text + "."
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sentence is a title as part of a longer line.
func sentence(title string) string { return strings.TrimSuffix(clean(title), ".") }

// Blind is one reason for which something could not be seen.
type Blind struct {
	Why     string
	Checks  []string
	Objects []doctor.Object // those that have a name
}

// Blinds groups what could not be told by its reason, the most checks first.
func Blinds(r doctor.Report) []Blind {
	var all []Blind
	at := map[string]int{}
	checks, seen := map[[2]string]bool{}, map[string]map[doctor.Object]bool{}
	for _, u := range r.Unknown {
		i, known := at[u.Why]
		if !known {
			i = len(all)
			at[u.Why], seen[u.Why] = i, map[doctor.Object]bool{}
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

// Match is whether an ID fits a pattern such as "rt.*".
func Match(pattern, id string) bool {
	ok, err := path.Match(pattern, id)
	return err == nil && ok || pattern == id
}
