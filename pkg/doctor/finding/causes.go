package finding

import (
	"slices"
	"strings"
	"time"
)

// AnyMatches reports whether one of the patterns, such as "dp.*", means the ID.
func AnyMatches(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")
		return id == pattern || wild && strings.HasPrefix(id, prefix)
	})
}

// ProvenByItself are findings whose proof is in the object's own specification, or in its image, whatever else is wrong
// near it: only a check that names the ID explains them, and no pattern does.
func ProvenByItself() []string {
	return []string{
		"sched.wrong-resource-name", "sched.bigger-than-any-node", "sched.node-selector", "sched.taint", "sched.volume",
		"sched.insufficient-other",
		"rbac.quota", "ns.podsecurity", "img.not-found", "img.pull-auth",
		"wl.exec-format", "wl.config-error", "wl.volume", "wl.oom-killed", "wl.shm",
	}
}

// Means reports whether a pattern of Check.Explains means a finding: one that is proven by itself only by its name.
func Means(pattern, id string) bool {
	return pattern == id || !slices.Contains(ProvenByItself(), id) && AnyMatches([]string{pattern}, id)
}

// DetectorsDo returns what follows from a line that a program wrote into the kernel log: nothing is wrong with the GPU,
// and detectors act on it.
func DetectorsDo() []string { return []string{"node.condition", "sched.node-state"} }

// Rank orders severities, the worst first.
func Rank(s Severity) int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// How long after an incident that is over a pod may fail because of it, and how far apart the clocks of nodes and of
// the API may be.
const (
	IncidentReach = 10 * time.Minute
	ClockSkew     = time.Minute
)
