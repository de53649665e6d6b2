package engine

// Ignore names findings that are known and accepted.
type Ignore struct {
	ID string `json:"id"` // or a pattern: "hw.*"
	// "Node gpu-*", as Object.String prints it, with * for anything; empty means all
	Object string `json:"object,omitempty"`
	Reason string `json:"reason,omitempty"`
}
