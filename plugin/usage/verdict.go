package usage

// Verdict ends a command that worked, and whose answer is no: leftovers were found, an expectation was not met. The
// exit code is 2.
type Verdict struct {
	// Message is for stderr; empty when the output has said it.
	Message string
}

func (v *Verdict) Error() string { return v.Message }
