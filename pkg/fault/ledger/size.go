package ledger

import "encoding/json"

// Size returns the size of a run's record as JSON, in bytes. MaxSize is its limit.
func Size(run Run) int {
	text, err := json.Marshal(run)
	if err != nil {
		return MaxSize // a run that cannot be encoded has no room
	}
	return len(text)
}
