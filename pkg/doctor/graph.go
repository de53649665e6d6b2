package doctor

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
)

// gather drops what the user ignores, finds what explains what, and merges findings that say the same about different
// objects.
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
	var merged []*merging
	for _, f := range single {
		k := key{f.ID, f.Title, f.Fix.Text, strings.Join(f.CausedBy, " ")}
		if _, known := at[k]; !known {
			at[k] = len(merged)
			merged = append(merged, &merging{
				Finding: f, objects: map[Object]bool{}, nodes: map[string]bool{}, pods: map[string]bool{},
				named: map[string]bool{}, everywhere: len(f.Nodes) == 0,
			})
		}
		merged[at[k]].add(f)
	}
	for _, m := range merged {
		all = append(all, m.finish())
	}
	return all, ignored
}

// most is how many quotations and commands a finding about many objects keeps.
const most = 8

// merging is a finding that others are added to. A cluster may have it on thousands of nodes, so that what is there
// already is asked of sets.
type merging struct {
	Finding
	objects    map[Object]bool
	nodes      map[string]bool
	pods       map[string]bool
	named      map[string]bool // Finding.Pods
	everywhere bool            // one of them names no node
}

func (m *merging) add(f Finding) {
	if !m.objects[f.Object] {
		m.objects[f.Object] = true
		m.Objects = append(m.Objects, f.Object)
	}
	m.mute = m.mute && f.mute
	m.everywhere = m.everywhere || len(f.Nodes) == 0
	if !slices.Equal(f.Nodes, m.Nodes) || len(m.nodes) == 0 {
		for _, n := range f.Nodes {
			m.nodes[n] = true
		}
	}
	for _, p := range f.pods {
		m.pods[p] = true
		// Some findings set themselves apart by the name of another object
		m.named[p] = m.named[p] || !strings.Contains(p, " ")
	}
	for _, p := range f.Pods {
		m.named[p] = true
	}
	for _, e := range f.Evidence {
		if len(m.Evidence) < most && !slices.Contains(m.Evidence, e) {
			m.Evidence = append(m.Evidence, e)
		}
	}
	for _, c := range f.Fix.Commands {
		if len(m.Fix.Commands) < most && !slices.Contains(m.Fix.Commands, c) {
			m.Fix.Commands = append(m.Fix.Commands, c)
		}
	}
	if rank(f.Severity) < rank(m.Severity) {
		m.Severity = f.Severity
	}
}

func (m *merging) finish() Finding {
	f := m.Finding
	f.Nodes, f.pods, f.Pods = nil, slices.Sorted(maps.Keys(m.pods)), onlyTrue(m.named)
	if !m.everywhere {
		f.Nodes = slices.Sorted(maps.Keys(m.nodes))
	}
	if len(f.Objects) == 1 {
		f.Objects = nil
	}
	return f
}

// cause tells findings apart by what they explain.
type cause struct {
	id, as         string
	written, ofRun bool
}

func (f Finding) cause() cause { return cause{f.ID, f.as, f.written, f.ofRun} }

// provenByItself are findings whose proof is in the object's own specification, or in its image, whatever else is wrong
// near it: only a check that names the ID explains them, and no pattern does.
func provenByItself() []string {
	return []string{
		"sched.wrong-resource-name", "sched.bigger-than-any-node", "sched.node-selector", "sched.taint", "sched.volume",
		"sched.insufficient-other",
		"rbac.quota", "ns.podsecurity", "img.not-found", "img.pull-auth",
		"wl.exec-format", "wl.config-error", "wl.volume", "wl.oom-killed", "wl.shm",
	}
}

// Means reports whether a pattern of Check.Explains means a finding: one that is proven by itself only by its name.
func Means(pattern, id string) bool {
	return pattern == id || !slices.Contains(provenByItself(), id) && anyMatches([]string{pattern}, id)
}

// detectorsDo returns what follows from a line that a program wrote into the kernel log: nothing is wrong with the GPU,
// and detectors act on it.
func detectorsDo() []string { return []string{"node.condition", "sched.node-state"} }

// explain writes into each finding the IDs of those that may be its cause: their checks say so, and both concern the
// same node or pod. It asks indexes and not each pair, because a cluster may have a finding on each of thousands of
// nodes.
func explain(all []Finding, checks []Check) {
	type place struct {
		cause
		where string
	}
	byID := map[string]Check{}
	for _, c := range checks {
		byID[c.ID] = c
	}
	here, anywhere, causes, labs := map[place]*span{}, map[cause]bool{}, map[cause][]string{}, map[cause][]*lab{}
	put := func(where place, f Finding) {
		if here[where] == nil {
			here[where] = &span{}
		}
		here[where].add(f)
	}
	for i, f := range all {
		check := byID[f.ID]
		if all[i].mute = f.Severity == Info && !check.InfoExplains; all[i].mute {
			continue
		}
		from := f.cause()
		causes[from] = check.Explains
		if patterns, narrower := check.ExplainsAs[f.as]; narrower {
			causes[from] = patterns
		}
		if f.written {
			causes[from] = detectorsDo()
		}
		if f.ofRun {
			causes[from] = nil // the run explains what follows, by time and device
		}
		if f.lab != nil {
			labs[from] = append(labs[from], f.lab)
			continue
		}
		if len(f.pods) == 0 && len(f.Nodes) == 0 {
			anywhere[from] = true
		}
		kind := "node "
		if len(f.pods) > 0 {
			kind = "pods on "
		}
		for _, n := range f.Nodes {
			put(place{from, kind + n}, f)
		}
		for _, p := range f.pods {
			put(place{from, "pod " + p}, f)
		}
	}
	for i, f := range all {
		for from, patterns := range causes {
			if from.id == f.ID || slices.Contains(all[i].CausedBy, from.id) || !anyMatches(patterns, f.ID) {
				continue
			}
			if slices.Contains(provenByItself(), f.ID) && !slices.Contains(patterns, f.ID) {
				continue
			}
			if from.id == injectedFault && isOfGPU(f) && !f.ofRun {
				continue // the driver said it, not a line of ours
			}
			if slices.ContainsFunc(labs[from], func(l *lab) bool { return l.covers(f) }) {
				all[i].CausedBy = append(all[i].CausedBy, from.id)
				continue
			}
			if len(labs[from]) > 0 {
				continue
			}
			// What concerns no node, or a pod that is on none yet, may follow from what is wrong anywhere.
			// A pod that names a reason of its own follows only from what concerns that pod.
			// A run explains nothing but what is at the place that it changed.
			near := (anywhere[from] || len(f.Nodes) == 0) && !f.own && from.id != injectedFault
			for _, n := range f.Nodes {
				near = near || !f.own && here[place{from, "node " + n}].meets(f) ||
					len(f.pods) == 0 && here[place{from, "pods on " + n}].meets(f)
			}
			for _, p := range f.pods {
				near = near || here[place{from, "pod " + p}].meets(f)
			}
			if near {
				all[i].CausedBy = append(all[i].CausedBy, from.id)
			}
		}
		slices.Sort(all[i].CausedBy)
	}
}

// fold finds the roots: what is explained is none, and its severity does not count. Two that explain each other, by
// whatever way, are both roots.
func fold(all []Finding) ([]Finding, []Edge) {
	causes := func(from, to int) bool {
		return from != to && slices.Contains(all[to].CausedBy, all[from].ID) && related(all[from], all[to]) &&
			!all[from].mute
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
	raise(all, direct)
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

// related reports whether two findings concern the same: a pod where both name pods, else a node; one that names no
// node concerns all. A lab concerns what is in it.
func related(a, b Finding) bool {
	if a.lab != nil {
		return a.lab.covers(b)
	}
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

// onlyTrue returns the keys whose value is true, sorted.
func onlyTrue(set map[string]bool) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if set[key] {
			all = append(all, key)
		}
	}
	return all
}
