package baseline

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// NodeChange is an item of a node's state that differs.
type NodeChange struct {
	Node string
	// Item is the item's kind and name, as in api.Info.State: file /etc/crontab.
	Item string
	Kind Kind
}

// String returns the change in words: the file /etc/crontab was changed.
func (c NodeChange) String() string {
	switch c.Kind {
	case Created:
		return "the " + c.Item + " is new"
	case Deleted:
		return "the " + c.Item + " is gone"
	}
	return "the " + c.Item + " was changed"
}

// Difference returns the change as a difference of the node.
func (c NodeChange) Difference() Difference {
	return Difference{Ref: scenario.Ref{APIVersion: "v1", Kind: "Node", Name: c.Node}, Kind: Changed, Note: c.String()}
}

// NodeChanges returns what was changed on the nodes that both baselines contain, except at the allowed paths. Modules
// that the kernel has loaded and processes that have terminated do not count as changes, because the kernel loads
// modules by itself.
func NodeChanges(before, after *Baseline, allowed []string) (all []NodeChange) {
	for _, node := range slices.Sorted(maps.Keys(after.Nodes)) {
		was, is := before.Nodes[node], after.Nodes[node]
		if was == nil {
			continue
		}
		items := maps.Clone(was)
		maps.Copy(items, is)
		for _, item := range slices.Sorted(maps.Keys(items)) {
			if kind := nodeChange(item, was, is); kind != "" && !AllowedOnNodes(item, allowed) {
				all = append(all, NodeChange{node, item, kind})
			}
		}
	}
	return all
}

// AllowedOnNodes reports whether an item is a file at or below one of the allowed paths.
func AllowedOnNodes(item string, allowed []string) bool {
	kind, name, _ := strings.Cut(item, " /")
	return kind == api.StateFile && slices.ContainsFunc(allowed, func(path string) bool {
		path = strings.Trim(path, "/")
		return path != "" && strings.HasPrefix(name+"/", path+"/")
	})
}

func nodeChange(item string, was, is map[string]string) Kind {
	before, existed := was[item]
	now, exists := is[item]
	ofRun := before == api.StateOfRun
	switch {
	case strings.HasPrefix(item, api.StateModule+" ") && exists:
		return ""
	case strings.HasPrefix(item, api.StateProcess+" ") && !exists:
		return ""
	case existed && exists && !ofRun && strings.HasPrefix(item, api.StateTable+" "):
		return "" // the component that made the table may change it at any time
	case ofRun && !strings.HasPrefix(now, api.StateDrops): // the fault's own table: removed, emptied or opened
		return ""
	case !existed:
		return Created
	case !exists:
		return Deleted
	case before != now:
		return Changed
	}
	return ""
}
