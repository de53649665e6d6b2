package usage

// Verdict is the error returned by a command that succeeded with a negative result: it found leftovers, or an
// expectation was not met. The exit code is 2.
type Verdict struct {
	// Message is printed to stderr. It is empty if the output already contains the message.
	Message string
}

func (v *Verdict) Error() string { return v.Message }
