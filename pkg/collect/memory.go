package collect

import (
	"math"
	"runtime/debug"
)

// A cluster with 5,000 nodes and 50,000 pods uses 155 MiB of live memory. By default, Go would allow the same amount of
// garbage in addition. More frequent collections are expensive only near the limit.
const (
	memoryLimit   = 215 << 20
	memoryPerNode = memoryLimit / 5000
)

// LimitMemory makes this process collect garbage more often. The memory limit suits a cluster with up to 5,000 nodes;
// once Collect knows the number of nodes, it raises the limit in proportion for larger clusters. A limit set by
// GOMEMLIMIT is kept.
func LimitMemory() (restore func()) {
	percent, limit := debug.SetGCPercent(50), debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		debug.SetMemoryLimit(memoryLimit)
	}
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// raiseMemoryLimit adapts the limit set by LimitMemory to the number of nodes: a limit below the live memory would make
// the collector run all the time.
func raiseMemoryLimit(nodes int) {
	if debug.SetMemoryLimit(-1) == memoryLimit {
		debug.SetMemoryLimit(max(memoryLimit, int64(nodes)*memoryPerNode))
	}
}
