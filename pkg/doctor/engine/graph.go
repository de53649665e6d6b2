package engine

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Gather drops ignored findings, determines the causes of each finding, and merges findings that differ only in their
// objects.
func Gather(results []*Result, ignore []Ignore, checks []Check) (all []finding.Finding, ignored int) {
	var single []finding.Finding
	Prune(results)
	for _, r := range results {
		for _, f := range r.Findings {
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
				Finding: f, objects: map[finding.Object]bool{}, nodes: map[string]bool{}, pods: map[string]bool{},
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

// Prune removes findings that are based only on a known message or another vendor's resource if other checks report the
// same object for a reason of their own.
func Prune(results []*Result) {
	covered, restarted := map[finding.Object]bool{}, map[finding.Object]bool{}
	for _, r := range results {
		if r.Check.Symptom == Known || r.Check.Last {
			continue
		}
		for _, f := range r.Findings {
			if f.ID == "wl.idle-holder" {
				continue // the message may explain why the GPUs are idle
			}
			if f.ID == "wl.pod-failing" && f.Severity == finding.Info {
				restarted[f.Object] = true // or failed long ago; the finding does not cover its current messages
				continue
			}
			covered[f.Object] = true
			for _, name := range slices.Concat(f.Pods, f.PodScope) {
				if namespace, name, ok := strings.Cut(name, "/"); ok {
					covered[finding.Object{Kind: "Pod", Namespace: namespace, Name: name}] = true
				}
			}
		}
	}
	for _, r := range results {
		if r.Check.Symptom == Known || r.Check.Last {
			r.Findings = slices.DeleteFunc(r.Findings, func(f finding.Finding) bool {
				return covered[f.Object] || restarted[f.Object] && !isCurrent(f)
			})
		}
	}
}

// isCurrent reports whether a finding quotes the log of an instance that is still running.
func isCurrent(f finding.Finding) bool {
	return len(f.Evidence) > 0 && strings.HasPrefix(f.Evidence[0].Source, "log of ") &&
		!strings.HasSuffix(f.Evidence[0].Source, previous)
}

// merging is a finding into which other findings are merged. It uses sets because a finding may concern thousands of
// nodes.
type merging struct {
	finding.Finding
	objects    map[finding.Object]bool
	nodes      map[string]bool
	pods       map[string]bool
	named      map[string]bool // the keys of Finding.Pods
	everywhere bool            // at least one of the merged findings names no node
}

func (m *merging) add(f finding.Finding) {
	if !m.objects[f.Object] {
		m.objects[f.Object] = true
		m.Objects = append(m.Objects, f.Object)
	}
	m.Mute = m.Mute && f.Mute
	m.everywhere = m.everywhere || len(f.Nodes) == 0
	if !slices.Equal(f.Nodes, m.Nodes) || len(m.nodes) == 0 {
		for _, n := range f.Nodes {
			m.nodes[n] = true
		}
	}
	for _, p := range f.PodScope {
		m.pods[p] = true
		// A scope that contains a space is an object's name. It is used only to keep findings separate.
		m.named[p] = m.named[p] || !strings.Contains(p, " ")
	}
	for _, p := range f.Pods {
		m.named[p] = true
	}
	for _, e := range f.Evidence {
		if len(m.Evidence) < finding.Most && !slices.Contains(m.Evidence, e) {
			m.Evidence = append(m.Evidence, e)
		}
	}
	for _, c := range f.Fix.Commands {
		if len(m.Fix.Commands) < finding.Most && !slices.Contains(m.Fix.Commands, c) {
			m.Fix.Commands = append(m.Fix.Commands, c)
		}
	}
	if finding.Rank(f.Severity) < finding.Rank(m.Severity) {
		m.Severity = f.Severity
	}
}

func (m *merging) finish() finding.Finding {
	f := m.Finding
	f.Nodes, f.PodScope, f.Pods = nil, slices.Sorted(maps.Keys(m.pods)), onlyTrue(m.named)
	if !m.everywhere {
		f.Nodes = slices.Sorted(maps.Keys(m.nodes))
	}
	if len(f.Objects) == 1 {
		f.Objects = nil
	}
	return f
}

// cause identifies the findings that have the same effects.
type cause struct {
	id, as         string
	written, ofRun bool
}

func causeOf(f finding.Finding) cause { return cause{f.ID, f.As, f.Written, f.OfRun} }

// explain sets the CausedBy field of each finding to the IDs of its possible causes. A finding can cause another one if
// its check declares this and both concern the same node or pod. explain uses indexes instead of comparing all pairs
// because thousands of nodes may have findings.
func explain(all []finding.Finding, checks []Check) {
	type place struct {
		cause
		where string
	}
	byID := map[string]Check{}
	for _, c := range checks {
		byID[c.ID] = c
	}
	here, anywhere := map[place]*span{}, map[cause]bool{}
	causes, labs := map[cause][]string{}, map[cause][]*finding.Lab{}
	put := func(where place, f finding.Finding) {
		if here[where] == nil {
			here[where] = &span{}
		}
		here[where].add(f)
	}
	for i, f := range all {
		check := byID[f.ID]
		if all[i].Mute = f.Severity == finding.Info && !check.InfoExplains; all[i].Mute {
			continue
		}
		from := causeOf(f)
		causes[from] = check.Explains
		if patterns, narrower := check.ExplainsAs[f.As]; narrower {
			causes[from] = patterns
		}
		if f.Written {
			causes[from] = finding.DetectorsDo()
		}
		if f.OfRun {
			causes[from] = nil // the finding about the run itself explains the effects, by time and device
		}
		if f.Lab != nil {
			labs[from] = append(labs[from], f.Lab)
			continue
		}
		if len(f.PodScope) == 0 && len(f.Nodes) == 0 {
			anywhere[from] = true
		}
		kind := "node "
		if len(f.PodScope) > 0 {
			kind = "pods on "
		}
		for _, n := range f.Nodes {
			put(place{from, kind + n}, f)
		}
		for _, p := range f.PodScope {
			put(place{from, "pod " + p}, f)
		}
	}
	for i, f := range all {
		for from, patterns := range causes {
			if from.id == f.ID || slices.Contains(all[i].CausedBy, from.id) || !finding.AnyMatches(patterns, f.ID) {
				continue
			}
			if slices.Contains(finding.ProvenByItself(), f.ID) && !slices.Contains(patterns, f.ID) {
				continue
			}
			if from.id == finding.InjectedFault && finding.IsOfGPU(f) && !f.OfRun &&
				!slices.ContainsFunc(labs[from], func(l *finding.Lab) bool { return l.IsSource(f) }) {
				continue // the driver reported the error, not an injected line
			}
			if slices.ContainsFunc(labs[from], func(l *finding.Lab) bool { return l.Covers(f) }) {
				all[i].CausedBy = append(all[i].CausedBy, from.id)
				continue
			}
			if len(labs[from]) > 0 {
				continue
			}
			// A finding without a node, or about an unscheduled pod, may have its cause anywhere. A pod that reports
			// the reason itself is explained only by causes that concern that pod. A run explains only effects on the
			// objects that it changed.
			near := (anywhere[from] || len(f.Nodes) == 0) && !f.Own && from.id != finding.InjectedFault
			for _, n := range f.Nodes {
				near = near || !f.Own && here[place{from, "node " + n}].meets(f) ||
					len(f.PodScope) == 0 && here[place{from, "pods on " + n}].meets(f)
			}
			for _, p := range f.PodScope {
				near = near || here[place{from, "pod " + p}].meets(f)
			}
			if near {
				all[i].CausedBy = append(all[i].CausedBy, from.id)
			}
		}
		slices.Sort(all[i].CausedBy)
	}
}

// Fold sets Root for findings that no other finding explains, and lowers the severity of the others. Findings that
// explain each other, directly or indirectly, are all root causes.
func Fold(all []finding.Finding) ([]finding.Finding, []finding.Edge) {
	declared := func(from, to int) bool {
		return from != to && slices.Contains(all[to].CausedBy, all[from].ID) && related(all[from], all[to]) &&
			!all[from].Mute
	}
	// A message that names the root cause reverses the edge: it explains the finding that would otherwise explain it.
	// The log of a user's pod must not hide a problem with a node, because users choose what their pods print.
	turned := func(from, to int) bool {
		return all[from].Decisive && !all[to].Decisive && declared(to, from) &&
			!(all[from].Layer == finding.LayerWorkload && all[to].Object.Kind == "Node") &&
			!finding.AnyMatches(finding.KnowMore(), all[to].ID)
	}
	causes := func(from, to int) bool { return turned(from, to) || declared(from, to) && !turned(to, from) }
	// direct[i] lists the findings that finding i explains directly.
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
		for j := range all {
			if turned(j, i) && !slices.Contains(all[i].CausedBy, all[j].ID) {
				all[i].CausedBy = append(all[i].CausedBy, all[j].ID)
			}
		}
	}
	for i := range all {
		if all[i].Root {
			all[i].CausedBy = nil
		} else {
			all[i].Severity = finding.Info
		}
	}
	sorting.StableFunc(order, func(a, b int) int {
		return cmp.Or(
			compareBool(all[b].Root, all[a].Root),
			cmp.Compare(finding.Rank(all[a].Severity), finding.Rank(all[b].Severity)),
			compareBool(finding.IsRisk(all[a].ID), finding.IsRisk(all[b].ID)), // failures precede risks
		)
	})
	place := make([]int, len(all))
	sorted := make([]finding.Finding, len(all))
	for i, from := range order {
		sorted[i], place[from] = all[from], i
	}
	edges := []finding.Edge{}
	for i := range direct {
		for _, j := range direct[i] {
			if !all[j].Root {
				edges = append(edges, finding.Edge{From: place[i], To: place[j]})
			}
		}
	}
	sorting.Func(edges,
		func(a, b finding.Edge) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return sorted, edges
}

// related reports whether two findings concern the same object: the same pod if both name pods, otherwise the same
// node. A finding that names no node is related to all findings. A lab is related to everything in it.
func related(a, b finding.Finding) bool {
	if a.Lab != nil {
		return a.Lab.Covers(b)
	}
	if strings.HasSuffix(a.As, finding.OfPlugin) && b.ID != a.ID {
		return true // pods on any node may use the plugin's resources
	}
	if len(a.PodScope) > 0 && len(b.PodScope) > 0 {
		return slices.ContainsFunc(a.PodScope, func(p string) bool { return slices.Contains(b.PodScope, p) })
	}
	if len(a.Nodes) == 0 || len(b.Nodes) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Nodes, func(n string) bool { return slices.Contains(b.Nodes, n) })
}

func (i Ignore) hides(f finding.Finding) bool {
	if !Matches(i.ID, f.ID) {
		return false
	}
	return i.Object == "" || Matches(i.Object, f.Object.String())
}

// Matches is like path.Match, except that * also matches slashes. An invalid pattern matches only itself.
func Matches(pattern, text string) bool {
	ok, err := path.Match(noSlash(pattern), noSlash(text))
	return err == nil && ok || pattern == text
}

func noSlash(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// onlyTrue returns the sorted keys whose value is true.
func onlyTrue(set map[string]bool) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if set[key] {
			all = append(all, key)
		}
	}
	return all
}
