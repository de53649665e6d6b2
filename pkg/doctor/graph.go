package doctor

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// gather drops what the user ignores, finds what explains what, and merges findings that say the same about different objects.
func gather(results []*Result, ignore []Ignore, checks []Check) (all []Finding, ignored int) {
	var single []Finding
	for _, r := range results {
		for _, f := range r.findings {
			if slices.ContainsFunc(ignore, func(i Ignore) bool { return i.hides(f) }) {
				ignored++
				continue
			}
			single = append(single, f)
		}
	}
	explain(single, checks)
	type key struct{ id, title, fix, causes string }
	at := map[key]int{}
	for _, f := range single {
		k := key{f.ID, f.Title, f.Fix.Text, strings.Join(f.CausedBy, " ")}
		if i, known := at[k]; known {
			all[i] = merge(all[i], f)
			continue
		}
		f.Objects = []Object{f.Object}
		at[k] = len(all)
		all = append(all, f)
	}
	for i := range all {
		if len(all[i].Objects) == 1 {
			all[i].Objects = nil
		}
	}
	return all, ignored
}

// most is how many quotations and commands a finding about many objects keeps.
const most = 8

func merge(f, other Finding) Finding {
	if !slices.Contains(f.Objects, other.Object) {
		f.Objects = append(f.Objects, other.Object)
	}
	if len(f.Nodes) > 0 && len(other.Nodes) > 0 {
		for _, n := range other.Nodes {
			if !slices.Contains(f.Nodes, n) {
				f.Nodes = append(f.Nodes, n)
			}
		}
	} else {
		f.Nodes = nil
	}
	for _, e := range other.Evidence {
		if len(f.Evidence) < most && !slices.Contains(f.Evidence, e) {
			f.Evidence = append(f.Evidence, e)
		}
	}
	for _, c := range other.Fix.Commands {
		if len(f.Fix.Commands) < most && !slices.Contains(f.Fix.Commands, c) {
			f.Fix.Commands = append(f.Fix.Commands, c)
		}
	}
	f.pods = append(f.pods, other.pods...)
	if rank(other.Severity) < rank(f.Severity) {
		f.Severity = other.Severity
	}
	return f
}

// explain writes into each finding the IDs of those that may be its cause: their checks say so, and both concern the same node or pod. It
// asks indexes and not each pair, because a cluster may have a finding on each of thousands of nodes.
func explain(all []Finding, checks []Check) {
	type place struct{ id, where string }
	here, anywhere, somewhere := map[place]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range all {
		somewhere[f.ID] = true
		if len(f.pods) == 0 && len(f.Nodes) == 0 {
			anywhere[f.ID] = true
		}
		kind := "node "
		if len(f.pods) > 0 {
			kind = "pods on "
		}
		for _, n := range f.Nodes {
			here[place{f.ID, kind + n}] = true
		}
		for _, p := range f.pods {
			here[place{f.ID, "pod " + p}] = true
		}
	}
	for i, f := range all {
		for _, c := range checks {
			if c.ID == f.ID || !somewhere[c.ID] || !c.explains(f.ID) {
				continue
			}
			// What concerns no node, or a pod that is on none yet, may follow from what is wrong anywhere.
			near := anywhere[c.ID] || len(f.Nodes) == 0
			for _, n := range f.Nodes {
				near = near || here[place{c.ID, "node " + n}] || len(f.pods) == 0 && here[place{c.ID, "pods on " + n}]
			}
			for _, p := range f.pods {
				near = near || here[place{c.ID, "pod " + p}]
			}
			if near {
				all[i].CausedBy = append(all[i].CausedBy, c.ID)
			}
		}
	}
}

// fold finds the roots: what is explained is none, and its severity does not count. Two that explain each other, by whatever way, are
// both roots.
func fold(all []Finding) ([]Finding, []Edge) {
	causes := func(from, to int) bool {
		return from != to && slices.Contains(all[to].CausedBy, all[from].ID) && related(all[from], all[to])
	}
	// direct[i] are the findings that i explains directly.
	direct := make([][]int, len(all))
	for i := range all {
		for j := range all {
			if causes(i, j) {
				direct[i] = append(direct[i], j)
			}
		}
	}
	reaches := func(from, to int) bool {
		seen, todo := map[int]bool{from: true}, slices.Clone(direct[from])
		for len(todo) > 0 {
			next := todo[0]
			todo = todo[1:]
			if next == to {
				return true
			}
			if !seen[next] {
				seen[next] = true
				todo = append(todo, direct[next]...)
			}
		}
		return false
	}
	order := make([]int, len(all))
	for i := range all {
		order[i] = i
		all[i].Root = true
		for j := range all {
			if causes(j, i) && !reaches(i, j) {
				all[i].Root = false
			}
		}
	}
	for i := range all {
		if all[i].Root {
			all[i].CausedBy = nil
		} else {
			all[i].Severity = Info
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(compareBool(all[b].Root, all[a].Root), cmp.Compare(rank(all[a].Severity), rank(all[b].Severity)))
	})
	place := make([]int, len(all))
	sorted := make([]Finding, len(all))
	for i, from := range order {
		sorted[i], place[from] = all[from], i
	}
	edges := []Edge{}
	for i := range direct {
		for _, j := range direct[i] {
			if !all[j].Root {
				edges = append(edges, Edge{place[i], place[j]})
			}
		}
	}
	slices.SortFunc(edges, func(a, b Edge) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return sorted, edges
}

// related is whether two findings concern the same: a pod where both name pods, else a node; one that names no node concerns all.
func related(a, b Finding) bool {
	if len(a.pods) > 0 && len(b.pods) > 0 {
		return slices.ContainsFunc(a.pods, func(p string) bool { return slices.Contains(b.pods, p) })
	}
	if len(a.Nodes) == 0 || len(b.Nodes) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Nodes, func(n string) bool { return slices.Contains(b.Nodes, n) })
}

func (i Ignore) hides(f Finding) bool {
	if !matches(i.ID, f.ID) {
		return false
	}
	return i.Object == "" || matches(i.Object, f.Object.String())
}

// matches is path.Match, in which * also matches a slash. A pattern that is none matches only itself.
func matches(pattern, text string) bool {
	ok, err := path.Match(noSlash(pattern), noSlash(text))
	return err == nil && ok || pattern == text
}

func noSlash(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

func rank(s Severity) int { return slices.Index([]Severity{Error, Warning, Info}, s) }

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
