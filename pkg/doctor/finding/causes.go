package finding

import (
	"slices"
	"strings"
	"time"
)

// AnyMatches reports whether any of the patterns, such as "dp.*", matches the ID.
func AnyMatches(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")
		return id == pattern || wild && strings.HasPrefix(id, prefix)
	})
}

// ProvenByItself returns the IDs of findings that are proven by the object's own spec or image, regardless of other
// problems. Only a check that explicitly lists such an ID explains the finding; patterns do not match it.
func ProvenByItself() []string {
	return []string{
		"sched.wrong-resource-name", "sched.bigger-than-any-node", "sched.node-selector", "sched.taint", "sched.volume",
		"sched.insufficient-other",
		"rbac.quota", "ns.podsecurity", "img.not-found", "img.pull-auth",
		"wl.exec-format", "wl.config-error", "wl.volume", "wl.oom-killed", "wl.shm",
	}
}

// Means reports whether a pattern in Check.Explains matches a finding ID. Wildcards do not match the IDs that
// ProvenByItself returns.
func Means(pattern, id string) bool {
	return pattern == id || !slices.Contains(ProvenByItself(), id) && AnyMatches([]string{pattern}, id)
}

// DetectorsDo returns the IDs of findings that follow from a line that a program wrote to the kernel log. The GPU is
// healthy, but detectors react to the line.
func DetectorsDo() []string { return []string{"node.condition", "sched.node-state"} }

// KnowMore returns the IDs, or patterns, of findings that are based not only on a message but on the state of the node
// or the GPU. No message can name a deeper cause than these findings.
func KnowMore() []string {
	return []string{
		"fault.*", "hw.*", "drv.lib-mismatch", "drv.nouveau", "drv.secureboot", "drv.image-tag-missing",
		"drv.build-fail", "node.inotify", "rt.unparsable", "rt.runtime-type", "rt.cgroup-driver", "imex.domain",
		"share.timeslicing",
	}
}

// IsRisk reports whether findings with the ID describe a risk rather than a failure.
func IsRisk(id string) bool { return strings.HasPrefix(id, "sec.") }

// Rank returns the rank of a severity. The worst severity has rank 0.
func Rank(s Severity) int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// IncidentReach is the time after the end of an incident during which pods may still fail because of the incident.
// ClockSkew is the maximum clock skew between nodes and the API server.
const (
	IncidentReach = 10 * time.Minute
	ClockSkew     = time.Minute
)
