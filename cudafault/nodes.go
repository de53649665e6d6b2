package cudafault

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// NodeHash returns the representation of a node in a decoded state: "#" and the FNV-1a hash of its name. Encode accepts
// it in place of the name.
func NodeHash(node string) string { return fmt.Sprintf("#%016x", nodeHash(node)) }

// HasNode reports whether the fault acts on the node.
func (s State) HasNode(node string) bool {
	if len(s.Nodes) == 0 {
		return true
	}
	for _, n := range s.Nodes {
		if nodeHash(n) == nodeHash(node) {
			return true
		}
	}
	return false
}

// nodeHash returns the hash of a node, given by its name or its NodeHash. Node names cannot contain "#".
func nodeHash(node string) uint64 {
	if digits, is := strings.CutPrefix(node, "#"); is && len(digits) == 16 {
		var hash uint64
		if _, err := fmt.Sscanf(digits, "%016x", &hash); err == nil {
			return hash
		}
	}
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}
