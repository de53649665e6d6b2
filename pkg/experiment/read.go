package experiment

import (
	"errors"
	"fmt"
	"io"
	"math"

	kjson "sigs.k8s.io/json"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Limits for result files, which are untrusted.
const (
	maxResult   = 32 << 20
	maxVerdicts = 100_000
	maxName     = 1000
	maxSeconds  = 1e8 // three years
)

// ReadResult reads a result in the format of `run -o json`. name is the name of the file, for errors. Unknown fields
// are ignored, because later versions may add fields.
func ReadResult(name string, from io.Reader) (Result, error) {
	var r Result
	data, err := io.ReadAll(io.LimitReader(from, maxResult+1))
	if err != nil {
		return r, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxResult {
		return r, fmt.Errorf("%s is larger than %d MiB", name, maxResult>>20)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &r); err != nil {
		return r, fmt.Errorf("%s is not the output of run -o json: %w", name, err)
	}
	if r.APIVersion != ledger.APIVersion || r.Kind != KindResult {
		return r, fmt.Errorf("%s is not the output of run -o json: must be apiVersion %s and kind %s, not %q and %q",
			name, ledger.APIVersion, KindResult, brief(r.APIVersion), brief(r.Kind))
	}
	if len(r.Verdicts) > maxVerdicts {
		return r, fmt.Errorf("%s contains more than %d verdicts", name, maxVerdicts)
	}
	for i, v := range r.Verdicts {
		if err := v.validate(); err != nil {
			return r, fmt.Errorf("%s: verdicts[%d]: %w", name, i, err)
		}
	}
	return r, nil
}

func (v Verdict) validate() error {
	limit := func(seconds float64) bool { return math.Abs(seconds) <= maxSeconds }
	switch v.State {
	case StateOK, StateLate, StateMissing, StateHappened, StateUnknown:
	default:
		return fmt.Errorf("unknown state %q", brief(string(v.State)))
	}
	switch {
	case v.Name == "" || len(v.Name) > maxName:
		return fmt.Errorf("name must be 1 to %d bytes long", maxName)
	case v.OK != (v.State == StateOK):
		return fmt.Errorf("ok is %t, but state is %s", v.OK, v.State)
	case !limit(v.After) || !limit(v.Limit) || v.Limit < 0:
		return errors.New("after or limit has an implausible number of seconds")
	case v.Round < 0 || v.Round > maxVerdicts:
		return errors.New("round must not be negative")
	}
	return nil
}

// brief shortens text from a file for an error message.
func brief(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
