package engine

// Ignore selects findings that are known and accepted.
type Ignore struct {
	ID string `json:"id"` // an ID or a pattern: "hw.*"
	// Object is an object in the format of Object.String, with * as a wildcard, for example "Node gpu-*". An empty
	// Object matches all objects.
	Object string `json:"object,omitempty"`
	Reason string `json:"reason,omitempty"`
}
